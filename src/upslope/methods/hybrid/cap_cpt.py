"""Documents into weights: continued pre-training by category, then supervised fine-tuning without them."""

from upslope.methods.hybrid.sft import sft
from upslope.objective.advantage.constant import ConstantAdvantage
from upslope.objective.aggregate import TokenMean
from upslope.objective.ratio import NoRatio
from upslope.objective.stages import Stage
from upslope.objective.surrogate import LogLikelihood
from upslope.rollout.categories import FromCategories
from upslope.types import Paper

cap_cpt = sft.derive(
    name="cap-cpt",
    paper=Paper("Analyzing and Internalizing Complex Policy Documents for LLM Agents", year=2025),
    differs="the first half of the run reads what is written about the rules, each category of them in its share; then answers are "
    "imitated without the rules in the prompt",
    formula="cpt:  L = -(1/Σ_i T_i) Σ_i Σ_t log π(d_it | d_i<t),   d_i ~ Σ_c w_c D_c / Σ_c w_c;   then as sft",
    use_when="a rulebook is too long to stand in every prompt, and its conditions are nested deeper than examples alone teach",
    stages=Stage(
        name="cpt",
        share=0.5,
        rollout=FromCategories(),
        advantage=ConstantAdvantage(),
        ratio=NoRatio(),
        surrogate=LogLikelihood(),
        aggregate=TokenMean(),
    ),
    notes="Inferred from the abstract, which gives neither shares nor weights: half of the run and equal weights are ours "
    "(stages.cpt.share, stages.cpt.rollout.mixture). The texts of each category (restatements and questions of facts, "
    "demonstrations of behaviours, worked branches of conditions) come with the task, as the documents of its problems; nothing is "
    "written by a model here. cap-cpt+poro goes on with RL, and both phases of cap-cpt then take half of the run.",
)
