"""Problems of one's own: a file with a JSON object on each line, ``{"prompt": ..., "answer": ...}``.

The file is read and checked as a whole before anything else happens, so that line 90,000 cannot end a run after an hour.
"""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from upslope.errors import TaskError, did_you_mean
from upslope.tasks.text import (
    SPLITS,
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
class JsonlRow:
    """A line of the file that was found good."""

    problem: Problem
    split: Split | None = None
    """Where the line itself says it belongs."""
    line: int = 0


@dataclass(frozen=True)
class Division:
    """Which problems each split has, and what a reader must know about them."""

    problems: dict[Split, list[Problem]]
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True)
class JsonlTask(TextTask):
    """The problems of a JSONL file under a reward.

    A line may say ``"split": "train" | "tune" | "test"``. Lines that do not are ordered by a hash of their prompt and cut: a fifth
    to test, a tenth to tune, the rest to train. A split that lines or a test file give is not added to.

    A response is *correct* when the reward's component ``"correct"`` says so (a half or more), or without one when the reward is 1.

    Fields:
        path: the file.
        reward: ``reward(prompts, responses, answers)``, called once for all responses of a step.
        test_path: a file of its own for the test split. Prompts that stand in both are left out of training.
        max_tokens: the longest answer. More lets a model think longer and makes each step slower.
    """

    path: str
    reward: Reward
    test_path: str | None = None
    max_tokens: int = 256
    division: Division = field(init=False, repr=False, compare=False)
    rows: tuple[tuple[str, JsonlRow], ...] = field(init=False, repr=False, compare=False)
    """Every row with its file."""

    def __post_init__(self) -> None:
        rows = read_jsonl(self.path)
        held_out = read_jsonl(self.test_path) if self.test_path else None
        if getattr(self.reward, "needs_answer", False):
            for path, some in ((self.path, rows), (self.test_path, held_out or [])):
                _demand_answers(str(path), some, self.reward)
        object.__setattr__(self, "division", divide(self.path, rows, held_out))
        files = ((self.path, rows), (self.test_path or "", held_out or []))
        object.__setattr__(self, "rows", tuple((path, row) for path, some in files for row in some))

    def places(self) -> Iterator[tuple[str, int, str]]:
        """File, line and prompt of every row."""
        return ((path, row.line, row.problem.prompt) for path, row in self.rows)

    def without(self, prompts: Collection[str], why: str) -> JsonlTask:
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
                raise TaskError(f"{self.path!r}: nothing is left for {split} without {why}. Give a smaller --max-tokens.")
        gone = sum(prompt in prompts for _, _, prompt in self.places())
        return self._divided(Division(kept, (*self.division.remarks, f"{gone} rows are left out: {why}.")))

    def rewarded(self, reward: Reward) -> JsonlTask:
        """The task under another reward."""
        task = copy.copy(self)
        object.__setattr__(task, "reward", reward)
        return task

    def remarking(self, remark: str) -> JsonlTask:
        """The task with one more thing that its user should know."""
        return self._divided(replace(self.division, remarks=(*self.division.remarks, remark)))

    def _divided(self, division: Division) -> JsonlTask:
        task = copy.copy(self)  # the files are not read again
        vars(task).pop("_counts", None)
        object.__setattr__(task, "division", division)
        return task

    @property
    def name(self) -> str:
        return str(self.path)

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
        return Scores(reward, correct_ones(reward, components), components)

    @property
    def remarks(self) -> tuple[str, ...]:
        """What the user should know about how the rows were dealt out."""
        return self.division.remarks

    def describe(self) -> str:
        return " ".join([f"{self.path}: {self._counts} problems, rewarded by {reward_name(self.reward)}.", *self.division.remarks])


def read_jsonl(path: str) -> list[JsonlRow]:
    """Every row of the file, or a `TaskError` that names the first line that cannot be used."""
    file = Path(path).expanduser()
    if not file.is_file():
        there = [other.name for other in file.parent.glob("*.jsonl")] if file.parent.is_dir() else []
        raise TaskError(f"no file {path!r} (looked for {file.absolute()}).{did_you_mean(file.name, there)}")
    rows = []
    for number, raw in enumerate(file.read_bytes().removeprefix(b"\xef\xbb\xbf").split(b"\n"), start=1):
        if raw.strip():
            rows.append(_read_row(f"{path}, line {number}", raw, number))
    if not rows:
        raise TaskError(f"{path!r} is empty. Each line must be a JSON object such as " + '{"prompt": "2+2=", "answer": "4"}.')
    return rows


def _read_row(where: str, raw: bytes, number: int) -> JsonlRow:
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        raise TaskError(f"{where}: not UTF-8 (byte {error.start + 1} of the line). Save the file as UTF-8.") from None
    start = f"The line begins {text.strip()[:60]!r}."
    try:
        row = json.loads(text)
    except (ValueError, RecursionError) as error:  # numbers of thousands of digits are a ValueError of another kind
        what = str(error) if isinstance(error, ValueError) else "nested too deep"
        what = f"{error.msg} at column {error.colno}" if isinstance(error, json.JSONDecodeError) else what
        raise TaskError(f"{where}: not JSON ({what}). {start}") from None
    if not isinstance(row, dict):
        raise TaskError(f'{where}: a {type(row).__name__}, not an object with a "prompt". {start}')
    if "prompt" not in row:
        raise TaskError(f'{where}: no "prompt".{did_you_mean("prompt", row)} {start}')
    prompt, answer, split = row.pop("prompt"), row.pop("answer", ""), row.pop("split", None)
    if not isinstance(prompt, str) or not prompt:
        raise TaskError(f'{where}: "prompt" must be text and not empty, but is {str(prompt)[:40]!r}. {start}')
    if isinstance(answer, bool) or not isinstance(answer, (str, int, float)):
        raise TaskError(f'{where}: "answer" must be text or a number, but is {str(answer)[:40]!r}. {start}')
    if isinstance(answer, float) and not math.isfinite(answer):
        raise TaskError(f'{where}: "answer" is {answer}, which no answer equals. Write a number, or text in quotes. {start}')
    _check_characters(where, {"prompt": prompt, "answer": str(answer)})
    if split is not None and split not in SPLITS:
        raise TaskError(f'{where}: "split" must be one of {", ".join(SPLITS)}, but is {split!r}.{did_you_mean(str(split), SPLITS)}')
    return JsonlRow(Problem(prompt, str(answer), row), split, number)


def _check_characters(where: str, texts: Mapping[str, str]) -> None:
    for name, text in texts.items():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            half = f"\\u{ord(text[error.start]):x}"
            raise TaskError(f'{where}: "{name}" holds {half}, half of a character, at place {error.start + 1}. Mend it.') from None


def _demand_answers(path: str, rows: list[JsonlRow], reward: Any) -> None:
    for row in rows:
        if not row.problem.answer.strip():
            if isinstance(reward, UndecidedReward):
                cure = "Give every row one, or --reward my.py:score, or one that needs none (json, regex:PATTERN, length:max=200)"
                raise TaskError(f'{path!r} needs a reward: line {row.line} has no "answer" that one could compare with. {cure}.')
            raise TaskError(
                f'{path}, line {row.line}: no "answer", which the reward {reward_name(reward)} compares with. '
                f"The prompt begins {row.problem.prompt[:60]!r}."
            )


def divide(path: str, rows: list[JsonlRow], held_out: list[JsonlRow] | None) -> Division:
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
    ranked = sorted({problem.prompt: problem.id for problem in loose}.items(), key=lambda item: (item[1], item[0]))
    if loose and len(ranked) < FEWEST_TO_SPLIT and wanted:
        sharing: list[Split] = ["train", *wanted]
        for split in sharing:
            problems[split] = problems[split] + loose
        remarks.append(f"Fewer than {FEWEST_TO_SPLIT} different prompts: {', '.join(sharing)} share them all.")
        return
    fifth, tenth = len(ranked) // 5, len(ranked) // 10
    place: dict[str, Split] = {}
    for rank, (prompt, _) in enumerate(ranked):
        share: Split = "test" if rank < fifth else "tune" if rank < fifth + tenth else "train"
        place[prompt] = share if share in wanted else "train"
    for problem in loose:
        problems[place[problem.prompt]].append(problem)
