"""Commands of the sandbox: whether it holds on this machine, and a program run in it."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from upslope.cli.codes import FAILED
from upslope.cli.subcommands import Subcommands
from upslope.errors import UserError, did_you_mean
from upslope.plain_data import JsonDict

ABOUT = "the sandbox for programs that models write: whether it holds here, and a program run in it"


def add_commands(parser: argparse.ArgumentParser, shape: JsonDict) -> dict[str, argparse.ArgumentParser]:
    """Adds what stands behind ``upslope sandbox``; the parsers by their whole names."""
    from upslope.runtime.settings_flags import number, whole

    commands = Subcommands("sandbox", parser, shape)
    command = commands.add
    checking = command("check", check, "try to break every limit; what does not hold ends it with status 2")
    checking.add_argument("--json", action="store_true", help="the same as JSON")
    running = command("run", run, "run a Python program in the sandbox; ends with its status, with 2 where a limit ended it")
    running.add_argument("file", metavar="FILE.py", help="the program; its stdin is this command's, if that is no terminal")
    running.add_argument("--seconds", type=number(0.001), metavar="X", help="by the clock (10)")
    running.add_argument("--memory", type=whole(1), metavar="MB", help="of all its processes (256)")
    running.add_argument("--processes", type=whole(1), metavar="N", help="at a time (32)")
    running.add_argument("--sandbox", choices=("full", "weak"), default="full", help="weak: limits only; it can read and send all "
                         "that you can (full)")  # fmt: skip
    return commands.parsers()


def check(flags: argparse.Namespace) -> int:
    """Tries every limit."""
    from upslope.runtime.sandbox.command import check_tools
    from upslope.runtime.sandbox.probes import check, means_here, table

    check_tools()
    found, means = check(), means_here()
    if flags.json:
        print(json.dumps({"means": means, "limits": [vars(each) for each in found]}, indent=1))
    else:
        print("\n".join([*means, "", table(found)]))
    return 0 if all(each.holds for each in found) else FAILED


def run(flags: argparse.Namespace) -> int:
    """Runs a program."""
    from upslope.runtime.sandbox import Limits, Sandbox
    from upslope.runtime.sandbox.limits import WEAK

    file = Path(flags.file)
    if not file.is_file():
        there = [other.name for other in file.parent.glob("*.py")] if file.parent.is_dir() else []
        raise UserError(f"no file {flags.file!r} (looked for {file.absolute()}).{did_you_mean(file.name, there)}")
    given = {name: getattr(flags, name) for name in ("seconds", "memory", "processes") if getattr(flags, name) is not None}
    program = file.read_bytes().decode("utf-8", errors="replace")
    stdin = "" if sys.stdin is None or sys.stdin.isatty() else sys.stdin.read()
    if flags.sandbox == "weak":
        print(f"upslope: {WEAK}", file=sys.stderr)
    with Sandbox(Limits(**given), weak=flags.sandbox == "weak") as sandbox:
        finished = sandbox.run(program, stdin)
    sys.stdout.write(finished.stdout)
    sys.stderr.write(finished.stderr)
    if finished.reason != "ended":
        print(f"upslope: ended by the limit of {finished.reason} after {finished.seconds:.1f} s.", file=sys.stderr)
        return FAILED
    return finished.status
