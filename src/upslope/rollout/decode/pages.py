"""Pages of the cache: where a row's keys and values are, if not all rows that are continued could have a stretch of full length.

A row takes a page when it has filled the one before, so rows that end early never hold what they were allowed. Where more rows go
on than there will be pages for, the one that began last is put back: its pages go to the others, and later it begins again with its
own numbers, which give the same tokens (to the rounding of how many rows are computed together). The row that began first always
goes on, so every row ends. How far a row came is remembered: it begins again where there are pages for that and more.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

PAGE = 64
"""Tokens of a page: as many as attention reads at once, or a multiple of them."""
SUPPOSED = 8
"""As if so many rows had ended already, half of them with any number of pages alike and half at the most that they may say: what
is expected of rows before any has ended, and of those that have outlived all that have."""
ROUNDING = 1e-6
LEAST_SHARE = 8
"""Rows that share pages are so many as if each said an eighth of what it may; where they say more, fewer go on at a time."""


class Seats(NamedTuple):
    """How many rows are continued at once."""

    rows: int
    pages: int
    """Of their cache; 0: each row has a stretch of full length."""


def seats(rows: int, memory: int, room: int, slot_bytes: int, token_bytes: int, paged: bool) -> Seats:
    """How many of the rows can be continued at once.

    Args:
        memory: what they may take together, in bytes.
        room: the most tokens a row may say.
        slot_bytes, token_bytes: what a row takes whatever it says, and its keys and values for each token.
        paged: whether there can be pages; they are made where rows would wait otherwise.
    """
    whole = max(1, min(rows, memory // (slot_bytes + room * token_bytes)))
    across = -(-room // PAGE)
    if not paged or whole == rows or across == 1:
        return Seats(whole, 0)
    least = slot_bytes + max(PAGE, room // LEAST_SHARE) * token_bytes
    count = max(whole, min(rows, memory // least))
    pages = max(across, (memory - count * slot_bytes) // (PAGE * token_bytes))
    return Seats(count, min(pages, count * across))


class Pages:
    """Which pages each slot has. Kernels read ``table``; who gets which is decided on the host, which knows how far rows are.

    Args:
        slots: how many there are.
        room: the most tokens a row may say.
        count: pages; at least as many as one row may need.
    """

    def __init__(self, slots: int, room: int, count: int, device: torch.device):
        self.count, self.across = count, -(-room // PAGE)
        assert count >= self.across, "one row must fit"
        self.table = torch.zeros(slots, self.across, dtype=torch.int32, device=device)
        """``[slots, pages of a row]``. Page 0 is nobody's: what slots without a row compute is written there."""
        self._row, self._said, self._most, self._have, self._sure = (np.zeros(slots, dtype=np.int64) for _ in range(5))
        """Of each slot's row: its number, the tokens it will have said and the most it may, the pages it has, and those it had
        before it was put back."""
        self._order = np.zeros(slots, dtype=np.int64)
        """The when-th each slot's row began; 0 of slots without one."""
        self.clear([])

    def clear(self, limits: Sequence[int]) -> None:
        """Nobody has a page: other rows are continued, of which each may say so many tokens at the most."""
        self._limits = [*limits]
        self._waits: dict[int, int] = {}
        """Rows that were put back and have not begun again, with the pages they had."""
        self._free = [*range(self.count, 0, -1)]
        self._own: list[list[int]] = [[] for _ in self._said]
        self._order[:] = self._begun = 0
        self._have[:] = 0
        self._ended = np.full(self.across, SUPPOSED / 2 / self.across)
        """How many rows ended with one page, with two, ...; some are supposed to have."""
        self._ended[-1] += SUPPOSED / 2
        self.table.zero_()

    @property
    def left(self) -> int:
        """Pages that nobody has."""
        return len(self._free)

    def vacancies(self, rows: Sequence[int]) -> int:
        """How many of the rows that wait, the first of them, may begin: so many that there are pages for all that rows will say, by
        how long those were that have ended and by how far those came that have not. One if there is none."""
        living, needs, expected = self._needs()
        rows = rows[: max(1, int(self.count - needs.sum() + ROUNDING))]  # each takes a page at least
        had = [self._waits.get(row, 0) for row in rows]
        new = np.minimum(expected[had], [-(-self._limits[row] // PAGE) for row in rows])
        fit = int((new.cumsum() <= self.count - needs.sum() + ROUNDING).sum())
        return max(fit, 0 if len(living) else min(1, len(rows)))

    def _too_many(self) -> list[int]:
        """Slots of the rows that began last, the youngest first, where there will be too few pages for all: whoever is put back
        sooner says less of it twice."""
        living, needs, _ = self._needs()
        fit = int((needs.cumsum() <= self.count + ROUNDING).sum())
        return living[max(1, fit) :][::-1].tolist()

    def _needs(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Slots of the rows that go on, the oldest first; with how many pages each will end; and with how many any row will that is
        known to fill none, one, two, ..."""
        living = np.flatnonzero(self._order)
        living = living[np.argsort(self._order[living])]
        came = np.maximum(self._have, self._sure)[living]
        expected = self._expected(np.concatenate([came, np.fromiter(self._waits.values(), np.int64)]))
        return living, np.minimum(expected[came], -(-self._most[living] // PAGE)), expected

    def _expected(self, came: np.ndarray) -> np.ndarray:
        """With how many pages a row will end that is known to fill none, one, two, ...: the Kaplan-Meier estimate, for which a row
        that has not ended is one that has not with as many pages as it had."""
        reached = np.cumsum(self._ended[::-1])[::-1] + np.cumsum(np.bincount(came, minlength=self.across + 1)[:0:-1])[::-1]
        beyond = np.cumprod(1 - self._ended / reached)  # the chance of more than one page, than two, ...
        beyond[-1] = 0
        at_least = np.concatenate([[1.0], beyond[:-1]])  # of one page, of two, ...
        further = np.concatenate([[at_least.sum()], np.cumsum(beyond[::-1])[::-1] / at_least])
        return np.arange(self.across + 1) + further

    def begin(self, slots: Sequence[int], rows: Sequence[int]) -> None:
        """Rows begin."""
        for slot, row in zip(slots, rows, strict=True):
            self._begun += 1
            self._order[slot], self._row[slot], self._said[slot] = self._begun, row, 0
            self._most[slot], self._sure[slot] = self._limits[row], self._waits.pop(row, 0)

    def grow(self, ahead: int) -> list[int]:
        """Every row that goes on gets the pages for so many tokens more; the slots whose rows are put back, the youngest first."""
        back = self._too_many()
        for slot in back:
            self._put_back(slot)
        self._said += ahead
        wanted = -(-np.minimum(self._said, self._most) // PAGE) - self._have
        growing = np.flatnonzero((wanted > 0) & (self._order > 0))
        given: list[tuple[int, int, int]] = []
        for slot in growing[np.argsort(self._order[growing])].tolist():  # the oldest first
            need = int(wanted[slot])
            while self.left < need and self._order[slot]:
                youngest = int(self._order.argmax())
                self._put_back(youngest)
                back.append(youngest)
            if not self._order[slot]:  # it was the youngest itself
                continue
            for _ in range(need):
                page = self._free.pop()
                given.append((slot, len(self._own[slot]), page))
                self._own[slot].append(page)
            self._have[slot] += need
        self._write(back, given)
        return back

    def end(self, slots: list[int]) -> None:
        """Rows have ended."""
        for slot in slots:
            if self._order[slot]:
                self._ended[max(0, self._have[slot] - 1)] += 1
            self._take_back(slot)
        self._write(slots, [])

    def move(self, source: list[int], target: list[int]) -> None:
        """Rows go on in other slots, which have none."""
        for old, new in zip(source, target, strict=True):
            for column in (self._order, self._row, self._said, self._most, self._have, self._sure):
                column[new] = column[old]
            self._own[new], self._own[old] = self._own[old], []
            self._order[old] = self._have[old] = 0
        if source:
            self.table[target] = self.table[source]
            self.table[source] = 0

    def _put_back(self, slot: int) -> None:
        self._waits[int(self._row[slot])] = int(max(self._have[slot], self._sure[slot]))
        self._take_back(slot)

    def _take_back(self, slot: int) -> None:
        self._free += reversed(self._own[slot])
        self._own[slot] = []
        self._order[slot] = self._have[slot] = 0

    def _write(self, emptied: list[int], given: list[tuple[int, int, int]]) -> None:
        """Into the table: one copy to the device for each kind."""
        device = self.table.device
        if emptied:
            self.table[torch.tensor(emptied, device=device)] = 0
        if given := [each for each in given if self._order[each[0]]]:  # a row may be put back right after it was given some
            slot, place, page = torch.tensor(given, device=device).unbind(1)
            self.table[slot, place] = page.int()
