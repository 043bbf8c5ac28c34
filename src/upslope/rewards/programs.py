"""The reward of programs: what a model wrote is run in the sandbox, and its tests say what it is worth.

A row of data has its tests under ``tests``: Python asserts, as one text or a list of them, or a list of ``{"stdin", "stdout"}``.
"""

from __future__ import annotations

import ast
import json
import os
import re
import textwrap
import threading
import uuid
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from upslope.errors import Remark
from upslope.fields import shown
from upslope.rewards.errors import RewardError
from upslope.rewards.extract import final_text
from upslope.rewards.weighted import WeightedRewards
from upslope.runtime.sandbox import Limits, Sandbox
from upslope.runtime.sandbox.limits import LEAST_MEMORY, WEAK
from upslope.runtime.sandbox.pool import default_slots
from upslope.tasks.text import SECONDS, Reward

KEY = "tests"
_FENCE = re.compile(r"^[ \t]*```[ \t]*([\w+-]*)[^\n]*\n(.*?)(?:^[ \t]*```[ \t]*$|\Z)", re.MULTILINE | re.DOTALL)
PYTHON = ("python", "py", "python3", "")
FORMS = 'Python asserts as a text or a list of texts, or a list of {"stdin": ..., "stdout": ...}'

# Runs inside. What decides is read before the program that is tested begins, and a verdict goes where that program's prints do not,
# behind a word that it was not given.
_DRIVER = """
import json, os, sys


def judge(given, verdicts, write=os.write):
    names = {"__name__": "__main__"}
    try:
        exec(compile(given["program"], "program.py", "exec"), names)
    except SystemExit:
        pass
    for number, (kind, text) in enumerate(given["tests"]):
        try:
            exec(compile(text, "tests.py", "exec"), names)
        except BaseException:
            if kind == "setup":
                raise
        else:
            if kind == "test":
                write(verdicts, f"{given['word']} {number}\\n".encode())


def begin():
    given, verdicts, nothing = json.loads(sys.stdin.readline()), os.dup(1), os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1):
        os.dup2(nothing, stream)
    judge(given, verdicts)


begin()
"""


@dataclass(frozen=True)
class Suite:
    """What a program must pass.

    Fields:
        asserts: texts to run behind the program in this order, each a ``test`` or, where a failure fails what follows, ``setup``.
        pairs: what it is given to read, and what it must print then.
    """

    asserts: tuple[tuple[str, str], ...] = ()
    pairs: tuple[tuple[str, str], ...] = ()

    @property
    def count(self) -> int:
        return len(self.pairs) + sum(kind == "test" for kind, _ in self.asserts)


class Attempt:
    """One program under its tests."""

    def __init__(self, program: str, tests: Suite, sandbox: Sandbox):
        self.tests, self.word = tests, uuid.uuid4().hex
        given = {"program": program, "tests": tests.asserts, "word": self.word}
        self.asserting = sandbox.submit(_DRIVER, json.dumps(given) + "\n") if tests.asserts else None
        self.reading = [sandbox.submit(program, stdin) for stdin, _ in tests.pairs]

    @property
    def seconds(self) -> float:
        """How long its runs took, one behind the other."""
        runs = [*self.reading, *([self.asserting] if self.asserting is not None else ())]
        return sum(each.result().seconds for each in runs)

    def share(self) -> float:
        """Of the tests that it passed."""
        passed = sum(
            finished.good and same_output(finished.stdout, wanted)
            for finished, (_, wanted) in zip((each.result() for each in self.reading), self.tests.pairs, strict=True)
        )
        if self.asserting is not None:
            said = self.asserting.result().stdout.split("\n")  # also of one that a limit ended: tests before that count
            passed += sum(f"{self.word} {number}" in said for number in range(len(self.tests.asserts)))
        return passed / self.tests.count


@dataclass(frozen=True)
class CodeTests:
    """The share of a row's ``tests`` that the program in a response passes; ``correct`` where it passes all.

    The program is what stands in the last fence of three backticks that is Python's or names no language, else the whole response;
    of one that thinks, what comes behind its thoughts. It runs in the sandbox (docs/sandbox.md), with the standard library.

    Fields:
        seconds: limit for a program with its asserts, or with one pair of stdin and stdout. More lets slow programs pass, and an
            endless one cost more.
        memory: megabytes, of all its processes.
    """

    name: ClassVar[str] = "tests"
    needs_answer: ClassVar[bool] = False
    tells_seconds: ClassVar[bool] = True

    seconds: float = 10.0
    memory: int = 256
    sandbox: Literal["full", "weak"] = field(default="full", init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        if self.seconds > 0 and self.memory >= LEAST_MEMORY:
            return
        given = f"{self.name}:seconds={self.seconds:g},memory={self.memory}"
        raise RewardError(f"{given}: seconds must be above 0, and memory at least {LEAST_MEMORY} megabytes.")

    @property
    def limits(self) -> Limits:
        return Limits(seconds=self.seconds, cpu=max(1, round(self.seconds)), memory=self.memory)

    def settle(self, mode: Literal["full", "weak"], now: bool) -> None:
        """Says how programs are held; ``now`` makes the sandbox, which refuses where it does not hold."""
        object.__setattr__(self, "sandbox", mode)
        if now:
            _sandbox(self.limits, mode == "weak")

    def held(self) -> Sandbox:
        """The sandbox that its programs run in."""
        return _sandbox(self.limits, self.sandbox == "weak")

    def __call__(
        self,
        prompts: Sequence[str],
        responses: Sequence[str],
        answers: Sequence[str],
        infos: Sequence[Mapping[str, Any]] | None = None,
    ) -> dict[str, list[float]]:
        programs = [program_of(response) for response in responses]
        tests = [suite_of(info) for info in infos or [{}] * len(responses)]
        attempts: dict[tuple[str, Suite], Attempt] = {}
        for key in zip(programs, tests, strict=True):  # answers that are alike run once
            if key[0].strip() and key not in attempts:
                attempts[key] = Attempt(*key, self.held())
        shares = {key: attempt.share() for key, attempt in attempts.items()}
        paid = [shares.get(key, 0.0) for key in zip(programs, tests, strict=True)]
        took = [attempts[key].seconds if key in attempts else 0.0 for key in zip(programs, tests, strict=True)]
        return {"reward": paid, "correct": [float(share == 1.0) for share in paid], SECONDS: took}

    def check_row(self, info: Mapping[str, Any]) -> str:
        """What is wrong with a row's tests, in words; nothing if they can be run."""
        try:
            suite_of(info)
        except RewardError as problem:
            return str(problem)
        return ""


# -- from texts to programs and tests ----------------------------------------------------------------------------------------


def program_of(response: str) -> str:
    """The program in a response."""
    text = final_text(response) if "<think>" in response or "<answer>" in response or "</think>" in response else response
    fences = [match[2] for match in _FENCE.finditer(text) if match[1].casefold() in PYTHON]
    return textwrap.dedent(fences[-1]) if fences else text


def suite_of(info: Mapping[str, Any]) -> Suite:
    """The tests of a row.

    Raises:
        RewardError: if it has none, or none that can be run.
    """
    given = info.get(KEY)
    if isinstance(given, str) and given.strip():
        return Suite(asserts=_statements(given))
    if not isinstance(given, (list, tuple)) or not given:
        raise RewardError(f'"{KEY}" must be {FORMS}, but is {shown(given)}.' if KEY in info else f'no "{KEY}": {FORMS}.')
    if all(isinstance(each, str) for each in given):
        for each in given:
            _parsed(each)
        return Suite(asserts=tuple(("test", each) for each in given))
    for each in given:
        if not isinstance(each, Mapping) or {type(each.get(name)) for name in ("stdin", "stdout")} != {str}:
            raise RewardError(f'"{KEY}" has {shown(each)} in it; it must be {FORMS}.')
    return Suite(pairs=tuple((each["stdin"], each["stdout"]) for each in given))


def _statements(text: str) -> tuple[tuple[str, str], ...]:
    """Each assert of a text as a test of its own, and what stands between them; a text without one is a single test."""
    body = _parsed(text).body
    if not any(isinstance(statement, ast.Assert) for statement in body):
        return (("test", text),)
    return tuple(("test" if isinstance(each, ast.Assert) else "setup", ast.unparse(each)) for each in body)


def _parsed(text: str) -> ast.Module:
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError) as problem:
        raise RewardError(f'"{KEY}" has {shown(text)} in it, which is no Python: {problem}. Mend it.') from None


def same_output(said: str, wanted: str) -> bool:
    """Whether two outputs are the same, blanks at the ends of lines and empty lines at the end aside."""
    return [line.rstrip() for line in said.rstrip().split("\n")] == [line.rstrip() for line in wanted.rstrip().split("\n")]


# -- the sandbox they share ------------------------------------------------------------------------------------------------------

_sandboxes: dict[tuple[int, Limits, bool], Sandbox] = {}
_making = threading.Lock()


def _sandbox(limits: Limits, weak: bool) -> Sandbox:
    """One for all rewards of this process with these limits. A process that was forked from another needs its own."""
    key = (os.getpid(), limits, weak)
    with _making:
        if key not in _sandboxes:
            _sandboxes[key] = Sandbox(limits, default_slots(), weak)
        return _sandboxes[key]


def running_programs(reward: Reward | None) -> Iterator[CodeTests]:
    """The rewards that run programs, among what a task is rewarded by."""
    if isinstance(reward, CodeTests):
        yield reward
    for part in reward.parts if isinstance(reward, WeightedRewards) else ():
        yield from running_programs(part.reward)


def settle_sandbox(reward: Reward | None, mode: Literal["full", "weak"], now: bool) -> None:
    """Says how the programs of a run are held, and refuses where they cannot be."""
    found = list(running_programs(reward))
    if mode == "weak" and not found:
        raise RewardError("--sandbox weak goes with --reward tests, which runs programs; nothing here does. Leave it out.")
    for each in found:
        each.settle(mode, now)
    if found and mode == "weak":
        warnings.warn(Remark(WEAK), stacklevel=2)
