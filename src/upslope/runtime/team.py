"""Teams: processes that learn one policy together, each on its own share of the rows.

Every process has all columns of a step. What a process computes of its own rows is added up over the team, with zeros for the rows
of others; denominators are those of the whole update, so that nothing else of a method or of a learner knows how many there are.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from datetime import timedelta
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from upslope.plain_data import JsonDict
from upslope.runtime.environment import default_environment

BUCKET = 1 << 26
"""Numbers that are added up in one go: what a gradient takes a second time in memory."""
WAITS = timedelta(minutes=30)
"""How long a process waits for the others in the middle of a step. One that is gone or hangs is noticed long before."""
LOOPBACK = "lo0" if platform.system() == "Darwin" else "lo"


class Team(Protocol):
    """The processes that learn together, as one of them sees it."""

    rank: int
    """Its number. 0 is the run itself: it samples, logs, evaluates and saves."""
    size: int

    def tell(self, kind: str, data: Callable[[], JsonDict]) -> None:
        """Says something to all others; only of rank 0. Without others nothing is made of the data."""

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum over the team, the same in every process. All of them must ask for it."""

    def sum_grads(self, parameters: Sequence[Tensor]) -> None:
        """Puts the sum over the team in the place of each gradient; a parameter that has none anywhere gets none."""

    def gathered(self, own: JsonDict) -> list[JsonDict]:
        """What each process has to say, by rank."""

    def together(self) -> AbstractContextManager[None]:
        """Around what talks to the others by itself."""


class Alone:
    """A team of one."""

    rank, size = 0, 1

    def tell(self, kind: str, data: Callable[[], JsonDict]) -> None:
        return

    def sum(self, tensor: Tensor) -> Tensor:
        return tensor

    def sum_grads(self, parameters: Sequence[Tensor]) -> None:
        return

    def gathered(self, own: JsonDict) -> list[JsonDict]:
        return [own]

    def together(self) -> AbstractContextManager[None]:
        return nullcontext()


ALONE = Alone()


class OthersGone(Exception):
    """The others of a team do not answer any more."""


class ProcessTeam:
    """One of several processes of a machine, over `torch.distributed`: gloo, or NCCL where each has a GPU of its own.

    Args:
        device: where the policy of this process is.
    """

    def __init__(self, rank: int, size: int, device: torch.device | str = "cpu"):
        self.rank, self.size, self.device = rank, size, torch.device(device)

    def join(self, meeting: Path) -> None:
        """Meets the others, at a file that is not there yet."""
        from torch import distributed

        # By name, so that a machine whose own name leads nowhere will do.
        with default_environment({"GLOO_SOCKET_IFNAME": LOOPBACK, "NCCL_SOCKET_IFNAME": LOOPBACK}):
            distributed.init_process_group(
                "nccl" if self.device.type == "cuda" else "gloo",
                store=distributed.FileStore(str(meeting), self.size),
                rank=self.rank,
                world_size=self.size,
                timeout=WAITS,
                device_id=self.device if self.device.type == "cuda" else None,
            )

    def leave(self) -> None:
        from torch import distributed

        if distributed.is_initialized():
            with suppress(RuntimeError):  # the others may be gone
                distributed.destroy_process_group()

    def tell(self, kind: str, data: Callable[[], JsonDict]) -> None:
        """Rank 0 talks; the others listen."""

    def sum(self, tensor: Tensor) -> Tensor:
        found = tensor.to(self.device, copy=True).contiguous()
        self._reduce(found)
        return found.to(tensor.device)

    def sum_grads(self, parameters: Sequence[Tensor]) -> None:
        known = torch.tensor([parameter.grad is not None for parameter in parameters], dtype=torch.float32)
        anywhere = [parameter for parameter, count in zip(parameters, self.sum(known).tolist(), strict=True) if count]
        for bucket in _buckets(anywhere):
            grads = [torch.zeros_like(each) if each.grad is None else each.grad for each in bucket]
            flat = torch.cat([grad.reshape(-1) for grad in grads])
            self._reduce(flat)
            for parameter, grad in zip(bucket, flat.split([each.numel() for each in bucket]), strict=True):
                parameter.grad = grad.view_as(parameter)

    def gathered(self, own: JsonDict) -> list[JsonDict]:
        text = torch.frombuffer(bytearray(json.dumps(own).encode()), dtype=torch.uint8)
        sizes = torch.zeros(self.size, dtype=torch.int64)
        sizes[self.rank] = len(text)
        sizes = self.sum(sizes)
        told = torch.zeros(self.size, int(sizes.max()), dtype=torch.int32)
        told[self.rank, : len(text)] = text.int()
        told = self.sum(told)
        return [json.loads(bytes(row[:size].tolist())) for row, size in zip(told, sizes.tolist(), strict=True)]

    def _reduce(self, tensor: Tensor) -> None:
        """Adds up in place."""
        from torch import distributed

        try:
            distributed.all_reduce(tensor)
        except RuntimeError as problem:  # gloo and NCCL say the same of a process that is gone
            raise self.gone(problem) from problem

    @contextmanager
    def together(self) -> Iterator[None]:
        """Around what talks to the others by itself, as a policy in parts does: what it raises where they are gone is told so."""
        try:
            yield
        except RuntimeError as problem:
            if not _lost_others(problem):
                raise
            raise self.gone(problem) from problem

    def gone(self, problem: Exception) -> BaseException:
        """What to raise where the others do not answer."""
        return OthersGone(str(problem))


def _lost_others(problem: RuntimeError) -> bool:
    """Whether this is what torch says of processes that do not answer; of gloo only its words tell."""
    from torch import distributed

    return isinstance(problem, distributed.DistError) or "gloo" in str(problem).lower()


def _buckets(parameters: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Neighbours of one kind, together no more than `BUCKET` if there are several."""
    bucket: list[Tensor] = []
    for parameter in parameters:
        full = sum(each.numel() for each in bucket) + parameter.numel() > BUCKET
        if bucket and (full or bucket[0].dtype != parameter.dtype):
            yield bucket
            bucket = []
        bucket.append(parameter)
    if bucket:
        yield bucket
