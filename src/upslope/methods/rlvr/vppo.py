"""VPPO: tokens and answers that depend on what was shown are those that learn."""

from upslope.methods.rlvr.grpo import dapo
from upslope.objective.references import Blinded
from upslope.objective.regularize.likelihood import LikelihoodBonus
from upslope.objective.shape.dependence import DependenceFactor
from upslope.objective.weight.dependence import TopDependence
from upslope.types import Paper

vppo = dapo.derive(
    name="vppo",
    paper=Paper("Spotlight on Token Perception for Multimodal Reinforcement Learning", arxiv="2510.09285", year=2025),
    differs="only the two fifths of each answer's tokens that depend most on the input learn; dependent answers count more; a "
    "price on entropy",
    formula="L = (1/ΣT) Σ_i Σ_t [ -w_it min(r f_i A, clip(r) f_i A) - c log π ],   w = 1[S_it among the ⌈0.4 T_i⌉ largest],   S = "
    "e^x - x - 1,   x = log π_old(blind) - log π_old,   mean f = 1",
    use_when="most tokens of an answer would be the same whatever the input says: an image, a passage, a table, a tool's output",
    references={"blind": Blinded()},
    weight=TopDependence(fraction=0.4),
    shape=DependenceFactor(least=0.9),
    regularize=LikelihoodBonus(weight=0.06),
    notes="The paper blackens patches of an image; here the input is text, and tokens of the prompt are hidden "
    "(references.blind). One more forward pass a step. The entropy price is the released code's: the mean of -log π over all "
    "tokens. Which tokens are hidden is drawn once for each task, not for each answer. The arXiv number is recalled, not "
    "re-checked.",
)
