"""A step of the weights that several kinds of data agree on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from upslope.errors import MethodError
from upslope.objective.base import Controller, SlowWeights


@dataclass(frozen=True)
class Reptile(Controller):
    r"""Networks learn for K updates on one kind of data, then go back part of the way (Reptile; as an optimiser, Lookahead).

    .. math::  \bar\theta \leftarrow \bar\theta + \eta\,(\theta_K - \bar\theta), \qquad \theta_0 \leftarrow \bar\theta

    What is good for one kind only is given back; what all of them ask for adds up.

    Fields:
        every: K. 1 with a rate of 1 changes nothing.
        rate: :math:`\eta`. Smaller gives more back.
        networks: which of them: ``policy`` and names of models.
    """

    ranges: ClassVar = {"every": "[1, inf)", "rate": "(0, 1]"}

    every: int = 5
    rate: float = 0.5
    networks: tuple[str, ...] = ("policy", "q")

    def __post_init__(self) -> None:
        if not self.networks:
            raise MethodError("Reptile.networks is empty; name those that it moves, as in policy,q.")

    def slow_weights(self) -> SlowWeights:
        return SlowWeights(self.networks, self.every, self.rate)
