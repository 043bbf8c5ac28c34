"""What memories of problems cost: choosing among many, their size, and how long they take to be saved.

python bench/memories.py            # a table; --known 1000000 --offered 100000 are the sizes
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from upslope.objective.curriculum import ByCategory, ByPosterior, ByUncertainty, Knapsack
from upslope.objective.memory import BetaPosterior, CategoryGain, LastSuccess, SuccessTracker
from upslope.objective.memory.table import merged
from upslope.runtime.files import load_state, save_state
from upslope.types import Offer

PAIRS = {
    "spo": (ByUncertainty(), SuccessTracker(), "success"),
    "mopps": (ByPosterior(), BetaPosterior(), "posterior"),
    "knapsack": (Knapsack(), LastSuccess(), "rate"),
    "sec": (ByCategory(), CategoryGain(), "category"),
}


def filled(memory, known: int) -> dict:
    """A memory of so many tasks."""
    random = torch.Generator().manual_seed(0)
    state = memory.init()
    tasks = torch.randint(0, 1 << 62, (known,), generator=random).unique()
    columns = {name: torch.rand(len(tasks), generator=random, dtype=torch.float64) + 0.01 for name in state if name != "task"}
    return {"task": tasks, **columns}


def offer_of(state: dict, memory, name: str, count: int, wanted: int) -> Offer:
    """Tasks of which most are remembered."""
    place = torch.randperm(len(state["task"]), generator=torch.Generator().manual_seed(1))[:count]
    task = state["task"][place]
    category = task % 8 if memory.by == "category" else task
    return Offer(task, category, torch.zeros(count), torch.from_numpy(np.random.default_rng(0).random(count)), wanted, samples=8,
                 recall=lambda asked: memory.recall(state, category if memory.by == "category" else task))  # fmt: skip


def milliseconds(function: Callable[[], object], times: int = 7) -> float:
    """The median of a few calls."""
    found = []
    for _ in range(times):
        began = time.perf_counter()
        function()
        found.append(1e3 * (time.perf_counter() - began))
    return float(np.median(found))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--known", type=int, default=1_000_000, help="problems remembered")
    parser.add_argument("--remembered", type=int, default=100_000, help="problems remembered where 64 are chosen")
    parser.add_argument("--offered", type=int, default=100_000, help="problems offered where all that is remembered is")
    given = parser.parse_args()
    torch.set_num_threads(1)
    heads = ("64 of 1,024", f"64 of {given.offered:,}", "a step", "size", "saved", "read")
    print(f"{'memory':10}" + "".join(f"{head:>16}" for head in heads))
    for name, (curriculum, memory, key) in PAIRS.items():
        some, state = filled(memory, given.remembered), filled(memory, given.known)
        few, many = (offer_of(some, memory, key, min(count, len(some["task"])), 64) for count in (1024, given.offered))
        news = torch.sort(torch.cat([state["task"][:: max(len(state["task"]) // 48, 1)], torch.arange(16)])).values
        columns = {column: torch.rand(len(news), dtype=torch.float64) for column in state if column != "task"}
        size = sum(column.numel() * column.element_size() for column in state.values()) / 1e6
        with tempfile.TemporaryDirectory() as folder:
            saved = milliseconds(lambda folder=folder, state=state: save_state(Path(folder), "parts", state), 3)
            read = milliseconds(lambda folder=folder: load_state(Path(folder), "parts"), 3)
        chosen = [milliseconds(lambda part=curriculum, offer=offer: part(offer)) for offer in (few, many)]
        written = milliseconds(lambda state=state, news=news, columns=columns: merged(state, news, columns))
        numbers = (
            *(f"{each:.2f} ms" for each in chosen),
            f"{written:.1f} ms",
            f"{size:.0f} MB",
            f"{saved:.0f} ms",
            f"{read:.0f} ms",
        )
        print(f"{name:10}" + "".join(f"{number:>16}" for number in numbers), flush=True)


if __name__ == "__main__":
    main()
