"""Whom a group learns from, decided by how many of its own answers are right (HPT, AHPO)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from upslope.errors import MethodError
from upslope.types import Part


class GateWeights(NamedTuple):
    """What each group learns from, and how much ``[G]``."""

    own: Tensor
    """Reinforcement of its own answers."""
    off_policy: Tensor
    """Reinforcement of the demonstration, as a sample of somebody else's policy."""
    imitation: Tensor
    """Supervised learning of the demonstration."""


class SuccessGate(Part):
    """How much a group learns from its own answers and how much from a demonstration."""

    scope = "step"

    def __call__(self, solved: Tensor, size: Tensor) -> GateWeights:
        """``solved`` of the ``size`` sampled answers of each group ``[G]`` are right."""
        raise NotImplementedError


@dataclass(frozen=True)
class HardGate(SuccessGate):
    r"""A group that fails imitates the demonstration, and nothing else; one that does not learns from its own answers (HPT).

    .. math::  (own, off, imitation) = (0, 0, 1) \text{ if } k \le imitate,\quad (0, 1, 0) \text{ if } k \le reinforce,\quad
               (1, 0, 0) \text{ above}

    for k right answers. Where all answers fail they teach nothing by themselves, so 0 imitates just where reinforcement has no
    signal.

    Fields:
        imitate: the most right answers with which a group still imitates. Higher leans longer on demonstrations; -1 never does,
            the size of a group always (the paper takes 0 for Qwen and 2 for LLaMA models).
        reinforce: up to here the demonstration is reinforced as a sample of another policy instead. At or below ``imitate`` that
            is nowhere, as in the paper.
        unit: whether both are numbers of ``"answers"`` or a ``"share"`` of the group.
    """

    ranges: ClassVar = {"imitate": "[-1, inf)", "reinforce": "[-1, inf)"}

    imitate: float = 0.0
    reinforce: float = -1.0
    unit: Literal["answers", "share"] = "answers"

    def __call__(self, solved: Tensor, size: Tensor) -> GateWeights:
        count = solved / size.clamp_min(1) if self.unit == "share" else solved
        imitates = count <= self.imitate
        off_policy = ~imitates & (count <= self.reinforce)
        return GateWeights(*(zone.to(torch.float32) for zone in (~imitates & ~off_policy, off_policy, imitates)))


@dataclass(frozen=True)
class ScarceGate(SuccessGate):
    r"""Imitation joins while right answers are scarce; a group always learns from its own too (AHPO): :math:`1[k < needed]`.

    Fields:
        needed: right answers that a group needs to do without the demonstration. 0 never imitates, more than the group's size
            always does.
    """

    ranges: ClassVar = {"needed": "[0, inf)"}

    needed: int = 1

    def __call__(self, solved: Tensor, size: Tensor) -> GateWeights:
        scarce = (solved < self.needed).to(torch.float32)
        return GateWeights(torch.ones_like(scarce), torch.zeros_like(scarce), scarce)


@dataclass(frozen=True)
class GradualGate(SuccessGate):
    """From imitation to reinforcement by degrees: a weight for each number of right answers (the soft variant of HPT's code).

    Each table begins with no right answer; its last entry holds for all further ones.

    Fields:
        own: weights of a group's own answers.
        off_policy: weights of the reinforced demonstration. The code has two other tables: ``1`` and ``0`` throughout.
        imitation: weights of the imitated one.
    """

    own: tuple[float, ...] = (0.0, 0.125, 0.25, 0.5, 1.0)
    off_policy: tuple[float, ...] = (0.0, 0.5, 1.0, 0.5, 0.25, 0.125, 0.0)
    imitation: tuple[float, ...] = (1.0, 0.5, 0.25, 0.125, 0.0)

    def __post_init__(self) -> None:
        for name in ("own", "off_policy", "imitation"):
            table = getattr(self, name)
            if not (isinstance(table, tuple) and table and all(isinstance(each, (int, float)) and each >= 0 for each in table)):
                raise MethodError(
                    f"GradualGate.{name} is {table}; it holds a weight of 0 or above for each number of right answers."
                )

    def __call__(self, solved: Tensor, size: Tensor) -> GateWeights:
        def looked_up(table: tuple[float, ...]) -> Tensor:
            return torch.tensor(table, device=solved.device)[solved.long().clamp(max=len(table) - 1)]

        return GateWeights(looked_up(self.own), looked_up(self.off_policy), looked_up(self.imitation))
