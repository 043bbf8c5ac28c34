"""Two libraries doing the same work, measured side by side in one run.

A `Row` names the work and its two sides. Each side in each of its settings (one thread, two threads) is a process of its own,
spawned once and kept alive, so that thread pools and peak memory do not mix. Windows of work alternate between the processes,
one at a time (or one process has all of its windows before the next begins, where they would be in each other's way:
`Row.in_turns`); the first warm up and are dropped. A side counts at the setting with its best median; the ratio is that of the
medians, its spread the quartiles over paired windows. Both sides report what they did: unless it was the same, there is no ratio.
The other side is run with our library's switches too (`Setting.borrowed`), for a ratio of its own.

    ROW = Row(name="grpo_short", work="one GRPO step ...", ours=Side(...), peer=Side(...), exact=("samples", "updates"), ...)
    if __name__ == "__main__":
        main(ROW)
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import multiprocessing
import os
import shlex
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import machine
import numpy as np
from sides import Row, Setting, Side, work

from upslope.errors import MissingExtra, UserError, install_extra
from upslope.runtime.environment import ALLOCATOR

RESULTS = Path(__file__).resolve().parent / "results"
WINDOWS = 7
"""Measured windows of each process, unless told otherwise; fewer than 5 are refused for a result."""
LEAST_WINDOWS = 5
SETTLE = 0.2
"""Seconds between windows: helper threads of the process that just worked go to sleep."""
LISTEN = 2.0
"""Seconds of doing nothing at the beginning, to hear whether others are at work."""


class DifferentWork(UserError):
    """The two sides did not do the same, so their times cannot be compared."""


# -- the harness -----------------------------------------------------------------------------------------------------------


class Worker:
    """A side's process as the harness sees it, and the windows it has done."""

    def __init__(self, role: str, side: Side, setting: Setting, row: Row):
        self.role, self.side, self.setting = role, side, setting
        self.baseline = self.peak = 0.0
        self.seconds: list[float] = []
        self.counts: dict[str, float] = defaultdict(float)
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self.process = context.Process(target=work, args=(theirs, side.run, row.given, setting, row.device), daemon=False)
        # Ours begins as the command `upslope` does.
        with _environment({**setting.environment, **(ALLOCATOR if role == "ours" else {})}):
            self.process.start()
        theirs.close()

    def __str__(self) -> str:
        return f"{self.side.name}, {self.setting.label}"

    def set_up(self) -> None:
        self.baseline = self._answer()["baseline"]

    def window(self, units: int, measured: bool) -> None:
        """One window of work; the first ones are not ``measured``."""
        self._pipe.send(units)
        told = self._answer()
        self.peak = max(self.peak, told["peak"])
        if measured:
            self.seconds.append(told["seconds"] / units)
            for name, count in told["counts"].items():
                self.counts[name] += count

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._pipe.send(None)
        self.process.join(20)
        if self.process.is_alive():
            self.process.terminate()
            self.process.join()

    def _answer(self) -> dict[str, Any]:
        try:
            told = self._pipe.recv()
        except EOFError:
            self.process.join()
            raise RuntimeError(f"{self} ended with code {self.process.exitcode} and said nothing") from None
        if "failed" in told:
            raise RuntimeError(f"{self} failed:\n{told['failed']}")
        return told

    def told(self, row: Row) -> dict[str, Any]:
        """What came of this process, for the result."""
        low, middle, high = quartiles(self.seconds)
        return {
            "label": self.setting.label,
            "threads": self.setting.threads,
            "borrowed": self.setting.borrowed,
            "seconds": middle,
            "seconds_low": low,
            "seconds_high": high,
            "windows": self.seconds,
            "memory": self.peak if row.device == "cuda" else max(self.peak - self.baseline, 0.0),
            "peak": self.peak,
            "counts": dict(self.counts),
        }


@contextlib.contextmanager
def _environment(values: Mapping[str, str | None]) -> Iterator[None]:
    """What a process that is started here finds in its environment; None: not there."""
    before = {name: os.environ.get(name) for name in values}
    try:
        _put(values)
        yield
    finally:
        _put(before)


def _put(values: Mapping[str, str | None]) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def measure(
    row: Row, *, windows: int = WINDOWS, warmup: int = 1, with_peer: bool = True, settle: float = SETTLE, listen: float = LISTEN
) -> dict[str, Any]:
    """Runs both sides in turns and gives the result. Raises `DifferentWork` where they did not do the same."""
    sides = [("ours", row.ours), ("peer", row.peer)] if with_peer else [("ours", row.ours)]
    for _, side in sides:
        if importlib.util.find_spec(side.package) is None:
            raise MissingExtra(f"{side.package} is", install_extra("bench"))
    company, before = machine.Company(), machine.busy_before(listen)
    # Settings in the outer loop: in turns the two sides stand next to each other in time.
    longest = max(len(side.settings) for _, side in sides)
    order = [(role, side, side.settings[i]) for i in range(longest) for role, side in sides if i < len(side.settings)]
    workers: list[Worker] = []
    for together in [order] if row.in_turns else [[each] for each in order]:
        workers += _measured(row, together, windows, warmup, settle, company)
    return result(row, workers, busy_before=before, company=company)


def _measured(
    row: Row, order: Sequence[tuple[str, Side, Setting]], windows: int, warmup: int, settle: float, company: machine.Company
) -> list[Worker]:
    """Processes that were there at the same time and took turns, with their windows; they have ended."""
    workers = [Worker(role, side, setting, row) for role, side, setting in order]
    try:
        for worker in workers:
            worker.set_up()
        _run_windows(row, workers, windows, warmup, settle, company)
    finally:
        for worker in workers:
            worker.close()
    return workers


def _run_windows(row: Row, workers: list[Worker], windows: int, warmup: int, settle: float, company: machine.Company) -> None:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn(f"{row.name}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    # Drawn between windows only: a thread that redraws would be company for the side at work.
    with Progress(*columns, auto_refresh=False, transient=True) as bar:
        task = bar.add_task("", total=(windows + warmup) * len(workers))
        for number in range(windows + warmup):
            for worker in workers if number % 2 == 0 else workers[::-1]:  # a drift of the machine falls on both sides
                bar.update(task, description=str(worker), refresh=True)
                if not bar.console.is_terminal:  # a log shows how far it is
                    print(f"{row.name}: window {number + 1} of {windows + warmup}, {worker}", file=sys.stderr, flush=True)
                time.sleep(settle)
                began = machine.instant([worker.process.pid or 0])
                worker.window(row.window, measured=number >= warmup)
                machine.watch(began, machine.instant([worker.process.pid or 0]), company)
                bar.advance(task)


def result(row: Row, workers: Sequence[Worker], *, busy_before: float, company: machine.Company) -> dict[str, Any]:
    """Everything a result file holds, but for the command."""
    told = {role: [worker.told(row) for worker in workers if worker.role == role] for role in ("ours", "peer")}
    ours, peer, borrowed = _best(told["ours"]), _best(told["peer"]), _best(told["peer"], borrowed=True)
    assert ours is not None
    if peer is not None and (apart := differences(row, ours["counts"], peer["counts"])):
        raise DifferentWork(
            f"{row.name}: no ratio, as {row.ours.name} and {row.peer.name} did not do the same work: {'; '.join(apart)}."
        )
    found: dict[str, Any] = {"row": row.name, "work": row.work, "unit": row.unit, "goal": row.goal, "wanted": row.wanted}
    found |= {"least": row.least, "most_memory": row.most_memory}
    found |= _figures(row, "ours", ours) | _figures(row, "peer", peer) | ratio(ours["windows"], peer["windows"] if peer else None)
    if borrowed is not None:
        found["borrowed"] = {"label": borrowed["label"], **ratio(ours["windows"], borrowed["windows"])}
    return found | {
        "memory_unit": "MiB allocated on the GPU at the peak" if row.device == "cuda" else "MiB resident above what set-up left",
        "counts": {"ours": ours["counts"], "peer": peer["counts"] if peer else None},
        "checked": {"exact": list(row.exact), "near": dict(row.near)},
        "idle": machine.is_quiet(busy_before, 0.0 if row.uncounted else company.cores),
        "others_before": round(busy_before, 3),
        "others_during": round(company.cores, 3),
        "others_worst_window": round(company.worst, 3),
        "load": [round(load, 2) for load in os.getloadavg()],
        "units_per_window": row.window,
        "in_turns": row.in_turns,
        "settings": {role: each for role, each in told.items() if each},
        "machine": machine.describe(row.device),
        "versions": machine.versions(),
        "date": time.strftime("%Y-%m-%d"),
    }


def _best(found: list[dict[str, Any]], borrowed: bool = False) -> dict[str, Any] | None:
    """The setting with the best median."""
    return min((each for each in found if each["borrowed"] == borrowed), key=lambda each: each["seconds"], default=None)


def _figures(row: Row, role: str, best: dict[str, Any] | None) -> dict[str, Any]:
    """The figure of a side in the row's unit with its quartiles, the setting it was reached in, and its memory."""
    side: Side = getattr(row, role)
    if best is None:
        blank = {f"{role}{end}": None for end in ("", "_low", "_high", "_setting")}
        return {**blank, f"{role}_name": side.name, f"memory_{role}": None}
    amount = best["counts"][row.rate] / len(best["windows"]) / row.window if row.rate else 0.0
    middle, low, high = (amount / best[key] if row.rate else best[key] for key in ("seconds", "seconds_low", "seconds_high"))
    return {
        role: middle,
        f"{role}_low": min(low, high),
        f"{role}_high": max(low, high),
        f"{role}_setting": best["label"],
        f"{role}_name": side.name,
        f"memory_{role}": round(best["memory"], 1),
    }


def ratio(ours: Sequence[float], peer: Sequence[float] | None) -> dict[str, float | None]:
    """How many times faster we are: of the medians, with the quartiles over paired windows."""
    if peer is None:
        return {"ratio": None, "ratio_low": None, "ratio_high": None}
    low, _, high = quartiles([theirs / own for own, theirs in zip(ours, peer, strict=True)])
    return {"ratio": float(np.median(peer) / np.median(ours)), "ratio_low": low, "ratio_high": high}


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    low, middle, high = np.quantile(values, [0.25, 0.5, 0.75])
    return float(low), float(middle), float(high)


def differences(row: Row, ours: Mapping[str, float], peer: Mapping[str, float]) -> list[str]:
    """In what the two sides' work differs more than it may, in words."""
    found = []
    for name in (*row.exact, *row.near):
        if name not in ours or name not in peer:
            found.append(f"{name} was counted by {'one side' if name in ours or name in peer else 'neither side'} only")
            continue
        a, b, allowed = ours[name], peer[name], row.near.get(name, 0.0)
        if abs(a - b) > allowed * max(abs(a), abs(b)):
            found.append(f"{name} {a:g} against {b:g}" + (f" (allowed apart: {allowed:.0%})" if allowed else ""))
    return found


# -- the command -----------------------------------------------------------------------------------------------------------


def arguments(row: Row) -> argparse.ArgumentParser:
    """The flags every row has."""
    parser = argparse.ArgumentParser(description=row.work)
    parser.add_argument("--windows", type=int, default=WINDOWS, help=f"measured windows of each process ({WINDOWS})")
    parser.add_argument("--window", type=int, default=row.window, help=f"units of work in a window ({row.window})")
    parser.add_argument("--warmup", type=int, default=1, help="windows of each process that are dropped (1)")
    parser.add_argument("--threads", type=int, nargs="*", default=[], help="only the settings with so many threads")
    parser.add_argument("--without-peer", action="store_true", help="measure our side alone; the result has no ratio")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the result (bench/results)")
    return parser


def command() -> str:
    """What to type at the root of the checkout for the same; where the result went is not part of it."""
    typed = sys.argv[1:]
    if "--out" in typed:
        del typed[typed.index("--out") : typed.index("--out") + 2]
    return shlex.join(["python", f"bench/{Path(sys.argv[0]).name}", *typed])


def main(row: Row, given: argparse.Namespace | None = None) -> None:
    """Measures a row, prints it and writes its result. User errors end the script with their message."""
    given = given or arguments(row).parse_args()
    try:
        found = measure(_narrowed(row, given), windows=given.windows, warmup=given.warmup, with_peer=not given.without_peer)
    except UserError as problem:
        sys.exit(str(problem))
    print(in_words(found))
    save(found | {"command": command()}, given.out)


def _narrowed(row: Row, given: argparse.Namespace) -> Row:
    """The row as the flags want it."""
    if given.windows < LEAST_WINDOWS:
        raise UserError(f"--windows {given.windows}: a median and quartiles need at least {LEAST_WINDOWS}.")
    if given.warmup < 1 or given.window < 1:
        raise UserError(f"--warmup {given.warmup} --window {given.window}: both must be at least 1.")
    row = replace(row, window=given.window)
    if not given.threads:
        return row
    kept = {}
    for role in ("ours", "peer"):
        side: Side = getattr(row, role)
        settings = tuple(setting for setting in side.settings if setting.threads in given.threads)
        if not settings:
            known = sorted({setting.threads for setting in side.settings})
            raise UserError(f"--threads {given.threads}: {side.name} is measured with {known} threads; give some of these.")
        kept[role] = replace(side, settings=settings)
    return replace(row, **kept)


def save(found: dict[str, Any], folder: Path) -> None:
    """Writes a result. A check of returns made earlier stays, as it has a command of its own, and so does what came out on another
    processor: a ratio is a ratio of that machine."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{found['row']}.json"
    if file.is_file():
        old = json.loads(file.read_text())
        if "equal_return" in old:
            found = {"equal_return": old["equal_return"]} | found
        if known := elsewhere(found, old):
            found = found | {"elsewhere": known}
    file.write_text(json.dumps(found, indent=1) + "\n")


KEPT = ("unit", "ours", "peer", "ratio", "ratio_low", "ratio_high", "idle", "date", "command")
"""What is kept of a result from another processor, beside its machine."""


def elsewhere(found: Mapping[str, Any], old: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What an older result knows of other processors than that of a new one, each once, the newest first."""
    known = [{name: old[name] for name in KEPT} | {"machine": old["machine"]}] if old.get("ratio") is not None else []
    by_processor: dict[str, dict[str, Any]] = {}
    for each in [*known, *old.get("elsewhere", [])]:
        by_processor.setdefault(each["machine"]["cpu"], each)
    by_processor.pop(found["machine"]["cpu"], None)
    return list(by_processor.values())


def in_words(found: Mapping[str, Any]) -> str:
    """A result for the terminal."""
    lines = [f"{found['row']}: {found['work']}"]
    for role in ("ours", "peer"):
        if found[role] is None:
            lines.append(f"  {found[f'{role}_name']}: not measured")
            continue
        spread = f"{found[f'{role}_low']:.4g} to {found[f'{role}_high']:.4g}"
        lines.append(
            f"  {found[f'{role}_name']}: {found[role]:.4g} {found['unit']} ({spread}; {found[f'{role}_setting']}), "
            f"{found[f'memory_{role}']:.0f} {found['memory_unit']}"
        )
    if found["ratio"] is not None:
        lines.append(
            f"  {found['ratio']:.2f} times as fast ({found['ratio_low']:.2f} to {found['ratio_high']:.2f}); {found['goal']}"
        )
    if "borrowed" in found:
        told = found["borrowed"]
        lines.append(f"  {told['ratio']:.2f} times as fast as the other side with our switches ({told['label']})")
    if not found["idle"]:
        lines.append(
            f"  WARNING: the machine was not idle. Others kept {found['others_before']:.2f} cores busy before and "
            f"{found['others_during']:.2f} during the measurement; do not quote this."
        )
    return "\n".join(lines)
