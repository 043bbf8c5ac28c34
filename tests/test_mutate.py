"""The mutation tool: its faults are real changes of code and of nothing else, and it knows which tests look at a file."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest
from places import ROOT, SOURCE

sys.path.insert(0, str(ROOT / "tools"))

from mutate import drawn
from mutations import mutations
from related_tests import Related, method_parts

EXAMPLE = '''"""A docstring with 1 + 1."""

from dataclasses import dataclass

__all__ = ["part"]


@dataclass(frozen=True)
class Part:
    """Has 2 fields."""

    ranges = {"low": "[0, 1]"}

    low: float | None = 0.5

    def call(self, x: int = 3) -> int | None:
        if not x > 0 and self.low:
            raise ValueError(f"x is {x + 1}; it is " + "above 0")
        return min(x - 1, 10)
'''
EXPECTED = {
    "low: float | None = 0.5 => low: float | None = 0.75",
    "def call(self, x: int = 3) -> int | None: => def call(self, x: int = 4) -> int | None:",
    "if not x > 0 and self.low: => if x > 0 and self.low:",
    "if not x > 0 and self.low: => if not x >= 0 and self.low:",
    "if not x > 0 and self.low: => if not x < 0 and self.low:",
    "if not x > 0 and self.low: => if not x > 1 and self.low:",
    "if not x > 0 and self.low: => if not x > 0 or self.low:",
    "return min(x - 1, 10) => return max(x - 1, 10)",
    "return min(x - 1, 10) => return min(x + 1, 10)",
    "return min(x - 1, 10) => return min(x - 2, 10)",
    "return min(x - 1, 10) => return min(x - 1, 11)",
}


def test_code_is_changed_and_no_words(tmp_path: Path):
    file = tmp_path / "example.py"
    file.write_text(EXAMPLE)
    assert {" => ".join(each.lines(EXAMPLE)) for each in mutations(file)} == EXPECTED


@pytest.mark.parametrize("folder", ["objective", "learners"])
def test_every_fault_is_a_program(folder: str):
    for file in sorted((SOURCE / folder).rglob("*.py")):
        source = file.read_text()
        for fault in mutations(file)[::20]:
            changed = fault.apply(source)
            assert changed != source
            ast.parse(changed)


def test_faults_are_spread_over_the_files_and_the_same_for_a_seed():
    faults = drawn(40, seed=1, only="objective")
    assert len({fault.file for fault in faults}) == 40
    assert faults == drawn(40, seed=1, only="objective") != drawn(40, seed=2, only="objective")


def test_the_tests_of_a_part_are_found():
    related = Related(method_parts())
    found = related.selections(SOURCE / "objective" / "surrogate" / "heterogeneous.py")
    tests = [test for selection in found for test in selection.tests]
    assert tests[:5] == [
        "tests/objective/test_part_values.py::test_a_part_takes_and_refuses_the_knobs_it_did[EntropyAdaptiveClip]",
        "tests/objective/test_part_values.py::test_a_part_asks_for_what_it_did[EntropyAdaptiveClip]",
        "tests/objective/test_part_values.py::test_a_part_refuses_a_batch_as_it_did[EntropyAdaptiveClip]",
        "tests/objective/test_part_values.py::test_a_part_with_other_knobs_computes_what_it_did[EntropyAdaptiveClip]",
        "tests/objective/test_part_values.py::test_a_method_computes_what_it_did[hapo]",
    ]
    files = [Path(test).name for test in tests[5:]]
    assert files[:3] == ["test_defaults.py", "test_bounds.py", "test_heterogeneous.py"] and "test_hapo.py" in files
    assert found[-1].tests[0] == "tests/test_table.py" and "hapo]" in found[-1].only
    assert all(related.selections(SOURCE / file) for file in ("objective/terms.py", "learners/adam.py"))
