"""Partial credit for programs (mle-rl): what a program scores if it gets to its end, else how far it came.

A row of data has ``tests`` as for the reward ``tests``, and ``milestones``: names that a program binds on its way, in order. The
last of them is the submission. An instrumenter, and not the model, puts a note behind every statement that binds one of them.
"""

from __future__ import annotations

import ast
import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from upslope.fields import shown
from upslope.rewards.errors import RewardError
from upslope.rewards.programs import SECONDS, CodeTests, Suite, program_of, suite_of
from upslope.runtime.sandbox import Sandbox

KEY = "milestones"
FORMS = "a list of names that a program binds, the last of them its submission"

# Runs inside. The program's prints go nowhere, and its notes behind a word that it was not given: printing a marker pays nothing.
_DRIVER = """
import builtins, json, os, sys


def begin():
    given, verdicts, nothing = json.loads(sys.stdin.readline()), os.dup(1), os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1):
        os.dup2(nothing, stream)

    def told(what, number, write=os.write, word=given["word"]):
        write(verdicts, f"{word} {what} {number}\\n".encode())

    names = {"__name__": "__main__", given["reached"]: lambda number: told("reached", number)}
    try:
        exec(compile(given["program"], "program.py", "exec"), names)
    except SystemExit as left:
        if left.code not in (None, 0):
            return
    names.pop(given["reached"], None)
    told("ended", 0)
    for number, (kind, text) in enumerate(given["tests"]):
        try:
            exec(compile(text, "tests.py", "exec"), names)
        except BaseException:
            if kind == "setup":
                return
        else:
            if kind == "test":
                told("passed", number)


begin()
"""


@dataclass(frozen=True)
class Outcome:
    """How far a program came.

    Fields:
        reached: how many milestones.
        valid: it ended without an error and made its submission.
        share: of the tests that it passed.
        seconds: how long it ran.
    """

    reached: int = 0
    valid: bool = False
    share: float = 0.0
    seconds: float = 0.0


class Staged:
    """One program with notes in it, under way."""

    def __init__(self, program: str, names: Sequence[str], tests: Suite, sandbox: Sandbox):
        self.names, self.tests, self.word, reached = names, tests, uuid.uuid4().hex, f"_{uuid.uuid4().hex}"
        given = {"program": instrumented(program, names, reached), "tests": tests.asserts, "word": self.word, "reached": reached}
        self.run = sandbox.submit(_DRIVER, json.dumps(given) + "\n")

    def outcome(self) -> Outcome:
        finished = self.run.result()
        said = {tuple(line.split(" ")[1:]) for line in finished.stdout.split("\n") if line.startswith(f"{self.word} ")}
        reached = {int(number) for what, number in said if what == "reached"}
        passed = sum(what == "passed" for what, _ in said)
        valid = ("ended", "0") in said and len(self.names) - 1 in reached
        return Outcome(len(reached), valid, passed / self.tests.count, finished.seconds)


@dataclass(frozen=True)
class Milestones(CodeTests):
    """The share of a row's ``tests`` that a program passes, if it makes its submission and ends without an error; else ``base``,
    and ``each`` for every one of the row's ``milestones`` that it reached (mle-rl). ``correct`` where it passes all tests.

    What the program prints itself counts nothing. It runs in the sandbox, as with the reward ``tests``.

    Fields:
        base: what a program earns that submits nothing. Far below 0, any submission is better than none.
        each: for a milestone. All of them together should stay below the way from ``base`` to 0.
    """

    name: ClassVar[str] = "milestones"

    base: float = -10.0
    each: float = 0.1

    def __call__(
        self,
        prompts: Sequence[str],
        responses: Sequence[str],
        answers: Sequence[str],
        infos: Sequence[Mapping[str, Any]] | None = None,
    ) -> dict[str, list[float]]:
        keys = [
            (program_of(response), milestones_of(info), asserts_of(info))
            for response, info in zip(responses, infos or [{}] * len(responses), strict=True)
        ]
        runs: dict[tuple[str, tuple[str, ...], Suite], Staged] = {}
        for program, names, tests in keys:  # answers that are alike run once
            if program.strip() and parses(program) and (program, names, tests) not in runs:
                runs[program, names, tests] = Staged(program, names, tests, self.held())
        outcomes = {key: run.outcome() for key, run in runs.items()}
        found = [outcomes.get(key, Outcome()) for key in keys]
        return {
            "reward": [each.share if each.valid else self.base + self.each * each.reached for each in found],
            "correct": [float(each.valid and each.share == 1.0) for each in found],
            "submitted": [float(each.valid) for each in found],
            "reached": [float(each.reached) for each in found],
            SECONDS: [each.seconds for each in found],
        }

    def check_row(self, info: Mapping[str, Any]) -> str:
        try:
            milestones_of(info)
            asserts_of(info)
        except RewardError as problem:
            return str(problem)
        return ""


def milestones_of(info: Mapping[str, Any]) -> tuple[str, ...]:
    """The milestones of a row.

    Raises:
        RewardError: if it has none, or some that are no names.
    """
    given = info.get(KEY)
    named = isinstance(given, (list, tuple)) and all(isinstance(each, str) and each.isidentifier() for each in given)
    if not named or not given:
        raise RewardError(f'"{KEY}" must be {FORMS}, but is {shown(given)}.' if KEY in info else f'no "{KEY}": {FORMS}.')
    if len(set(given)) < len(given):
        raise RewardError(f'"{KEY}" names one of its milestones twice: {shown(given)}.')
    return tuple(given)


def asserts_of(info: Mapping[str, Any]) -> Suite:
    """The tests of a row, which must be asserts: they look at the submission, not at what is printed."""
    suite = suite_of(info)
    if suite.pairs:
        raise RewardError('"tests" of the reward milestones must be Python asserts, which look at the submission.')
    return suite


# -- the instrumenter --------------------------------------------------------------------------------------------------------


def parses(program: str) -> bool:
    try:
        ast.parse(program)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


def instrumented(program: str, names: Sequence[str], reached: str) -> str:
    """The program with a call ``reached(number)`` behind every statement that binds one of the names: a function of the program.

    Args:
        reached: a name that the program does not know.
    """
    tree = _Instrumenter(names, reached).visit(ast.parse(program))
    return ast.unparse(ast.fix_missing_locations(tree))


class _Instrumenter(ast.NodeTransformer):
    def __init__(self, names: Sequence[str], reached: str):
        self.numbers, self.reached = {name: number for number, name in enumerate(names)}, reached

    def generic_visit(self, node: ast.AST) -> ast.AST:
        node = super().generic_visit(node)
        for name, block in ast.iter_fields(node):
            if isinstance(block, list) and block and all(isinstance(each, ast.stmt) for each in block):
                setattr(node, name, [noted for each in block for noted in (each, *self._notes(each))])
        return node

    def _notes(self, statement: ast.stmt) -> list[ast.stmt]:
        found = sorted(self.numbers[name] for name in _bound(statement) if name in self.numbers)
        return [ast.parse(f"{self.reached}({number})").body[0] for number in found]


def _bound(statement: ast.stmt) -> set[str]:
    """Names that a statement itself binds; what stands in its own block is bound there."""
    if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return {statement.name}
    if isinstance(statement, (ast.Import, ast.ImportFrom)):
        return {(alias.asname or alias.name).partition(".")[0] for alias in statement.names}
    if isinstance(statement, ast.AnnAssign) and statement.value is None:
        return set()
    if isinstance(statement, (ast.Assign, ast.AnnAssign, ast.AugAssign)):
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        return {node.id for target in targets for node in ast.walk(target) if isinstance(node, ast.Name)}
    return set()
