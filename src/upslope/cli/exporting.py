"""The command that writes what was trained for use elsewhere."""

from __future__ import annotations

import argparse

from upslope.errors import UserError


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", metavar="RUN", help="the folder of a run")
    parser.add_argument("--to", required=True, metavar="FILE", help="control: policy.onnx, or policy.pt for TorchScript")
    parser.add_argument("--trust", action="store_true", help="run code in the folder that this machine did not write; remembered")


def export(flags: argparse.Namespace) -> int:
    """Writes a run's result."""
    from upslope.api import load

    run = load(flags.path, flags.trust)
    if run.table["domain"] != "control":
        where = run.folder.latest()
        raise UserError(f"{run.table['task']} is answered in text; {where} is a folder that transformers loads as it is.")
    found = run.export(flags.to)
    how = f"largest relative difference {found['difference']:.0e}, by {found['checked_by']}"
    print(f"checked against the run's policy on {found['checked']:,} observations: the same actions, {how}")
    print(found["file"])
    return 0
