"""Self-play on preferences: the policy against its own samples, with and without an anchor."""

from upslope.evolve.comparing import Compared
from upslope.evolve.opponents import Opponents
from upslope.methods.preference.dpo import ipo, online_dpo
from upslope.methods.rlvr.reinforce import reinforce, rloo
from upslope.objective.advantage import RawReward
from upslope.objective.advantage.win_rate import PreferredPair, WinRate
from upslope.objective.aggregate import SequenceMeanTokenMean
from upslope.objective.filter.contest import BestAndWorst
from upslope.objective.filter.fresh import OnlyFresh
from upslope.objective.ratio.references import AgainstReferences
from upslope.objective.references import Snapshot
from upslope.objective.regularize import ReferenceKL
from upslope.objective.surrogate.preference import SquaredPreference, SquaredTarget
from upslope.types import Paper

sppo = online_dpo.derive(
    name="sppo",
    paper=Paper("Self-Play Preference Optimization for Language Model Alignment", arxiv="2405.00675", year=2024),
    differs="each of the two answers is drawn by a square to what its win rate deserves, measured from the policy a few steps ago",
    formula=r"L = mean over y_w, y_l of (log π(y)/π_t(y) - η (P̂(y ≻ π_t) - ½))²,   P̂(y_i ≻ π_t) = (1/K) Σ_j P_ij",
    use_when="preferences may go round, so that no reward expresses them; or the likelihood of the better answer must not fall "
    "with that of the worse",
    data=Compared(),
    advantage=WinRate(),
    filter=(BestAndWorst(),),
    ratio=AgainstReferences(("previous",), (1.0,)),
    references={"previous": Snapshot(every=5, age="newest")},
    surrogate=SquaredTarget(eta=20.0),
    aggregate=SequenceMeanTokenMean(),
    notes="η is 1,000 in the paper, for answers of hundreds of tokens; 20 suits answers of a few, where 1,000 is never reached and "
    "nothing holds the policy back. The paper has K = 5, three rounds and samples of π_t only: here the round is "
    "references.previous.every steps, and samples are the present policy's, up to that many steps away from π_t. Without itself in "
    "the win rate: advantage.with_self=false; the released code's sppo_single: advantage.single=true. Groups in which all win "
    "alike are dropped. The average of the policies approaches the Nash policy, the last one may circle around it.",
)

inpo = ipo.derive(
    name="inpo",
    paper=Paper(
        "Iterative Nash Policy Optimization: Aligning LLMs with General Preferences via No-Regret Learning",
        arxiv="2407.00617",
        year=2024,
    ),
    differs="the pairs are the policy's own, and the difference is measured from a mixture of where the run began and where the "
    "policy was a few steps ago",
    formula=r"L = (h - 1/(2η))²,   h = log π(y_w)/π(y_l) - (τ/η) log π_start(y_w)/π_start(y_l) - (1-τ/η) log π_t(y_w)/π_t(y_l)",
    use_when="preferences may go round and the last policy is what counts: the anchor lets it settle where SPPO's circles",
    rollout=None,
    data=Compared(),
    advantage=PreferredPair(),
    ratio=AgainstReferences(("start", "previous"), (0.05, 0.95)),
    references={"previous": Snapshot(every=5, age="newest")},
    surrogate=SquaredPreference(tau=1.0),
    notes="surrogate.tau is the paper's η, ratio.weights are τ/η and 1 - τ/η: here η = 1 and τ = 0.05. For language models "
    "η = 0.0075 and τ = 0.0025 are used, which ask for differences of 67 nats. The winner is not drawn: the target is scaled by "
    "how far apart win rates are, which has the same expected gradient; advantage.hard=true takes verdicts as certain. Best and "
    "worst of the samples and rounds of references.previous.every steps are inferred; two samples give the pairs of the theory.",
)

spo_minimax = rloo.derive(
    name="spo-minimax",
    family="preference",
    paper=Paper("A Minimaximalist Approach to Reinforcement Learning from Human Feedback", arxiv="2401.04056", year=2024),
    differs="the reward of an answer is the share of its siblings that it beats",
    formula=r"R_i = (1/(N-1)) Σ_{j≠i} P(y_i ≻ y_j),   then RLOO",
    use_when="answers can be compared but not scored, and any method of rewards should do the rest",
    data=Compared(pays=True),
    notes="The text form: the group is what the paper's queue of recent episodes is in control. A step reports "
    "what the task pays as reward, and the win rate, 1/2 on average, as reward_verdict. A group of one has no signal.",
)

nash_md = reinforce.derive(
    name="nash-md",
    family="preference",
    paper=Paper("Nash Learning from Human Feedback", arxiv="2312.00886", year=2023),
    differs="an answer is rewarded for beating one drawn from the policy mixed with where the run began",
    formula=r"L = mean of -(P(y ≻ y') - ½) log π(y) + β Σ_t sg(log π/π_start) log π(y_t),   y' ~ π^(1-a) π_start^a token by token",
    use_when="preferences may go round, the last policy is what counts, and rejected answers should not be pushed down",
    data=(Opponents(share=0.5), Compared(pays=True)),
    filter=OnlyFresh(),
    advantage=RawReward(baseline=0.5),
    regularize=ReferenceKL(weight=0.1, estimator="k2", limit=float("inf")),
    notes="data.0.share is a, regularize.weight is β. An opponent that leans on the start pulls the policy towards what beats the "
    "start, so the last policy is near the Nash policy of the game with a KL term only where a is small: on rock, scissors, "
    "paper from 0.8, 0.1, 0.1 exact gradients end with an exploitability of 0.18 at a = 0.5, β = 0.1 and of 0.026 at a = β = 0.03. "
    "a = 0 is self-play, a = 1 play against the start. Each answer costs a second one, the opponent's, which nobody learns from.",
)
