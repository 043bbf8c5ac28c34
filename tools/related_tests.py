"""Which fast tests look at a source file: those that import from it, those of the methods that use it, and their rows of the table.

The map follows names, not places: a test belongs to a file if it imports something that is defined there, or if it is marked as a
check of a method that has a part from there.
"""

from __future__ import annotations

import ast
import json
import re
from collections import defaultdict
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE, TESTS = ROOT / "src" / "upslope", ROOT / "tests"
TABLE = "test_table.py"
LEARNER = ("learners/test_policy_gradient.py", "learners/test_nonfinite.py", "test_pinned_runs.py")
"""What goes through the whole learner; tried last, as these take longest."""
LONGER = (
    "learners/test_rollout_record.py", "learners/updates/test_replay.py", "learners/test_plain.py",
    "learners/test_moving_average.py",
)  # fmt: skip
"""Tried for what they import, not for every file of the learner."""
NOT_RELATED = re.compile(
    r"(board|cli|report/compare|serving)/|rollout/engines/test_server|runtime/test_run_folder|tasks/test_copying"
    r"|test_(docs|fuzz|gpu|claims|bench|layering|resume|learning)"
)
"""By path below tests/."""
EVERY_PART = tuple(TESTS / "objective" / name for name in ("test_defaults.py", "test_bounds.py"))
"""Tests that look at every part."""
VALUES = TESTS / "objective" / "test_part_values.py"
"""The pinned numbers of every method and every part: these notice most faults, and quickly."""
LEARNER_VALUES = TESTS / "learners" / "test_learner_values.py"
STEPS = (
    *(
        f"test_a_learner_of_rows_does_what_it_did[{name}]"
        for name in ("grpo", "dapo", "remix", "spo-single-stream", "pipo", "safe", "capo", "tempsamp-r1", "hapo", "riskpo",
                     "grpo in one update", "grpo by a cosine, unclipped", "dapo, not recorded")
    ),
    *(f"test_a_learner_of_decisions_does_what_it_did[{name}]" for name in ("ppo", "bpo")),
)  # fmt: skip
"""The pinned steps of learners that go through most of their code."""
MOST_FILES, MOST_METHODS, MOST_VALUES = 4, 2, 12
"""Of the tests of methods that use a file: with more, what many methods share would be tried on all of them."""


@dataclass(frozen=True)
class Selection:
    """One call of pytest."""

    tests: tuple[str, ...]
    """Files, or single tests of files, by their places in the repository."""
    only: str = ""
    """An expression for ``-k``."""


class Related:
    """The map for one source tree.

    Args:
        parts: modules of each method's parts, by the method's name.
    """

    def __init__(self, parts: dict[str, set[str]]):
        self.parts = parts
        self.tests = [file for file in sorted(TESTS.rglob("test_*.py")) if not NOT_RELATED.match(_place(file))]

    def selections(self, file: Path) -> list[Selection]:
        """Calls of pytest for a changed file, the nearest tests first; what fails in one needs no other."""
        methods = self.methods(file)
        near = [test for test in self.tests if _imports(test) & _defined(file) and _place(test) not in (TABLE, *LEARNER)]
        mirror = (TESTS / file.relative_to(SOURCE)).with_name(f"test_{file.name}")
        near.sort(key=lambda test: (test != mirror, test.stem != mirror.stem, -len(_imports(test) & _defined(file)), test.name))
        own = [test for test in self.tests if test not in near and _checked(test) & set(methods)]
        own.sort(key=lambda test: (-len(_checked(test) & set(methods)) / len(_checked(test)), test.name))
        named, near = [test for test in near if test.stem == mirror.stem], near[:MOST_FILES]
        if "learners" in file.parts:
            others = [test for test in sorted((TESTS / "learners").rglob("test_*.py")) if _place(test) not in (*LEARNER, *LONGER)]
            small = [test for test in dict.fromkeys([*near, *others]) if test not in named]
            first = Selection((*map(_from_root, named), *(f"{_from_root(LEARNER_VALUES)}::{test}" for test in STEPS)))
            last = [TESTS / name for name in LEARNER if Path(name).stem == mirror.stem]
            return [first, *(Selection(tuple(map(_from_root, each))) for each in (small, last) if each)]
        found = [Selection((*self.values(file, methods), *map(_from_root, (*EVERY_PART, *near))))]
        if own:
            found.append(Selection(tuple(map(_from_root, own[:MOST_FILES]))))
        if methods:
            names = " or ".join(f"{name}]" for name in methods[:MOST_METHODS])
            found.append(Selection((_from_root(TESTS / TABLE),), f"({names}) or aggregates or scopes"))
        return found

    def values(self, file: Path, methods: list[str]) -> list[str]:
        """The pinned numbers that a file has a part in: those of its classes, and of methods that use it."""
        pinned = json.loads(VALUES.with_name("part_values.json").read_text())
        parts = sorted(pinned["parts"].keys() & _defined(file))
        names = [name for name in methods if name in pinned["methods"]][:MOST_VALUES] or sorted(pinned["methods"])
        tests = {
            "test_a_part_takes_and_refuses_the_knobs_it_did": parts,
            "test_a_part_asks_for_what_it_did": parts,
            "test_a_part_refuses_a_batch_as_it_did": parts,
            "test_a_part_with_other_knobs_computes_what_it_did": parts,
            "test_a_method_computes_what_it_did": names,
        }
        return [f"{_from_root(VALUES)}::{test}[{name}]" for test, chosen in tests.items() for name in chosen]

    def methods(self, file: Path) -> list[str]:
        """Methods with a part from this file, or from one that uses it; those with fewest parts of others' first."""
        module = _module(file)
        users = {name for name, modules in self.parts.items() if module in modules}
        if not users:
            above = {_module(other) for other in SOURCE.rglob("*.py") if module in _imported_modules(other)}
            users = {name for name, modules in self.parts.items() if modules & above}
        rarity = defaultdict(int)
        for modules in self.parts.values():
            for each in modules:
                rarity[each] += 1
        return sorted(users, key=lambda name: (-sum(1 / rarity[each] for each in self.parts[name]), name))


def method_parts() -> dict[str, set[str]]:
    """Modules of the parts of every method of the catalogue, with those of the classes they derive from."""
    from upslope.methods import catalogue

    return {
        name: {
            kind.__module__ for _, part in method.parts() for kind in type(part).__mro__ if kind.__module__.startswith("upslope.")
        }
        for name, method in catalogue().items()
    }


def _from_root(test: Path) -> str:
    return test.relative_to(ROOT).as_posix()


def _place(test: Path) -> str:
    return test.relative_to(TESTS).as_posix()


def _module(file: Path) -> str:
    names = file.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(names[:-1] if names[-1] == "__init__" else names)


@cache
def _defined(file: Path) -> frozenset[str]:
    """Classes and functions of a source file, and constants in capitals."""
    found = set()
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
            found.add(node.name)
        elif isinstance(node, ast.Assign):
            found |= {target.id for target in node.targets if isinstance(target, ast.Name) and target.id.isupper()}
    return frozenset(found)


@cache
def _imports(file: Path) -> frozenset[str]:
    """Names that a test imports from upslope."""
    nodes = [node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.ImportFrom)]
    return frozenset(alias.name for node in nodes if (node.module or "").startswith("upslope") for alias in node.names)


@cache
def _imported_modules(file: Path) -> frozenset[str]:
    nodes = [node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.ImportFrom)]
    return frozenset(node.module or "" for node in nodes)


@cache
def _checked(file: Path) -> frozenset[str]:
    """Methods that a test file says it checks."""
    marks = re.findall(r"mark\.checks\(([^)]*)\)", file.read_text())
    return frozenset(name for mark in marks for name in re.findall(r'"([\w.-]+)"', mark.split("by=")[0])) or frozenset({""})
