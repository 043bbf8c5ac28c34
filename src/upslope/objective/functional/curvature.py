r"""What one decision's own gradient step would do, to second order, in the head's weights alone (CAPO).

With h what the head turns into logits, :math:`\pi` their softmax, :math:`v = e_a - \pi` and the step of plain gradient ascent
:math:`\Delta W = lr\,A\,v h^\top`, the logits move by :math:`u = \Delta W h = c\,v` with :math:`c = lr\,A\,|h|^2`. No matrix of the
head's size is needed:

.. math::  v \cdot u = c\,\big(1 - 2\pi_a + \textstyle\sum\pi^2\big), \quad
           u^\top F u = c^2\,\big[\pi_a (1 - 2\pi_a) + \textstyle\sum\pi^3 - (\pi_a - \textstyle\sum\pi^2)^2\big]

with :math:`F = \mathrm{diag}(\pi) - \pi\pi^\top`. The recorded temperature is taken as 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

from torch import Tensor

from upslope.errors import MethodError
from upslope.objective.base import Probe, ProbeInputs


class Step(NamedTuple):
    """What a decision's step does to its distribution, ``[M]`` each."""

    log: Tensor
    """First-order change of the decision's log-probability, :math:`v \\cdot u`."""
    spread: Tensor
    """Variance of the change of logits under the policy, :math:`u^\\top F u`."""


def planned_step(seen: ProbeInputs, lr: float) -> Step:
    """The closed form above."""
    chances = seen.logits.softmax(1)
    chosen = chances.gather(1, seen.action.unsqueeze(1)).squeeze(1)
    squares, cubes = chances.square().sum(1), chances.pow(3).sum(1)
    scale = lr * seen.advantage * seen.hidden.square().sum(1)
    spread = chosen * (1 - 2 * chosen) + cubes - (chosen - squares).square()
    return Step(scale * (1 - 2 * chosen + squares), scale.square() * spread.clamp_min(0))


@dataclass(frozen=True)
class _StepProbe(Probe):
    lr: float = 1.5e-5

    def __post_init__(self) -> None:
        if not self.lr > 0:
            raise MethodError(f"{type(self).__name__}.lr is {self.lr:g}; it is above 0.")


@dataclass(frozen=True)
class ObjectiveChange(_StepProbe):
    r"""Change of :math:`A\,\pi_{new}(a)/\pi(a)` by the step: :math:`m_H = A\,(v\cdot u) + \frac A2\,[(v\cdot u)^2 - u^\top F u]`.

    Fields:
        lr: of the planned step.
    """

    name: ClassVar[str] = "objective_change"

    def __call__(self, seen: ProbeInputs) -> Tensor:
        step = planned_step(seen, self.lr)
        return seen.advantage * (step.log + (step.log.square() - step.spread) / 2)


@dataclass(frozen=True)
class PolicyShift(_StepProbe):
    r"""How far the step moves the policy, half a Fisher norm: :math:`m_F = \frac12 (v\cdot u)^2` or :math:`\frac12 u^\top F u`.

    Fields:
        lr: of the planned step.
        fisher: ``"empirical"`` (the paper's) takes the decision that was made, ``"exact"`` the mean over all that could have been.
    """

    name: ClassVar[str] = "policy_shift"

    fisher: Literal["empirical", "exact"] = "empirical"

    def __call__(self, seen: ProbeInputs) -> Tensor:
        step = planned_step(seen, self.lr)
        return (step.log.square() if self.fisher == "empirical" else step.spread) / 2
