"""What methods of stored experience compute on fixed drawn batches, as a few numbers each: `part_values` pins them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import torch

from upslope.errors import MethodError
from upslope.learners import actor_critic
from upslope.objective import estimator
from upslope.testing.batches import Outcome, batch_for, gradient
from upslope.testing.checks import without_column
from upslope.testing.drawn import kinds
from upslope.types import Batch, Method

SEEDS = (1, 2)
KNOBS = frozenset({"lr_scale", "every", "order", "lag", "lag_every"})
"""Of a learned model: its learner reads these, no loss does."""


@cache
def taken(method: Method) -> tuple[str, ...]:
    """The kinds of action that a method takes."""
    return tuple(kinds(method))


@cache
def drawn(method: Method, seed: int, kind: str) -> Batch:
    return batch_for(method, seed, kind=kind, empty_rows=seed - 1)


def stored_numbers(method: Method, host: Method, fingerprint: Callable[[Any], float]) -> dict[str, float | str]:
    """Losses and gradients of each network, with the batches of the method that it is a variant of."""
    actor_critic.check(method, method.needs())
    found: dict[str, float | str] = {"needs": " ".join(sorted(method.needs())), "scope": estimator.slice_scope(method)}
    for number, kind in enumerate(taken(host)):
        for seed in SEEDS:
            outcome = _outcome(method, host, seed, kind)
            pieces: Mapping[str, Mapping[str, torch.Tensor]] = {
                "loss": outcome.losses, "gradient": outcome.more, "weights": outcome.weights,
            }  # fmt: skip
            for what, each in pieces.items():
                found |= {f"{2 * number + seed} {kind} {what} {name}": fingerprint(value) for name, value in each.items()}
    return {name: value for name, value in found.items() if value != 0}


def _outcome(method: Method, host: Method, seed: int, kind: str) -> Outcome:
    """On the batch of the host; on one of its own where a knob makes a network of another shape."""
    for whose in (host, method):
        try:
            return gradient(method, drawn(whose, seed, kind))
        except RuntimeError:
            continue
    raise MethodError("its networks do not fit together")


def stored_refusals(method: Method) -> dict[str, str]:
    """What a method says to rows that lack a column: the kind of error; one it does without is not listed."""
    batch, found = drawn(method, SEEDS[0], taken(method)[0]), {}
    for need in ("step_reward", "signal.discount", "signal.return_to_go", "signal.online", "label.source"):
        try:
            gradient(method, without_column(batch, need))
        except Exception as error:
            found[need] = type(error).__name__
    return found
