"""The log of a run's experience: append-only files, one per column of each environment.

A checkpoint remembers how long they were; whoever goes on from it cuts them back to that length, as with the metrics. So a
checkpoint costs the same however much experience there is, and a kill in the middle of a write loses nothing that counted.
"""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

import numpy as np

from upslope.errors import UserError
from upslope.experience.store import Lane, ReplayStore

COLUMNS = ("observation", "action", "reward", "ended")
MASK = "action_mask"
"""A further column, of environments that forbid choices."""


class ExperienceLog:
    """Writes what lanes take in, and fills them again.

    Args:
        folder: Where the files are; it is made when the first row is written.
        choices: Entries of an action mask, if there should be any.
    """

    def __init__(self, folder: Path, store: ReplayStore, choices: int = 0):
        self.folder, self.store, self.choices = folder, store, choices
        self.written = [0] * len(store.lanes)
        """Rows of each lane that are in the files."""
        self._files: dict[tuple[int, str], BinaryIO] = {}

    def path(self, lane: int, column: str) -> Path:
        return self.folder / f"{lane}.{column}"

    def flush(self, settled: bool = False) -> list[int]:
        """Writes the rows that are not yet written; how many there are of each lane.

        Args:
            settled: no episode is running. Otherwise the last two rows of a lane can still change.
        """
        for number, lane in enumerate(self.store.lanes):
            rows = np.arange(self.written[number], lane.rows if settled else max(lane.rows - 2, self.written[number]))
            if len(rows):
                place = lane.place(rows)
                for name, column in lane.columns.by_name.items():
                    self._file(number, name).write(column[place].tobytes())
                self.written[number] += len(rows)
        for file in self._files.values():
            file.flush()
        return list(self.written)

    def restore(self, lengths: list[int]) -> None:
        """Fills the lanes with the first rows of the files, and cuts off what came after them.

        Raises:
            UserError: if files are shorter than they were.
        """
        self.close()
        if len(lengths) != len(self.store.lanes):
            raise UserError(f"{self.folder} holds the experience of {len(lengths)} environments, and there are "
                            f"{len(self.store.lanes)}. Go on with as many as the run began with.")  # fmt: skip
        for number, (lane, rows) in enumerate(zip(self.store.lanes, lengths, strict=True)):
            self._restore_lane(number, lane, rows)
            self.written[number] = rows

    def _restore_lane(self, number: int, lane: Lane, rows: int) -> None:
        found = {}
        if self.choices and self.path(number, MASK).exists():
            lane.keep_masks(self.choices)
        for column, like in lane.columns.by_name.items():
            width, path = like[:1].nbytes, self.path(number, column)
            size = path.stat().st_size if path.exists() else 0
            if size < rows * width:
                raise UserError(f"{path} has {size} bytes, and the checkpoint knows of {rows * width}: experience is missing. "
                                "Put the file back, or go on from an earlier checkpoint.")  # fmt: skip
            if size > rows * width:
                with path.open("r+b") as file:
                    file.truncate(rows * width)
            shape = (rows, *like.shape[1:])
            found[column] = np.memmap(path, like.dtype, "r", shape=shape) if rows else np.zeros(shape, like.dtype)
        lane.refill(**found)

    def _file(self, lane: int, column: str) -> BinaryIO:
        if (lane, column) not in self._files:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._files[lane, column] = self.path(lane, column).open("ab")
        return self._files[lane, column]

    def close(self) -> None:
        for file in self._files.values():
            file.close()
        self._files.clear()
