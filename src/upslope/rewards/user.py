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
from upslope.rewards.surroundings import Surroundings
from upslope.runtime import user_code
from upslope.tasks.text import takes_infos

SIGNATURE = "def {name}(prompts, responses, answers)"
LARGEST = 1e18
"""A larger reward is refused: its square does not fit float32, and an advantage divided by such a spread would be zero."""


class RewardError(UserError):
    """A reward function that cannot be loaded, that raised, or that returned something other than a number for each response."""


@dataclass(frozen=True, eq=False)
class UserReward:
    """A user's function with its results checked.

    The function gets lists of equal length and returns a number for each response, or a mapping of named lists with ``"reward"``
    among them. It may be ``async``, and may have a parameter ``infos`` for the further keys of each problem.
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
        further: dict[str, list] = {"infos": []} if takes_infos(self.function) else {}
        try:
            signature.bind([], [], [], **further)
        except TypeError:
            wanted = SIGNATURE.format(name=self._short_name)
            raise RewardError(f"{self.name}{signature} cannot be called with three lists. Write it as {wanted}.") from None

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
    ) -> list[float] | dict[str, list[float]]:
        if not responses:
            return []
        batch = _Rows(list(prompts), list(responses), list(answers), list(infos) if infos is not None else [{} for _ in responses])
        try:
            returned = self._run(batch)
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

    def _run(self, rows: _Rows) -> Any:
        further = {"infos": rows.infos} if takes_infos(self.function) else {}
        found = Surroundings.now()
        try:
            returned = self.function(rows.prompts, rows.responses, rows.answers, **further)
            return _wait(returned) if inspect.isawaitable(returned) else returned
        finally:
            for change in found.put_back():
                what = change.partition(" to ")[0]
                if what not in self.told:
                    self.told.add(what)
                    remark = f"{self.name} changed {change}. It is put back after each call; a reward should leave it alone."
                    warnings.warn(Remark(remark), stacklevel=2)

    def _blame(self, batch: _Rows, error: Exception) -> RewardError:
        """The error to raise when the function did: rows are tried one by one to find the one to name."""
        for row in range(len(batch.responses)):
            try:
                self._run(batch.only(row))
            except Exception as alone:
                return RewardError(f"{self.name} raised {user_code.in_words(alone, self.source)} on {batch.show(row)}")
        told = f"{self.name} raised {user_code.in_words(error, self.source)} on {len(batch.responses)} responses"
        return RewardError(f"{told}, though not on any of them alone.")

    def _numbers(self, returned: Any, what: str, batch: _Rows) -> list[float]:
        returned = returned.tolist() if hasattr(returned, "tolist") else returned  # numpy and torch
        if isinstance(returned, str) or not isinstance(returned, Sequence):
            wanted = f"a list of {len(batch.responses)} numbers"
            raise RewardError(f"{self.name} returned {shown(returned)} ({type(returned).__name__}) where {wanted} was expected.")
        if len(returned) != len(batch.responses):
            raise RewardError(f"{self.name} returned {len(returned)} {what} for {len(batch.responses)} responses.")
        numbers = []
        for row, value in enumerate(returned):
            try:
                number = float(value) if not isinstance(value, str) else math.nan
            except (TypeError, ValueError, OverflowError):
                number = math.nan
            if not math.isfinite(number):
                raise RewardError(f"{self.name} returned {shown(value)}, which is no finite number, for {batch.show(row)}")
            if abs(number) > LARGEST:
                told = f"{self.name} returned {shown(value)}, which is beyond {LARGEST:g}: float32 cannot compare such rewards"
                raise RewardError(f"{told}. Scale them, for {batch.show(row)}")
            numbers.append(number)
        return numbers


@dataclass(frozen=True)
class _Rows:
    """The arguments of a call."""

    prompts: list[str]
    responses: list[str]
    answers: list[str]
    infos: list[Mapping[str, Any]]

    def only(self, row: int) -> _Rows:
        return _Rows([self.prompts[row]], [self.responses[row]], [self.answers[row]], [self.infos[row]])

    def show(self, row: int) -> str:
        return f"row {row}:\n  prompt:   {shown(self.prompts[row])}\n  response: {shown(self.responses[row])}"


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
