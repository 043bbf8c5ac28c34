"""The record of a decoding call: tokens, log-probabilities and entropies as they are drawn."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from upslope.rollout.decode.draw import Draw
from upslope.types import Completions, Finish, Sampling


class Record(NamedTuple):
    """The columns ``[R, T]`` of all rows while they are written; a part of it is a view."""

    tokens: Tensor
    sampled: Tensor
    logp: Tensor
    entropy: Tensor

    @staticmethod
    def blank(rows: int, positions: int, pad: int, device: torch.device) -> Record:
        tokens = torch.full((rows, positions), pad, dtype=torch.long, device=device)
        return Record(tokens, *(torch.zeros(rows, positions, device=device) for _ in range(3)))

    def part(self, rows: slice) -> Record:
        return Record(*(column[rows] for column in self))

    def write(self, rows: Tensor, place: int, draw: Draw, alive: Tensor) -> None:
        """One position of the rows in the batch; those that have ended stay blank."""
        new = Record(draw.token, torch.ones_like(draw.logp), draw.logp, draw.entropy)
        for column, value in zip(self, new, strict=True):
            column[rows, place] = value.where(alive, column[rows, place])

    def cut(self, row: int, length: int, pad: int) -> None:
        """A row ends after so many tokens; what stands behind was never said."""
        for column, blank in zip(self, (pad, 0.0, 0.0, 0.0), strict=True):
            column[row, length:] = blank

    def completions(self, stops: Tensor, stopped: set[int]) -> Completions:
        """What a caller gets: only as wide as the longest answer. ``stopped`` are rows that a text has ended."""
        longest = int(self.sampled.sum(1).max())
        ended = (torch.isin(self.tokens, stops) & (self.sampled > 0)).any(1).tolist()
        finish: list[Finish] = ["stop" if end or row in stopped else "length" for row, end in enumerate(ended)]
        tokens, sampled, logp, entropy = (column[:, :longest].contiguous() for column in self)
        return Completions(tokens, sampled, logp, entropy, finish)


class Progress(NamedTuple):
    """Which rows have ended ``[R]``, and which are to: bool, on the CPU whatever the device, so that looking costs nothing."""

    ended: Tensor
    """The engine's word."""
    withdrawn: Tensor
    """The caller's word: nobody wants more of these rows, so they end at the next token."""

    @staticmethod
    def of(rows: int) -> Progress:
        return Progress(torch.zeros(rows, dtype=torch.bool), torch.zeros(rows, dtype=torch.bool))

    def part(self, rows: slice) -> Progress:
        return Progress(self.ended[rows], self.withdrawn[rows])


@dataclass(frozen=True, eq=False)
class DecodeJob:
    """How rows are to be continued, and where it is written down."""

    sampling: Sampling
    uniforms: Tensor
    """``[R, max_tokens]``."""
    stops: Tensor
    """Ids that end a row."""
    limits: Tensor
    """The most tokens of each row ``[R]``."""
    record: Record
    progress: Progress
    heard: StopStrings | None = None
    """Texts that end a row, if there are any."""
    pad: int = 0
    """What stands where nothing was said."""


class StopStrings:
    """Listens to what rows say until one of some texts is in it.

    Args:
        decode: ids to text.
    """

    def __init__(self, stop: tuple[str, ...], decode: Callable[[list[int]], str], pad: int):
        self.stop, self.decode, self.pad = stop, decode, pad
        self.rows: set[int] = set()
        """Those that have been stopped."""
        self._heard: dict[int, int] = {}
        self._reach = max(map(len, stop), default=0) + 8  # tokens of less than a character: bytes, marks that decode to nothing

    def forget(self, rows: list[int]) -> None:
        """These rows begin again."""
        for row in rows:
            self._heard.pop(row, None)

    def listen(self, record: Record, rows: list[int]) -> list[bool]:
        """Which of these rows have said one; they are cut right behind it."""
        found = []
        lengths = record.sampled[rows].sum(1).long().tolist()
        for row, length, ids in zip(rows, lengths, record.tokens[rows].tolist(), strict=True):
            end = self.end(ids[:length], self._heard.get(row, 0))
            self._heard[row] = length
            if end:
                self.rows.add(row)
                record.cut(row, end, self.pad)
            found.append(bool(end))
        return found

    def end(self, ids: list[int], heard: int = 0) -> int:
        """With how many tokens one of the texts is complete, 0 if none is; the first ``heard`` are known to hold none."""
        return next((end for end in range(heard + 1, len(ids) + 1) if self._ends(ids[:end])), 0)

    def _ends(self, ids: list[int]) -> bool:
        text = self.decode(ids[-self._reach :])
        return any(stop in text for stop in self.stop)
