"""Calling functions: pick the one that is asked for from a small schema and fill in its arguments."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import ClassVar, NamedTuple

import numpy as np

from upslope.errors import TaskError
from upslope.tasks.embedded import EmbeddedTask
from upslope.tasks.letters import DIGITS, LETTERS
from upslope.tasks.pairs import Pair
from upslope.tasks.text import Problem, Scores

PARTS = ("name", "count", "names", "values", "similarity")
"""What a call is scored by, in equal shares."""
FORMS = ("call", "json")
NAME = re.compile(r"([a-z]\w*)\((.*)\)", re.DOTALL)
ARGUMENT = re.compile(r"([a-z]\w*)=([^=,]*)")


class Call(NamedTuple):
    """A function and its arguments, values as text."""

    name: str
    arguments: dict[str, str]


@dataclass(frozen=True)
class ToolCall(EmbeddedTask):
    """Write a call: ``tfab,gc:fb7a3=`` -> ``f(a=3,b=7)``.

    The prompt lists functions, a letter each, with the letters of their arguments; behind the colon stand the function that is
    wanted and its arguments with their values, in any order. A call is *right* if function, arguments and values are, in whatever
    order, as ``f(a=3,b=7)`` or as JSON, ``{"name":"f","arguments":{"a":3,"b":7}}``. What is paid is the mean of five parts, from 0
    to 1 each: the function's name, the number of arguments, their names, their values, and how similar the text is to the right
    one. A text that is no call earns for its similarity alone. Steps of an answer end with a comma.

    Fields:
        arguments: most arguments of the function that is called; problems have from 1 to so many. More is harder.
        functions: how many the schema has. More makes prompts longer and the right one harder to find.
        form: how reference answers are written: ``call`` or ``json``, which needs a model that knows quotation marks.
    """

    kind: ClassVar[str] = "toolcall"
    about: ClassVar[str] = "Call a function of a small schema: tfab,gc:fb7a3= -> f(a=3,b=7)."
    grows_by: ClassVar[str] = "arguments"
    separator: ClassVar[str] = ","

    arguments: int = 2
    functions: int = 2
    form: str = "call"

    def __post_init__(self) -> None:
        if self.form not in FORMS:
            raise TaskError(f"toolcall: form={self.form!r} must be {' or '.join(FORMS)}.")
        self._within(arguments=(1, 8), functions=(1, 8))

    def longest_answer(self) -> int:
        return len(self.written(Call("f", dict(zip(LETTERS, "0" * self.arguments, strict=False)))))

    def written(self, call: Call) -> str:
        """A call as reference answers have it."""
        if self.form == "json":
            values = {name: int(value) for name, value in call.arguments.items()}
            return json.dumps({"name": call.name, "arguments": values}, separators=(",", ":"))
        return f"{call.name}({','.join(f'{name}={value}' for name, value in call.arguments.items())})"

    def generate(self, count: int, rng: np.random.Generator) -> Iterator[Problem]:
        for _ in range(count):
            sizes = rng.integers(1, self.arguments + 1, self.functions).tolist()
            names = [LETTERS[each] for each in rng.permutation(len(LETTERS))[: self.functions]]
            owned = [[LETTERS[each] for each in sorted(rng.permutation(len(LETTERS))[:size].tolist())] for size in sizes]
            which = int(rng.integers(self.functions))
            values = {name: DIGITS[digit] for name, digit in zip(owned[which], rng.integers(0, 10, sizes[which]), strict=True)}
            schema = ",".join(name + "".join(arguments) for name, arguments in zip(names, owned, strict=True))
            given = "".join(f"{name}{values[name]}" for name in rng.permutation(owned[which]).tolist())
            call = Call(names[which], values)
            prompt = f"t{schema}:{names[which]}{given}="
            yield self.problem(prompt, self.written(call), sizes[which], function=call.name, arguments=call.arguments)

    def is_right(self, problem: Problem, answer: str) -> bool:
        return read_call(answer) == wanted(problem)

    def score(self, problems: Sequence[Problem], responses: Sequence[str]) -> Scores:
        rows = [call_parts(problem, text.strip()) for problem, text in zip(problems, responses, strict=True)]
        correct = [self.is_right(problem, text.strip()) for problem, text in zip(problems, responses, strict=True)]
        columns = {part: [row[part] for row in rows] for part in PARTS}
        reward = [1.0 if right else sum(row.values()) / len(PARTS) for right, row in zip(correct, rows, strict=True)]
        return Scores(reward, correct, {**columns, "correct": [float(right) for right in correct]})

    def pair(self, problem: Problem) -> Pair | None:
        """The call is chosen; rejected is the call with one value off, always the same one of a problem."""
        call, number = wanted(problem), problem.id
        name = list(call.arguments)[number % len(call.arguments)]
        other = DIGITS[(DIGITS.index(call.arguments[name]) + 1 + number % 9) % 10]
        return (problem.answer,), (self.written(Call(call.name, {**call.arguments, name: other})),)

    def answer_class(self, problem: Problem, response: str) -> str:
        call = read_call(response.strip())
        return response.strip() if call is None else f"{call.name}{sorted(call.arguments.items())}"


def wanted(problem: Problem) -> Call:
    """The call that a problem asks for."""
    return Call(problem.info["function"], dict(problem.info["arguments"]))


def read_call(text: str) -> Call | None:
    """The call that a text is, in either form; ``None`` for anything else, and where an argument is given twice."""
    return _read_json(text) if text.startswith("{") else _read_plain(text)


def _read_plain(text: str) -> Call | None:
    if (found := NAME.fullmatch(text)) is None:
        return None
    pieces = [ARGUMENT.fullmatch(piece.strip()) for piece in found[2].split(",")] if found[2].strip() else []
    arguments = {piece[1]: piece[2].strip() for piece in pieces if piece is not None}
    return Call(found[1], arguments) if len(arguments) == len(pieces) else None


def _read_json(text: str) -> Call | None:
    try:
        found = json.loads(text, object_pairs_hook=_once)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or not isinstance(found.get("name"), str) or not isinstance(found.get("arguments"), dict):
        return None
    return Call(found["name"], {name: value if isinstance(value, str) else json.dumps(value) for name, value in
                                found["arguments"].items()})  # fmt: skip


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name is given twice")
    return found


def call_parts(problem: Problem, text: str) -> dict[str, float]:
    """What an answer is worth in each respect: shares are of the larger of what it has and what is wanted."""
    call, right = read_call(text), wanted(problem)
    similar = SequenceMatcher(None, text[: 4 * len(problem.answer)], problem.answer, autojunk=False).ratio()
    if call is None:
        return {part: 0.0 for part in PARTS} | {"similarity": similar}
    most = max(len(call.arguments), len(right.arguments))
    named = call.arguments.keys() & right.arguments.keys()
    return {
        "name": float(call.name == right.name),
        "count": float(len(call.arguments) == len(right.arguments)),
        "names": len(named) / most,
        "values": sum(call.arguments[name] == right.arguments[name] for name in named) / most,
        "similarity": similar,
    }
