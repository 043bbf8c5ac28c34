"""``upslope data``: stored experience made, measured, listed and converted."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from upslope.cli.subcommands import Subcommands

ABOUT = "stored experience for offline learning: make it, measure it, convert it"
DATA = "the name of a folder in data/, a folder, FILE.npz, FILE.hdf5 or minari:ID"


def add_commands(parser: argparse.ArgumentParser, shape: dict[str, Any]) -> dict[str, argparse.ArgumentParser]:
    """Its own commands, by their whole names."""
    commands = Subcommands("data", parser, shape)
    command = commands.add
    _add_make_flags(command("make", make, "play an environment by a recipe and keep what happened"))
    measured = command("describe", describe, "how good data are, how much they explore, and which methods they suit")
    measured.add_argument("data", metavar="DATA", help=DATA)
    measured.add_argument("--reference", default="", metavar="DATA", help="the experience of an online run, for SACo")
    listed = command("list", list_data, "the datasets in data/, and Minari's on this machine")
    changed = command("convert", convert, "write data in another form; what is there already stays")
    changed.add_argument("source", metavar="FROM", help=DATA)
    changed.add_argument("target", metavar="TO", help="the same")
    for each in (measured, listed):
        each.add_argument("--json", action="store_true", help="the same as JSON")
    return commands.parsers()


def _add_make_flags(parser: argparse.ArgumentParser) -> None:
    from upslope.datasets.recipe import KINDS
    from upslope.runtime.settings_flags import whole

    kinds = "\n".join(f"  {name:<14} {kind.about}{_options(kind.options)}" for name, kind in KINDS.items())
    parser.epilog = f"recipes:\n{kinds}\n\nThe same command gives the same bits, and finds what is there already."
    add = parser.add_argument
    add("name", metavar="NAME", help="of the folder, in data/")
    add("--task", default="", metavar="TASK", help="the environment, as for train (the run's own)")
    add("--recipe", default="random", metavar="RECIPE", help="who acts, as in medium or mixed:expert=0.1; all are below (random)")
    add("--from", dest="from_run", default="", metavar="RUN", help="the folder of a run whose policy acts")
    add("--steps", type=whole(1), metavar="N", help="decisions, exactly (20000; of replay all there are)")
    add("--seed", type=whole(0), default=0, metavar="N", help="another one gives other data (0)")
    add("--out", default="data", metavar="DIR", help="where the folder goes (data)")
    add("--quiet", action="store_true", help="print nothing but the folder of the data")


def _options(options: Any) -> str:
    return f" ({', '.join(f'{key}={value}' for key, value in options.items())})" if options else ""


def make(flags: argparse.Namespace) -> int:
    """Makes a dataset."""
    from upslope.datasets.making import make_data
    from upslope.report.describe_data import made_text

    with _progress(off=flags.quiet) as progress:
        made = make_data(flags.name, flags.task, flags.recipe, flags.steps, flags.seed, flags.from_run, flags.out, progress)
    if not flags.quiet:
        print(made_text(made))
    print(f"{flags.out.rstrip('/')}/{flags.name}")
    return 0


@contextmanager
def _progress(off: bool) -> Iterator[Callable[[str, int, int], None]]:
    """A bar on standard error while it is a terminal, gone when it is done."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=off or not console.is_terminal) as bar:
        task = bar.add_task("", total=None)
        yield lambda what, done, of: bar.update(task, description=what, completed=done, total=of)


def describe(flags: argparse.Namespace) -> int:
    """Measures a dataset."""
    from upslope.api import describe
    from upslope.report.describe_data import description_text

    found = describe(flags.data, flags.reference or None)
    print(json.dumps(found.record(), indent=1) if flags.json else description_text(found))
    return 0


def list_data(flags: argparse.Namespace) -> int:
    """Lists the datasets on this machine."""
    from upslope.report.describe_data import data_records, data_table

    found = data_records()
    print(json.dumps(found, indent=1) if flags.json else data_table(found))
    return 0


def convert(flags: argparse.Namespace) -> int:
    """Writes a dataset in another form."""
    from upslope.experience.converting import convert

    print(convert(flags.source, flags.target))
    return 0
