"""What a run will write, against what the disk has left: said before the run begins, not when a checkpoint breaks off."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from upslope.errors import UserError
from upslope.runtime.settings import Settings

AT_ONCE = 2
"""Whole checkpoints that lie beside each other while one is written, however few are kept."""
ROW_BYTES = 64
"""Of each token of a row that is under way: ids, chances, masks, versions and its text."""
WEIGHT_BYTES, MOMENT_BYTES = 4, 8


@dataclass(frozen=True)
class DiskRoom:
    """Bytes that a run will write at least: logs, and the policy as it begins, which may be a link, are not counted.

    Fields:
        checkpoint: the weights, the optimiser's moments and rows that were sampled ahead.
        checkpoints: how many of those there are at a time.
    """

    checkpoint: int
    checkpoints: int

    @property
    def total(self) -> int:
        return self.checkpoint * self.checkpoints


def disk_room(policy: Any, settings: Settings) -> DiskRoom:
    """What a run with these settings writes at least."""
    weights = WEIGHT_BYTES * policy.parameter_count()
    moments = MOMENT_BYTES * sum(parameter.numel() for group in policy.trainable().values() for parameter in group)
    rows = settings.max_staleness * (settings.tasks_per_step or 0) * settings.samples_per_task * (settings.max_tokens or 0)
    every = settings.checkpoint_every if isinstance(settings.checkpoint_every, int) else 1
    several = (settings.steps or 0) > every
    return DiskRoom(weights + moments + ROW_BYTES * rows, max(settings.keep_checkpoints or AT_ONCE, AT_ONCE) if several else 1)


def check_disk(room: DiskRoom, out: Path) -> None:
    """Refuses a run whose checkpoints the disk has no room for.

    Args:
        out: The folder of the run, which need not be there.
    """
    there = next(folder for folder in (out.absolute(), *out.absolute().parents) if folder.is_dir())
    free = shutil.disk_usage(there).free
    if free >= room.total:
        return
    raise UserError(
        f"{there} has {_size(free)} left, and this run writes {_size(room.total)}: checkpoints of {_size(room.checkpoint)}, "
        f"{room.checkpoints} at a time. Make room, or give an --out on another disk, a smaller --model, or --lora."
    )


def _size(count: int) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"
