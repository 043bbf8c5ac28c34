"""Cal-QL: conservative values that do not fall below the returns that were seen, so that going on online forgets less."""

from upslope.methods.offline.cql import cql
from upslope.objective.critics import QFunction, SoftValue
from upslope.objective.critics.conservative import Conservative
from upslope.objective.data.stored import MixedReplay
from upslope.types import Paper

cal_ql = cql.derive(
    name="cal-ql",
    offline=False,
    paper=Paper("Cal-QL: Calibrated Offline RL Pre-Training for Efficient Online Fine-Tuning", arxiv="2303.05479", year=2023),
    differs="a value of the policy's actions is not pressed below the return seen from that state; online, half of the rows are "
    "the dataset's",
    formula=r"cql, with max(Q_i(s, a_j), G(s)) in place of Q_i(s, a_j) for the policy's own a_j",
    use_when="data first, then the environment: cql's values begin so low that the first online actions look like gains",
    data=MixedReplay(demonstrated=0.5),
    models={
        "q": QFunction(target=SoftValue(entropy=False), penalty=Conservative(weight=5.0, calibrated=True), lr_scale=10.0),
        "temperature": dict(cql.models)["temperature"],
    },
    notes="G is the discounted return to the end of the recorded episode. Rows of the run's own have none, and are treated as in "
    "cql. Over choices every value is compared with G. --offline-steps says how long the data are all it learns from.",
)
