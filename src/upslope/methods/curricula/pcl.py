"""PCL: a value of the prompt says which problems are worth sampling."""

from upslope.methods.rlvr.grpo import grpo
from upslope.objective.curriculum import ByPromptValue
from upslope.objective.models.prompt_value import PromptValue
from upslope.types import Paper

pcl = grpo.derive(
    name="pcl",
    family="curricula",
    paper=Paper("Prompt Curriculum Learning for Efficient LLM Post-Training", arxiv="2510.01135", year=2025),
    differs="a value learned beside the policy reads each prompt, and the problems it puts nearest to one half are taken",
    formula=r"the m smallest |V(x) - 1/2| of 4 m candidates,   L = L_GRPO + (1/G) Σ_x (V(x) - mean_j R(x, y_j))²",
    use_when="there are more problems than can be tried twice: what was learned of some prompts tells how hard others are",
    curriculum=ByPromptValue(),
    models={"prompt_value": PromptValue()},
    notes="In the paper the value is a model of the policy's size; ours is a linear head on the policy's last layer at the "
    "prompt's end, learned as a critic of PPO is, so that looking at candidates costs one forward pass over their prompts. On a "
    "large model models.prompt_value.shared=false leaves the policy untouched by it; a small one then holds too little of how hard "
    "a prompt is. Its weight and 4 candidates are ours. Filters that drop groups before the update keep their outcomes from the "
    "value: with dapo it never sees problems that are always or never solved. The share of answers that teach is one minus "
    "constant_groups in the metrics.",
)
