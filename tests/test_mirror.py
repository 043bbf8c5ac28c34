"""Tests mirror the source: a folder of tests is a folder of upslope, and a method's file of tests is called like its module."""

from __future__ import annotations

import ast
import sys
from functools import cache
from pathlib import Path

import pytest
from places import ROOT, SOURCE, TESTS
from slow_tests import listed, slowest

from upslope.methods import catalogue, measures

sys.path.insert(0, str(ROOT / "docs"))

import checks

METHODS = SOURCE / "methods"
MODULES = [file for file in sorted(METHODS.rglob("*.py")) if file.name != "__init__.py"]
WHOLE = {
    "test_bench", "test_bench_results", "test_bench_memory", "test_claims", "test_cluster_plan", "test_control_claims",
    "test_docs", "test_fuzz", "test_gpu", "test_gpu_eight_bits", "test_gpu_text", "test_job_queue", "test_layering",
    "test_learning", "test_long_runs", "test_mirror", "test_mutate", "test_off_policy_returns", "test_pinned_runs", "test_public",
    "test_resume", "test_returns_page", "test_site", "test_site_page", "test_table", "test_unified", "test_wheel",
}  # fmt: skip
"""Tests of the whole library, of its documents and of its tools: they stand in tests/ itself, beside those of single modules."""


PACKAGE = TESTS / "plugin_package" / "tests"
"""Those of a package of others; test_plugins.py installs it."""


def mirrored(folder: Path) -> bool:
    """Whether a folder of tests has its like in the source."""
    return (SOURCE / folder.relative_to(TESTS)).is_dir()


def method_test(module: Path) -> Path:
    """The file of tests of a module of methods."""
    return TESTS / "methods" / module.relative_to(METHODS).with_name(f"test_{module.name}")


@cache
def module_of() -> dict[str, Path]:
    """The module in which each method is composed."""
    found = {}
    for module in MODULES:
        for node in ast.parse(module.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
                words = {word.arg: word.value for word in node.value.keywords}
                if isinstance(name := words.get("name"), ast.Constant):
                    found[name.value] = module
    return found


def test_every_folder_of_tests_is_one_of_the_source():
    folders = sorted({file.parent for file in TESTS.rglob("test_*.py")} - {TESTS, PACKAGE})
    assert len(folders) > 20
    assert [str(folder) for folder in folders if not mirrored(folder)] == []
    assert mirrored(TESTS / "methods" / "rlvr") and not mirrored(TESTS / "rlvr")


def test_what_stands_beside_the_folders_is_of_the_whole_library_or_of_one_of_its_own_modules():
    own = {f"test_{file.stem}" for file in SOURCE.glob("*.py")}
    assert {file.stem for file in TESTS.glob("test_*.py")} <= WHOLE | own


def test_every_method_is_composed_in_a_module():
    assert module_of().keys() == (catalogue() | measures()).keys()


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.relative_to(METHODS).as_posix())
def test_every_module_of_methods_has_its_file_of_tests(module: Path):
    assert method_test(module).exists(), f"{method_test(module).relative_to(ROOT)} is missing"


def test_every_file_of_tests_of_methods_has_its_module():
    files = {file for file in (TESTS / "methods").rglob("test_*.py") if file.parent != TESTS / "methods"}
    assert files == {method_test(module) for module in MODULES}


@pytest.mark.parametrize("method", catalogue())
def test_every_method_has_its_identity_and_its_oracle_there(method: str):
    where = method_test(module_of()[method]).relative_to(ROOT).as_posix()
    found = checks.collect().get(method, {})
    for kind in ("identity", "oracle"):
        assert where in found.get(kind, ()), f'no test in {where} is marked pytest.mark.checks("{kind}", "{method}", ...)'


@pytest.mark.parametrize("file", sorted(TESTS.rglob("*.py")), ids=lambda file: file.relative_to(TESTS).as_posix())
def test_no_file_of_tests_is_long(file: Path):
    assert len(file.read_text(encoding="utf-8").splitlines()) < 400


def test_slow_tests_are_there():
    """What `make test-fast` leaves out by name."""
    functions = {
        f"{file.relative_to(ROOT)}::{node.name}"
        for file in TESTS.rglob("test_*.py")
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef)
    }
    assert not (gone := sorted(listed() - functions)), gone


def test_the_slowest_go_until_the_others_fit():
    log = """
3.00s call     tests/a.py::test_one[x y]
1.00s call     tests/a.py::test_one[z]
0.50s setup    tests/a.py::test_one[z]
2.00s call     tests/a.py::test_two
0.40s call     tests/b.py::test_three[1]
0.40s call     tests/b.py::test_three[2]
"""
    assert slowest(log, 1.0) == ["tests/a.py::test_one", "tests/a.py::test_two"]
    assert slowest(log, 3.0) == ["tests/a.py::test_one"] and slowest(log, 8.0) == []
