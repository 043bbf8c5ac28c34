"""Scoring apart: a run's rollouts with processes that score behind whoever samples."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from upslope.setting_up.text import TextComponents


def score_apart(components: TextComponents, folder: Path, trusted: bool, open_pools: ExitStack) -> None:
    """Puts a store behind whoever samples for each rollout; ``open_pools`` ends the processes that score.

    Args:
        trusted: Code in the folder that this machine did not write may run.
    """
    from upslope.rollout.scoring import ScorerPool, ScoringPlan
    from upslope.rollout.store import ScoredRows

    settings = components.settings
    plan = ScoringPlan(
        folder, settings.reward_workers, settings.reward_seconds, settings.reward_retries,
        timed=components.rollout.timed, threads=settings.threads or 1, trusted=trusted,
    )  # fmt: skip
    scorers = ScorerPool(plan)
    open_pools.callback(scorers.close)
    stores: dict[int, ScoredRows] = {}
    for rollout in (components.rollout, *components.stage_rollouts.values()):
        sampling = rollout.under_way.pool  # workers are one pool for all
        store = stores.setdefault(id(sampling), ScoredRows(sampling, scorers, settings.max_staleness + 1))
        rollout.under_way.pool, rollout.scored_apart = store, True
        components.pool = store
