"""Problems of one's own: a table with a prompt and an answer in each row, from a file or given in Python."""

from __future__ import annotations

import contextlib
import copy
import gc
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from upslope.errors import TaskError
from upslope.tasks.columns import choose_columns
from upslope.tasks.giving import KEYS, given_by, has
from upslope.tasks.problems import ProblemRow, problem_rows
from upslope.tasks.table_files import Table, read_table
from upslope.tasks.text import (
    SECONDS,
    SPLITS,
    NoReward,
    Problem,
    Reward,
    Scores,
    Split,
    TextTask,
    UndecidedReward,
    call_reward,
    correct_ones,
    reward_name,
)  # fmt: skip

FEWEST_TO_SPLIT = 10
"""With fewer different prompts a held-out share would be a problem or two: all splits then hold everything."""

_HELD_OUT: tuple[Split, ...] = ("tune", "test")


@dataclass(frozen=True)
class Division:
    """Which problems each split has, and what a reader must know about them."""

    problems: dict[Split, list[Problem]]
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True)
class DataTask(TextTask):
    """The problems of a table under a reward.

    A row may say ``"split": "train" | "tune" | "test"``. Rows that do not are ordered by a hash of their prompt and cut: a fifth
    to test, a tenth to tune, the rest to train. A split that rows or a test file give is not added to.

    A response is *correct* when the reward's component ``"correct"`` says so (a half or more), or without one when the reward is 1.

    Fields:
        data: the path of a file (`upslope.tasks.table_files`), or a table.
        reward: ``reward(prompts, responses, answers)``, called once for all responses of a step.
        test_data: a file or table of its own for the test split. Prompts that stand in both are left out of training.
        max_tokens: the longest answer. More lets a model think longer and makes each step slower.
        columns: which columns hold the prompt and the answer, ``"prompt=question,answer=solution"``; what it leaves out is
            recognised by name (`upslope.tasks.columns`).
    """

    data: str | Table
    reward: Reward
    test_data: str | Table | None = None
    max_tokens: int = 256
    columns: str = ""
    division: Division = field(init=False, repr=False, compare=False)
    rows: tuple[tuple[str, ProblemRow], ...] = field(init=False, repr=False, compare=False)
    """Every row with its file."""

    def __post_init__(self) -> None:
        with nothing_collected():
            self._read()

    def _read(self) -> None:
        table = as_table(self.data)
        tested = None if self.test_data is None else as_table(self.test_data)
        columns, remark = choose_columns(table, self.columns)
        rows = problem_rows(table, columns)
        held_out = None if tested is None else problem_rows(tested, columns)
        found = [(table.name, row) for row in rows] + [(tested.name, row) for row in held_out or [] if tested is not None]
        if isinstance(self.reward, UndecidedReward) and _only_preferences((*rows, *(held_out or []))):
            object.__setattr__(self, "reward", NoReward())
        if getattr(self.reward, "needs_answer", False):
            _demand_answers(table.name, rows, self.reward)
            _demand_answers("" if tested is None else tested.name, held_out or [], self.reward)
        _check_rows(found, self.reward)
        division = divide(table.name, rows, held_out)
        further = (*table.remarks, *(tested.remarks if tested is not None else ()), *([remark] if remark else []))
        object.__setattr__(self, "division", replace(division, remarks=(*further, *division.remarks)))
        object.__setattr__(self, "rows", tuple(found))

    def places(self) -> Iterator[tuple[str, str, str]]:
        """File, place in it (``line 3``) and prompt of every row."""
        return ((path, row.place, row.problem.prompt) for path, row in self.rows)

    def without(self, prompts: Collection[str], why: str) -> DataTask:
        """The task less these prompts; all others stay in the splits they are in.

        Raises:
            TaskError: if a split has no others.
        """
        kept = {
            split: [problem for problem in problems if problem.prompt not in prompts]
            for split, problems in self.division.problems.items()
        }
        for split, problems in kept.items():
            if not problems:
                raise TaskError(f"{self.name!r}: nothing is left for {split} without {why}. Give a smaller --max-tokens.")
        gone = sum(prompt in prompts for _, _, prompt in self.places())
        return self._divided(Division(kept, (*self.division.remarks, f"{gone} rows are left out: {why}.")))

    def first(self, count: int) -> DataTask:
        """The task with its first ``count`` training prompts, in the order of their hash; the other splits stay."""
        train = self.division.problems["train"]
        ranked = sorted({problem.prompt: problem.id for problem in train}.items(), key=lambda item: (item[1], item[0]))
        kept = {prompt for prompt, _ in ranked[:count]}
        problems = self.division.problems | {"train": [problem for problem in train if problem.prompt in kept]}
        few = f"{self.name} has only {len(ranked)} different training problems: all are taken, not {count}."
        return self._divided(Division(problems, (*self.division.remarks, *((few,) if len(ranked) < count else ()))))

    def rewarded(self, reward: Reward) -> DataTask:
        """The task under another reward."""
        task = copy.copy(self)
        object.__setattr__(task, "reward", reward)
        return task

    def remarking(self, remark: str) -> DataTask:
        """The task with one more thing that its user should know."""
        return self._divided(replace(self.division, remarks=(*self.division.remarks, remark)))

    def _divided(self, division: Division) -> DataTask:
        task = copy.copy(self)  # the files are not read again
        vars(task).pop("_counts", None)
        object.__setattr__(task, "division", division)
        return task

    @property
    def name(self) -> str:
        return self.data if isinstance(self.data, str) else self.data.name

    @cached_property
    def _counts(self) -> str:
        return ", ".join(f"{len(self.division.problems[split])} {split}" for split in SPLITS)

    def sample(self, count: int, split: Split, rng: np.random.Generator) -> list[Problem]:
        problems = self.division.problems[split]
        # Whole passes in a new order each: nothing comes twice before everything came once.
        passes = [rng.permutation(len(problems)) for _ in range(-(-count // len(problems)))]
        return [problems[row] for row in np.concatenate([np.zeros(0, int), *passes])[:count]]

    def score(self, problems: Sequence[Problem], responses: Sequence[str]) -> Scores:
        reward, components = call_reward(self.reward, problems, responses, self.name)
        seconds = components.pop(SECONDS, [])
        return Scores(reward, correct_ones(reward, components), components, seconds=seconds)

    @property
    def tells_seconds(self) -> bool:
        return bool(getattr(self.reward, "tells_seconds", False))

    def gives(self) -> frozenset[str]:
        return given_by(self, self.division.problems["train"])

    def first_without(self, word: str) -> str:
        trained = {id(problem) for problem in self.division.problems["train"]}
        rows = ((file, row) for file, row in self.rows if word in KEYS and id(row.problem) in trained)
        return next((f"{file}, {row.place}" for file, row in rows if not has(self, row.problem, word)), "")

    @property
    def remarks(self) -> tuple[str, ...]:
        """What the user should know about how the rows were dealt out."""
        return self.division.remarks

    def describe(self) -> str:
        return " ".join([f"{self.name}: {self._counts} problems, rewarded by {reward_name(self.reward)}.", *self.division.remarks])


@contextlib.contextmanager
def nothing_collected() -> Iterator[None]:
    """No search for garbage as long as the block lasts: the objects of a table all stay, and to look at them again takes long."""
    searching = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if searching:
            gc.enable()


def as_table(data: str | Table) -> Table:
    """A table, or the one in a file."""
    return read_table(data) if isinstance(data, str) else data


def _only_preferences(rows: Sequence[ProblemRow]) -> bool:
    """Whether rows say which answers are better, and not all of them what is right."""
    judged = all(row.problem.pair is not None or row.problem.wanted is not None for row in rows)
    return judged and not all(row.problem.answer.strip() for row in rows)


def _demand_answers(path: str, rows: list[ProblemRow], reward: Any) -> None:
    for row in rows:
        if not row.problem.answer.strip():
            if isinstance(reward, UndecidedReward):
                cure = (
                    "Give every row one, or --reward my.py:score, or one that needs none (json, regex:PATTERN, length:max=200); a "
                    "method that compares answers can do with --judge"
                )
                raise TaskError(f'{path!r} needs a reward: {row.place} has no "answer" that one could compare with. {cure}.')
            raise TaskError(
                f'{path}, {row.place}: no "answer", which the reward {reward_name(reward)} compares with. '
                f"The prompt begins {row.problem.prompt[:60]!r}."
            )


def _check_rows(rows: list[tuple[str, ProblemRow]], reward: Any) -> None:
    """Refuses rows that a reward cannot score because a column of its own is missing or unreadable."""
    check: Callable[[Mapping[str, Any]], str] = getattr(reward, "check_row", lambda info: "")
    for path, row in rows:
        if wrong := check(row.problem.info):
            raise TaskError(f"{path}, {row.place}: {wrong} The prompt begins {row.problem.prompt[:60]!r}.")


def divide(path: str, rows: list[ProblemRow], held_out: list[ProblemRow] | None) -> Division:
    """Deal the rows to the splits. Every split gets problems; where that means sharing them, a remark says so."""
    remarks: list[str] = []
    if held_out is not None:
        prompts = {row.problem.prompt for row in held_out}
        kept = [row for row in rows if row.problem.prompt not in prompts and row.split != "test"]
        if len(kept) < len(rows):
            remarks.append(f"{len(rows) - len(kept)} rows that are also in the test file, or said to be test, are left out.")
        rows = kept + [replace(row, split="test") for row in held_out]
    problems: dict[Split, list[Problem]] = {split: [row.problem for row in rows if row.split == split] for split in SPLITS}
    _deal_by_hash([row.problem for row in rows if row.split is None], problems, remarks)
    if not problems["train"]:
        raise TaskError(f'{path!r} leaves nothing to train on: give some rows "split": "train", or no split at all.')
    for split in _HELD_OUT:
        if not problems[split]:
            problems[split] = problems["train"]
            remarks.append(f"No rows for {split}: it shares those of train.")
    return Division(problems, tuple(remarks))


def _deal_by_hash(loose: list[Problem], problems: dict[Split, list[Problem]], remarks: list[str]) -> None:
    """Add the problems that name no split, in the order of the file, to train and to every split that is still empty."""
    wanted = [split for split in _HELD_OUT if not problems[split]]
    # By rank rather than by the hash's value: a small file gets its fifth and its tenth exactly, and never an empty split.
    # Equal prompts have one rank, so they stay together.
    prompts = {problem.prompt: problem for problem in loose}
    ranked = sorted((problem.id, prompt) for prompt, problem in prompts.items())
    if loose and len(ranked) < FEWEST_TO_SPLIT and wanted:
        sharing: list[Split] = ["train", *wanted]
        for split in sharing:
            problems[split] = problems[split] + loose
        remarks.append(f"Fewer than {FEWEST_TO_SPLIT} different prompts: {', '.join(sharing)} share them all.")
        return
    fifth, tenth = len(ranked) // 5, len(ranked) // 10
    place: dict[str, Split] = {}
    for rank, (_, prompt) in enumerate(ranked):
        share: Split = "test" if rank < fifth else "tune" if rank < fifth + tenth else "train"
        place[prompt] = share if share in wanted else "train"
    for problem in loose:
        problems[place[problem.prompt]].append(problem)
