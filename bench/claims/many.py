"""Runs several claims at once on a machine with many cores, and writes their pages later, elsewhere too.

    python bench/claims/many.py run --out FOLDER --workers 16 --minutes 9 [NAME ...]     # adds finished cells to FOLDER/cells.jsonl
    python bench/claims/many.py page --out FOLDER [NAME ...]                             # docs/claims/NAME.md from them

`run` goes seed by seed through the cells of all claims, so that time that runs out leaves fewer seeds of each claim and not fewer
claims. It can be called again: what is finished is not run again. Cells that several claims have in common are run once. `page`
takes the seeds of which every cell is there; it alone needs matplotlib. Without names the claims are those on a `ControlBed`.
``--smoke`` runs every cell for a moment, to see that it runs.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import tempfile
import time
import traceback
from collections.abc import Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from pathlib import Path
from typing import Any

from claim_page import versions_here, write_claim
from control_bed import ControlBed
from fast import claims
from harness import PAGES, SHARED, Cell, Claim, Result, pool, run_cell

from upslope import method as find_method

SMOKE = {"steps": 2, "updates_per_step": 3, "horizon": 60, "eval_problems": 1, "minibatch": 16}
MOMENT = 4
"""Steps of a smoked run without an environment: one for each of its stages, a quarter of the run being the shortest."""
Key = tuple[str, str, str, int]


def chosen(names: Sequence[str]) -> dict[str, Claim]:
    """The claims of these names; without any, those on a `ControlBed`."""
    found = claims()
    if unknown := [name for name in names if name not in found]:
        raise SystemExit(f"no claim {unknown[0]!r}. There are {', '.join(found)}.")
    return {name: claim for name, claim in found.items() if (name in names if names else isinstance(claim.bed, ControlBed))}


def in_order(found: dict[str, Claim], seeds: Iterable[int], smoke: bool) -> list[tuple[Key, Cell]]:
    """Seed by seed; within a seed the long ones first, so that none of them is alone at the end."""
    order: list[tuple[str, Cell]] = []
    for seed in seeds:
        here = [(name, cell) for name, claim in found.items() for cell in claim.cells([seed])]
        order += sorted(here, key=lambda each: _work(each[1]), reverse=True)
    return [((name, c.condition, c.label, c.seed), _smoked(c) if smoke else c) for name, c in order]


def _work(cell: Cell) -> float:
    """About how much there is to do: updates times networks."""
    method = find_method(cell.method)
    members = sum(getattr(getattr(model, "network", None), "members", 1) for _, model in method.models)
    return float(cell.settings.get("steps", 1) * (cell.settings.get("updates_per_step") or 1) * (4 + members))


def _smoked(cell: Cell) -> Cell:
    bed = cell.bed
    if not isinstance(bed, ControlBed):  # the other settings are those of an environment
        return dataclasses.replace(cell, settings={**cell.settings, "steps": MOMENT})
    settings = {**cell.settings, **SMOKE}
    if settings.get("offline_steps"):
        settings["offline_steps"] = 1
    bed = dataclasses.replace(bed, episodes=2, data_steps=min(bed.data_steps, 600), trained=120)
    return dataclasses.replace(cell, bed=bed, settings=settings)


def run(found: dict[str, Claim], out: Path, seeds: Iterable[int], workers: int, minutes: float, smoke: bool) -> None:
    """Runs what is missing, as much as fits, and writes each cell as it ends."""
    out.mkdir(parents=True, exist_ok=True)
    until, done = time.time() + 60 * minutes, {key for key, _ in load(out)}
    waiting = _once([(key, cell) for key, cell in in_order(found, seeds, smoke) if key not in done])
    print(f"{len(waiting)} cells to run, {len(done)} are there", flush=True)
    with tempfile.TemporaryDirectory() as data, pool(workers) as executor, (out / "cells.jsonl").open("a") as file:
        os.environ[SHARED] = data  # read by children, which are started below
        running: dict[Future[Result], list[Key]] = {}
        longest = 0.0
        while running or (waiting and time.time() + longest < until):
            while waiting and len(running) < workers and time.time() + longest < until:
                keys, cell = waiting.pop(0)
                running[executor.submit(run_cell, cell)] = keys
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                for key in running.pop(future):
                    record = _record(key, future)
                    longest = max(longest, record.get("seconds", 0.0))
                    file.write(json.dumps(record) + "\n")
                    file.flush()
                    print(*record["key"], f"{record.get('seconds', 0):.0f} s", record.get("error", ""), flush=True)
    print(f"{len(waiting)} cells were not begun", flush=True)


def _once(cells: Sequence[tuple[Key, Cell]]) -> list[tuple[list[Key], Cell]]:
    """Cells that differ in nothing but their names, such as a parent in two claims, are run once, for all their names."""
    same: dict[str, tuple[list[Key], Cell]] = {}
    for key, cell in cells:
        same.setdefault(repr(dataclasses.replace(cell, label="", condition="")), ([], cell))[0].append(key)
    return list(same.values())


def _record(key: Key, future: Future[Result]) -> dict[str, Any]:
    try:
        found = future.result()
    except Exception as error:  # one cell must not take the others with it
        traceback.print_exception(error)
        return {"key": key, "error": repr(error)}
    metrics = [
        {name: float(f"{value:.6g}") for name, value in step.items() if not isinstance(value, str)} for step in found.metrics
    ]
    return {"key": key, "before": found.before, "after": found.after, "seconds": found.seconds, "metrics": metrics,
            "extra": found.extra, "versions": versions_here()}  # fmt: skip


def load(out: Path) -> list[tuple[Key, dict[str, Any]]]:
    """Finished cells."""
    file = out / "cells.jsonl"
    records = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    return [(tuple(record["key"]), record) for record in records if "error" not in record]


def page(found: dict[str, Claim], out: Path, pages: Path, first_seed: int) -> None:
    """Writes the page of every claim that has seeds whose cells are all there."""
    there = dict(load(out))
    for name, claim in found.items():
        seeds = range(first_seed, first_seed + claim.seeds)
        wanted = {seed: [(c, there.get((name, c.condition, c.label, seed))) for c in claim.cells([seed])] for seed in seeds}
        whole = [cells for cells in wanted.values() if all(record for _, record in cells)]
        if not whole:
            print(f"{name}: no seed is complete")
            continue
        results = [
            Result(cell, *(record[key] for key in ("before", "after", "seconds", "metrics", "extra")))
            for cells in whole for cell, record in cells if record
        ]  # fmt: skip
        command = f"python bench/claims/many.py run --out FOLDER {name} && python bench/claims/many.py page --out FOLDER {name}"
        seconds = sum(result.seconds for result in results)
        versions = "; other cells: ".join(sorted({record["versions"] for cells in whole for _, record in cells if record}))
        try:
            path = write_claim(claim, results, pages, seconds=seconds, workers=0, command=command, versions=versions)
        except Exception:  # one page must not keep the others from being written
            traceback.print_exc()
            continue
        print("\n".join(line for line in path.read_text().splitlines() if line.startswith(("- ", "## ", "# "))))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("run", "page", "list"))
    parser.add_argument("names", nargs="*", help="of claims; left out, those on a ControlBed")
    parser.add_argument("--out", type=Path, default=Path("claims-run"), help="folder of cells.jsonl (claims-run)")
    parser.add_argument("--pages", type=Path, default=PAGES, help="folder of the pages (docs/claims)")
    parser.add_argument("--seeds", type=int, default=5, help="at most so many of each claim (5)")
    parser.add_argument("--first-seed", type=int, default=0, help="to try settings take 100")
    parser.add_argument("--workers", type=int, default=2, help="processes of one thread each (2)")
    parser.add_argument("--minutes", type=float, default=9.0, help="begin nothing that would end later (9)")
    parser.add_argument("--smoke", action="store_true", help="every cell for a moment")
    given = parser.parse_intermixed_args(arguments)  # names may stand behind flags
    found = chosen(given.names)
    if given.what == "run":
        seeds = range(given.first_seed, given.first_seed + given.seeds)
        run(found, given.out, seeds, given.workers, given.minutes, given.smoke)
    elif given.what == "page":
        page(found, given.out, given.pages, given.first_seed)
    else:
        print("\n".join(found))


if __name__ == "__main__":
    main()
