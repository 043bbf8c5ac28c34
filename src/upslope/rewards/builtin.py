"""Rewards that need no code: right answers however a model says them, and the form of a response.

Each is a frozen dataclass whose fields are its options, ``number:tolerance=0.01``. Those with ``needs_answer`` compare a response
with the expected answer, 1 for right and 0 for wrong. Nothing that a model writes makes one of them raise.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

from upslope.errors import MissingExtra, did_you_mean, install_extra
from upslope.rewards.errors import RewardError
from upslope.rewards.extract import (
    LONGEST,
    chosen_letter,
    contains,
    expected_letter,
    expected_text,
    final_text,
    last_boxed,
    last_number,
    options_of,
    plain_formula,
    whole_number,
)


class BuiltIn(ABC):
    """What a response is worth, one at a time, between -1 and 1."""

    name: ClassVar[str]
    needs_answer: ClassVar[bool] = True

    def __call__(self, prompts: Sequence[str], responses: Sequence[str], answers: Sequence[str]) -> list[float]:
        return [self.worth(response, answer) for response, answer in zip(responses, answers, strict=True)]

    @abstractmethod
    def worth(self, response: str, answer: str) -> float:
        """Of one response, beside the expected answer."""


@dataclass(frozen=True)
class ExactMatch(BuiltIn):
    """1 where response and answer read the same, blanks at the ends aside.

    Of a response that has one, what stands inside of ``<answer>`` counts as well; of an expected answer what stands behind
    ``####`` or in ``\\boxed{}``.
    """

    name: ClassVar[str] = "exact"

    def worth(self, response: str, answer: str) -> float:
        said = {response.strip(), final_text(response)}
        return float(bool(said & {answer.strip(), expected_text(answer)} - {""}) or response.strip() == answer.strip())


@dataclass(frozen=True)
class Contains(BuiltIn):
    """1 where the answer stands in the response as words of its own, whatever else is said. Case does not matter.

    A response that names every possible answer is right too: `number`, `boxed` and `choice` cannot be fooled like that.
    """

    name: ClassVar[str] = "contains"

    def worth(self, response: str, answer: str) -> float:
        return float(contains(final_text(response), expected_text(answer)))


@dataclass(frozen=True)
class Number(BuiltIn):
    """1 where the last number of the response is that of the answer.

    Read are signs, thousands separators, currencies, percents, fractions, powers of ten: ``$1,234.50``, ``3/4``, ``1.2e-3``.

    Fields:
        tolerance: the largest difference that still counts as equal.
    """

    name: ClassVar[str] = "number"

    tolerance: float = 1e-6

    def __post_init__(self) -> None:
        if not 0 <= self.tolerance < float("inf"):
            raise RewardError(f"number:tolerance={self.tolerance:g} must be a finite number of 0 or above.")

    def worth(self, response: str, answer: str) -> float:
        said, wanted = last_number(final_text(response)), last_number(expected_text(answer))
        return float(said is not None and wanted is not None and said.equals(wanted, self.tolerance))


@dataclass(frozen=True)
class Boxed(BuiltIn):
    """1 where the last ``\\boxed{...}`` of the response is the answer: as text, its spacing aside, or as a number.

    Formulas that are equal without reading the same are for `math-verify`.
    """

    name: ClassVar[str] = "boxed"

    def worth(self, response: str, answer: str) -> float:
        said, wanted = last_boxed(response[-LONGEST:]), expected_text(answer)
        if said is None or not wanted:
            return 0.0
        if plain_formula(said) == plain_formula(wanted):
            return 1.0
        one, other = whole_number(said), whole_number(wanted)
        return float(one is not None and other is not None and one.equals(other, 0.0))


@dataclass(frozen=True)
class Choice(BuiltIn):
    """1 where the response names the right option: ``B``, ``(B)``, ``**B**``, ``The answer is B.``, or the option's text.

    The answer is a letter, an option's text, or its number from 0. Options' texts come from the columns ``choices`` or ``options``,
    or ``A``, ``B``, ... A response that names two options at once is wrong.
    """

    name: ClassVar[str] = "choice"

    def __call__(
        self,
        prompts: Sequence[str],
        responses: Sequence[str],
        answers: Sequence[str],
        infos: Sequence[Mapping[str, Any]] | None = None,
    ) -> list[float]:
        rows = zip(responses, answers, infos or [{}] * len(responses), strict=True)
        return [self.worth(response, answer, options_of(info)) for response, answer, info in rows]

    def worth(self, response: str, answer: str, options: Sequence[str] = ()) -> float:
        wanted = expected_letter(answer, options)
        return float(wanted is not None and chosen_letter(final_text(response)[-LONGEST:], options) == wanted)


@dataclass(frozen=True)
class Json(BuiltIn):
    """1 where the response is valid JSON, by itself or in a fence of three backticks.

    Fields:
        schema: a file with a JSON schema that it must meet as well.
    """

    name: ClassVar[str] = "json"
    needs_answer: ClassVar[bool] = False

    schema: str = ""
    validator: Any = field(init=False, repr=False, compare=False, default=None)

    def __post_init__(self) -> None:
        if self.schema:
            object.__setattr__(self, "validator", _validator(self.schema))

    def worth(self, response: str, answer: str) -> float:
        text = final_text(response)
        pieces = text.split("```")
        if len(pieces) > 2:  # the last fence that is closed, without the word behind its beginning
            text = re.sub(r"\A\w*\s*\n", "", pieces[1::2][len(pieces) // 2 - 1 if len(pieces) % 2 else -2])
        try:
            value = json.loads(text, parse_constant=_no_json)
            return float(self.validator is None or self.validator.is_valid(value))
        except (ValueError, RecursionError):
            return 0.0


def _no_json(word: str) -> None:
    raise ValueError(f"{word} is not JSON")


def _validator(file: str) -> Any:
    try:
        import jsonschema
    except ImportError as error:
        raise MissingExtra("jsonschema is", install_extra("text")) from error
    path = Path(file).expanduser()
    if not path.is_file():
        there = [other.name for other in path.parent.glob("*.json")] if path.parent.is_dir() else []
        raise RewardError(f"no file {file!r} for json:schema (looked for {path.absolute()}).{did_you_mean(path.name, there)}")
    try:
        schema = json.loads(path.read_bytes())
        kind = jsonschema.validators.validator_for(schema)
        kind.check_schema(schema)
    except (ValueError, RecursionError, AttributeError, TypeError) as problem:
        raise RewardError(f"{file!r} is no JSON schema: {problem}. Mend the file.") from None
    except jsonschema.SchemaError as problem:
        raise RewardError(f"{file!r} is no JSON schema: {problem.message}. Mend the file.") from None
    return kind(schema)


@dataclass(frozen=True)
class Regex(BuiltIn):
    """1 where a pattern is found in the response; one with a group, only where that group of the last match is the answer.

    Fields:
        pattern: as Python's ``re`` reads it. All that stands behind ``regex:`` belongs to it.
    """

    name: ClassVar[str] = "regex"

    pattern: str
    compiled: re.Pattern[str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        try:
            object.__setattr__(self, "compiled", re.compile(self.pattern))
        except (re.error, OverflowError, RecursionError) as problem:
            raise RewardError(
                f"regex:{self.pattern} is no pattern: {problem}. Mend it, or put it in quotes for the shell."
            ) from None
        if not self.pattern:
            raise RewardError("regex: lacks the pattern behind the colon, as in 'regex:^The answer is (\\d+)'.")

    @property
    def needs_answer(self) -> bool:  # type: ignore[override]
        return self.compiled.groups > 0

    def worth(self, response: str, answer: str) -> float:
        found = None
        for match in self.compiled.finditer(response[-LONGEST:]):
            found = match
        if found is None or not self.compiled.groups:
            return float(found is not None)
        said = (found[1] or "").strip()
        return float(bool(said) and said in (answer.strip(), expected_text(answer)))


@dataclass(frozen=True)
class Format(BuiltIn):
    """1 where the response has these tags in this order, each once and not empty: ``<think>...</think><answer>...</answer>``.

    Fields:
        tags: their names.
    """

    name: ClassVar[str] = "format"
    needs_answer: ClassVar[bool] = False

    tags: tuple[str, ...] = ("think", "answer")

    def __post_init__(self) -> None:
        for tag in self.tags:
            if not re.fullmatch(r"[A-Za-z][\w-]*", tag):
                raise RewardError(f"format:{','.join(self.tags)} has the tag {tag!r}; give names, as in format:think,answer.")
        if len(set(self.tags)) < len(self.tags):
            raise RewardError(f"format:{','.join(self.tags)} names a tag twice.")

    def worth(self, response: str, answer: str) -> float:
        place = 0
        for tag in self.tags:
            opening, closing = f"<{tag}>", f"</{tag}>"
            if response.count(opening) != 1 or response.count(closing) != 1:
                return 0.0
            begin, end = response.find(opening, place), response.find(closing, place)
            if begin < 0 or end < begin or not response[begin + len(opening) : end].strip():
                return 0.0
            place = end + len(closing)
        return 1.0


@dataclass(frozen=True)
class Length(BuiltIn):
    """1 for a response of the wanted length; above it less, in proportion, to 0 at twice ``max``; below it, its share of ``min``.

    Fields:
        max: the most of it; 0 is no limit.
        min: the least of it.
        unit: what is counted.
    """

    name: ClassVar[str] = "length"
    needs_answer: ClassVar[bool] = False

    max: int = 0
    min: int = 0
    unit: Literal["words", "characters"] = "words"

    def __post_init__(self) -> None:
        if self.max < 0 or self.min < 0 or not (self.max or self.min) or (self.max and self.min > self.max):
            raise RewardError(f"length has max={self.max} and min={self.min}; give one or both, as in length:min=20,max=200.")

    def worth(self, response: str, answer: str) -> float:
        size = len(response.split()) if self.unit == "words" else len(response.strip())
        if size < self.min:
            return size / self.min
        return 1.0 if not self.max or size <= self.max else max(0.0, 1 - (size - self.max) / self.max)


@dataclass(frozen=True)
class Repetition(BuiltIn):
    """Minus the share of n-grams in the response that it had said before: 0 where nothing is repeated, close to -1 for a loop.

    Fields:
        words: of an n-gram. Longer ones forgive phrases that good answers repeat as well.
    """

    name: ClassVar[str] = "repetition"
    needs_answer: ClassVar[bool] = False

    words: int = 3

    def __post_init__(self) -> None:
        if self.words < 1:
            raise RewardError(f"repetition:words={self.words} must be 1 or more.")

    def worth(self, response: str, answer: str) -> float:
        said = response.casefold().split()
        runs = [tuple(said[place : place + self.words]) for place in range(len(said) - self.words + 1)]
        return len(set(runs)) / len(runs) - 1 if runs else 0.0
