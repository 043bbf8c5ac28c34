"""A reward written by the user, as ``file.py:function``: loaded, called and checked, with errors that name the row."""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from upslope.errors import Remark, UserError, did_you_mean
from upslope.fields import can_be_written, shown
from upslope.rewards.conventions import Ours, convention_of
from upslope.rewards.errors import NotFinite, RewardError
from upslope.rewards.surroundings import Surroundings
from upslope.runtime import user_code
from upslope.tasks.text import RewardRows

LARGEST = 1e18
"""A larger reward is refused: its square does not fit float32, and an advantage divided by such a spread would be zero."""


@dataclass(frozen=True, eq=False)
class UserReward:
    """A user's function with its results checked.

    The function gets lists of equal length and returns a number for each response, or a mapping of named lists with ``"reward"``
    among them. It may be ``async``, and may have a parameter ``infos`` for the further keys of each problem. One that was written
    for TRL or verl is called as they do (`upslope.rewards.conventions`).
    """

    function: Callable[..., Any]
    source: str = ""
    """The file it came from, for the records of a run."""
    digest: str = ""
    """SHA-256 of that file when it was loaded."""
    told: set[str] = field(default_factory=set, init=False, repr=False)
    """What it was found to change beside its results; each thing is told once."""

    def __post_init__(self) -> None:
        try:
            signature = inspect.signature(self.function)
        except (TypeError, ValueError):
            return  # some callables written in C have none
        self.convention.check(self.name, self.function, signature)

    @property
    def convention(self) -> Ours:
        return convention_of(self.function)

    @property
    def needs_answer(self) -> bool:
        """Whether it says of itself, by an attribute of this name, that it compares with the answer."""
        return bool(getattr(self.function, "needs_answer", False))

    @property
    def tells_seconds(self) -> bool:
        """Whether it says of itself, by an attribute of this name, that it always returns ``seconds``."""
        return bool(getattr(self.function, "tells_seconds", False))

    @property
    def reads_answer(self) -> bool:
        """Whether it asks for the expected answer by name, as functions for TRL and verl do."""
        return self.convention.reads_answer(self.function)

    @property
    def _short_name(self) -> str:
        return getattr(self.function, "__name__", type(self.function).__name__)

    @property
    def name(self) -> str:
        return f"{self.source}:{self._short_name}" if self.source else self._short_name

    def __call__(
        self,
        prompts: Sequence[str],
        responses: Sequence[str],
        answers: Sequence[str],
        infos: Sequence[Mapping[str, Any]] | None = None,
        messages: Sequence[Any] | None = None,
        task_name: str = "",
    ) -> list[float] | dict[str, list[float]]:
        if not responses:
            return []
        further = [{} for _ in responses] if infos is None else list(infos)
        as_messages = [None] * len(responses) if messages is None else list(messages)
        batch = RewardRows(list(prompts), list(responses), list(answers), further, as_messages, task_name)
        try:
            returned = self._run(batch)
        except RewardError:
            raise
        except Exception as error:
            raise self._blame(batch, error) from error
        if not isinstance(returned, Mapping):
            return self._numbers(returned, "rewards", batch)
        if "reward" not in returned:
            raise RewardError(f"{self.name} returned {sorted(map(str, returned))}, but no 'reward' among them. Add that key.")
        for key in returned:
            if not can_be_written(str(key)):
                raise RewardError(f"{self.name} returned values under the name {key!r}, which cannot be written as UTF-8.")
        return {str(key): self._numbers(column, f"values of {key!r}", batch) for key, column in returned.items()}

    def _run(self, rows: RewardRows) -> Any:
        found = Surroundings.now()
        try:
            return self.convention.call(self.name, self.function, rows, _finished)
        finally:
            for change in found.put_back():
                what = change.partition(" to ")[0]
                if what not in self.told:
                    self.told.add(what)
                    remark = f"{self.name} changed {change}. It is put back after each call; a reward should leave it alone."
                    warnings.warn(Remark(remark), stacklevel=2)

    def _blame(self, batch: RewardRows, error: Exception) -> RewardError:
        """The error to raise when the function did: rows are tried one by one to find the one to name."""
        for row in range(len(batch.responses)):
            try:
                self._run(batch.only(row))
            except Exception as alone:
                return RewardError(f"{self.name} raised {user_code.in_words(alone, self.source)} on {_shown_row(batch, row)}")
        told = f"{self.name} raised {user_code.in_words(error, self.source)} on {len(batch.responses)} responses"
        return RewardError(f"{told}, though not on any of them alone.")

    def _numbers(self, returned: Any, what: str, batch: RewardRows) -> list[float]:
        returned = returned.tolist() if hasattr(returned, "tolist") else returned  # numpy and torch
        if isinstance(returned, str) or not isinstance(returned, Sequence):
            wanted = f"a list of {len(batch.responses)} numbers"
            raise RewardError(f"{self.name} returned {shown(returned)} ({type(returned).__name__}) where {wanted} was expected.")
        if len(returned) != len(batch.responses):
            raise RewardError(f"{self.name} returned {len(returned)} {what} for {len(batch.responses)} responses.")
        numbers = []
        for row, value in enumerate(returned):
            if value is None and self.convention.none_applies:
                numbers.append(math.nan)
                continue
            try:
                number = float(value) if not isinstance(value, str) else math.nan
            except (TypeError, ValueError, OverflowError):
                number = math.nan
            if not math.isfinite(number):
                raise NotFinite(f"{self.name} returned {shown(value)}, which is no finite number, for {_shown_row(batch, row)}")
            if abs(number) > LARGEST:
                told = f"{self.name} returned {shown(value)}, which is beyond {LARGEST:g}: float32 cannot compare such rewards"
                raise RewardError(f"{told}. Scale them, for {_shown_row(batch, row)}")
            numbers.append(number)
        return numbers


def _shown_row(rows: RewardRows, row: int) -> str:
    return f"row {row}:\n  prompt:   {shown(rows.prompts[row])}\n  response: {shown(rows.responses[row])}"


def load_user_reward(file: str, function: str) -> UserReward:
    """The function of a Python file, which is run once as a module of its own."""
    path = Path(file).expanduser()
    if not path.is_file():
        there = [other.name for other in path.parent.glob("*.py")] if path.parent.is_dir() else []
        raise RewardError(f"no file {file!r} for the reward (looked for {path.absolute()}).{did_you_mean(path.name, there)}")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    try:
        found = vars(user_code.load_file(path))
    except UserError as error:
        raise RewardError(str(error)) from error.__cause__
    candidate = found.get(function)
    if not callable(candidate):
        functions = [name for name, value in found.items() if inspect.isfunction(value)]
        reason = f"no function {function!r} in {file!r}" if candidate is None else f"{function!r} in {file!r} is not a function"
        raise RewardError(f"{reason}.{did_you_mean(function, functions)} It has: {', '.join(functions) or 'none'}.")
    return UserReward(candidate, str(path), digest)


def _finished(returned: Any) -> Any:
    """What a function returned, waited for where it is asynchronous."""
    return _wait(returned) if inspect.isawaitable(returned) else returned


def _wait(returned: Any) -> Any:
    async def finish() -> Any:
        return await returned

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(finish())
    # Inside of a running loop (a notebook) another one can only run in another thread.
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, finish()).result()
