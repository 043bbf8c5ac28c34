"""Networks of control policies, as parts of a method."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from upslope.errors import MethodError
from upslope.fields import shown
from upslope.policies.control.mlp import MLPPolicy
from upslope.types import Method, Network


@dataclass(frozen=True)
class MLP(Network):
    """A multi-layer perceptron for the actor and one of the same shape for each critic; a Gaussian or categorical policy.

    Fields:
        hidden: widths of the hidden layers, the first nearest to the observation. Wider fits more and acts slower.
        activation: between the layers. Bounded tanh is the safer one for on-policy control.
        log_std: of a Gaussian policy, the logarithm of its standard deviation where training begins. Lower explores less; actions
            that are chosen from a list have none.
    """

    ranges: ClassVar = {"log_std": "[-20, 20]"}

    hidden: tuple[int, ...] = (64, 64)
    activation: Literal["tanh", "relu", "silu"] = "tanh"
    log_std: float = 0.0

    def __post_init__(self) -> None:
        if isinstance(self.hidden, list):
            object.__setattr__(self, "hidden", tuple(self.hidden))

    def check_knobs(self, path: str) -> None:
        super().check_knobs(path)
        if not self.hidden or min(self.hidden) < 1 or max(self.hidden) > 2**20:
            raise MethodError(
                f"{path}.hidden of MLP is {shown(self.hidden)}; it must be the width of each hidden layer, at least 1 each: 64,64."
            )

    def build(self, task: Any, seed: int) -> MLPPolicy:
        return MLPPolicy.for_task(task, hidden=self.hidden, activation=self.activation, log_std=self.log_std, seed=seed)


def in_domains(method: Method, *domains: str) -> Method:
    """The method as it is on tasks of these kinds: with its knobs for them, and in control with a network, if it names none."""
    for domain in domains:
        method = method.for_domain(domain)
    return method.derive(policy=MLP()) if "control" in domains and method.policy is None else method
