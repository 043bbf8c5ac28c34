"""Judges: a model says which of two answers is better. It is asked in both orders, and what it said is kept.

Who is asked, a run, a server or the policy itself, is for `upslope.rollout.judges` to say.
"""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from upslope.errors import UserError
from upslope.rewards.preferences import Contest, antisymmetric, expanded
from upslope.tasks.text import Problem

QUESTION = (
    "Here are a problem and two answers to it. Which answer is better?\n\nProblem:\n{problem}\n\nAnswer A:\n{first}\n\n"
    "Answer B:\n{second}\n\nSay A or B and nothing else.\n"
)
"""What a judge is asked."""
FAILURES = ("timeouts", "unreadable", "contradicts")
"""How a judge can fail on a pair: it gives no answer, one that is neither A nor B, or prefers the same place in both orders."""
AT_ONCE = 64
"""Pairs that are asked about before their verdicts are written down."""
RECENT, FEWEST = 200, 20
"""Verdicts of which the share that failed is looked at, and how many there must be before it is."""
VERDICTS = "verdicts.jsonl"
"""The file of a run's verdicts."""

PairKey = tuple[int, int, int]


class Question(NamedTuple):
    """A question to a judge, and the problem that it is about."""

    problem: Problem
    prompt: str


Asker = Callable[[Sequence[Question]], list[str | None]]
"""Answers questions; none where no answer came."""


class Verdict(NamedTuple):
    """What a judge said of two texts."""

    chance: float
    """That the first of its key beats the second; an order without a verdict counts as even."""
    failed: str = ""
    """One of `FAILURES`, if it did."""


class JudgeFailed(UserError):
    """A judge that fails too often."""


def preferred(said: str | None) -> str:
    """The one answer, A or B, that a judge names; nothing where it names none or both."""
    letters = set(re.findall(r"\b[AB]\b", said or ""))
    return letters.pop() if len(letters) == 1 else ""


def verdict(said: str | None, swapped: str | None) -> Verdict:
    """What was said of two texts, first as A and B, then as B and A."""
    letters = preferred(said), preferred(swapped)
    chance = ({"A": 1.0, "B": 0.0, "": 0.5}[letters[0]] + {"A": 0.0, "B": 1.0, "": 0.5}[letters[1]]) / 2
    if said is None or swapped is None:
        return Verdict(chance, "timeouts")
    if "" in letters:
        return Verdict(chance, "unreadable")
    return Verdict(chance, "contradicts" if letters[0] == letters[1] else "")


class Verdicts:
    """What a judge has said, by the problem and both texts, in whatever order they stood.

    A run keeps them in a file of its own, not in its checkpoints: what was said after the last checkpoint is then there when a
    killed run makes these steps again. So nothing is asked twice, and the steps come out as before, though a judge may not repeat
    itself.
    """

    def __init__(self) -> None:
        self.known: dict[PairKey, Verdict] = {}
        self.file: Path | None = None

    def keep_in(self, file: Path) -> None:
        """Goes on with this file; a last line that a kill left unfinished is cut off."""
        self.known, self.file = {}, file
        if not file.exists():
            return
        lines = file.read_bytes().splitlines(keepends=True)
        if lines and not lines[-1].endswith(b"\n"):
            file.write_bytes(b"".join(lines[:-1]))
            lines = lines[:-1]
        for number, line in enumerate(lines, 1):
            try:
                self._read(json.loads(line))
            except (ValueError, TypeError, KeyError):
                told = f"{file}, line {number} is no verdict: {line[:40]!r}"
                raise UserError(f"{told}. Delete that line, and the judge is asked again.") from None

    def _read(self, record: Any) -> None:
        if isinstance(record, dict):
            self._drop(str(record["forget"]))
            return
        problem, first, second, chance, failed = record
        if not (0 <= chance <= 1) or failed not in ("", *FAILURES):
            raise ValueError(record)
        self.known[int(problem), int(first), int(second)] = Verdict(float(chance), failed)

    def add(self, found: dict[PairKey, Verdict]) -> None:
        self.known |= found
        self._append([[*key, *each] for key, each in found.items()])

    def forget(self, failed: str) -> None:
        """Asks again, from now on, about pairs that failed so."""
        self._drop(failed)
        self._append([{"forget": failed}])

    def _drop(self, failed: str) -> None:
        self.known = {key: each for key, each in self.known.items() if each.failed != failed}

    def _append(self, records: Sequence[object]) -> None:
        if self.file is not None and records:
            with self.file.open("a", encoding="utf-8") as file:
                file.write("".join(json.dumps(record) + "\n" for record in records))


class Judge:
    """Compares answers by asking who is better, each pair of texts once, in both orders.

    Args:
        name: as the user gave it.
        ask: who answers; nothing where that is the policy, which is another judge in every step: its verdicts hold for one.
        most_failures: share of recent verdicts that may fail.
    """

    def __init__(self, name: str, ask: Asker | None, most_failures: float):
        self.name, self.ask, self.most_failures = name, ask, most_failures
        self.verdicts = Verdicts()

    def compare(self, contests: Sequence[Contest], ask: Asker | None = None) -> tuple[list[np.ndarray], dict[str, int]]:
        """The chances of each contest, and of its pairs how many there are and how many failed in each way.

        Args:
            ask: the policy's answers, where that is the judge.

        Raises:
            JudgeFailed: if more of the recent verdicts failed than may.
        """
        asker = self.ask or ask
        assert asker is not None
        if self.ask is None:
            self.verdicts = Verdicts()
        pairs = {key: each for contest in contests for key, each in _pairs(contest).items()}
        missing = [key for key in pairs if key not in self.verdicts.known]
        for begin in range(0, len(missing), AT_ONCE):
            some = missing[begin : begin + AT_ONCE]
            said = asker([question for key in some for question in pairs[key]])
            self.verdicts.add({key: verdict(*said[2 * at : 2 * at + 2]) for at, key in enumerate(some)})
        self._check()
        known = self.verdicts.known
        counts = {"pairs": len(pairs)} | {kind: sum(known[key].failed == kind for key in pairs) for kind in FAILURES}
        return [self._matrix(contest) for contest in contests], counts

    def _matrix(self, contest: Contest) -> np.ndarray:
        distinct = Contest(contest.problem, tuple(dict.fromkeys(contest.texts)))
        size, places = len(distinct.texts), [*itertools.combinations(range(len(distinct.texts)), 2)]
        said = np.full((size, size), 0.5)
        for one, other in places:
            key = distinct.pair_key(one, other)
            chance = self.verdicts.known[key].chance
            said[one, other] = chance if key[1] == distinct.hash_of(one) else 1 - chance
            said[other, one] = 1 - said[one, other]
        return expanded(antisymmetric(said, size, self.name), distinct.texts, contest.texts)

    def _check(self) -> None:
        recent = [each.failed for each in self.verdicts.known.values()][-RECENT:]
        failed = sum(map(bool, recent))
        if len(recent) < FEWEST or failed <= math.floor(self.most_failures * len(recent)):
            return
        kinds = ", ".join(f"{recent.count(kind)} {kind}" for kind in FAILURES if kind in recent)
        self.verdicts.forget("timeouts")  # whoever goes on may find it at work again
        cure = "Go on when it answers again" if "timeouts" in recent else "Take another judge, or begin again with a larger share"
        raise JudgeFailed(
            f"the judge {self.name} failed on {failed} of the last {len(recent)} pairs ({kinds}), more than --judge-failures "
            f"{self.most_failures:g} allows. {cure}; the run is safe up to its last checkpoint: 'upslope resume RUN'."
        )


def _pairs(contest: Contest) -> dict[PairKey, tuple[Question, Question]]:
    """Every two different texts of a contest by their key, as both questions; the key's first text is A in the first of them."""
    distinct = Contest(contest.problem, tuple(dict.fromkeys(contest.texts)))
    found = {}
    for pair in itertools.combinations(range(len(distinct.texts)), 2):
        first, second = sorted(pair, key=distinct.hash_of)
        found[distinct.pair_key(*pair)] = (_question(distinct, first, second), _question(distinct, second, first))
    return found


def _question(contest: Contest, first: int, second: int) -> Question:
    texts = contest.texts
    return Question(contest.problem, QUESTION.format(problem=contest.problem.prompt, first=texts[first], second=texts[second]))
