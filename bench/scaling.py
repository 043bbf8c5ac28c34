"""How a GRPO step of ours grows, and where its time goes: ``python bench/scaling.py [--device cuda] [--sweeps batch length]``.

Step time against batch, answer length, vocabulary and model size, split into sampling, reward, forward, backward and optimiser;
and peak memory against tokens. Each point is a process of its own, one after the other.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import machine
from phases import watching
from side_by_side import RESULTS, command, quartiles
from text_sides import make_learner
from text_work import Sizes, TextWork

from upslope.errors import UserError

SWEEPS = ("batch", "length", "vocabulary", "model")
SMALL = Sizes(vocabulary=64, width=128, inner=352, layers=4, heads=4, key_heads=4)
MODELS = {
    "1M": SMALL,
    "5M": Sizes(vocabulary=1024, width=256, inner=704, layers=6, heads=4, key_heads=4),
    "19M": Sizes(vocabulary=4096, width=384, inner=1024, layers=10, heads=6, key_heads=6),
    "53M": Sizes(vocabulary=16384, width=512, inner=1408, layers=14, heads=8, key_heads=8),
    "135M": Sizes(),
}
"""By a rounded number of parameters; the last is the shape of SmolLM2-135M."""


@dataclass(frozen=True)
class Point:
    """One size of one sweep; ``x`` is what the sweep varies."""

    sweep: str
    x: float
    label: str
    work: TextWork


def points(device: str) -> list[Point]:
    """The sizes for a device, from one base: 16 prompts of 6 tokens x 8 samples, 24 new tokens (a GPU: 64 x 8, 64 new tokens)."""
    gpu = device == "cuda"
    base = TextWork(model="random", sizes=Sizes() if gpu else SMALL, prompts=64 if gpu else 16, max_tokens=64 if gpu else 24,
                    prompt_tokens=6, device=device)  # fmt: skip
    found = [
        Point("batch", 8 * n, f"{n} x 8", replace(base, prompts=n)) for n in ((16, 32, 64, 128, 256) if gpu else (4, 8, 16, 32, 64))
    ]
    lengths = (32, 64, 128, 256, 512) if gpu else (8, 16, 32, 64, 128)
    found += [Point("length", n, str(n), replace(base, max_tokens=n)) for n in lengths]
    sizes = (1024, 8192, 49152, 131072) if gpu else (64, 1024, 8192, 49152)
    found += [Point("vocabulary", n, str(n), replace(base, sizes=replace(base.sizes, vocabulary=n))) for n in sizes]
    # On a CPU the largest model takes seconds for a token of a large batch: the whole sweep has a small one.
    few = base if gpu else replace(base, prompts=4, samples=4, max_tokens=16)
    found += [Point("model", float(name[:-1]), name, replace(few, sizes=size)) for name, size in MODELS.items()]
    return found


def measure_point(point: Point, steps: int, threads: int) -> dict[str, Any]:
    """Step time, phases and peak memory of one size; runs in a process of its own."""
    from upslope.runtime.threads import use_threads

    use_threads(threads)
    device = point.work.device
    learner, task = make_learner(point.work)
    baseline, seconds, tokens = machine.forget_peak(device), [], 0.0
    for step in range(1, steps + 2):
        began = time.perf_counter()
        tokens = learner.step(step)["tokens"]
        if device == "cuda":
            import torch

            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
    peak = machine.peak(device)
    with watching(learner, task, device) as phases:
        for step in range(steps + 2, 2 * steps + 2):
            learner.step(step)
    low, middle, high = quartiles(seconds[1:])
    return {
        "sweep": point.sweep,
        "x": point.x,
        "label": point.label,
        "seconds": middle,
        "seconds_low": low,
        "seconds_high": high,
        "phases": {name: spent / steps for name, spent in phases.finished().items()},
        "memory": peak if device == "cuda" else max(peak - baseline, 0.0),
        "tokens": tokens + point.work.prompts * point.work.samples * point.work.prompt_tokens,
        "parameters": learner.policy.parameter_count(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--sweeps", nargs="*", default=SWEEPS, choices=SWEEPS, help="these only; other sweeps of the result stay")
    parser.add_argument("--steps", type=int, default=5, help="measured steps of each point (5)")
    parser.add_argument("--threads", type=int, default=1, help="torch threads (1)")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the result (bench/results)")
    given = parser.parse_args()
    if given.steps < 1:
        sys.exit(f"--steps {given.steps}: it must be at least 1.")
    try:
        found = _sweep([point for point in points(given.device) if point.sweep in given.sweeps], given.steps, given.threads)
    except UserError as problem:
        sys.exit(str(problem))
    save(found, given)


def save(found: dict[str, Any], given: argparse.Namespace) -> None:
    """Writes the points; those of sweeps that were not measured this time stay."""
    name = "scaling" if given.device == "cpu" else "scaling_cuda"
    given.out.mkdir(parents=True, exist_ok=True)
    file = given.out / f"{name}.json"
    before = json.loads(file.read_text())["points"] if file.is_file() else []
    kept = [each for each in before if each["sweep"] not in given.sweeps]
    told = {
        "row": name,
        "device": given.device,
        "threads": given.threads,
        "points": kept + found["points"],
        "idle": found["idle"],
        "command": command(),
        "machine": machine.describe(given.device),
        "versions": machine.versions(),
        "date": time.strftime("%Y-%m-%d"),
    }
    file.write_text(json.dumps(told, indent=1) + "\n")


def _sweep(wanted: list[Point], steps: int, threads: int) -> dict[str, Any]:
    """All points, one process after the other, with a bar drawn in between."""
    from rich.progress import track

    before, company = machine.busy_before(), machine.Company()
    context, found = multiprocessing.get_context("spawn"), []
    os.environ["OMP_NUM_THREADS"] = str(threads)
    for point in track(wanted, "scaling", auto_refresh=False, transient=True):
        with context.Pool(1) as pool:
            members = [process.pid or 0 for process in multiprocessing.active_children()]
            began = machine.instant(members)
            found.append(pool.apply(measure_point, (point, steps, threads)))
            machine.watch(began, machine.instant(members), company)
        print(f"{point.sweep:10} {point.label:>8}  {found[-1]['seconds']:.3f} s  {found[-1]['memory']:.0f} MiB", flush=True)
    idle = machine.is_quiet(before, company.cores)
    if not idle:
        print(f"WARNING: the machine was not idle: others kept {company.cores:.2f} cores busy. Do not quote this.")
    return {"points": found, "idle": idle}


if __name__ == "__main__":
    main()
