"""The reference cache: what a reference that never changes says of rows that never change, computed once in a run."""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from upslope.policies.forward.plain import extent_of
from upslope.types import Trajectories

REFERENCES = "references.bin"
MOST_BYTES = 4 << 30
"""Of the file: of a task that makes problems for ever hardly a row comes again."""
_HEAD = struct.Struct("<4sIII")
"""Of the rows of one step: `_MARK`, how many, bytes behind it, their checksum."""
_MARK = b"ref1"
_KEY = 16


class KeptReferences(Protocol):
    """Log-probabilities that are computed once."""

    def logp(self, rows: Trajectories, compute: Callable[[Tensor], Tensor]) -> Tensor:
        """Those of rows ``[N, T]``.

        Args:
            compute: those of the rows with these numbers, perhaps none, the others 0 ``[N, T]``.
        """


class KeptElsewhere:
    """Of a process beside the one that keeps them: it only helps to compute."""

    def logp(self, rows: Trajectories, compute: Callable[[Tensor], Tensor]) -> Tensor:
        return compute(torch.zeros(0, dtype=torch.int64))


class ReferenceCache:
    """Log-probabilities by the tokens of their row, in a file beside the run's checkpoints; only where they stand is in memory.

    The rows of a step are appended together: after a kill a step is there as a whole or not at all, and is computed again in the
    same company, to the same bits. What a kill left unfinished is cut off.
    """

    def __init__(self, file: Path):
        self.file = file
        self._places: dict[bytes, tuple[int, int]] = {}
        self._end = 0
        if file.exists():
            self._read()

    def logp(self, rows: Trajectories, compute: Callable[[Tensor], Tensor]) -> Tensor:
        keys, lengths = _keys(rows)
        places = [self._places.get(key) for key in keys]
        missing = [number for number, place in enumerate(places) if place is None]
        found = compute(torch.tensor(missing, dtype=torch.int64))
        for number, values in self._stored(places):
            found[number, : len(values)] = torch.from_numpy(values).to(found)
        if missing:
            self._append({keys[number]: found[number, : lengths[number]].float().cpu().numpy() for number in missing})
        return found

    def _stored(self, places: list[tuple[int, int] | None]) -> Iterator[tuple[int, np.ndarray]]:
        """What stands at these places, with the number of each."""
        if all(place is None for place in places):
            return
        with self.file.open("rb") as file:
            for number, where in enumerate(places):
                if where is not None:
                    file.seek(where[0])
                    yield number, np.frombuffer(file.read(4 * where[1]), np.float32).copy()

    def _append(self, found: dict[bytes, np.ndarray]) -> None:
        lengths = np.array([len(values) for values in found.values()], np.uint32)
        body = b"".join([*found, lengths.tobytes(), *(values.astype(np.float32).tobytes() for values in found.values())])
        if self._end + len(body) > MOST_BYTES:
            return
        with self.file.open("ab") as file:
            file.write(_HEAD.pack(_MARK, len(found), len(body), zlib.crc32(body)) + body)
        self._note(list(found), lengths)

    def _note(self, keys: list[bytes], lengths: np.ndarray) -> None:
        place = self._end + _HEAD.size + len(keys) * (_KEY + 4)
        for key, length in zip(keys, lengths.tolist(), strict=True):
            self._places[key] = place, length
            place += 4 * length
        self._end = place

    def _read(self) -> None:
        with self.file.open("r+b") as file:
            while len(head := file.read(_HEAD.size)) == _HEAD.size:
                mark, count, size, checksum = _HEAD.unpack(head)
                body = file.read(size) if mark == _MARK else b""
                if len(body) != size or zlib.crc32(body) != checksum:
                    break
                keys = [body[_KEY * number : _KEY * (number + 1)] for number in range(count)]
                self._note(keys, np.frombuffer(body, np.uint32, count, _KEY * count))
            file.truncate(self._end)


def _keys(rows: Trajectories) -> tuple[list[bytes], list[int]]:
    """What a row is known by, its prompt and its answer, and up to where it was written."""
    lengths = extent_of(rows.sampled > 0).tolist()
    prompts, shown = rows.inputs.prompt.cpu().numpy(), rows.inputs.prompt_mask.cpu().numpy() > 0
    assert rows.action is not None
    actions, keys = rows.action.cpu().numpy(), []
    for number, length in enumerate(lengths):
        ids = prompts[number][shown[number]].astype(np.int64), actions[number, :length].astype(np.int64)
        told = len(ids[0]).to_bytes(8, "little") + ids[0].tobytes() + ids[1].tobytes()
        keys.append(hashlib.blake2b(told, digest_size=_KEY).digest())
    return keys, lengths
