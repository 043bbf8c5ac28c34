"""Would the tests notice? Puts one small fault at a time into the objective and the learners and runs the related fast tests.

    python tools/mutate.py --count 200 --seed 0          # draws them over the files, writes tools/mutation.json
    python tools/mutate.py --count 20 --only surrogate   # of files whose path holds that; writes nothing
    python tools/mutate.py --again                       # the survivors of tools/mutation.json once more, after tests were written

A fault that no test notices is a missing test, or it changes nothing that anybody could see: then tools/mutation_reasons.toml says
so, and why. All of it happens in a copy of the working tree.
"""

from __future__ import annotations

import argparse
import compileall
import json
import math
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mutations import Mutation, mutations
from related_tests import ROOT, SOURCE, Related, Selection, method_parts

FOLDERS = ("objective", "learners")
REASONS, RESULT = ROOT / "tools" / "mutation_reasons.toml", ROOT / "tools" / "mutation.json"
SECONDS, MOST_SECONDS = 200, 1800
"""After so much of the processor's time, or so long by the clock, a fault has made something endless: that counts as noticed."""
COPIED = ("src", "tests", "bench", "docs", "examples", "tools", "pyproject.toml", "README.md", "Makefile")
PASSED, NOTHING_TO_RUN = 0, 5
BROKEN = "pytest ends with"
"""Where it gave no test a chance to fail."""
JsonDict = dict[str, Any]
Plan = dict[Path, list[Selection]]
"""The tests of each file, laid down before the first is run: the working tree may move on."""
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
    by: str = ""
    """The test that failed, or that it took too long."""


class Copy:
    """The working tree in a folder of its own, in which files are changed for the time of a test; the tree itself may move on."""

    def __init__(self, folder: Path):
        self.root = folder / "tree"
        for name in COPIED:
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, self.root / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
            else:
                shutil.copy(ROOT / name, self.root / name)
        compileall.compile_dir(self.root / "src", quiet=1)

    @contextmanager
    def changed(self, mutation: Mutation) -> Iterator[str]:
        """While it lasts, the copy has the fault; gives the source without it. Then file and bytecode fit each other again."""
        file = self.at(mutation.file)
        source, before = file.read_text(), file.stat()
        file.write_text(mutation.apply(source))
        try:
            yield source
        finally:
            file.write_text(source)
            os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))

    def at(self, file: Path) -> Path:
        return self.root / file.relative_to(ROOT)


def in_child(copy: Copy, work: Callable[[], int], limit: int = 0, bytecode: bool = False) -> int:
    """The exit code of work done in a process of its own that imports upslope from the copy; -1 if it took too long.

    Args:
        limit: seconds of the processor's time, which other people's work on the machine does not change.
    """
    sys.stdout.flush()
    child = os.fork()
    if not child:
        os.setpgid(0, 0)
        code = 1
        try:
            sys.path.insert(0, str(copy.root / "src"))
            os.environ["PYTHONPATH"] = str(copy.root / "src")
            os.chdir(copy.root)
            sys.dont_write_bytecode = not bytecode
            if limit:
                resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 5))
            silent = os.open(os.devnull, os.O_WRONLY)
            os.dup2(silent, 1)
            os.dup2(silent, 2)
            code = work()
        finally:
            os._exit(code)
    end = time.monotonic() + (MOST_SECONDS if limit else math.inf)
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            code = os.waitstatus_to_exitcode(status)
            return -1 if code == -signal.SIGXCPU else code
        time.sleep(0.02)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return -1


def run_pytest(copy: Copy, tests: list[str], told: Path, *options: str) -> int:
    """Pytest in this process; what fails goes to ``told``, line by line."""
    import pytest

    plain = ["-q", "-p", "no:cacheprovider", "-m", "not slow", "--no-header", "--tb=no", f"--rootdir={copy.root}"]
    return int(pytest.main([*plain, *options, *(str(copy.root / test) for test in tests)], plugins=[Failures(told)]))


def failures(copy: Copy, tests: list[str], *options: str, limit: int = 0) -> list[str]:
    """Which of these tests fail; that it took too long stands for all."""
    with tempfile.NamedTemporaryFile("r") as file:
        told = Path(file.name)
        code = in_child(copy, lambda: run_pytest(copy, tests, told, *options), limit)
        if code in (PASSED, NOTHING_TO_RUN):
            return []
        return sorted(set(told.read_text().split("\n")) - {""}) or ["takes too long" if code == -1 else f"{BROKEN} {code}"]


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


def described(outcome: Outcome, known: Known) -> JsonDict:
    mutation = outcome.mutation
    reason = known.get((mutation.file.name, outcome.change), {"reason": "missing test", "why": ""})
    file = str(mutation.file.relative_to(SOURCE))
    return {"file": file, "line": mutation.line, "change": outcome.change, "reason": reason["reason"], "why": reason.get("why", "")}


def tried(copy: Copy, selections: Plan, mutation: Mutation, failing: list[str]) -> Outcome:
    """One fault and its tests, until one of them fails; those that fail anyway are left out."""
    began, by = time.monotonic(), ""
    left_out = [f"--deselect={test}" for test in failing]
    with copy.changed(mutation) as source:
        for selection in selections[mutation.file]:
            only = ["-k", selection.only] if selection.only else []
            found = failures(copy, list(selection.tests), "-x", *only, *left_out, limit=SECONDS)
            if found:
                by = found[0]
                break
    return Outcome(mutation, "  =>  ".join(mutation.lines(source)), bool(by), time.monotonic() - began, by)


def checked(copy: Copy, selections: Plan, outcomes: list[Outcome]) -> list[Outcome]:
    """The outcomes without those that a test noticed which fails without a fault, too: such faults are tried again without it."""
    for file in {outcome.mutation.file for outcome in outcomes if outcome.by.startswith(BROKEN)}:
        if any(failures(copy, list(each.tests), "--collect-only") for each in selections[file]):
            sys.exit(f"the tests for {file} cannot be run without a fault either.")
    failing: list[str] = []
    while True:
        named = sorted({outcome.by for outcome in outcomes if "::" in outcome.by})
        broken = [test for test in failures(copy, named) if test in named] if named else []
        if not broken:
            return outcomes
        print(f"{len(broken)} tests fail without a fault and are left out:", *broken, sep="\n  ", flush=True)
        failing += broken
        outcomes = [tried(copy, selections, each.mutation, failing) if each.by in broken else each for each in outcomes]


def preload() -> None:
    """Imports what tests import and no fault can touch: children inherit it."""
    import numpy  # noqa: F401
    import pytest  # noqa: F401
    import torch

    torch.set_num_threads(1)
    import safetensors.torch  # noqa: F401
    from transformers import AutoTokenizer, LlamaForCausalLM  # noqa: F401


def report(outcomes: list[Outcome], known: Known) -> list[JsonDict]:
    """The survivors, with what is known of them; prints how many there are."""
    survivors = [described(outcome, known) for outcome in outcomes if not outcome.caught]
    missing = sum(each["reason"] == "missing test" for each in survivors)
    print(f"\n{len(outcomes) - len(survivors)} of {len(outcomes)} caught; {missing} of {len(survivors)} survivors lack a test")
    return survivors


def chosen_again(before: JsonDict) -> list[Mutation]:
    """The faults of a draw that survived it; the sources must be those of the draw."""
    survived = {(each["file"], each["line"], each["change"]) for each in before["survivors"]}
    found = []
    for mutation in drawn(before["drawn"], before["seed"], ""):
        change = "  =>  ".join(mutation.lines(mutation.file.read_text()))
        if (str(mutation.file.relative_to(SOURCE)), mutation.line, change) in survived:
            found.append(mutation)
    return found


def summary(options: argparse.Namespace, before: JsonDict, outcomes: list[Outcome], survivors: list[JsonDict]) -> JsonDict:
    """What tools/mutation.json holds. ``first`` is how many were caught before tests were written for those that were not."""
    if options.again:
        return {**before, "caught": before["faults"] - len(survivors), "survivors": survivors}
    caught = len(outcomes) - len(survivors)
    return {
        "seed": options.seed, "drawn": options.count, "faults": len(outcomes), "first": caught, "caught": caught,
        "survivors": survivors,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=200, help="faults to try (200)")
    parser.add_argument("--seed", type=int, default=0, help="of the draw (0)")
    parser.add_argument("--only", default="", help="only files whose path holds this, such as objective/surrogate; writes nothing")
    parser.add_argument("--minutes", type=float, default=math.inf, help="try no further fault after so long (no limit)")
    parser.add_argument("--again", action="store_true", help="the survivors of tools/mutation.json, and no others")
    options = parser.parse_args()
    before = json.loads(RESULT.read_text()) if options.again else {}
    chosen = chosen_again(before) if options.again else drawn(options.count, options.seed, options.only)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    preload()
    known = reasons()
    outcomes = all_tried(chosen, known, time.monotonic() + 60 * options.minutes)
    survivors = report(outcomes, known)
    for each in survivors:
        print(f"{each['file']}:{each['line']}  {each['reason']}. {each['why']}\n    {each['change']}")
    if not options.only:
        RESULT.write_text(json.dumps(summary(options, before, outcomes, survivors), indent=1, ensure_ascii=False) + "\n")


def all_tried(chosen: list[Mutation], known: Known, end: float) -> list[Outcome]:
    """The faults one after the other, in a copy of the tree; none is begun after the end."""
    outcomes: list[Outcome] = []
    with tempfile.TemporaryDirectory() as name:
        copy = Copy(Path(name))
        # Only this run leaves bytecode of the tests: what the later ones compile may hold a fault.
        in_child(copy, lambda: run_pytest(copy, ["tests"], Path(name) / "collected.txt", "--collect-only"), bytecode=True)
        related = Related(catalogued(copy, Path(name)))
        selections = {file: related.selections(file) for file in {mutation.file for mutation in chosen}}
        for number, mutation in enumerate(chosen, 1):
            if time.monotonic() > end:
                print(f"the time is over: {len(outcomes)} of {len(chosen)} faults were tried", flush=True)
                break
            outcomes.append(tried(copy, selections, mutation, []))
            told, seconds = described(outcomes[-1], known), outcomes[-1].seconds
            verdict = f"caught by {outcomes[-1].by}" if outcomes[-1].caught else f"survived: {told['reason']}"
            print(f"{number:4} {seconds:5.1f} s  {told['file']}:{told['line']}  {mutation.what()}  {verdict}", flush=True)
        return checked(copy, selections, outcomes)


if __name__ == "__main__":
    main()
