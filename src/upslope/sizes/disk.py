"""What a run will write, against what the disk has left: said before the run begins, not when a checkpoint breaks off."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from upslope.runtime.settings import Settings
from upslope.sizes.card import gigabytes
from upslope.sizes.work import MOMENTS

AT_ONCE = 2
"""Whole checkpoints that lie beside each other while one is written, however few are kept."""
ROW_BYTES = 64
"""Of each token of a row that is under way: ids, chances, masks, versions and its text."""
WEIGHT_BYTES = 4


@dataclass(frozen=True)
class DiskRoom:
    """Bytes that a run will write at least: logs, and the policy as it begins, which may be a link, are not counted.

    Fields:
        checkpoint: the weights, the optimiser's moments and rows that were sampled ahead.
        checkpoints: how many of those there are at a time.
        best: the weights of the best evaluation, where they are kept.
        once: a model that adapters are added to and that is in no folder yet.
    """

    checkpoint: int
    checkpoints: int
    best: int = 0
    once: int = 0

    @property
    def total(self) -> int:
        return self.checkpoint * self.checkpoints + self.best + self.once


def kept_parameters(policy: Any) -> int:
    """Weights that a checkpoint holds: all of them, or of a policy with adapters those and its heads."""
    if getattr(policy, "adapted", False):
        return sum(parameter.numel() for group in policy.trainable().values() for parameter in group)
    return policy.parameter_count()


def checkpoint_bytes(policy: Any, settings: Settings) -> int:
    """Of the weights and the optimiser's moments that a checkpoint holds."""
    return int((WEIGHT_BYTES + MOMENTS[settings.adam_states]) * kept_parameters(policy))


def disk_room(held: int, learned: int, settings: Settings, in_folder: bool = True) -> DiskRoom:
    """What a run with these settings writes at least.

    Args:
        held: parameters of the policy, adapters among them.
        learned: parameters that learn; a checkpoint of adapters holds these alone.
        in_folder: whether the model is in a folder that adapters can name.
    """
    weights = WEIGHT_BYTES * (learned if settings.lora else held)
    once = WEIGHT_BYTES * (held - learned) if settings.lora and not in_folder else 0
    best = weights if settings.keep else 0
    if settings.checkpoint_every == "none":
        return DiskRoom(0, 0, best, once)
    rows = settings.max_staleness * (settings.tasks_per_step or 0) * settings.samples_per_task * (settings.max_tokens or 0)
    every = settings.checkpoint_every if isinstance(settings.checkpoint_every, int) else 1
    several = (settings.steps or 0) > every
    count = max(settings.keep_checkpoints or AT_ONCE, AT_ONCE) if several else 1
    return DiskRoom(weights + int(MOMENTS[settings.adam_states] * learned) + ROW_BYTES * rows, count, best, once)


def disk_of(out: Path) -> tuple[Path, int]:
    """The folder that is there of a path that need not be, and what its disk has left."""
    there = next(folder for folder in (out.absolute(), *out.absolute().parents) if folder.is_dir())
    return there, shutil.disk_usage(there).free


def disk_problem(room: DiskRoom, there: Path, free: int) -> str:
    """What to say of a disk that is too small, with what would do."""
    written = (
        f"checkpoints of {gigabytes(room.checkpoint)}, {room.checkpoints} at a time" if room.checkpoints else "its best weights"
    )
    written += f", and once the model itself, {gigabytes(room.once)}" if room.once else ""
    fits = room.checkpoints > 1 and free >= room.checkpoint + room.best + room.once
    first = "Give a --checkpoint-every as large as --steps, which writes only the last one" if fits else "Make room"
    return (
        f"{there} has {gigabytes(free)} left, and this run writes {gigabytes(room.total)}: {written}. {first}, or give an --out on "
        "another disk, a smaller --model, --lora, or --checkpoint-every none, which keeps nothing to go on from."
    )
