"""A reward is audited before it pays: what it gives for the expected answer, an empty one, nonsense, and another problem's answer.

All of it is one call of the reward on twenty problems. What is odd is said, and nothing is refused: a reward may have its reasons.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from upslope.fields import shown
from upslope.plain_data import JsonDict
from upslope.rewards.extract import expected_text
from upslope.runtime.seeding import numpy_generator
from upslope.tasks.text import FULL_MARKS, Problem, TextTask

PROBLEMS = 20
SEED = 30_000
"""Of the problems: the same for every run of a task, and none of the run's own random numbers."""
NEARLY = 0.95
"""From this share of what the expected answer earns, an answer was paid in full."""
FORMS = ("{}", "\\boxed{{{}}}", "<think>It follows.</think>\n<answer>{}</answer>")
"""Forms in which a reward may want the expected answer; the one that it pays best counts."""
NONSENSE = "Purple lanterns whistle under the seventh Tuesday."
TOLERATED = {"empty": 0.0, "nonsense": 0.0, "other": 0.25}
"""Share of problems in which an answer that should be wrong may be paid: a problem can have several right answers."""
KINDS = {
    "expected": "the expected answer",
    "empty": "an empty answer",
    "nonsense": "nonsense",
    "other": "another problem's answer",
}

AUDITED = f"(Found by the audit before a run, of {PROBLEMS} problems; --audit off leaves it out.)"
"""Where a remark comes from."""


@dataclass(frozen=True)
class Tried:
    """One answer to one problem, and what it earned."""

    kind: str
    problem: Problem
    response: str
    reward: float
    correct: bool


@dataclass(frozen=True)
class Audit:
    """What a reward paid for answers of known worth.

    Fields:
        rows: by problem, in the order of `KINDS`; without an expected answer a problem has only the empty one and nonsense.
        problems: how many were looked at.
    """

    rows: tuple[Tried, ...]
    problems: int

    def of(self, kind: str) -> list[Tried]:
        return [row for row in self.rows if row.kind == kind]

    def refused(self) -> list[Tried]:
        """Expected answers that are not right, and earn nothing or less than an empty answer or nonsense does."""
        floor = {(row.problem, row.kind): row.reward for row in self.rows}
        return [
            row
            for row in self.of("expected")
            if not row.correct and (row.reward <= 0 or row.reward < max(floor[row.problem, kind] for kind in ("empty", "nonsense")))
        ]

    def paid(self, kind: str) -> list[Tried]:
        """Answers of a wrong kind that are called right, or earn nearly what the expected answer does."""
        best = {row.problem: row.reward for row in self.of("expected")}
        return [
            row
            for row in self.of(kind)
            if row.correct or (row.reward > 0 and row.reward >= NEARLY * best.get(row.problem, FULL_MARKS))
        ]

    def remarks(self, name: str) -> list[str]:
        """What should be known of the reward before it pays, in a line each with the texts; nothing if it does as it should."""
        found = []
        if refused := self.refused():
            row, many = refused[0], f"{len(refused)} of {len(self.of('expected'))} problems"
            found.append(
                f"the reward {name} pays {row.reward:g} for the expected answer in {many}: "
                f"{shown(row.response)} to {shown(row.problem.prompt)}. Nor alone, boxed or in tags. Another form? {AUDITED}"
            )
        wrong = {kind: self.paid(kind) for kind, share in TOLERATED.items() if len(self.paid(kind)) > share * len(self.of(kind))}
        if wrong:
            row = next(iter(wrong.values()))[0]
            kinds = ", ".join(f"{KINDS[kind]} ({len(rows)} of {len(self.of(kind))} problems)" for kind, rows in wrong.items())
            said = f"{shown(row.response)} to {shown(row.problem.prompt)}{_expected(row.problem)}"
            found.append(
                f"the reward {name} pays {row.reward:g} for {kinds}, as for {said}. A model will learn to say that. {AUDITED}"
            )
        return found

    def table(self) -> str:
        """For people: what each kind of answer earned."""
        lines = [f"{'answer':<26}{'problems':>8}  {'mean reward':>11}  {'right':>5}  for example"]
        for kind, words in KINDS.items():
            if rows := self.of(kind):
                mean, right = sum(row.reward for row in rows) / len(rows), sum(row.correct for row in rows)
                lines.append(f"{words:<26}{len(rows):>8}  {mean:>11.3g}  {right:>5}  {shown(rows[0].response)}")
        if not self.of("expected"):
            lines.append("No problem has an expected answer to check the reward by.")
        return "\n".join(lines)


def audit_text(task: TextTask, reward: str = "") -> tuple[list[JsonDict], str]:
    """The audit of a task, as records and for people; ``reward`` is the one it is under, if it is not its own."""
    found, name = audit(task), reward or f"of {task.name}"
    records = [
        {"answer": row.kind, "prompt": row.problem.prompt, "response": row.response, "reward": row.reward, "correct": row.correct}
        for row in found.rows
    ]
    quiet = ["Nothing odd was found."] if found.of("expected") else []
    return records, "\n".join([found.table(), *(found.remarks(name) or quiet)])


def _expected(problem: Problem) -> str:
    return f", where {shown(problem.answer)} is expected" if problem.answer else ""


def audit(task: TextTask, problems: int = PROBLEMS) -> Audit:
    """What a task pays for answers of known worth to some of its training problems."""
    drawn = task.sample(problems, "train", numpy_generator(SEED, "audit"))
    asked = list({problem.prompt: problem for problem in drawn}.values())
    tried = [(kind, problem, response) for problem in asked for kind, response in _answers(problem, asked)]
    scores = task.score([problem for _, problem, _ in tried], [response for _, _, response in tried])
    paid = zip(tried, scores.reward, scores.correct, strict=True)
    best: dict[tuple[str, Problem], Tried] = {}
    for row in (Tried(*each, float(reward), bool(correct)) for each, reward, correct in paid):
        before = best.setdefault((row.kind, row.problem), row)
        if (row.correct, row.reward) > (before.correct, before.reward):
            best[row.kind, row.problem] = row
    return Audit(tuple(best.values()), len(asked))


def _answers(problem: Problem, asked: Sequence[Problem]) -> list[tuple[str, str]]:
    """The answers to try on a problem, with their kinds. Another's is of the next problem with a different one."""
    wrong = [("empty", ""), ("nonsense", NONSENSE)]
    if not problem.answer.strip():
        return wrong
    place = asked.index(problem)
    others = [other.answer for other in (*asked[place + 1 :], *asked[:place])]
    other = next((answer for answer in others if answer.strip() and answer.strip() != problem.answer.strip()), None)
    right = [("expected", problem.answer), *(("expected", form.format(expected_text(problem.answer))) for form in FORMS)]
    return [*right, *wrong, *([] if other is None else [("other", other)])]
