"""Commands that train."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from upslope.cli.codes import INTERRUPTED
from upslope.errors import UserError
from upslope.plain_data import JsonDict

if TYPE_CHECKING:
    from upslope.report.live import LiveTable
    from upslope.run import Run
    from upslope.sizes.estimate import Estimate


def knobs_set(flags: argparse.Namespace) -> dict[str, str]:
    """``--set`` as a mapping, in the order given."""
    from upslope.runtime.settings_flags import pairs

    return pairs("--set", flags.set, "PATH=VALUE, as in surrogate.high=0.3")


def taken(flags: argparse.Namespace) -> dict[str, str]:
    """``--take`` as a mapping."""
    from upslope.runtime.settings_flags import pairs

    return pairs("--take", flags.take, "SLOT=METHOD, as in ratio=gspo")


def train(flags: argparse.Namespace) -> int:
    """Trains."""
    from upslope.runtime.settings_flags import given_settings

    knobs = knobs_set(flags)
    take = taken(flags)
    for name in ("memory", "json"):
        if getattr(flags, name) and not flags.dry_run:
            raise UserError(f"--{name} goes with --dry-run. Add that, or leave it out.")
    if flags.task and flags.task_word and flags.task != flags.task_word:
        raise UserError(f"two tasks: {flags.task_word!r} behind the method and --task {flags.task!r}. Leave one out.")
    from upslope.api import estimate, train

    asked: JsonDict = {
        "method": flags.method,
        "task": flags.task or flags.task_word or "reverse",
        "model": flags.model,
        "knobs": knobs,
        "reward": tuple(flags.reward),
        "test_data": flags.test_data,
        "data": flags.data,
        "out": flags.out,
        "take": take,
        "preset": flags.preset,
        **given_settings(flags),
    }
    if flags.dry_run:
        return _told(estimate(memory=flags.memory, **asked), flags.json)
    return _watched(lambda watcher: train(trackers=tuple(flags.tracker), watcher=watcher, **asked), flags.quiet)


def _told(estimate: Estimate, as_json: bool) -> int:
    """What a run would take. What does not fit is an error, with what would."""
    from upslope.report.sizes import print_estimate

    if as_json:
        print(json.dumps(estimate.table(), indent=2))
    else:
        print_estimate(estimate)
    estimate.check()
    return 0


def compare(flags: argparse.Namespace) -> int:
    """Compares methods or finished runs."""
    from upslope.api import compare, plan_comparison
    from upslope.report.compare.command import run

    return run(flags, compare, plan_comparison)


def resume(flags: argparse.Namespace) -> int:
    """Goes on with a run."""
    from upslope.api import load, resume
    from upslope.runtime.run_folder import RunFolder

    if (RunFolder.open(flags.path).path / "summary.json").exists() and flags.steps is None:
        summary = load(flags.path).summary
        if not flags.quiet:
            score = f"{summary['score']} {summary['score_before']:.3g} -> {summary['score_after']:.3g}"
            further = f"'upslope resume {flags.path} --steps {2 * summary['steps']}' goes on"
            print(f"finished already: {summary['steps']} steps, {score}. 'upslope try {flags.path}' looks at it, {further}.")
        print(flags.path)
        return 0
    return _watched(lambda watcher: resume(flags.path, watcher, flags.trust, steps=flags.steps), flags.quiet)


def _watched(start: Callable[[LiveTable], Run], quiet: bool) -> int:
    """Trains under the live table. However it ends, the user learns how to go on; the folder is the last line on stdout."""
    from upslope.learners.nonfinite import NonFinite
    from upslope.report.live import LiveTable
    from upslope.report.page import write_report
    from upslope.run import Stopped
    from upslope.runtime.checkpoint_files import Damaged

    with LiveTable(quiet) as watcher:
        try:
            run = start(watcher)
        except Stopped as stop:
            message = str(stop)
        except KeyboardInterrupt:
            message = f"interrupted. {_how_to_go_on(watcher.run)}".rstrip()
        except UserError as error:
            lost = watcher.run is None or isinstance(error, (Damaged, NonFinite))  # to go on would end here again
            raise (error if lost else UserError(f"{error}\n{_how_to_go_on(watcher.run)}")) from error
        else:
            print(run.path)
            return 0
    print(f"upslope: {message}", file=sys.stderr)
    if watcher.run is not None:
        write_report(watcher.run)
        print(watcher.run.path)
    return INTERRUPTED


def _how_to_go_on(run: Run | None) -> str:
    if run is None:
        return ""
    if run.folder.keeps_none:
        return "It kept no checkpoints (--checkpoint-every none) and cannot go on."
    saved = run.folder.checkpoints()
    where = f"goes on from its checkpoint {saved[-1].name}" if saved else "begins it again: it had no checkpoint yet"
    copied = run.path / "code"
    own = f" It runs its own copy of your code ({copied}): a mended file needs a new run." if copied.is_dir() else ""
    return f"'upslope resume {run.path}' {where}.{own}"
