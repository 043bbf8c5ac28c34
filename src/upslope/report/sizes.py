"""The estimate of a run as a table: parameters, memory by kind, disk, a step."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from upslope.report.words import amount
from upslope.sizes.card import gibibytes, gigabytes
from upslope.sizes.estimate import Estimate


def print_estimate(estimate: Estimate, console: Console | None = None) -> None:
    """Prints it to standard output."""
    table = Table.grid(padding=(0, 2))
    table.add_column()
    table.add_column()
    table.add_column(justify="right")
    for name, what, size in rows(estimate):
        table.add_row(name, what, size)
    (console or Console(highlight=False)).print(table)


def rows(estimate: Estimate) -> list[tuple[str, str, str]]:
    """What the table says: a heading or nothing, of what, how much."""
    found = [("parameters", "held", amount(estimate.held)), ("", "trained", amount(estimate.trained))]
    for number, (kind, size) in enumerate((estimate.memory or {}).items()):
        found.append(("" if number else "memory", kind, gibibytes(size)))
    if estimate.memory is None:
        found.append(("memory", "not known: the model calls its sizes by other names", ""))
    else:
        found += [("", "in all, about", gibibytes(estimate.total)), ("", f"of {estimate.device}", gibibytes(estimate.available))]
    disk = estimate.disk
    if disk.checkpoints:
        found.append(("disk", f"{disk.checkpoints} checkpoint{'s'[: disk.checkpoints > 1]}, each", gigabytes(disk.checkpoint)))
    else:
        found.append(("disk", "no checkpoints", gigabytes(0)))
    if disk.best:
        found.append(("", "the best evaluation's weights", gigabytes(disk.best)))
    found.append(("", "free", gigabytes(estimate.disk_free)))
    found.append(("a step", f"{estimate.unit}, at most", f"{estimate.per_step:,}"))
    if estimate.slice_tokens:
        found.append(("", "tokens of a slice, at most", f"{estimate.slice_tokens:,}"))
    if estimate.at_once.rows:
        found.append(("", "sampled at once", estimate.sampling_line().replace(" answers at once", "")))
    if estimate.recompute != "":
        found.append(("", "layers recomputed", "none" if estimate.recompute in ("off", 0) else str(estimate.recompute)))
    return found
