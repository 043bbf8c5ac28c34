"""Checkpoints written beside the training: what belongs to them is copied at once, the disk has its own thread.

A checkpoint is what it was when `CheckpointSaver.save` was called, whatever is learned while it is written. The next one waits for
it, leaving the block waits for it too, and a write that failed is told at the next step, in the training's own thread.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from upslope.plain_data import JsonDict
from upslope.runtime.checkpoint_files import CheckpointWriter
from upslope.runtime.files import whole_folder
from upslope.runtime.memory import free_bytes
from upslope.runtime.run_folder import RunFolder

Fill = Callable[[CheckpointWriter], None]
WRITING_SHARE = 0.05
"""Of a run's time that may go into writing checkpoints, where the run itself says when (`auto`)."""
LEAST_SECONDS, MOST_SECONDS = 10.0, 120.0
"""Between two such checkpoints. The second bound is for models up to `LARGE` parameters; larger ones would write all the time."""
LARGE = 1_000_000_000
FILES_AT_ONCE = 2
"""That are written side by side: weights, and the optimiser's moments."""
DISK = 1e9
"""Bytes a second that are expected of a disk before any were written to it."""
MEMORY_SHARE = 4
"""A checkpoint is copied before it is written if that takes no more than one part in so many of the free memory."""


class Snapshot(CheckpointWriter):
    """Takes what a checkpoint shall hold, as it is now, and writes it later.

    Args:
        rooms: memory that tensors are copied into, by file and name; the next snapshot uses it again.
    """

    def __init__(self, rooms: dict[tuple[str, str], Tensor]):
        super().__init__(Path())
        self.rooms = rooms
        self.writes: list[Fill] = []
        self.copied: torch.cuda.Event | None = None

    def write(self, name: str, data: bytes) -> None:
        self.writes.append(lambda files: files.write(name, data))

    def write_tensors(self, name: str, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> None:
        copies = {key: self._copy((name, key), tensor.detach()) for key, tensor in tensors.items()}
        self.writes.append(lambda files: files.write_tensors(name, copies, metadata))

    def copy(self, file: Path, name: str) -> None:
        self.write(name, file.read_bytes())

    def link(self, file: Path, name: str, digest: JsonDict | None = None) -> None:
        self.writes.append(lambda files: files.link(file, name, digest))

    def link_folder(self, folder: Path) -> None:
        self.writes.append(lambda files: files.link_folder(folder))

    def replay(self, files: CheckpointWriter) -> None:
        """Writes all of it."""
        if self.copied is not None:
            self.copied.synchronize()
        with ThreadPoolExecutor(FILES_AT_ONCE, thread_name_prefix="file") as threads:
            for done in [threads.submit(write, files) for write in self.writes]:
                done.result()

    def _copy(self, place: tuple[str, str], tensor: Tensor) -> Tensor:
        room = self.rooms.get(place)
        if room is None or room.shape != tensor.shape or room.dtype != tensor.dtype:
            # From pinned memory a GPU's copy goes on beside the kernels that follow it.
            room = self.rooms[place] = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
        room.copy_(tensor, non_blocking=True)
        if tensor.is_cuda:
            self.copied = self.copied or torch.cuda.Event()
            self.copied.record()
        return room


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
        self._rooms: dict[tuple[str, str], Tensor] = {}
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._writing: Future[None] | None = None

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

    def save(self, path: Path, fill: Fill) -> None:
        """A checkpoint (or another folder of the run) with what ``fill`` writes: taken now, on the disk a moment later."""
        self.wait()
        if _is_checkpoint(path):  # what else is kept, such as the best weights, puts none off
            self.asked = time.perf_counter()
        if self.size > free_bytes() // MEMORY_SHARE and not self._rooms:
            self._write(path, fill)
            return
        snapshot = Snapshot(self._rooms)
        fill(snapshot)
        self._writing = self._thread.submit(self._write, path, snapshot.replay)

    def check(self) -> None:
        """Raises what a write has failed with, if one has."""
        if self._writing is not None and self._writing.done():
            self.wait()

    def wait(self) -> None:
        """Until the last checkpoint is on the disk."""
        if self._writing is not None:
            writing, self._writing = self._writing, None
            writing.result()

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
