"""Supervised fine-tuning."""

from upslope.objective.advantage.constant import ConstantAdvantage
from upslope.objective.aggregate import TokenMean
from upslope.objective.ratio import NoRatio
from upslope.objective.surrogate import LogLikelihood
from upslope.rollout.given import FromAnswers
from upslope.types import Method, Paper

sft = Method(
    name="sft",
    family="hybrid",
    paper=Paper("Training language models to follow instructions with human feedback", arxiv="2203.02155", year=2022),
    differs="no sampling and no reward: the solutions that come with the problems are imitated, token by token",
    formula=r"L = -(1/Σ_i T_i) Σ_i Σ_t log π(y*_it | x_i, y*_i<t)",
    use_when="solutions are known for many problems and the model cannot solve them yet; before any of the others",
    rollout=FromAnswers(),
    advantage=ConstantAdvantage(),
    ratio=NoRatio(),
    surrogate=LogLikelihood(),
    aggregate=TokenMean(),
    notes="A solution is the key `solution` of a problem, else its answer. `tasks_per_step` is the batch; `--samples-per-task` has "
    "no meaning. The default learning rate is the one for RL; imitation bears ten times as much. "
    "The rows have no reward, so a step reports the loss, and as kl_start how far the policy's log-probabilities of "
    "some of these tokens have come from those at the start (every eighth row); held-out accuracy is measured as for any method.",
)
