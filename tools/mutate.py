"""Would the tests notice? Puts one small fault at a time into the objective and the learners and runs the related fast tests.

    python tools/mutate.py --count 200 --seed 0          # draws them over the files, writes tools/mutation.json
    python tools/mutate.py --count 20 --only surrogate   # of files whose path holds that; writes nothing

A fault that no test notices is a missing test, or it changes nothing that anybody could see: then tools/mutation_reasons.toml says
so, and why. Each fault is in a copy of the source; the working tree is not touched.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import tomllib
from dataclasses import dataclass
from pathlib import Path

from mutations import Mutation, mutations
from related_tests import ROOT, SOURCE, Related, Selection, method_parts

FOLDERS = ("objective", "learners")
REASONS, RESULT = ROOT / "tools" / "mutation_reasons.toml", ROOT / "tools" / "mutation.json"
SECONDS = 120
"""After so long a fault has made something endless, and that counts as noticed."""
PASSED, NOTHING_TO_RUN = 0, 5


@dataclass(frozen=True)
class Outcome:
    """What became of one fault."""

    mutation: Mutation
    caught: bool
    seconds: float


class Copy:
    """The source in a folder of its own, in which files are changed for the time of a test."""

    def __init__(self, folder: Path):
        self.folder = folder / "src"
        shutil.copytree(ROOT / "src", self.folder, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))

    def put(self, file: Path, text: str) -> None:
        (self.folder / file.relative_to(SOURCE.parent)).write_text(text)


def in_child(copy: Copy, work) -> int:
    """The exit code of work done in a process of its own that imports upslope from the copy; -1 if it took too long."""
    sys.stdout.flush()
    child = os.fork()
    if not child:
        os.setpgid(0, 0)
        code = 1
        try:
            sys.path.insert(0, str(copy.folder))
            os.environ["PYTHONPATH"] = str(copy.folder)
            sys.dont_write_bytecode = True
            silent = os.open(os.devnull, os.O_WRONLY)
            os.dup2(silent, 1)
            os.dup2(silent, 2)
            code = work()
        finally:
            os._exit(code)
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return -1


def tested(copy: Copy, selection: Selection) -> int:
    """The exit code of pytest on these tests."""

    def work() -> int:
        import pytest

        only = ["-k", selection.only] if selection.only else []
        options = ["-x", "-q", "-p", "no:cacheprovider", "-m", "not slow", "--no-header", "--tb=no", f"--rootdir={ROOT}", *only]
        return int(pytest.main([*options, *map(str, selection.files)]))

    return in_child(copy, work)


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


def reasons() -> dict[tuple[str, str], dict[str, str]]:
    """What is known of faults that are not noticed, by file name and change: files may move."""
    known = tomllib.loads(REASONS.read_text()).get("survivor", []) if REASONS.exists() else []
    return {(each["file"], each["change"]): each for each in known}


def described(outcome: Outcome, known: dict[tuple[str, str], dict[str, str]]) -> dict[str, str | int]:
    mutation = outcome.mutation
    before, after = mutation.lines(mutation.file.read_text())
    change = f"{before}  =>  {after}"
    reason = known.get((mutation.file.name, change), {"reason": "missing test", "why": ""})
    file = str(mutation.file.relative_to(SOURCE))
    return {"file": file, "line": mutation.line, "change": change, "reason": reason["reason"], "why": reason.get("why", "")}


def tried(copy: Copy, related: Related, mutation: Mutation) -> Outcome:
    source, began = mutation.file.read_text(), time.monotonic()
    copy.put(mutation.file, mutation.apply(source))
    caught = any(tested(copy, selection) not in (PASSED, NOTHING_TO_RUN) for selection in related.selections(mutation.file))
    copy.put(mutation.file, source)
    return Outcome(mutation, caught, time.monotonic() - began)


def check_baseline(copy: Copy, related: Related, chosen: list[Mutation]) -> None:
    """Refuses to begin where a test fails without any fault: it would notice everything."""
    for selection in dict.fromkeys(each for mutation in chosen for each in related.selections(mutation.file)):
        if tested(copy, selection) not in (PASSED, NOTHING_TO_RUN):
            sys.exit(f"these tests fail without a fault: {' '.join(map(str, selection.files))} -k '{selection.only}'")


def preload() -> None:
    """Imports what tests import and no fault can touch: children inherit it."""
    import numpy  # noqa: F401
    import pytest  # noqa: F401
    import torch

    torch.set_num_threads(1)
    import transformers  # noqa: F401


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=200, help="faults to try (200)")
    parser.add_argument("--seed", type=int, default=0, help="of the draw (0)")
    parser.add_argument("--only", default="", help="only files whose path holds this, such as objective/surrogate; writes nothing")
    parser.add_argument("--skip-baseline", action="store_true", help="do not run the tests without a fault first")
    options = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    preload()
    known, outcomes = reasons(), list[Outcome]()
    with tempfile.TemporaryDirectory() as name:
        copy = Copy(Path(name))
        related = Related(catalogued(copy, Path(name)))
        chosen = drawn(options.count, options.seed, options.only)
        if not options.skip_baseline:
            check_baseline(copy, related, chosen)
        for number, mutation in enumerate(chosen, 1):
            outcomes.append(tried(copy, related, mutation))
            told = described(outcomes[-1], known)
            verdict = "caught" if outcomes[-1].caught else f"SURVIVED ({told['reason']})"
            print(
                f"{number:4} {outcomes[-1].seconds:5.1f} s  {verdict:24} {told['file']}:{told['line']}  {told['change']}",
                flush=True,
            )
    survivors = [described(outcome, known) for outcome in outcomes if not outcome.caught]
    missing = sum(each["reason"] == "missing test" for each in survivors)
    print(f"\n{len(outcomes) - len(survivors)} of {len(outcomes)} caught; {missing} of {len(survivors)} survivors lack a test")
    if not options.only:
        summary = {"seed": options.seed, "faults": len(outcomes), "caught": len(outcomes) - len(survivors), "survivors": survivors}
        RESULT.write_text(json.dumps(summary, indent=1) + "\n")


if __name__ == "__main__":
    main()
