"""A ratio of value one."""

from __future__ import annotations

from dataclasses import dataclass

from upslope.objective.base import Branch, Ratio
from upslope.objective.ratio.granularity import carrier
from upslope.types import Batch


@dataclass(frozen=True)
class OnPolicy(Ratio):
    r"""The data count as the current policy's own: :math:`r_t = \exp(\log\pi_\theta - sg[\log\pi_\theta])`.

    Its value is one and its gradient the score function's, so no clip ever acts. With several updates per step the data grow
    stale and nothing corrects for it.
    """

    def branches(self) -> tuple[str, ...]:
        return ("token",)

    def __call__(self, batch: Batch) -> tuple[Branch, ...]:
        log = carrier(batch)
        return (Branch("token", log, log.exp()),)
