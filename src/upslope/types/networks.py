"""How a part looks at networks: it names states, never sees them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple, Protocol

from torch import Tensor

At = Literal["now", "next"]
"""Whose state: that of the decision, or the one behind the row (after one step, or after n of an n-step row)."""
Whose = str
"""Who acts: ``"policy"``, ``"lagged"`` (its slowly following copy), ``"uniform"`` or the name of a reference."""


class Drawn(NamedTuple):
    """Actions that somebody would take, J at each decision."""

    action: Tensor
    """``[N, T, J, A]`` in [-1, 1] where the space is bounded, or ids ``[N, T, J]``."""
    logp: Tensor
    """``[N, T, J]``; zero for a policy that is certain."""


class Networks(Protocol):
    """The networks of a run at the rows of a batch: ``batch.nets``.

    Inside a model's loss gradients reach that model only, inside the actor's only the policy. Within one update the same question
    has the same answer: what the policy does at a state is drawn once. It is cut with the rows.
    """

    discrete: bool
    """Whether actions are choices."""
    action_size: int
    """Choices, or dimensions."""
    scope: str
    """Whose loss is computed: a model's name, or ``"policy"``."""

    def actions(self, at: At, whose: Whose = "policy", draws: int = 1, given: Mapping[str, Tensor] | None = None) -> Drawn:
        """Actions drawn at the states, with gradient where it flows; ``given`` is what the policy is conditioned on, ``[N, T]``."""

    def logp(self, at: At, action: Tensor, whose: Whose = "policy", given: Mapping[str, Tensor] | None = None) -> Tensor:
        """Log-probability ``[N, T, J]`` of actions ``[N, T, J, ...]``."""

    def log_probabilities(self, at: At, whose: Whose = "policy") -> Tensor:
        """Of every choice, ``[N, T, A]``, where actions are choices."""

    def action_mask(self, at: At) -> Tensor | None:
        """The choices that are allowed, ``[N, T, A]`` booleans; none where nothing is forbidden.

        All answers keep to it: a forbidden choice has probability zero, and a value below that of any other.
        """

    def value(self, model: str, at: At, action: Tensor | None = None, lagged: bool = False, members: int = 0) -> Tensor:
        """What a model says: ``[E, N, T, J]`` of its E members (of the first ``members`` of them, if not 0) for J actions.

        Without an action: ``[E, N, T, 1]`` of a model of states, ``[E, N, T, A]`` of one with a value for each choice.
        """

    def column(self, model: str, name: str, at: At = "now", **inputs: Tensor) -> Tensor:
        """What else a model's network computes, under the name its class gives it."""

    def normal(self, like: Tensor, name: str) -> Tensor:
        """Standard normal numbers in the shape of ``like``; another ``name`` draws others."""

    def uniform(self, like: Tensor, name: str) -> Tensor:
        """Uniform numbers in [0, 1), in the same way."""
