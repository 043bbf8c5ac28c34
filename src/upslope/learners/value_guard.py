"""Values that nothing explains end a run.

A return cannot be larger than the largest reward over one minus the discount. A critic that says more has begun to believe itself:
it values actions nobody has tried by what it says of other actions nobody has tried, and goes on until numbers overflow.
"""

from __future__ import annotations

from upslope.learners.nonfinite import NonFinite
from upslope.types import Method, Metrics

SLACK = 3.0
"""How far above what rewards and discount allow a mean value may rise: entropy and approximation add to it."""
LONGEST = 10_000.0
"""Steps over which rewards can add up where nothing is discounted."""


def check_values(method: Method, metrics: Metrics, largest_reward: float, gamma: float, step: int) -> None:
    """Ends the run if a critic's mean value cannot be a return.

    Raises:
        NonFinite: naming the metric and what would help.
    """
    horizon = min(1.0 / max(1.0 - gamma, 1e-12), LONGEST)
    paid = largest_reward + abs(metrics.get("temperature", 0.0) * metrics.get("entropy", 0.0))
    most = SLACK * max(paid, 1e-3) * horizon
    for name, _ in method.learned:
        key = f"{name}_value"
        value = metrics.get(key)
        if value is not None and not abs(value) <= most:
            told = (
                f"step {step}: {key} is {value:.4g}, and with rewards of at most {largest_reward:.4g} and a discount of {gamma:g} "
                f"no return is above {largest_reward * horizon:.4g}: the critic believes itself about actions nobody has tried."
            )
            raise NonFinite(told, _cure(method), "'upslope board RUN' shows how the values grew.")


def _cure(method: Method) -> str:
    if method.offline or method.regularize:
        return "start anew with a stronger pull to the data (regularize.weight, surrogate.scale) or a lower --lr."
    return (
        "start anew with a method that stays near its data (td3-bc, iql, cql), a lower --lr, or models.q.network.layer_norm=true."
    )
