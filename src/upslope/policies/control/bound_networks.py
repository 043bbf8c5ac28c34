"""The networks of a policy at the rows of one update: what parts ask through ``batch.nets``.

One question has one answer within an update. Whoever asks again gets what was computed, without gradient unless it is his own: a
model's loss reaches that model, the actor's the policy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from upslope.errors import MethodError
from upslope.policies.control.actors import allowed
from upslope.policies.control.network_policy import POLICY, NetworkPolicy, mask_arguments
from upslope.types import At, Drawn, Whose

LAGGED, UNIFORM = "lagged", "uniform"
Noise = Callable[[str, str, tuple[int, ...]], Tensor]
"""Random numbers of a kind (``"normal"`` or ``"uniform"``), by name, in a shape."""


@dataclass(frozen=True, eq=False)
class ExperienceInputs:
    """What networks look at in rows drawn from a store."""

    observation: Tensor
    """``[N, T, ...]``, as networks see it."""
    following: Tensor
    """The observation behind each row."""
    action_mask: Tensor | None = None
    """``[N, T, A]`` booleans: the choices that were allowed; none where nothing was forbidden."""
    following_mask: Tensor | None = None
    """The same for the observation behind each row."""

    def take(self, pick: Callable[[Tensor], Tensor]) -> ExperienceInputs:
        columns = (self.observation, self.following, self.action_mask, self.following_mask)
        return ExperienceInputs(*(None if column is None else pick(column) for column in columns))  # type: ignore[arg-type]


class BoundNetworks:
    """`upslope.types.Networks` on a policy and the inputs of an update.

    Args:
        noise: Where draws come from.
        references: Policies by the name of their reference.
        scope: Whose loss is computed: gradients reach this network and no other.
    """

    def __init__(
        self,
        policy: NetworkPolicy,
        inputs: ExperienceInputs,
        noise: Noise,
        references: Mapping[str, NetworkPolicy] | None = None,
        scope: str = "",
        answers: dict[Any, Any] | None = None,
    ):
        self.policy, self.inputs, self.noise, self.scope = policy, inputs, noise, scope
        self.references = references or {}
        self.discrete, self.action_size = policy.space.discrete, policy.space.actions
        self._answers: dict[Any, Any] = {} if answers is None else answers
        self._own: dict[Any, Any] = {}
        """Answers that carry gradient, for this scope alone."""

    def scoped(self, network: str) -> BoundNetworks:
        """The same, for the loss of one network."""
        return BoundNetworks(self.policy, self.inputs, self.noise, self.references, network, self._answers)

    def take(self, pick: Callable[[Tensor], Tensor]) -> BoundNetworks:
        """For other rows, with draws of their own."""
        return BoundNetworks(self.policy, self.inputs.take(pick), self.noise, self.references, self.scope)

    def forget(self, network: str) -> None:
        """The network has moved: what it said of values no longer holds. What the policy chose stays."""
        for key in [key for key in self._answers if key[0] == "value" and key[1] == network]:
            del self._answers[key]

    # -- who acts ------------------------------------------------------------------------------------------------------

    def actions(self, at: At, whose: Whose = POLICY, draws: int = 1, given: Mapping[str, Tensor] | None = None) -> Drawn:
        key, live = ("actions", at, whose, draws, _identity(given)), whose == self.scope == POLICY
        through = live or any(column.requires_grad for column in (given or {}).values())
        return self._answer(key, through, lambda _: self._drawn(at, whose, draws, given, not live), given)

    def _drawn(self, at: At, whose: Whose, draws: int, given: Mapping[str, Tensor] | None, frozen: bool) -> Drawn:
        observation = self._shown(at, given)
        shape: tuple[int, ...] = (*observation.shape[:2], draws)
        if whose == UNIFORM:
            return self._uniform(at, shape)
        network, wide = self._network(whose), shape if self.discrete else (*shape, self.action_size)
        if getattr(network, "certain", False):
            noise = observation.new_zeros(()).expand(wide)
        else:
            noise = self.noise(UNIFORM if self.discrete else "normal", f"{at}/{whose}/{draws}", wide)
        return network.sample(observation, noise, frozen, **self._masked(at))

    def _uniform(self, at: At, shape: tuple[int, ...]) -> Drawn:
        wide = shape if self.discrete else (*shape, self.action_size)
        drawn = self.noise(UNIFORM, f"{at}/uniform/{shape[-1]}", wide)
        if (mask := self.action_mask(at)) is not None:
            return _uniform_among(mask, drawn)
        if self.discrete:
            logp = drawn.new_full(shape, -math.log(self.action_size))
            return Drawn((drawn * self.action_size).long().clamp_max(self.action_size - 1), logp)
        return Drawn(2 * drawn - 1, drawn.new_full(shape, -0.6931471805599453 * self.action_size))

    def logp(self, at: At, action: Tensor, whose: Whose = POLICY, given: Mapping[str, Tensor] | None = None) -> Tensor:
        live = whose == self.scope == POLICY
        with torch.set_grad_enabled(live or action.requires_grad):
            return self._network(whose).logp(self._shown(at, given), action, not live, **self._masked(at))

    def log_probabilities(self, at: At, whose: Whose = POLICY) -> Tensor:
        network, key, mask = self._network(whose), ("log_probabilities", at, whose), self._masked(at)
        return self._answer(
            key, whose == self.scope == POLICY, lambda frozen: network.log_probabilities(self._seen(at), frozen, **mask)
        )

    def action_mask(self, at: At) -> Tensor | None:
        return self.inputs.action_mask if at == "now" else self.inputs.following_mask

    def _masked(self, at: At) -> dict[str, Tensor]:
        return mask_arguments(self.action_mask(at))

    # -- what models say -----------------------------------------------------------------------------------------------

    def value(self, model: str, at: At, action: Tensor | None = None, lagged: bool = False, members: int = 0) -> Tensor:
        network = self._lagged(model) if lagged else self._model(model)
        own = model == self.scope and not lagged
        through = own or (action is not None and action.requires_grad)
        key = ("value", model, lagged, at, _place(action), members)
        mask = self.action_mask(at) if action is None else None

        def answer(frozen: bool) -> Tensor:
            found = network.answer(self._seen(at), action, not own, members)
            return found if mask is None or found.shape[-1] != self.action_size else allowed(found, mask)

        return self._answer(key, through, answer, action)

    def column(self, model: str, name: str, at: At = "now", **inputs: Tensor) -> Tensor:
        own = model == self.scope
        with torch.set_grad_enabled(own or any(each.requires_grad for each in inputs.values())):
            return getattr(self._model(model), name)(self._seen(at), frozen=not own, **inputs)

    # -- draws ---------------------------------------------------------------------------------------------------------

    def normal(self, like: Tensor, name: str) -> Tensor:
        return self.noise("normal", name, tuple(like.shape))

    def uniform(self, like: Tensor, name: str) -> Tensor:
        return self.noise(UNIFORM, name, tuple(like.shape))

    # -- how -----------------------------------------------------------------------------------------------------------

    def _answer(self, key: Any, with_gradient: bool, compute: Callable[[bool], Any], keep: Any = None) -> Any:
        """What was said before, or what is computed now; ``keep`` holds what the key names by its identity."""
        known = self._own if with_gradient else self._answers
        if key not in known:
            with torch.set_grad_enabled(with_gradient):
                found = compute(not with_gradient)
            known[key] = (found, keep)
            if with_gradient and key[0] != "value":
                self._answers.setdefault(key, (_detached(found), keep))
        return known[key][0]

    def _seen(self, at: At) -> Tensor:
        return self.inputs.observation if at == "now" else self.inputs.following

    def _shown(self, at: At, given: Mapping[str, Tensor] | None) -> Tensor:
        """What an actor looks at: with nothing given, what it would act on."""
        observation = self._seen(at)
        return (
            torch.cat([observation, *(_wide(column) for column in given.values())], -1) if given else self.policy.shown(observation)
        )

    def _network(self, whose: Whose) -> Any:
        if whose == POLICY:
            return self.policy.actor
        if whose == LAGGED:
            return self._lagged(POLICY)
        if whose not in self.references:
            known = ", ".join([POLICY, LAGGED, UNIFORM, *self.references])
            raise MethodError(f"a part asks what {whose!r} would do; there are {known}.")
        return self.references[whose].actor

    def _model(self, name: str) -> Any:
        if name not in self.policy.networks:
            raise MethodError(f"a part asks the model {name!r}; this method has {', '.join(self.policy.networks)}.")
        return self.policy.networks[name]

    def _lagged(self, name: str) -> Any:
        if name not in self.policy.lagged:
            knob = "policy.lag" if name == POLICY else f"models.{name}.lag"
            raise MethodError(f"a part asks the slowly following copy of {name!r}, which has none. Set {knob}, as in 0.005.")
        return self.policy.lagged[name]


def _uniform_among(mask: Tensor, drawn: Tensor) -> Drawn:
    """Choices among those that a mask ``[N, T, A]`` allows, from uniforms ``[N, T, J]``."""
    count = mask.sum(-1, keepdim=True)
    wanted = (drawn * count).long().clamp_max(count - 1)  # which of the allowed ones, counted from 0
    action = (mask.cumsum(-1).unsqueeze(2) <= wanted.unsqueeze(-1)).sum(-1)
    return Drawn(action, -count.to(drawn.dtype).log().expand_as(drawn))


def _place(action: Tensor | None) -> Any:
    """Where an action's numbers are: two views of them are one question."""
    return None if action is None else (action.data_ptr(), action.shape, action.stride(), action.requires_grad)


def _identity(given: Mapping[str, Tensor] | None) -> Any:
    return tuple((name, id(column)) for name, column in given.items()) if given else ()


def _wide(column: Tensor) -> Tensor:
    return column if column.dim() == 3 else column.unsqueeze(-1)


def _detached(found: Any) -> Any:
    return Drawn(*(each.detach() for each in found)) if isinstance(found, Drawn) else found.detach()
