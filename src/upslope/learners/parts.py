"""Policies in parts (`upslope.policies.sharded`), as a learner sees them: the norm over all processes, moments put together.

Where a policy is whole in every process, which is so unless the run has ``shard``, all of this is what it is in one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from upslope.runtime import torch_private
from upslope.runtime.team import Team
from upslope.runtime.tensor_parts import divided, held_here, is_part, put_together_for_saving
from upslope.types import State

MOMENTS = ("exp_avg", "exp_avg_sq")


def in_parts(policy: Any) -> bool:
    """Whether this process holds a part of the policy only."""
    return bool(getattr(policy, "sharded", False))


def norms_of(tensors: Sequence[Tensor], team: Team) -> list[float]:
    """The norm of each; infinite or NaN where any number of it is, in whichever process. All processes must ask for it."""
    held = [held_here(tensor.detach()) for tensor in tensors]
    # In double precision, as the square of a number that float32 holds may be too large for it.
    squares = torch.stack([norm.double() for norm in torch_private.foreach_norm(held)]).cpu() ** 2 if held else torch.zeros(0)
    own = torch.tensor([is_part(tensor) or team.rank == 0 for tensor in tensors])
    return team.sum(torch.where(own, squares, torch.zeros_like(squares))).sqrt().tolist() if held else []


def norm_of_all(tensors: Sequence[Tensor], team: Team) -> float:
    """The norm of all of them together. All processes must ask for it."""
    return math.sqrt(sum(norm**2 for norm in norms_of(tensors, team)))


def gathered_moments(state: State, parameters: Sequence[Tensor], team: Team) -> State:
    """An optimiser's state with whole moments, in the first process; in the others it is of no use. All must ask for it."""
    found = dict(state["state"])
    for number in range(len(parameters)):
        if number in found:
            own = {name: put_together_for_saving(found[number][name], team.rank == 0) for name in MOMENTS}
            found[number] = {**found[number], **own}
    return {**state, "state": found}


def divided_moments(moments: dict[int, Any], parameters: Sequence[Tensor]) -> dict[int, Any]:
    """Whole moments by the number of their parameter, in parts as those are."""
    return {
        number: {**own, **{name: divided(own[name], parameters[number]) for name in MOMENTS}} for number, own in moments.items()
    }


def whole_weights(policy: Any) -> State:
    """All weights of a policy; of one in parts, all processes must ask for them, and the first one gets them."""
    return policy.gathered() if in_parts(policy) else policy.weights()
