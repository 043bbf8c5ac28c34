"""What each method costs beside GRPO: time and peak memory of a step on the tiny model, measured side by side.

    python bench/cost.py [--methods grpo dhpo ...] [--workers 1]

In one process a method and GRPO without its KL term take turns, a window of steps each; the ratio is the median over pairs of
windows. Peak memory is that of processes of their own. The learning rate is next to nothing, so that all see answers of
the same lengths. Writes docs/claims/data/cost.json; the method pages quote it.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import resource
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULT = ROOT / "docs" / "claims" / "data" / "cost.json"
SETTINGS: dict[str, Any] = {
    "steps": 1000, "tasks_per_step": 16, "samples_per_task": 8, "updates_per_step": 2, "lr": 1e-12, "warm_start": 0.0,
    "max_tokens": 16, "watch_kl": False,
}  # fmt: skip
WINDOWS, WINDOW = 5, 2
"""Windows of each side, and steps in one."""


def learner(name: str, knobs: dict[str, Any]) -> Any:
    """A learner at its first step, on sampled letters."""
    from upslope.learners.policy_gradient import PolicyGradient
    from upslope.methods import find
    from upslope.runtime.settings import Settings
    from upslope.setting_up import set_up

    method = find(name)
    needs = {word for _, part in method.parts() for word in part.needs_of_task}
    task = "rulebook" if "documents" in needs else "reverse+sort" if "several categories" in needs else "reverse"
    bench = set_up(method, task, "tiny", Settings(**SETTINGS), f"{ROOT / 'bench' / 'letters.py'}:score", knobs=knobs)
    return PolicyGradient(bench.method, bench.policy, bench.rollout, bench.settings, bench.policy.frozen_copy())


def time_beside_grpo(name: str) -> dict[str, float]:
    """The ratio of step times, and the middle half of it over windows."""
    import numpy as np

    from upslope.runtime.threads import use_threads

    use_threads(1)
    sides = [learner(name, {}), learner("grpo", {"regularize.weight": 0.0})]
    seconds: list[list[float]] = [[], []]
    for window in range(WINDOWS + 1):
        for side, made in enumerate(sides):
            began = time.perf_counter()
            for step in range(WINDOW):
                made.step(1 + window * WINDOW + step)
            if window:  # the first warms up
                seconds[side].append((time.perf_counter() - began) / WINDOW)
    ratios = np.array(seconds[0]) / np.array(seconds[1])
    low, high = np.quantile(ratios, [0.25, 0.75])
    return {
        "time": round(float(np.median(ratios)), 3),
        "low": round(float(low), 3),
        "high": round(float(high), 3),
        "windows": WINDOWS,
    }


def memory(name: str) -> float:
    """Peak resident memory of a process that takes three steps, in MiB above that of one that only sets up."""
    made = learner(name, {} if name != "grpo" else {"regularize.weight": 0.0})
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for step in (1, 2, 3):
        made.step(step)
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", nargs="*", default=[], help="these only; the rest of the file stays")
    parser.add_argument("--workers", type=int, default=1)
    given = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    from upslope.methods import catalogue

    names = given.methods or [
        name for name, method in catalogue().items() if name != "grpo" and method.learner == "policy-gradient"
    ]
    context = multiprocessing.get_context("spawn")
    known = json.loads(RESULT.read_text())["methods"] if RESULT.exists() else {}
    with ProcessPoolExecutor(given.workers, mp_context=context, max_tasks_per_child=1) as pool:
        base = pool.submit(memory, "grpo").result()
        jobs = {name: (pool.submit(time_beside_grpo, name), pool.submit(memory, name)) for name in names}
        for name, (clock, store) in jobs.items():
            known[name] = {**clock.result(), "memory": round(store.result() / base, 2)}
            print(f"{name:20} {known[name]}", flush=True)
            save(known, given.workers)  # as it goes: all of them take a quarter of an hour


def save(methods: dict[str, Any], workers: int) -> None:
    """What is known so far, whole or not at all."""
    RESULT.parent.mkdir(parents=True, exist_ok=True)
    told = {"command": f"python bench/cost.py --workers {workers}", "python": sys.version.split()[0], "methods": methods}
    part = RESULT.with_suffix(".part")
    part.write_text(json.dumps(told, indent=1, sort_keys=True) + "\n")
    part.replace(RESULT)


if __name__ == "__main__":
    main()
