"""Direct preference optimization, its squared and its reference-free form, its form on single answers, and DPO on fresh samples."""

from upslope.objective.advantage.contest import BestWorst, Sides
from upslope.objective.aggregate import GroupMean, SequenceMeanTokenMean
from upslope.objective.filter.contest import Decided
from upslope.objective.ratio.references import AgainstReferences
from upslope.objective.surrogate.preference import SigmoidPreference, SquaredPreference, UnpairedSigmoid
from upslope.objective.weight.advantage import OnlyDecided
from upslope.rollout.pairs import FromLabels, FromPairs
from upslope.types import Method, Paper

dpo = Method(
    name="dpo",
    family="preference",
    paper=Paper("Direct Preference Optimization: Your Language Model is Secretly a Reward Model", arxiv="2305.18290", year=2023),
    differs="no sampling and no reward: of two given answers the log-likelihood of the chosen one should rise against the rejected "
    "one's, both measured from where the run began",
    formula=r"L = -log σ(β [log π(y_w)/π_start(y_w) - log π(y_l)/π_start(y_l)])",
    use_when="pairs of answers are at hand and sampling is too dear, or nothing can score an answer",
    rollout=FromPairs(),
    advantage=Sides(),
    filter=(Decided(),),
    ratio=AgainstReferences(),
    surrogate=SigmoidPreference(),
    aggregate=GroupMean(),
    notes="Only the difference of the two log-likelihoods is asked for: both may fall, the chosen one too, when the two answers "
    "are alike. A run reports logp_chosen and logp_rejected and says so. The first loss is log 2. Several rejected answers count "
    "by their mean, or by surrogate.losers=softmax.",
)

ipo = dpo.derive(
    name="ipo",
    paper=Paper("A General Theoretical Paradigm to Understand Learning from Human Preferences", arxiv="2310.12036", year=2023),
    differs="the difference is drawn to a fixed size by a square, so that certain pairs do not push for ever",
    formula=r"L = (log π(y_w)/π_start(y_w) - log π(y_l)/π_start(y_l) - 1/(2τ))²",
    use_when="the pairs hardly contradict each other, where DPO drives apart without end",
    surrogate=SquaredPreference(),
    notes="The paper sums over tokens; many trainers take the mean (surrogate.unit=mean), where τ means something else.",
)

simpo = dpo.derive(
    name="simpo",
    paper=Paper("SimPO: Simple Preference Optimization with a Reference-Free Reward", arxiv="2405.14734", year=2024),
    differs="no reference: mean log-likelihoods per token are compared, and the chosen one must lead by a margin",
    formula=r"L = -log σ((β/|y_w|) log π(y_w) - (β/|y_l|) log π(y_l) - γ)",
    use_when="the reference model does not fit into memory, or answers of different length are to be compared fairly",
    ratio=AgainstReferences(references=(), weights=()),
    surrogate=SigmoidPreference(beta=2.0, unit="mean", margin=1.0),
    notes="surrogate.margin is γ, half of β here; the paper has β from 2 to 2.5 and γ/β from 0.3 to 0.5. Nothing holds the policy "
    "near its start.",
)

kto = dpo.derive(
    name="kto",
    paper=Paper("KTO: Model Alignment as Prospect Theoretic Optimization", arxiv="2402.01306", year=2024),
    differs="no pairs: each answer is wanted or not, and compared with how far the policy has moved in general",
    formula=r"L = w (1 - σ(±β [log π(y)/π_start(y) - z0])),   z0 = max(0, mean log π(y')/π_start(y') on mismatched prompts)",
    use_when="people gave thumbs up and thumbs down, and no two answers to one prompt can be compared",
    rollout=FromLabels(),
    filter=(),
    surrogate=UnpairedSigmoid(),
    weight=(OnlyDecided(),),
    aggregate=SequenceMeanTokenMean(),
    notes="z0 is measured on all mismatched rows of an update, before it is cut, without gradient: a forward pass more. Pairs are "
    "taken apart into two answers. An update of one kind alone is legal.",
)

online_dpo = dpo.derive(
    name="online-dpo",
    paper=Paper("Direct Language Model Alignment from Online AI Feedback", arxiv="2402.04792", year=2024),
    differs="the pairs are the policy's own: of the answers it samples to a problem the best wins and the worst loses",
    formula=r"y_1..y_k ~ π,   y_w = argmax R, y_l = argmin R,   L = -log σ(β [log π(y_w)/π_start(y_w) - log π(y_l)/π_start(y_l)])",
    use_when="something can score or compare answers, and only the order of answers is to be trusted, not the size of the reward",
    rollout=None,
    advantage=BestWorst(),
    notes="The paper samples two answers; more give pairs that are further apart (--samples-per-task). Groups in which all earned "
    "the same are dropped.",
)
