"""Drafts without a second model: what a row may say next, looked up in its prompt and in the answers to it so far.

A draft is only a guess of what is computed together. Each of its tokens is accepted where it is the one that the row's own number
draws, so that answers are those without it; and how much is drafted follows from counts of accepted tokens and a table of what
passes cost, never from a clock, so that a run repeats.
"""

from __future__ import annotations

import platform
from collections.abc import Sequence
from itertools import pairwise
from typing import Literal, NamedTuple

from upslope.plain_data import JsonDict

LENGTHS = (4, 3, 2)
"""Of the n-grams that are looked up, the longest first."""
MOST = 15
"""Tokens of a draft where nobody says how many."""
REMEMBERED = 32
"""Once so many drafted tokens were tried, those before count half: a row that begins to repeat itself is noticed."""
HEARD = 8192
"""Tokens of rows that ended since somebody looked, those that began last first, whole rows only: what a large group has said is
not all read when one of it is left."""
PAUSE = 64
"""After so many passes drafts are tried again that did not pay."""

Speculate = int | Literal["auto", "off"]
"""How much to draft: at the most so many tokens; ``auto``: where that was measured to pay; ``off``: nothing."""


class PassCosts(NamedTuple):
    """What a pass over several positions takes, as a multiple of that over one.

    Fields:
        least, most: parameters of the models that this was measured for.
        threads: those it was measured with.
        positions, times: rows times positions of each, ascending from one, and what a pass over so many takes.
    """

    least: float
    most: float
    threads: int
    positions: tuple[int, ...]
    times: tuple[float, ...]

    def of(self, positions: int) -> float:
        """By linear interpolation; beyond the last each position costs what it does there."""
        points = [*zip(self.positions, self.times, strict=True)]
        for (low, time), (high, later) in pairwise(points):
            if positions <= high:
                return time + (later - time) * (positions - low) / (high - low)
        return self.times[-1] * positions / self.positions[-1]

    def ratio(self, rows: int, drafted: int) -> float:
        """What a pass of so many rows takes with drafts of each, as a multiple of that without."""
        return self.of(rows * (1 + drafted)) / self.of(rows)

    def most_rows(self) -> int:
        """Up to how many rows a drafted token pays that is accepted every other time."""
        return max((rows for rows in range(1, self.positions[-1]) if self.ratio(rows, 1) < 1.5), default=0)


POSITIONS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 24, 32, 48, 64)
SMOLLM2 = PassCosts(1e8, 2e8, 1, POSITIONS,
                    (1.0, 1.04, 1.07, 1.63, 1.68, 1.78, 2.16, 2.27, 2.29, 2.81, 2.0, 2.38, 2.6, 3.61, 4.41))  # fmt: skip
SMOLLM2_ON_TWO = PassCosts(1e8, 2e8, 2, POSITIONS,
                           (1.0, 1.15, 1.13, 2.08, 2.24, 2.22, 2.57, 2.63, 2.7, 3.01, 3.84, 4.29, 4.44, 5.04, 4.77))  # fmt: skip
COSTS: dict[str, tuple[PassCosts, ...]] = {"x86_64": (SMOLLM2, SMOLLM2_ON_TWO)}
"""By processor, size of the model and threads, in float32: SmolLM2-135M on an Intel Xeon at 2.5 GHz (``python bench/speculation.py
--costs``). On one thread sixteen positions take less than nine: torch's product has another kernel for them."""
NAMES = {"AMD64": "x86_64"}
"""Processors of the table that Windows calls otherwise than Linux."""


class Drafting(NamedTuple):
    """When rows are drafted for.

    Fields:
        most: tokens of a draft.
        rows: rows that are continued at once, at the most.
    """

    most: int
    rows: int
    costs: PassCosts


def drafting(speculate: Speculate, parameters: int, threads: int, measured: bool) -> Drafting | None:
    """How to draft for a model of so many parameters, if at all.

    ``auto`` drafts where it was measured to pay: for a single row, with processors, threads and sizes of the table. Whoever asks
    for drafts gets them anywhere, by the costs that were measured nearest to it.

    Args:
        threads: those that it is computed with.
        measured: whether the model is computed as those of the table were.
    """
    machine = platform.machine()
    known = COSTS.get(NAMES.get(machine, machine), ())
    if speculate == "off":
        return None
    if speculate == "auto":
        own = (costs for costs in known if costs.least <= parameters <= costs.most and costs.threads == threads)
        found = next(own, None) if measured else None
        return None if found is None else Drafting(MOST, 1, found)

    def apart(costs: PassCosts) -> tuple[int, float]:
        return abs(costs.threads - threads), max(costs.least / parameters, parameters / costs.most)

    nearest = min(known or next(iter(COSTS.values())), key=apart)
    return Drafting(speculate, nearest.most_rows(), nearest)


class Ngrams:
    """The texts of the rows of one prompt, and where each n-gram of them was said last.

    Args:
        prompt: what all of them begin with.
    """

    def __init__(self, prompt: Sequence[int]):
        self.prompt = list(prompt)
        self.texts: dict[int, list[int]] = {}
        """By row, the prompt in front."""
        self._behind: dict[tuple[int, ...], tuple[list[int], int]] = {}
        """By n-gram, the text and the place behind it."""
        self._note(self.prompt, 1)

    def said(self, row: int) -> int:
        """How many tokens of a row are known."""
        return len(self.texts[row]) - len(self.prompt) if row in self.texts else 0

    def hear(self, row: int, tokens: Sequence[int]) -> None:
        """A row has gone on."""
        text = self.texts.setdefault(row, [*self.prompt])
        begin = len(text)
        text += tokens
        self._note(text, begin)

    def _note(self, text: list[int], begin: int) -> None:
        for place in range(begin, len(text)):
            for length in LENGTHS:
                if place >= length:
                    self._behind[tuple(text[place - length : place])] = (text, place)

    def draft(self, row: int, most: int) -> list[int]:
        """What followed the longest of a row's last n-grams that was said before, at most so many tokens. Where the row's own words
        end, the draft goes on with itself: a text that repeats itself is expected to do so again."""
        own = self.texts.get(row, self.prompt)
        for length in LENGTHS:
            found = self._behind.get(tuple(own[-length:])) if len(own) >= length else None
            if found is not None:
                text, place = found[0] if found[0] is not self.prompt else own, found[1]
                draft = text[place : place + most]
                while text is own and len(draft) < most:
                    draft.append(draft[place - len(own)])
                return draft
        return []


class DraftSum(NamedTuple):
    """Tokens that were drafted, and those of them that were accepted."""

    drafted: int = 0
    accepted: int = 0

    def with_those_of(self, other: DraftSum) -> DraftSum:
        return DraftSum(self.drafted + other.drafted, self.accepted + other.accepted)

    def since(self, other: DraftSum) -> DraftSum:
        return DraftSum(self.drafted - other.drafted, self.accepted - other.accepted)

    def table(self) -> JsonDict:
        """As it goes from a worker to whoever asked; nothing where nothing was drafted."""
        return {"drafts": list(self)} if self.drafted else {}

    def metrics(self) -> dict[str, float]:
        """``drafts_accepted``, where something was drafted."""
        return {"drafts_accepted": self.accepted / self.drafted} if self.drafted else {}


def drafts_of(engine: object) -> DraftSum:
    """All that an engine has drafted so far; not all engines do."""
    found = getattr(engine, "drafts", None)
    return found if isinstance(found, DraftSum) else DraftSum()


class DraftCounts:
    """How much to draft, by what came of earlier drafts."""

    def __init__(self, drafting: Drafting):
        self.drafting = drafting
        self.sum = DraftSum()
        self._pause = 0
        self._begin()

    def _begin(self) -> None:
        self._right = self._wrong = 1.0  # nothing is known: as likely right as wrong

    def tries(self) -> bool:
        """Whether drafts are made now; asked once for each pass that there could be some for."""
        self._pause = max(0, self._pause - 1)
        return not self._pause

    def length(self, drafts: Sequence[int]) -> int:
        """Up to how many drafted tokens a row pays most, given the length of each row's draft; 0 where none do."""
        found = self._best(drafts)
        if not found and not self._best([self.drafting.most] * len(drafts)):  # not even if there were drafts for all
            self._pause = PAUSE
            self._begin()
        return found

    def _best(self, drafts: Sequence[int]) -> int:
        chance, costs = self._right / (self._right + self._wrong), self.drafting.costs
        best, found, gained = 1.0, 0, 0.0
        for length in range(1, min(self.drafting.most, max(drafts, default=0)) + 1):
            gained += chance**length * sum(own >= length for own in drafts) / len(drafts)
            pays = (1 + gained) / costs.ratio(len(drafts), length)
            if pays > best:
                best, found = pays, length
        return found

    def count(self, drafted: int, accepted: int) -> None:
        """Of a row's draft so many tokens were accepted, and the one behind them, if there was one, was not."""
        self.sum = self.sum.with_those_of(DraftSum(drafted, accepted))
        self._right += accepted
        self._wrong += accepted < drafted
        if self._right + self._wrong > REMEMBERED:
            self._right, self._wrong = self._right / 2, self._wrong / 2
