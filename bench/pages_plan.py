"""What pages of the cache should save, by counting bytes: ``python bench/pages_plan.py``. No GPU is asked.

Rows of one length or another are handed out by our own code (`upslope.rollout.decode.pages`), once with a stretch of full length
for each and once in pages of the same memory. A step costs what its bytes cost: all weights, and keys and values of all rows that
are continued, at the bandwidth that sampling was seen to reach on an H200, and a time for its launches.
"""

from __future__ import annotations

import json
import random
import time
from pathlib import Path

import torch
from gpu_sizes import SHAPES

from upslope.rollout.decode.graph_stepper import GraphStepper
from upslope.rollout.decode.pages import Pages, Seats, seats

RESULT = Path(__file__).parent / "results" / "pages_plan.json"
ROWS, ROOM, MEMORY, WEIGHTS = 256, 16384, 25e9, 3.1e9
"""Rows of at most so many tokens, by 1.5 billion parameters, in a sixth of an H200."""
BANDWIDTH, LAUNCHES = 2.4e12, 0.2e-3
"""Half of what the card is rated at, and the seconds of a step in which nothing is read."""


def lengths() -> dict[str, list[int]]:
    drawn = random.Random(0)
    return {
        "about 2,000 tokens": [int(drawn.gauss(2000, 500)) for _ in range(ROWS)],
        "half of them below 1,024": [int(64 * (ROOM / 64) ** drawn.random()) for _ in range(ROWS)],
        "any length alike": [drawn.randint(64, ROOM) for _ in range(ROWS)],
        "all 8,500 tokens": [8500] * ROWS,
        "all 16,384 tokens": [ROOM] * ROWS,
        "500 or 16,384 tokens": drawn.sample([500, ROOM], ROWS, counts=[ROWS // 2] * 2),
        "first 500, then 16,384 tokens": [500] * (ROWS // 2) + [ROOM] * (ROWS // 2),
    }


def seconds(ends: list[int], at_once: Seats, token_bytes: int) -> tuple[float, int]:
    """How long the rows take, and how many tokens are said twice as rows were put back."""
    pages = Pages(at_once.rows, ROOM, at_once.pages, torch.device("cpu")) if at_once.pages else None
    if pages is not None:
        pages.clear([ROOM] * len(ends))
    waiting, free, steps = [*range(len(ends))][::-1], [*range(at_once.rows)][::-1], GraphStepper.steps
    row, said, took, again = dict[int, int](), dict[int, int](), 0.0, 0
    while waiting or row:
        wanted = min(len(waiting), len(free))
        for _ in range(wanted if pages is None or not wanted else pages.vacancies(waiting[: -wanted - 1 : -1])):
            slot = free.pop()
            row[slot], said[slot] = waiting.pop(), 0
            if pages is not None:
                pages.begin([slot], [row[slot]])
        for slot in () if pages is None else pages.grow(steps):
            again += said[slot]
            waiting.append(row.pop(slot))
            free.append(slot)
        read = WEIGHTS + token_bytes * sum(said[slot] for slot in row)
        took += steps * (read / BANDWIDTH + LAUNCHES)
        for slot in [*row]:
            said[slot] += steps
            if said[slot] >= ends[row[slot]]:
                del row[slot]
                free.append(slot)
                if pages is not None:
                    pages.end([slot])
    return took, again


def main() -> None:
    token_bytes = SHAPES["1.5B"].key_bytes
    whole, paged = (seats(ROWS, int(MEMORY), ROOM, 8 * SHAPES["1.5B"].vocabulary, token_bytes, each) for each in (False, True))
    found = {}
    for name, ends in lengths().items():
        (before, _), (after, again) = (seconds(ends, at_once, token_bytes) for at_once in (whole, paged))
        found[name] = {"stretches_s": round(before, 1), "pages_s": round(after, 1), "said_again": round(again / sum(ends), 3)}
        print(f"{name}: {before:.1f} s in stretches, {after:.1f} s in pages, {again / sum(ends):.1%} of the tokens said twice")
    told = {
        "row": "pages_plan", "simulated": True, "command": "python bench/pages_plan.py", "date": time.strftime("%Y-%m-%d"),
        "rows": ROWS, "room": ROOM, "stretches": whole._asdict(), "pages": paged._asdict(), "found": found,
    }  # fmt: skip
    RESULT.write_text(json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    main()
