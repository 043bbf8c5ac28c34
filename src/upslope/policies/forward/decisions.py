"""Decisions: what a forward pass is told of the tokens whose log-probabilities and probes it computes."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor

from upslope.policies.forward.logprobs import learning_temperature
from upslope.types import Trajectories
from upslope.types.batch import salt


class Decisions(NamedTuple):
    """Columns of decisions, ``[N, T]`` as in rows or ``[S]`` packed."""

    action: Tensor
    """Ids, at least 0."""
    temperature: Tensor | None
    """What logits are divided by; None is one everywhere."""
    advantage: Tensor | None
    """For probes; None where there is none yet."""
    key: Tensor | None
    """Integers that name each decision of this update, for probes that draw."""

    @staticmethod
    def of(rows: Trajectories, chunk: slice, positions: int, probed: bool) -> Decisions:
        """The first positions of some rows, with what probes read if there are any."""
        action, temperature, advantage, key = (
            None if column is None else column[chunk, :positions]
            for column in (rows.action, rows.temperature, *((rows.advantage, rows.key) if probed else (None, None)))
        )
        assert action is not None
        key = None if key is None else key + salt(f"probe/{rows.draw}")
        return Decisions(action.clamp_min(0), learning_temperature(temperature), advantage, key)

    def map(self, function: Callable[[Tensor], Tensor]) -> Decisions:
        """Each column that is there, sent through ``function``."""
        return Decisions(*(None if column is None else function(column) for column in self))  # type: ignore[arg-type]
