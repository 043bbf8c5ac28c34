"""MDPO off-policy: SAC whose actor steps by mirror descent, near the policy it was a thousand updates ago."""

from upslope.methods.control.sac import sac
from upslope.objective.critics import FirstMember, QFunction, SoftValue
from upslope.objective.references import Snapshot
from upslope.objective.regularize.pathwise import PathwiseKL, SmallOutputs
from upslope.objective.surrogate.improvement import SoftImprovement
from upslope.types import Paper

mdpo_off = sac.derive(
    name="mdpo-off",
    paper=Paper("Mirror Descent Policy Optimization", arxiv="2005.09814", year=2020),
    differs="the actor is held near an earlier policy by a KL, follows the first critic alone, and the temperature is a number",
    formula=r"L_π = κ log π(a|s) + (λ - κ) log π_k(a|s) - Q_1(s, a),   κ = λ + 1/t,   "
    r"y = r + γ (min_i Q̄_i(s', a') - λ log π(a'|s'))",
    use_when="sac's policy jumps between updates, or its temperature will not settle",
    surrogate=SoftImprovement(over=FirstMember(), temperature=0.2),
    regularize=(PathwiseKL(weight=0.8), SmallOutputs(weight=1e-3)),
    models={"q": QFunction(target=SoftValue(temperature=0.2), weight=0.5)},
    references={"previous": Snapshot(age="newest")},
    notes="regularize.0.weight is 1/t = κ - λ, and λ the two temperatures. π_k is renewed at every step of the run, which is 1000 "
    "updates unless --updates-per-step says otherwise: the paper's M. The released code values states by a network of their own "
    "and acts at random for 10,000 steps; here the target is SAC's, and the first steps are its 100. log π_k is undone from the "
    "squashed action and has no gradient where that is within 1e-6 of its bounds.",
)
