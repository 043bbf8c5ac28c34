"""Networks for tests: those of a method, small, each looking at a table of its own in place of observations.

The tables have a row of numbers for every decision and are leaves: a gradient in them says which decision of an update reached
which network. Random numbers belong to decisions too, so that cutting, ordering and padding rows changes none of them.
"""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from upslope.errors import MethodError
from upslope.experience.search_tree import SearchTree
from upslope.policies.control.network_policy import POLICY, NetworkPolicy, flat_modules
from upslope.policies.control.networks import in_domains
from upslope.runtime.seeding import generator, stable_hash
from upslope.types import At, Drawn, Method, Solved, Whose, World, decision_keys

Kind = Literal["continuous", "discrete"]
KINDS: tuple[Kind, ...] = ("continuous", "discrete")
"""Actions as vectors and as choices."""
OBSERVATIONS, ACTIONS, HIDDEN = 3, {"continuous": 2, "discrete": 4}, (8, 8)
STATES: tuple[At, ...] = ("now", "next")
RECORDED = 20
"""Decisions that solved models have looked at."""
BITS = 53
"""Of the numbers that `decision_keys` gives."""


@dataclass(frozen=True)
class TableTask:
    """What networks ask of a task."""

    kind: Kind
    name: str = "table"
    observation_size: int = OBSERVATIONS

    @property
    def continuous(self) -> bool:
        return self.kind == "continuous"

    @property
    def action_size(self) -> int:
        return ACTIONS[self.kind]

    @property
    def action_space(self) -> Any:
        return SimpleNamespace(low=-np.ones(self.action_size), high=np.ones(self.action_size))


class TableNets:
    """`upslope.types.Networks` of a method on tables.

    Args:
        policy: The networks.
        references: Actors by the name of their reference.
        tables: What each network looks at, by its name and state, ``[N, T, D]``.
        key: Integers ``[N, T]`` that name decisions.
        scope: Whose loss is computed.
    """

    def __init__(self, policy: NetworkPolicy, references: Mapping[str, Any], tables: dict[tuple[str, str], Tensor], key: Tensor,
                 scope: str = POLICY) -> None:  # fmt: skip
        self.policy, self.references, self.tables, self.key, self.scope = policy, references, tables, key, scope
        self.discrete, self.action_size = policy.space.discrete, policy.space.actions

    def scoped(self, network: str) -> TableNets:
        """The same, for the loss of one network."""
        return TableNets(self.policy, self.references, self.tables, self.key, network)

    def take(self, pick: Callable[[Tensor], Tensor]) -> TableNets:
        """For other rows."""
        tables = {name: pick(table) for name, table in self.tables.items()}
        return TableNets(self.policy, self.references, tables, pick(self.key), self.scope)

    def on_leaves(self) -> TableNets:
        """The same with tables that require a gradient and have none yet."""
        return self.take(lambda table: table.detach().clone().requires_grad_(table.is_floating_point()))

    def without_reference(self, name: str) -> TableNets:
        """The same with nobody under this name to compare with."""
        others = {each: actor for each, actor in self.references.items() if each != name}
        return TableNets(self.policy, others, self.tables, self.key, self.scope)

    def own_tables(self) -> dict[str, Tensor]:
        """The tables of the network whose loss is computed: ``q`` for the state, ``q.next`` for the one behind it."""
        names = {"now": self.scope, "next": f"{self.scope}.next"}
        return {names[at]: table for (name, at), table in self.tables.items() if name == self.scope}

    def own_weights(self) -> list[Tensor]:
        """What it learns."""
        if self.scope not in self.policy.networks:
            return []
        return [leaf for module in flat_modules(self.policy.networks[self.scope]) for leaf in module.leaves.values()]

    # -- who acts ------------------------------------------------------------------------------------------------------

    def actions(self, at: At, whose: Whose = POLICY, draws: int = 1, given: Mapping[str, Tensor] | None = None) -> Drawn:
        shape = (*self.key.shape, draws) if self.discrete else (*self.key.shape, draws, self.action_size)
        like = self.tables[POLICY, at].new_empty(shape)
        name = f"{at}/{whose}/{draws}"
        if whose == "uniform":
            return self._uniform(self.uniform(like, name))
        live = whose == self.scope == POLICY
        noise = self.uniform(like, name) if self.discrete else self.normal(like, name)
        with torch.set_grad_enabled(live or any(column.requires_grad for column in (given or {}).values())):
            return self._actor(whose).sample(self._shown(at, live, given), noise, not live)

    def _uniform(self, drawn: Tensor) -> Drawn:
        if self.discrete:
            return Drawn((drawn * self.action_size).long(), torch.full_like(drawn, -math.log(self.action_size)))
        return Drawn(2 * drawn - 1, drawn.new_full(drawn.shape[:3], -math.log(2) * self.action_size))

    def logp(self, at: At, action: Tensor, whose: Whose = POLICY, given: Mapping[str, Tensor] | None = None) -> Tensor:
        live = whose == self.scope == POLICY
        with torch.set_grad_enabled(live or action.requires_grad):
            return self._actor(whose).logp(self._shown(at, live, given), action, not live)

    def log_probabilities(self, at: At, whose: Whose = POLICY) -> Tensor:
        live = whose == self.scope == POLICY
        with torch.set_grad_enabled(live):
            return self._actor(whose).log_probabilities(self._seen(POLICY, at, live), not live)

    def action_mask(self, at: At) -> None:
        """Nothing is forbidden."""

    # -- what models say -----------------------------------------------------------------------------------------------

    def value(self, model: str, at: At, action: Tensor | None = None, lagged: bool = False, members: int = 0) -> Tensor:
        live = model == self.scope and not lagged
        with torch.set_grad_enabled(live or (action is not None and action.requires_grad)):
            return self._model(model, lagged).answer(self._seen(model, at, live), action, not live, members)

    def column(self, model: str, name: str, at: At = "now", **inputs: Tensor) -> Tensor:
        live = model == self.scope
        with torch.set_grad_enabled(live or any(each.requires_grad for each in inputs.values())):
            return getattr(self._model(model), name)(self._seen(model, at, live), frozen=not live, **inputs)

    # -- draws ---------------------------------------------------------------------------------------------------------

    def uniform(self, like: Tensor, name: str) -> Tensor:
        for first in (0, 1):  # rows and positions come first, or behind the members of an ensemble
            if tuple(like.shape[first : first + 2]) == tuple(self.key.shape):
                return self._by_decision(like, name, first)
        return torch.rand(like.shape, generator=generator(0, "table", name), dtype=torch.float64).to(like)

    def normal(self, like: Tensor, name: str) -> Tensor:
        return torch.special.ndtri(self.uniform(like, f"normal/{name}").double().clamp(1e-9, 1 - 1e-9)).to(like)

    def _by_decision(self, like: Tensor, name: str, first: int) -> Tensor:
        wanted = (*like.shape[first : first + 2], *like.shape[:first], *like.shape[first + 2 :])
        count = math.prod(wanted[2:])
        bits = decision_keys(self.key.flatten() + stable_hash(name) % (1 << 61), count)
        drawn = (bits.double() / (1 << BITS)).view(wanted)
        return (drawn.movedim(2, 0) if first else drawn).to(like)

    # -- how -----------------------------------------------------------------------------------------------------------

    def _seen(self, network: str, at: At, live: bool) -> Tensor:
        return self.tables[network, at] if live else self.tables[network, at].detach()

    def _shown(self, at: At, live: bool, given: Mapping[str, Tensor] | None) -> Tensor:
        table = self._seen(POLICY, at, live)
        if not given:
            return self.policy.shown(table)
        return torch.cat([table, *(column if column.dim() == 3 else column.unsqueeze(-1) for column in given.values())], -1)

    def _actor(self, whose: Whose) -> Any:
        if whose == POLICY:
            return self.policy.actor
        if whose == "lagged":
            return self._model(POLICY, lagged=True)
        if whose not in self.references:
            raise MethodError(f"a part asks what {whose!r} would do, and the method has no such reference.")
        return self.references[whose]

    def _model(self, name: str, lagged: bool = False) -> Any:
        known = self.policy.lagged if lagged else self.policy.networks
        if name not in known:
            raise MethodError(
                f"a part asks {'the slowly following copy of ' if lagged else ''}the model {name!r}, which is not there."
            )
        return known[name]


def table_nets(method: Method, kind: Kind, key: Tensor, seed: int, dtype: torch.dtype) -> TableNets:
    """The networks of a method, untrained and small, at random tables for the decisions that ``key`` names.

    Raises:
        MethodError: if its policy does not take this kind of action.
    """
    method = small(in_domains(method, "control", f"control-{kind}"))
    policy: Any = method.policy.build(TableTask(kind), seed)  # type: ignore[union-attr]
    _add_models(policy, [*method.learned, *method.solved], seed)
    for name, lagged in policy.lagged.items():
        _shift(lagged, seed, name)  # else it would say what its model says, and methods that differ in whom they ask were one
    asked = method.references if POLICY in policy.networks else ()
    references = {name: _shift(copy.deepcopy(policy.actor), seed, name).to(dtype) for name, _ in asked}
    names: tuple[str, ...] = (POLICY, *policy.networks)
    tables: dict[tuple[str, str], Tensor] = {(name, at): _table(key, dtype, seed, name, at) for name in names for at in STATES}
    return TableNets(policy.to(dtype), references, tables, key)


def _table(key: Tensor, dtype: torch.dtype, seed: int, name: str, at: str) -> Tensor:
    shape = (*key.shape, OBSERVATIONS)
    return torch.randn(shape, generator=generator(seed, "table", name, at), dtype=torch.float64).to(dtype)


def with_models(nets: TableNets, method: Method, seed: int) -> TableNets:
    """The same with the networks of a further method's models, where it has others."""
    own = small(method)
    missing = [(name, model) for name, model in (*own.learned, *own.solved) if name not in nets.policy.networks]
    if not missing:
        return nets
    policy, tables = copy.deepcopy(nets.policy), dict(nets.tables)
    like = tables[POLICY, "now"]
    _add_models(policy, missing, seed)
    for name, _ in missing:
        tables |= {(name, at): _table(nets.key, like.dtype, seed, name, at) for at in STATES}
    return TableNets(policy.to(like.dtype), nets.references, tables, nets.key)


def _add_models(policy: NetworkPolicy, models: Sequence[tuple[str, Any]], seed: int) -> None:
    """The networks of models; those that are solved have looked at a few random decisions."""
    for name, model in models:
        policy.add_model(name, model, seed)
        if isinstance(model, Solved):
            random = generator(seed, "world", name)
            recorded = torch.rand((RECORDED, policy.space.actions), generator=random) * 2 - 1
            model.solve(policy.networks[name], World(torch.randn((RECORDED, OBSERVATIONS), generator=random), recorded, SearchTree))


def small(method: Method) -> Method:
    """The method with networks of a few units."""
    paths = [path for path, part in method.parts() if "hidden" in {field.name for field in dataclasses.fields(part)}]
    return method.with_knobs({f"{path}.hidden": HIDDEN for path in paths})


def _shift(module: Any, seed: int, name: str) -> Any:
    """The module with weights a little off."""
    with torch.no_grad():
        for each in flat_modules(module):
            each.flat.add_(0.2 * torch.randn(each.flat.shape, generator=generator(seed, "shift", name)))
    return module


__all__ = ["KINDS", "Kind", "TableNets", "table_nets", "with_models"]
