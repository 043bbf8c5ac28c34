"""Checkpoints written beside the training: a thread copies weights and moments while the next step is sampled, then writes them.

A checkpoint is what it was when `CheckpointSaver.save` was called, whatever is learned while it is written. The next update waits
for the copy (`CheckpointSaver.wait_for_copy`), the next checkpoint and the end of the run for the disk. A write that failed is told
at the next step, in the training's own thread.
"""

from __future__ import annotations

import time
import warnings
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from upslope.errors import Remark
from upslope.runtime.files import whole_folder
from upslope.runtime.memory import free_bytes
from upslope.runtime.run_folder import RunFolder
from upslope.runtime.snapshots import WORTH_A_THREAD, Fill, HostMemory, Snapshot

WRITING_SHARE = 0.05
"""Of a run's time that may go into writing checkpoints, where the run itself says when (`auto`)."""
LEAST_SECONDS, MOST_SECONDS = 10.0, 120.0
"""Between two such checkpoints. The second bound is for models up to `LARGE` parameters; larger ones would write all the time."""
LARGE = 1_000_000_000
DISK = 1e9
"""Bytes a second that are expected of a disk before any were written to it."""
MEMORY_SHARE, MEMORY_SHARE_BESIDE_GPU = 4, 2
"""A checkpoint is copied before it is written if that takes no more than one part in so many of the free memory, of which a run on
a GPU needs little otherwise."""


class CheckpointSaver:
    """Writes the checkpoints of a run. Use it in a ``with`` block: leaving it waits for the last one.

    Args:
        keep: of the last checkpoints.
        size: bytes of one; where memory is too short for a copy, the training waits for the disk.
    """

    def __init__(self, folder: RunFolder, keep: int, size: int = 0):
        self.folder, self.keep, self.size = folder, keep, size
        self.seconds = size / DISK
        """What a whole checkpoint takes to write."""
        self.asked = time.perf_counter()
        """When the last one was asked for."""
        self.written: deque[Path] = deque()
        """Checkpoints that are on the disk, oldest first, until somebody takes them out."""
        self._memory = HostMemory()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._copying: Future[list[torch.cuda.Event]] | None = None
        self._writing: Future[None] | None = None
        self._streamed = False
        self._borrows = False
        """Whether what is written now is read from the tensors of the training."""

    def __enter__(self) -> CheckpointSaver:
        return self

    def __exit__(self, kind: object, *problem: object) -> None:
        try:
            self.wait()
        except BaseException:
            if kind is None:  # what ended the block is worth more than what the disk says of it
                raise
        finally:
            self._thread.shutdown()
            self._memory.close()

    def save(self, path: Path, fill: Fill, still: Sequence[Tensor] = (), last: bool = False) -> None:
        """A checkpoint (or another folder of the run) with what ``fill`` writes as it is now; it is on the disk a moment later.

        Args:
            still: tensors that nobody moves without `wait_for_copy` before it.
            last: no update is to come: they are not copied first, and who moves them after all waits for the disk.
        """
        self.wait()
        if _is_checkpoint(path):  # what else is kept, such as the best weights, puts none off
            self.asked = time.perf_counter()
        share = MEMORY_SHARE_BESIDE_GPU if any(tensor.is_cuda for tensor in still) else MEMORY_SHARE
        if not last and self.size > (free := free_bytes()) // share and not self._memory:
            self._tell_streamed(free)
            self._write(path, fill)
            return
        snapshot = Snapshot(self._memory, still)
        fill(snapshot)
        self._borrows = last
        if last:
            snapshot.borrow_still()
            self._writing = self._thread.submit(self._write, path, snapshot.replay)
            return
        streams = snapshot.streams()
        if streams or snapshot.waiting_bytes >= WORTH_A_THREAD:
            self._copying = self._thread.submit(snapshot.copy_still, streams)
        else:
            snapshot.copy_still(streams)
        self._writing = self._thread.submit(self._write, path, snapshot.replay)  # behind the copy, in the same thread

    def wait_for_copy(self) -> None:
        """Until weights and moments may move: the last checkpoint has its copy of them. On a GPU only its kernels wait."""
        if self._borrows and self._writing is not None:
            wait([self._writing])
        if self._copying is not None:
            copying, self._copying = self._copying, None
            for event in copying.result():
                event.wait()

    def check(self) -> None:
        """Raises what a write has failed with, if one has."""
        if self._writing is not None and self._writing.done():
            self.wait()

    def wait(self) -> None:
        """Until the last checkpoint is on the disk."""
        copying, self._copying = self._copying, None
        writing, self._writing = self._writing, None
        try:
            if copying is not None:
                copying.result()
        finally:
            if writing is not None:
                writing.result()

    def _tell_streamed(self, free: int) -> None:
        if not self._streamed:
            told = f"a checkpoint of {self.size / 1e9:.1f} GB is not copied to memory first, of which {free / 1e9:.1f} GB are free"
            remark = f"{told}: the run waits while one is written. --checkpoint-every N makes them rarer."
            warnings.warn(Remark(remark), stacklevel=3)
        self._streamed = True

    def _write(self, path: Path, fill: Fill) -> None:
        began, another = time.perf_counter(), _is_checkpoint(path)
        if another:  # before, so that there is room for it; one whole checkpoint always stays
            self.folder.prune(max(self.keep - 1, 1))
        self.folder.sync_logs()
        with whole_folder(path) as files:
            fill(files)
        if another:
            self.folder.prune(self.keep)
            self.written.append(path)
        if another and path.name != self.folder.checkpoint(0).name:  # the first is mostly links
            self.seconds = time.perf_counter() - began


def _is_checkpoint(path: Path) -> bool:
    return path.name.startswith("step-")


def auto_interval(seconds: float, parameters: int) -> float:
    """Seconds between two checkpoints, when one takes so long to write."""
    wanted = max(LEAST_SECONDS, seconds / WRITING_SHARE)
    return wanted if parameters > LARGE else min(wanted, MOST_SECONDS)


def is_due(every: int | Literal["auto"], step: int, saver: CheckpointSaver, parameters: int) -> bool:
    """Whether a checkpoint belongs behind this step."""
    if every != "auto":
        return step % every == 0
    return time.perf_counter() - saver.asked >= auto_interval(saver.seconds, parameters)
