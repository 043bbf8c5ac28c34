"""Would the tests notice? Puts one small fault at a time into the objective and the learners and runs the related fast tests.

    python tools/mutate.py --count 200 --seed 0          # draws them over the files, writes tools/mutation.json
    python tools/mutate.py --count 20 --only surrogate   # of files whose path holds that; writes nothing

A fault that no test notices is a missing test, or it changes nothing that anybody could see: then tools/mutation_reasons.toml says
so, and why. All of it happens in a copy of the working tree.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mutations import Mutation, mutations
from related_tests import ROOT, SOURCE, Related, Selection, method_parts

FOLDERS = ("objective", "learners")
REASONS, RESULT = ROOT / "tools" / "mutation_reasons.toml", ROOT / "tools" / "mutation.json"
SECONDS = 120
"""After so long a fault has made something endless, and that counts as noticed."""
COPIED = ("src", "tests", "bench", "docs", "examples", "tools", "pyproject.toml", "README.md", "Makefile")
PASSED, NOTHING_TO_RUN = 0, 5
Known = dict[tuple[str, str], dict[str, str]]
"""What is known of faults, by file name and change."""


@dataclass(frozen=True)
class Outcome:
    """What became of one fault."""

    mutation: Mutation
    change: str
    """The line without and with the fault."""
    caught: bool
    seconds: float


class Copy:
    """The working tree in a folder of its own, in which files are changed for the time of a test; the tree itself may move on."""

    def __init__(self, folder: Path):
        self.root = folder / "tree"
        for name in COPIED:
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, self.root / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
            else:
                shutil.copy(ROOT / name, self.root / name)

    def at(self, file: Path) -> Path:
        return self.root / file.relative_to(ROOT)


def in_child(copy: Copy, work: Callable[[], int], limit: float = math.inf) -> int:
    """The exit code of work done in a process of its own that imports upslope from the copy; -1 if it took too long."""
    sys.stdout.flush()
    child = os.fork()
    if not child:
        os.setpgid(0, 0)
        code = 1
        try:
            sys.path.insert(0, str(copy.root / "src"))
            os.environ["PYTHONPATH"] = str(copy.root / "src")
            os.chdir(copy.root)
            sys.dont_write_bytecode = True
            silent = os.open(os.devnull, os.O_WRONLY)
            os.dup2(silent, 1)
            os.dup2(silent, 2)
            code = work()
        finally:
            os._exit(code)
    end = time.monotonic() + limit
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return -1


def run_pytest(copy: Copy, selection: Selection, *options: str, plugins: tuple[object, ...] = ()) -> int:
    import pytest

    only = ["-k", selection.only] if selection.only else []
    plain = ["-q", "-p", "no:cacheprovider", "-m", "not slow", "--no-header", "--tb=no", f"--rootdir={copy.root}"]
    return int(pytest.main([*plain, *only, *options, *(str(copy.at(file)) for file in selection.files)], plugins=list(plugins)))


def tested(copy: Copy, selection: Selection, failing: list[str]) -> int:
    """The exit code of pytest on these tests; those that fail anyway are left out."""
    left_out = [f"--deselect={test}" for test in failing]
    return in_child(copy, lambda: run_pytest(copy, selection, "-x", *left_out), SECONDS)


class Failures:
    """A plugin of pytest that writes down what fails."""

    def __init__(self, file: Path):
        self.file = file

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            with self.file.open("a") as file:
                file.write(report.nodeid + "\n")

    def pytest_collectreport(self, report: Any) -> None:
        self.pytest_runtest_logreport(report)


def failing_tests(copy: Copy, selections: list[Selection], folder: Path) -> list[str]:
    """Tests that fail without any fault: they would notice everything."""
    files = tuple(dict.fromkeys(file for selection in selections for file in selection.files))
    told = folder / "failing.txt"
    told.touch()
    in_child(copy, lambda: run_pytest(copy, Selection(files), plugins=(Failures(told),)))
    return sorted(set(told.read_text().split("\n")) - {""})


def catalogued(copy: Copy, folder: Path) -> dict[str, set[str]]:
    """The parts' modules of every method, asked of a child: this process must not import what the children shall import anew."""
    told = folder / "parts.json"

    def work() -> int:
        told.write_text(json.dumps({name: sorted(modules) for name, modules in method_parts().items()}))
        return 0

    if in_child(copy, work):
        sys.exit("the catalogue of methods cannot be imported; run the tests first.")
    return {name: set(modules) for name, modules in json.loads(told.read_text()).items()}


def drawn(count: int, seed: int, only: str) -> list[Mutation]:
    """Faults from all over the files: one of each in turn, until there are enough."""
    chance = random.Random(seed)
    files = [
        file for folder in FOLDERS for file in sorted((SOURCE / folder).rglob("*.py")) if only in str(file.relative_to(SOURCE))
    ]
    left = {file: found for file in files if (found := mutations(file))}
    for found in left.values():
        chance.shuffle(found)
    chosen: list[Mutation] = []
    while len(chosen) < count and left:
        order = sorted(left)
        chance.shuffle(order)
        for file in order[: count - len(chosen)]:
            chosen.append(left[file].pop())
            if not left[file]:
                del left[file]
    return chosen


def reasons() -> Known:
    """What is known of faults that are not noticed, by file name and change: files may move."""
    known = tomllib.loads(REASONS.read_text()).get("survivor", []) if REASONS.exists() else []
    return {(each["file"], each["change"]): each for each in known}


def described(outcome: Outcome, known: Known) -> dict[str, str | int]:
    mutation = outcome.mutation
    reason = known.get((mutation.file.name, outcome.change), {"reason": "missing test", "why": ""})
    file = str(mutation.file.relative_to(SOURCE))
    return {"file": file, "line": mutation.line, "change": outcome.change, "reason": reason["reason"], "why": reason.get("why", "")}


def tried(copy: Copy, related: Related, mutation: Mutation, failing: list[str]) -> Outcome:
    file, began = copy.at(mutation.file), time.monotonic()
    source = file.read_text()
    file.write_text(mutation.apply(source))
    caught = any(
        tested(copy, selection, failing) not in (PASSED, NOTHING_TO_RUN) for selection in related.selections(mutation.file)
    )
    file.write_text(source)
    return Outcome(mutation, "  =>  ".join(mutation.lines(source)), caught, time.monotonic() - began)


def preload() -> None:
    """Imports what tests import and no fault can touch: children inherit it."""
    import numpy  # noqa: F401
    import pytest  # noqa: F401
    import torch

    torch.set_num_threads(1)
    import transformers  # noqa: F401


def report(outcomes: list[Outcome], known: Known) -> list[dict[str, str | int]]:
    """The survivors, with what is known of them; prints how many there are."""
    survivors = [described(outcome, known) for outcome in outcomes if not outcome.caught]
    missing = sum(each["reason"] == "missing test" for each in survivors)
    print(f"\n{len(outcomes) - len(survivors)} of {len(outcomes)} caught; {missing} of {len(survivors)} survivors lack a test")
    return survivors


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=200, help="faults to try (200)")
    parser.add_argument("--seed", type=int, default=0, help="of the draw (0)")
    parser.add_argument("--only", default="", help="only files whose path holds this, such as objective/surrogate; writes nothing")
    options = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    preload()
    known, outcomes = reasons(), list[Outcome]()
    with tempfile.TemporaryDirectory() as name:
        copy = Copy(Path(name))
        related = Related(catalogued(copy, Path(name)))
        chosen = drawn(options.count, options.seed, options.only)
        failing = failing_tests(copy, [each for mutation in chosen for each in related.selections(mutation.file)], Path(name))
        if failing:
            print(f"{len(failing)} tests fail without a fault and are left out:", *failing, sep="\n  ", flush=True)
        for number, mutation in enumerate(chosen, 1):
            outcomes.append(tried(copy, related, mutation, failing))
            told, seconds = described(outcomes[-1], known), outcomes[-1].seconds
            verdict = "caught" if outcomes[-1].caught else f"survived: {told['reason']}"
            print(f"{number:4} {seconds:5.1f} s  {verdict:24} {told['file']}:{told['line']}  {mutation.what()}", flush=True)
    survivors = report(outcomes, known)
    for each in survivors:
        print(f"{each['file']}:{each['line']}  {each['reason']}. {each['why']}\n    {each['change']}")
    if not options.only:
        summary = {"seed": options.seed, "faults": len(outcomes), "caught": len(outcomes) - len(survivors), "survivors": survivors}
        RESULT.write_text(json.dumps(summary, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
