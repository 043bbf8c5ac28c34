"""Two networks for two tasks, one of which is to be done at a time: the last number of an observation says which."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from upslope.errors import MethodError
from upslope.objective.base import ActionSpace


class Pair(nn.Module):
    """The first network where the last number of an observation is at most 0, the second where it is above.

    Neither sees that number. Both answer everywhere and one answer is taken, so that a decision's gradient reaches the network of
    its own task alone, to the last bit, whatever the mixture of an update is.
    """

    def __init__(self, first: nn.Module, second: nn.Module):
        super().__init__()
        self.first, self.second = first, second

    @classmethod
    def build(cls, make: Callable[[ActionSpace, int], nn.Module], space: ActionSpace, seed: int) -> Pair:
        """Two networks for the space without its last number; the first is the one that would be made alone."""
        if len(space.observation) != 1 or space.observation[0] < 2:
            raise MethodError(
                f"pair=True wants observations of numbers whose last one says which of two tasks is to be done, and those of this "
                f"environment have the shape {space.observation}. Make the environment with up.reset_free."
            )
        own = replace(space, observation=(space.observation[0] - 1,))
        return cls(make(own, seed), make(own, seed + 1))

    def chosen(self, observation: Tensor, ask: Callable[[Any, Tensor], Tensor], trailing: int = 0) -> Tensor:
        """What the network of each decision's task says, ``[..., N, T, *trailing]``.

        Args:
            ask: Asks a network at states ``[N, T, D]``.
            trailing: Axes behind those of decisions.
        """
        own, second = observation[..., :-1], observation[..., -1] > 0
        answers = ask(self.second, own), ask(self.first, own)
        return torch.where(second[(..., *[None] * trailing)], *answers)


class PairModel(Pair):
    """Two networks of a model."""

    def answer(self, observation: Tensor, action: Tensor | None, frozen: bool, members: int = 0) -> Tensor:
        """``[E, N, T, J]``, as the networks answer."""
        return self.chosen(observation, lambda network, own: network.answer(own, action, frozen, members), trailing=1)

    def logarithm(self, observation: Tensor, frozen: bool) -> Tensor:
        """Of two numbers: the logarithm ``[N, T]``."""
        return self.chosen(observation, lambda network, own: network.logarithm(own, frozen))
