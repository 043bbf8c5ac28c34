"""The last decision of a row: where its reward is paid and where it says how it ended."""

from __future__ import annotations

from torch import Tensor


def last_decision(sampled: Tensor) -> Tensor:
    """True on the last sampled decision of each row ``[N, T]``; a row without any has none."""
    on = sampled > 0
    return on & (on.flip(1).cumsum(1).flip(1) == 1)
