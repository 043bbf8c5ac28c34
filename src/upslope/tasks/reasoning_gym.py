"""The problems of reasoning-gym: about a hundred procedural generators, each with its own scoring.

Left out: ``composite``, which is a mixture of the others and cannot be written as one line.

Splits use ranges of seeds that do not touch. A generator with few different problems can still draw the same one from two seeds;
raise its difficulty options if a held-out score must mean more than that.
"""

from __future__ import annotations

import ast
import dataclasses
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeGuard

import numpy as np

from upslope.errors import MissingExtra, TaskError, did_you_mean, install_extra
from upslope.plain_data import JsonDict
from upslope.tasks.reasoning_levels import level_fields, level_options, nearest_level, top_level
from upslope.tasks.text import FULL_MARKS, Problem, Scores, Split, TextTask

PREFIX = "reasoning-gym"
INSTRUCTION = "Answer with the final answer only."

# A generator seeds its item ``i`` with ``seed + i``, so the bases must lie further apart than the sizes.
_FIRST_SEED: dict[Split, int] = {"test": 0, "tune": 1_000_000, "train": 2_000_000}
_HELD_OUT = 1_000
_LEFT_OUT = frozenset({"composite"})

# Scorers that hand the answer to Python's ``eval``, and those that hand it to sympy's parser, which is ``eval`` behind a tokenizer.
_EVALUATED = frozenset({"binary_matrix", "n_queens", "spiral_matrix", "string_insertion"})
_PARSED_BY_SYMPY = frozenset(
    {"countdown", "intermediate_integration", "polynomial_multiplication", "puzzle24", "simple_integration"}
)


@dataclass(frozen=True)
class ReasoningGymTask(TextTask):
    """A dataset of reasoning-gym, scored by its own ``score_answer``; the reward may be partial, *correct* means full marks.

    An answer between the last ``<answer>`` and ``</answer>`` is taken from there, otherwise the whole response is the answer.
    An answer that cannot be scored is worth 0 and counted in the component ``unscored``: the scorer raised on it, or it would have
    been executed as a program.

    The category of a problem is the dataset, its difficulty the level of reasoning-gym's curriculum, where there is one; of a task
    that names no level, the lowest whose upper bounds hold the task's own. A harder problem is one of the next level, as long as
    its answer fits `max_tokens`.

    Fields:
        dataset: its name in reasoning-gym.
        options: fields of the dataset's own configuration, such as ``{"max_terms": 3}``; they set the difficulty. So does
            ``level``, from 0, which sets those of the dataset's curriculum; what else is given goes before it. ``size`` is the
            number of training problems, 10,000 unless given.
    """

    dataset: str
    options: Any = ()

    def __post_init__(self) -> None:
        pairs = self.options.items() if isinstance(self.options, Mapping) else self.options
        # Lists become tuples, so that a task can be hashed and compared.
        frozen = tuple(sorted((key, tuple(value) if isinstance(value, list) else value) for key, value in pairs))
        object.__setattr__(self, "options", frozen)
        known = dataset_names()
        if self.dataset not in known:
            raise TaskError(
                f"no reasoning-gym dataset named {self.dataset!r}.{did_you_mean(self.dataset, known)} "
                f"'upslope tasks --all' lists all {len(known)}."
            )
        self._check_options()
        self._pool("train")

    @property
    def name(self) -> str:
        # Written as JSON so that `load_task` reads back what it gave; text stays bare.
        options = ",".join(f"{key}={value if isinstance(value, str) else json.dumps(value)}" for key, value in self.options)
        return f"{PREFIX}:{self.dataset}" + (f":{options}" if options else "")

    @cached_property
    def max_tokens(self) -> int:
        """The longest of a few reference answers, in characters, and room for the tags. Never more than 1024."""
        train = self._pool("train")
        answers = [_entry(train, index)["answer"] for index in range(min(8, len(train)))]
        return min(1024, 32 + max(len(str(answer or "")) for answer in answers))

    def sample(self, count: int, split: Split, rng: np.random.Generator) -> list[Problem]:
        pool = self._pool(split)
        if split == "train":
            return [self._problem(_entry(pool, int(index))) for index in rng.integers(0, len(pool), count)]
        found: dict[str, Problem] = {}
        for index in rng.permutation(len(pool)):
            if len(found) == count:
                break
            problem = self._problem(_entry(pool, int(index)))
            found.setdefault(problem.prompt, problem)
        distinct = list(found.values())
        return [distinct[row % len(distinct)] for row in range(count)]

    @cached_property
    def level(self) -> int:
        """Of its problems; -1 where the dataset has no levels."""
        options = dict(self.options)
        return options["level"] if "level" in options else nearest_level(self.dataset, options)

    def harder(self, problem: Problem, rng: np.random.Generator) -> Problem | None:
        return self._at_level(problem, 1, rng)

    def easier(self, problem: Problem, rng: np.random.Generator) -> Problem | None:
        return self._at_level(problem, -1, rng)

    def alike(self, problem: Problem, rng: np.random.Generator) -> Problem | None:
        return self._at_level(problem, 0, rng)

    def gives(self) -> frozenset[str]:
        levels = self.level >= 0
        return super().gives() if levels else super().gives() - {"levels", "variants"}

    def _at_level(self, problem: Problem, higher: int, rng: np.random.Generator) -> Problem | None:
        """Another training problem of a level so much higher, if there is one whose answer fits."""
        if math.isnan(problem.difficulty):
            return None
        level = int(problem.difficulty) + higher
        pool = self._level_pool(level)
        if pool is None:
            return None
        for index in rng.integers(0, len(pool), 8):
            other = self._problem(_entry(pool, int(index)), level)
            if other.prompt != problem.prompt and len(other.answer) < self.max_tokens:
                return other
        return None

    def score(self, problems: Sequence[Problem], responses: Sequence[str]) -> Scores:
        reward, unscored = [], []
        for problem, response in zip(problems, responses, strict=True):
            value = self._score_one(extract_answer(response), problem)
            reward.append(0.0 if value is None else value)
            unscored.append(float(value is None))
        correct = [value >= FULL_MARKS for value in reward]
        return Scores(reward, correct, {"correct": [float(right) for right in correct], "unscored": unscored})

    def describe(self) -> str:
        return f"reasoning-gym's {self.dataset}" + (f" with {dict(self.options)}." if self.options else ".")

    def _score_one(self, answer: str, problem: Problem) -> float | None:
        if self.dataset in _EVALUATED and not is_harmless(answer, not_python=True):
            return None
        if self.dataset in _PARSED_BY_SYMPY and not is_harmless(answer, not_python=False):
            return None
        level = problem.difficulty
        pool = self._pool("train") if math.isnan(level) or level == self.level else self._level_pool(int(level))
        try:
            value = float((pool or self._pool("train")).score_answer(answer, problem.info["entry"]))
        except Exception:
            # Scorers are written for tidy answers; a policy in training writes anything.
            return None
        return value if np.isfinite(value) else None

    def _problem(self, entry: JsonDict, level: int | None = None) -> Problem:
        answer, level = entry["answer"], self.level if level is None else level
        info = {"entry": entry, "category": self.dataset} | ({"difficulty": level} if level >= 0 else {})
        return Problem(f"{entry['question']}\n{INSTRUCTION}", "" if answer is None else str(answer), info)

    def _check_options(self) -> None:
        config = _library().factory.DATASETS[self.dataset][1]
        known = [f.name for f in dataclasses.fields(config) if f.name != "seed"]
        for key, value in self.options:
            if key == "level":
                self._check_level(value)
            elif key not in known:
                raise TaskError(
                    f"{self.dataset} has no option {key!r}.{did_you_mean(key, known)} Its options: {', '.join(known)}, level."
                )
        size = dict(self.options).get("size", 1)
        if isinstance(size, bool) or not isinstance(size, int) or not 0 < size <= 1_000_000:
            raise TaskError(f"{self.dataset}: size={size!r} must be a whole number from 1 to 1000000.")

    def _check_level(self, level: Any) -> None:
        top = top_level(self.dataset)
        if top < 0:
            raise TaskError(f"{self.dataset} has no levels in reasoning-gym, and level={level!r} was given. Set its own options.")
        if isinstance(level, bool) or not isinstance(level, int) or not 0 <= level <= top:
            raise TaskError(f"{self.dataset}: level={level!r} must be a whole number from 0 to {top}.")

    @cached_property
    def _pools(self) -> dict[Split | int, Any]:
        """By split, and further training problems by level."""
        return {}

    def _pool(self, split: Split) -> Any:
        """The dataset of a split, made when first asked for."""
        if split not in self._pools:
            options = dict(self.options)
            level = options.pop("level", None)
            try:
                self._pools[split] = self._made(split, options) if level is None else self._made_at(level, split, options)
            except Exception as error:
                raise TaskError(f"reasoning-gym refuses {self.name!r}: {error or type(error).__name__}.") from error
        return self._pools[split]

    def _level_pool(self, level: int) -> Any:
        """Training problems of a level; nothing where there is no such level, or reasoning-gym cannot make it."""
        if level not in self._pools:
            options = {key: value for key, value in self.options if key not in level_fields(self.dataset) | {"level"}}
            try:
                self._pools[level] = self._made_at(level, "train", options) if 0 <= level <= top_level(self.dataset) else None
            except Exception:  # whatever its configuration thinks of it
                self._pools[level] = None
        return self._pools[level]

    def _made_at(self, level: int, split: Split, options: JsonDict) -> Any:
        """The dataset at a level, which some configurations only take with ranges from the lowest level on."""
        try:
            made = self._made(split, level_options(self.dataset, level) | options)
            _entry(made, 0)
            return made
        except Exception:
            return self._made(split, level_options(self.dataset, level, inclusive=True) | options)

    def _made(self, split: Split, options: JsonDict) -> Any:
        options = {"size": 10_000, **{key: list(value) if isinstance(value, tuple) else value for key, value in options.items()}}
        if split != "train":
            options["size"] = _HELD_OUT
        return _library().create_dataset(self.dataset, seed=_FIRST_SEED[split], **options)


def dataset_names() -> list[str]:
    """Every dataset that can be trained on, sorted. Imports reasoning-gym, which takes seconds."""
    return sorted(set(_library().factory.DATASETS) - _LEFT_OUT)


def all_give(dataset: str) -> frozenset[str]:
    """What the problems of a dataset have, whatever its options. Whether they have answers only a look at some can tell."""
    return frozenset({"categories"} | ({"levels", "variants"} if top_level(dataset) >= 0 else set()))


def extract_answer(response: str) -> str:
    """What stands between the last ``<answer>`` and the ``</answer>`` behind it, else the whole response; stripped."""
    behind = response.rpartition("<answer>")
    return (behind[2].partition("</answer>")[0] if behind[1] and "</answer>" in behind[2] else response).strip()


_PLAIN_NODES = (ast.Expression, ast.Constant, ast.Name, ast.Load, ast.List, ast.Tuple, ast.UnaryOp, ast.UAdd, ast.USub)
_ARITHMETIC_NODES = (ast.BinOp, ast.Add, ast.Sub, ast.Mult, ast.Div, ast.Pow, ast.Call)
# Integral is missing on purpose: the scorer of the integration datasets gives full marks for the question repeated inside of it.
_FUNCTIONS = frozenset(
    {"sin", "cos", "tan", "sec", "csc", "cot", "asin", "acos", "atan", "sinh", "cosh", "tanh", "exp", "log", "ln", "sqrt", "Abs"}
)
_LARGEST_EXPONENT = 64


def is_harmless(answer: str, *, not_python: bool) -> bool:
    """Whether ``eval`` of this text could do no more than build a small literal or formula.

    ``not_python`` is the verdict on text that Python cannot parse: ``eval`` only raises on it, but sympy rewrites some of it first.
    """
    if len(answer) > 2_000:
        return False
    try:
        nodes = list(ast.walk(ast.parse(answer, mode="eval")))
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return not_python
    if any(isinstance(node, ast.BinOp) for node in nodes):
        # Lists and texts can be multiplied into any size; numbers cannot.
        if any(isinstance(node, (ast.List, ast.Tuple)) for node in nodes):
            return False
        if any(isinstance(node, ast.Constant) and not isinstance(node.value, (int, float)) for node in nodes):
            return False
    return all(_is_harmless_node(node) for node in nodes)


def _is_harmless_node(node: ast.AST) -> bool:
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id in _FUNCTIONS and not node.keywords
    if isinstance(node, ast.Name):
        return re.fullmatch(r"[A-Za-z]\w*", node.id, re.ASCII) is not None
    if _is_power(node):
        # A power in an exponent, or a tower of them, is how nine characters become a number that fills the memory.
        exponents = [n.value for n in ast.walk(node.right) if isinstance(n, ast.Constant)]
        small = len(exponents) <= 2 and all(isinstance(e, (int, float)) and abs(e) <= _LARGEST_EXPONENT for e in exponents)
        below = sum(_is_power(n) for n in ast.walk(node.left))
        return small and below <= 4 and not any(_is_power(n) for n in ast.walk(node.right))
    return isinstance(node, (*_PLAIN_NODES, *_ARITHMETIC_NODES))


def _is_power(node: ast.AST) -> TypeGuard[ast.BinOp]:
    return isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow)


def _entry(pool: Any, index: int) -> JsonDict:
    """Item ``index``, leaving numpy's global generator as it was: one dataset seeds it."""
    before = np.random.get_state()
    try:
        return pool[index]
    finally:
        np.random.set_state(before)


def _library() -> Any:
    try:
        import reasoning_gym
    except ImportError as error:
        compiles = "(its dependency pycosat is compiled then: have a C compiler and Python's headers ready)"
        missing = "" if error.name in (None, "reasoning_gym") else f" (or {error.name}, which it needs)"
        raise MissingExtra(f"reasoning-gym{missing} is", install_extra("text"), compiles) from error
    return reasoning_gym
