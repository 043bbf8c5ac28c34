"""The matrix of a group: the chance that one answer beats another, as far as a run has kept it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from upslope.board import safe_files
from upslope.board.run_summary import number, whole_lines
from upslope.plain_data import JsonDict
from upslope.rewards.judging import VERDICTS
from upslope.runtime.seeding import stable_hash

MOST = 16 * safe_files.MIB
"""Bytes at the end of ``verdicts.jsonl`` that are read."""

Matrix = list[list[float | None]]


class Chances:
    """What a judge has said, by the hashes of a problem and of two texts."""

    def __init__(self, said: dict[tuple[int, int, int], float]):
        self.said = said

    def of(self, prompt: str, one: str, other: str) -> float | None:
        """The chance that the one text beats the other; none where nothing was said."""
        problem, mine, theirs = _hash(prompt), _hash(one), _hash(other)
        if problem is None or mine is None or theirs is None:
            return None
        chance = self.said.get((problem, min(mine, theirs), max(mine, theirs)))
        return None if chance is None else chance if mine < theirs else 1 - chance


def read_chances(root: Path, parts: tuple[str, ...], prompts: Iterable[str]) -> Chances:
    """What a run's judge said of the answers to these prompts; nothing where it has none."""
    wanted = {str(found).encode() for prompt in prompts if (found := _hash(prompt)) is not None}
    try:
        with safe_files.folder(root, *parts) as at, safe_files.open_file(at, VERDICTS) as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - MOST))
            lines = whole_lines(file.read(MOST))[int(size > MOST) :]
    except OSError:
        lines = []
    said: dict[tuple[int, int, int], float] = {}
    for line in lines:
        if line[1:].split(b",", 1)[0].strip() in wanted and (record := _verdict(line)) is not None:
            said[record[:3]] = record[3]
    return Chances(said)


def _verdict(line: bytes) -> tuple[Any, ...] | None:
    try:
        found = json.loads(line.decode("utf-8"))
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, list) or len(found) != 5 or any(type(each) is not int for each in found[:3]):
        return None
    chance = number(found[3])
    return None if chance is None or not 0 <= chance <= 1 else (*found[:3], chance)


def _hash(text: str) -> int | None:
    try:
        return stable_hash(text)
    except UnicodeEncodeError:  # halves of characters, which no run can have hashed
        return None


def matrix_of(prompt: str, texts: Sequence[str], compared: Sequence[JsonDict], known: Chances, whole: bool) -> Matrix | None:
    """The chance that one answer (row) beats another (column), None where the run has not kept it; nothing if it kept none.

    A judge's verdicts are in a file. Besides, rows carry their chances against the best and the worst answer of their group, and
    their win rate, from which one that is missing follows: that is all there is between up to three different answers.

    Args:
        compared: what each answer carries (`upslope.evolve.comparing`).
        whole: whether these are all answers of the group.
    """
    found: Matrix = [[0.5 if one == other else known.of(prompt, one, other) for other in texts] for one in texts]
    rates = [number(each.get("win_rate")) for each in compared]
    for name, extreme in (("beats_best", max), ("beats_worst", min)):
        against = [number(each.get(name)) for each in compared]
        top = extreme((rate for rate in rates if rate is not None), default=None)
        told = zip(texts, rates, against, strict=True)
        rivals = {text for text, rate, own in told if rate is not None and rate == top and own == 0.5}
        if len(rivals) == 1:  # else it was not recorded, or cannot be told from others
            _fill(found, texts, rivals.pop(), against)
    if whole:
        _complete(found, texts, rates)
    pairs = ((one, other) for one in range(len(texts)) for other in range(len(texts)) if texts[one] != texts[other])
    return found if any(found[one][other] is not None for one, other in pairs) else None


def _fill(found: Matrix, texts: Sequence[str], rival: str, against: Sequence[float | None]) -> None:
    """The chances of every answer against one text."""
    for one, chance in enumerate(against):
        for other in range(len(texts)):
            if chance is not None and texts[other] == rival != texts[one]:
                found[one][other], found[other][one] = chance, 1 - chance


def _complete(found: Matrix, texts: Sequence[str], rates: Sequence[float | None]) -> None:
    """What is missing of a row against one text alone, from the mean of the row."""
    size = len(texts)
    for one, rate in enumerate(rates):
        missing = [other for other in range(size) if found[one][other] is None]
        if rate is None or not missing or len({texts[other] for other in missing}) > 1:
            continue
        rest = rate * (size - 1) + 0.5 - sum(chance for chance in found[one] if chance is not None)
        chance = min(1.0, max(0.0, round(rest / len(missing), 4)))
        for other in missing:
            found[one][other], found[other][one] = chance, 1 - chance
