"""Asked again with help: GHPO, Scaf-GRPO, ExPO and PoRo are one part with different switches."""

from upslope.evolve.guidance import GUIDED, Guidance
from upslope.evolve.hints import AnswerShown, DocumentsShown, SolutionPrefix, TaskHints
from upslope.methods.rlvr.grpo import grpo
from upslope.objective.advantage import GroupBaseline
from upslope.objective.advantage.constant import ConstantAdvantage
from upslope.objective.aggregate import SequenceMeanTokenMean
from upslope.objective.filter.replaced import Replaced
from upslope.objective.ratio import NoRatio
from upslope.objective.surrogate import LogLikelihood
from upslope.objective.terms import Term
from upslope.types import Paper

ghpo = grpo.derive(
    name="ghpo",
    family="hybrid",
    paper=Paper("GHPO: Adaptive Guidance for Stable and Efficient LLM Reinforcement Learning", arxiv="2507.10628", year=2025),
    differs="a group without a right answer is sampled anew with the beginning of the solution in its prompt, a quarter, half and "
    "three quarters of it, until one answer is right; no KL",
    formula=r"as grpo without KL; if max_i R_i <= 0:  y_i ~ π(· | x, h_ω),  ω = 0.25, 0.5, 0.75  until max_i R_i > 0,   "
    r"h_ω the first share ω of the solution; learned behind the hinted prompt",
    use_when="solutions are known, many groups fail altogether, and sampling them again is affordable",
    data=Guidance(hints=SolutionPrefix(), trigger="failed", replace="all", learn="asked"),
    filter=Replaced(),
    advantage=GroupBaseline(scale="std", eps=1e-4),
    regularize=None,
    notes="The ladder of the released code; the paper describes a single ratio (data.hints.shares=(0.5,)) and a cold start "
    "(data.begin). Its reward also pays half a point for format, which belongs to a task. A group that fails with every "
    "hint enters "
    "without signal, with the answers to the last.",
)

scaf_grpo = grpo.derive(
    name="scaf-grpo",
    family="hybrid",
    paper=Paper(
        "Scaf-GRPO: Scaffolded Group Relative Policy Optimization for Enhancing LLM Reasoning", arxiv="2510.19807", year=2025
    ),
    differs="a group without a right answer is asked once with each hint, and the right answer with the weakest hint takes "
    "the place "
    "of one of its own; no KL",
    formula=r"as grpo without KL; if max_i R_i <= 0:  y_1 ← y(l*),  l* = min { l : R(y(l)) > 0 },  y(l) ~ π(· | x, hint_l),   "
    r"A_1 = (1 - 1/G)/std, A_i = -(1/G)/std",
    use_when="problems come with hints, and a policy should learn with as little help as it needs",
    data=Guidance(hints=TaskHints(), trigger="failed", replace="one", learn="asked", begin=0.1),
    filter=Replaced(),
    regularize=None,
    notes="The answer is learned behind the hinted prompt, as in the released default; data.learn=problem glues it to the "
    "plain one. "
    "Hints are the task's own, weakest first; the paper has twelve, in tiers of knowledge, plan and solution (its code leaves the "
    "second out). The warm-up without help is 50 steps there, a tenth of the run here. Replacing two answers is left out.",
)

expo_explain = grpo.derive(
    name="expo-explain",
    family="hybrid",
    paper=Paper(
        "ExPO: Unlocking Hard Reasoning with Self-Explanation-Guided Reinforcement Learning", arxiv="2507.02834", year=2025
    ),
    differs="where a group has no right answer, the policy explains the known one, and imitates that behind the plain prompt",
    formula=r"L = L_GRPO - λ mean log π(ỹ | x),   ỹ ~ π(· | x, a*) and right,   λ = 0.5",
    use_when="only final answers are known, not solutions, and the model can explain an answer that it could not find",
    data=Guidance(hints=AnswerShown(), trigger="failed", replace="none", learn="problem", samples=1, aside=True),
    terms={
        "explained": Term(
            source=GUIDED,
            advantage=ConstantAdvantage(),
            ratio=NoRatio(),
            surrogate=LogLikelihood(),
            aggregate=SequenceMeanTokenMean(),
            when="with",
            scale=0.5,
        )
    },
    notes="ExP-GRPO: the sampler is as published, the weight is ours (terms.explained.scale; 0.1 to 1 seem sensible). Explanations "
    "that do not end in the answer are not imitated. data.trigger=always explains every problem. The other form, preferences "
    "between explanations and wrong answers, needs a loss of pairs.",
)

poro = grpo.derive(
    name="poro",
    family="hybrid",
    paper=Paper("Multimodal Policy Internalization for Conversational Agents", arxiv="2510.09474", year=2025),
    differs="as many answers again are written with the documents in the prompt, join the group, and are learned without them",
    formula=r"as grpo over y_1..y_G ~ π(· | x), y_(G+1)..y_2G ~ π(· | P, x),   A over all 2G,   r = π(y | x) / π_old(y | x) "
    r"for all",
    use_when="a rulebook is to be learned by heart, so that it need not stand in the prompt any more",
    data=Guidance(hints=DocumentsShown(), trigger="always", replace="none", learn="problem"),
    notes="Inferred from abstract and summaries. That half of the answers was sampled from another context is ignored on "
    "purpose, as "
    "in the paper; ratio.against=behavior divides by who really wrote them. Take half of --samples-per-task to sample as many as "
    "grpo. The first two stages of the paper, learning the documents themselves, are cap-cpt's: cap-cpt+poro. On a CPU "
    "the answers that were written with the documents cost a forward pass, as they are learned behind another prompt.",
)
