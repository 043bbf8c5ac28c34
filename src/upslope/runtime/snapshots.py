"""Snapshots: what a checkpoint shall hold, copied into host memory while training goes on, and written to disk from there.

Most of a checkpoint are weights and the optimiser's moments, and nothing but an update moves those: while the next step is sampled
they are copied by a thread, on a GPU on a stream of its own. Everything else is copied before the training goes on. Behind the last
step no update comes, and they are written from where they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import torch
from torch import Tensor

from upslope.plain_data import JsonDict
from upslope.runtime.checkpoint_files import CheckpointWriter

Fill = Callable[[CheckpointWriter], None]
Place = tuple[str, str]
"""A file, and the name of a tensor in it."""
FILES_AT_ONCE = 2
"""That are written side by side: weights, and the optimiser's moments."""
ALIGNED = 64
"""Bytes of which each tensor's place is a multiple."""
WORTH_A_THREAD = 1 << 25
"""Bytes from which on a thread copies them; fewer are copied sooner than a thread is told of them."""


class HostMemory:
    """Host memory that the tensors of a checkpoint are copied into; the next checkpoint uses it again."""

    def __init__(self) -> None:
        self._rooms: dict[Place, Tensor] = {}
        self._pinned: list[Tensor] = []

    def __bool__(self) -> bool:
        return bool(self._rooms)

    def room(self, place: Place, tensor: Tensor) -> Tensor:
        """Where a tensor is copied to."""
        if not self._fits(place, tensor):
            # From pinned memory a GPU's copy goes on beside the kernels that follow it.
            self._rooms[place] = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
        return self._rooms[place]

    def make(self, wanted: Mapping[Place, Tensor]) -> None:
        """Rooms for all of these, in one piece of memory as large as they are; it is pinned where any comes from a GPU."""
        missing = {place: tensor for place, tensor in wanted.items() if not self._fits(place, tensor)}
        ends, end = {}, 0
        for place, tensor in missing.items():
            begin = -(-end // ALIGNED) * ALIGNED
            ends[place] = (begin, end := begin + tensor.numel() * tensor.element_size())
        memory = torch.empty(end, dtype=torch.uint8)
        # Torch's own pinned memory is rounded up to a power of two for each tensor, which of a large model is half as much again.
        if end and any(tensor.is_cuda for tensor in missing.values()) and _register(memory):
            self._pinned.append(memory)
        for place, (begin, end) in ends.items():
            self._rooms[place] = memory[begin:end].view(missing[place].dtype).view(missing[place].shape)

    def close(self) -> None:
        """Gives it back."""
        self._rooms.clear()
        while self._pinned:
            torch.cuda.cudart().cudaHostUnregister(self._pinned.pop().data_ptr())

    def _fits(self, place: Place, tensor: Tensor) -> bool:
        room = self._rooms.get(place)
        return room is not None and room.shape == tensor.shape and room.dtype == tensor.dtype


def _register(memory: Tensor) -> bool:
    """Pins memory; where the system does not allow so much of it, copies are slower and no less right."""
    cudart = torch.cuda.cudart()
    return bool(cudart.cudaHostRegister(memory.data_ptr(), memory.numel(), 0) == cudart.cudaError.success)


class Snapshot(CheckpointWriter):
    """Takes what a checkpoint shall hold, as it is now, and writes it later.

    Args:
        memory: to copy tensors into.
        still: tensors that nobody moves before `copy_still` has copied them, in whatever thread that is.
    """

    def __init__(self, memory: HostMemory, still: Iterable[Tensor] = ()):
        super().__init__(Path())
        self.memory, self._writes = memory, list[Fill]()
        self._still = {_storage(tensor) for tensor in still}
        self._waiting: dict[Place, tuple[Tensor, dict[str, Tensor]]] = {}
        """Tensors that are still to be copied, each with the copies of its file."""
        self._sources: list[Tensor] = []
        self._streams: Mapping[torch.device, torch.cuda.Stream] = {}
        """Where tensors that were not copied are read."""
        self._taken: torch.cuda.Event | None = None
        self._events: list[torch.cuda.Event] = []

    def write(self, name: str, data: bytes) -> None:
        self._writes.append(lambda files: files.write(name, data))

    def write_tensors(self, name: str, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> None:
        copies: dict[str, Tensor] = {}
        for key, tensor in tensors.items():
            if tensor.numel() and _storage(tensor) in self._still:
                self._waiting[name, key] = (tensor.detach(), copies)
            else:
                copies[key] = self._copy((name, key), tensor.detach())
        self._writes.append(lambda files: files.write_tensors(name, copies, metadata))

    def copy(self, file: Path, name: str) -> None:
        self.write(name, file.read_bytes())

    def link(self, file: Path, name: str, digest: JsonDict | None = None) -> None:
        self._writes.append(lambda files: files.link(file, name, digest))

    def link_folder(self, folder: Path) -> None:
        self._writes.append(lambda files: files.link_folder(folder))

    @property
    def waiting_bytes(self) -> int:
        """What `copy_still` has to copy."""
        return sum(tensor.numel() * tensor.element_size() for tensor, _ in self._waiting.values())

    def streams(self) -> dict[torch.device, torch.cuda.Stream]:
        """Streams for `copy_still`, one for each GPU, behind all that the thread that trains has asked of it so far."""
        found = {}
        for device in {tensor.device for tensor, _ in self._waiting.values() if tensor.is_cuda}:
            found[device] = torch.cuda.Stream(device)
            found[device].wait_stream(torch.cuda.current_stream(device))
        return found

    def copy_still(self, streams: Mapping[torch.device, torch.cuda.Stream]) -> list[torch.cuda.Event]:
        """Copies the tensors that nobody moves. On a GPU they are on their way when it returns: the events come behind them."""
        self.memory.make({place: tensor for place, (tensor, _) in self._waiting.items()})
        for place, (tensor, copies) in self._waiting.items():
            room = copies[place[1]] = self.memory.room(place, tensor)
            if tensor.is_cuda:
                with torch.cuda.stream(streams[tensor.device]):
                    room.copy_(tensor, non_blocking=True)
            else:
                room.copy_(tensor)
        passed = [stream.record_event() for stream in streams.values()]
        self._events += passed
        # Memory of a tensor that its owner drops must not be taken again before it was read.
        self._sources = [tensor for tensor, _ in self._waiting.values() if tensor.is_cuda]
        self._waiting = {}
        return passed

    def borrow_still(self) -> None:
        """Leaves the tensors that nobody moves where they are: they are read from there as they are written."""
        self._streams = self.streams()
        for place, (tensor, copies) in self._waiting.items():
            copies[place[1]] = tensor
        self._waiting = {}

    def replay(self, files: CheckpointWriter) -> None:
        """Writes all of it."""
        if self._waiting:
            raise RuntimeError("a checkpoint was to be written without the weights that could not be copied")
        for event in (*self._events, *([] if self._taken is None else [self._taken])):
            event.synchronize()
        self._sources = []
        with ThreadPoolExecutor(FILES_AT_ONCE, thread_name_prefix="file") as threads:
            for done in [threads.submit(self._write_one, write, files) for write in self._writes]:
                done.result()

    def _write_one(self, write: Fill, files: CheckpointWriter) -> None:
        with ExitStack() as streams:
            for stream in self._streams.values():
                streams.enter_context(torch.cuda.stream(stream))
            write(files)

    def _copy(self, place: Place, tensor: Tensor) -> Tensor:
        room = self.memory.room(place, tensor)
        room.copy_(tensor, non_blocking=True)
        if tensor.is_cuda:
            self._taken = self._taken or torch.cuda.Event()
            self._taken.record()
        return room


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
