"""The flags of ``upslope compare`` and what becomes of them. Light, so that ``--help`` stays fast."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from upslope.errors import UserError
from upslope.plain_data import JsonDict

if TYPE_CHECKING:
    from upslope.report.compare.comparing import Answer

USAGE = "upslope compare METHOD METHOD ... [--task TASK] [--seeds N] [settings of train]\n       upslope compare RUN RUN ..."
BESIDE = ("report.md", "table.tex", "numbers.csv", "comparison.json")
"""What is written beside the page."""
PRINTED = "the same as JSON"
GOES_WITH_METHODS = ("task", "seeds", "model", "set", "grid", "take", "reward", "test_data", "data", "dry_run")


def add_flags(parser: argparse.ArgumentParser) -> None:
    """All flags but those of the settings."""
    from upslope.runtime.settings_flags import number, whole

    parser.usage = USAGE
    add = parser.add_argument
    add("what", metavar="METHOD|RUN", nargs="+", help="methods as for train; or folders of finished runs, or of a comparison")
    add("--task", action="append", default=[], help="as for train; repeatable: scores are then also taken over all tasks (reverse)")
    add("--seeds", type=whole(1), metavar="N", help="runs of each method on each task, from --seed on (5)")
    add("--model", help="as for train (tiny)")
    add("--set", action="append", default=[], metavar="PATH=VALUE",
        help="a knob or part of every method, or of one: dhpo:surrogate.sequence.high=0.1; repeatable")  # fmt: skip
    add("--grid", action="append", default=[], metavar="PATH=V,V",
        help="values of a setting (lr=1e-4,3e-4), a knob or a slot; each counts as a method of its own; repeatable")  # fmt: skip
    add("--take", action="append", default=[], metavar="SLOT=METHOD", help="as for train; repeatable")
    add("--reward", action="append", default=[], metavar="NAME[*WEIGHT]", help="as for train; repeatable")
    add("--test-data", default="", metavar="FILE", help="as for train")
    add(
        "--data",
        action="append",
        default=[],
        metavar="NAME",
        help="as for train; repeatable: scores are then also taken over all",
    )
    add("--out", help="folder of the comparison (runs/compare-METHODS-TASK)")
    add("--jobs", type=whole(1), metavar="N", help="runs at a time (as many as cores and memory carry)")
    add("--k", type=whole(0), metavar="N", help="text: pass@1 to pass@N; 0 is none (16 for tiny, else 8; none for finished runs)")
    add("--threshold", type=number(), metavar="X", help="score for 'steps to' (80%% of the way from the start to the best end)")
    add("--reference", action="append", default=[], metavar="TASK=LOW,HIGH",
        help="scores that count as 0 and 1 on a task when several are taken together; repeatable")  # fmt: skip
    add("--figures", action="store_true", help="draw the pictures for a paper too: SVG and PDF in figures/; needs matplotlib")
    add("--dry-run", action="store_true", help="say what would be run and about how long, and stop")
    add("--json", action="store_true", help=PRINTED)
    add("--quiet", action="store_true", help="print nothing but the folder of the comparison")


def run(flags: argparse.Namespace, compare: Callable[..., Answer], plan: Callable[..., str]) -> int:
    """Compares and prints; 2 if a run failed, 130 if it was interrupted."""
    from upslope.report.compare.running import Interrupted
    from upslope.report.compare.terminal import text

    asked = _asked(flags)
    try:
        if flags.dry_run:
            print(plan(**asked))
            return 0
        answer = compare(**asked)
    except Interrupted as stop:
        print(f"upslope: {stop}", file=sys.stderr)
        return 130
    if flags.json:
        print(json.dumps(answer.comparison.record(), indent=1, ensure_ascii=False))
    elif not flags.quiet:
        print(f"{text(answer.comparison)}\nreport  {answer.path / 'report.html'} (beside it {', '.join(BESIDE)})")
    if not flags.json:
        print(answer.path)
    return 2 if answer.failures else 0


def is_run(word: str) -> bool:
    """Whether an argument stands for runs that are there, rather than for a method."""
    path = Path(word)
    return path.is_dir() and any((path / name).is_file() for name in ("run.toml", "compare.toml", "comparison.json"))


def _asked(flags: argparse.Namespace) -> JsonDict:
    """The arguments of `upslope.api.compare`."""
    from upslope.runtime.settings_flags import given_settings, pairs

    settings = given_settings(flags)
    if "workers" in settings:
        asked = f"--workers {settings['workers']}: how many runs go on at a time is --jobs in a comparison"
        raise UserError(f"{asked}, and each of them samples in its own process. Give --jobs {settings['workers']}.")
    runs = [word for word in flags.what if is_run(word)]
    told: JsonDict = {
        "out": flags.out, "jobs": flags.jobs, "k": flags.k, "threshold": flags.threshold, "quiet": flags.quiet or flags.json,
        "references": _references(flags.reference), "figures": flags.figures,
    }  # fmt: skip
    if runs:
        if others := [word for word in flags.what if word not in runs]:
            raise UserError(
                f"{others[0]!r} is not the folder of a run, and {runs[0]!r} is. Give methods to train or runs to compare."
            )
        if given := [*(name for name in GOES_WITH_METHODS if getattr(flags, name)), *settings]:
            raise UserError(f"--{given[0].replace('_', '-')} goes with methods; {runs[0]!r} is a run, which has its own.")
        return {"what": runs, **told}
    for word in flags.what:
        if Path(word).is_dir():
            inside = f" It holds runs: give those, as in {word}/*." if any(Path(word).glob("*/run.toml")) else ""
            raise UserError(f"{word!r} is neither the folder of a run (it has no run.toml) nor of a comparison.{inside}")
        if "/" in word and ".py" not in word:
            raise UserError(f"there is no run {word!r}.")
    return {
        "what": flags.what, "task": flags.task or ([] if flags.data else ["reverse"]),
        "seeds": flags.seeds or 5, "model": flags.model or "tiny",
        "knobs": pairs("--set", flags.set, "PATH=VALUE, as in surrogate.high=0.3"), "grid": _grid(flags.grid),
        "take": pairs("--take", flags.take, "SLOT=METHOD, as in ratio=gspo"), "reward": tuple(flags.reward),
        "test_data": flags.test_data, "data": flags.data,
        **told, **settings,
    }  # fmt: skip


def _grid(given: Sequence[str]) -> dict[str, list[str]]:
    from upslope.runtime.settings_flags import pairs

    found = pairs("--grid", given, "PATH=VALUE,VALUE, as in lr=1e-4,3e-4 or surrogate.high=0.2,0.28")
    grid = {path: [value.strip() for value in _split(values)] for path, values in found.items()}
    for path, values in grid.items():
        if not all(values):
            raise UserError(f"--grid {path}={','.join(values)} has an empty value.")
    return grid


def _split(values: str) -> list[str]:
    """At commas, but not inside of brackets: those belong to a value, such as a part with its fields or ``(64, 64)``."""
    found, depth = [""], 0
    for letter in values:
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and not depth:
            found.append("")
        else:
            found[-1] += letter
    return found


def _references(given: Sequence[str]) -> dict[str, tuple[float, float]]:
    found = {}
    for text in given:
        task, _, ends = text.rpartition("=")
        try:
            low, high = (float(end) for end in ends.split(","))
        except ValueError:
            raise UserError(f"--reference {text!r} is not of the form TASK=LOW,HIGH, as in gym:CartPole-v1=20,500.") from None
        if not task or not low < high:
            raise UserError(f"--reference {text!r} needs a task and two scores, the lower one first.")
        found[task] = (low, high)
    return found
