"""Audits the reward of every dataset of reasoning-gym: which refuse their expected answer, pay for what is wrong, or have none.

``python bench/audit_reasoning_gym.py [DATASET ...]`` prints a line for each that is odd, and how long it took.
"""

from __future__ import annotations

import sys
import time

from upslope.errors import UserError
from upslope.rewards.audit import audit
from upslope.tasks import load_task
from upslope.tasks.reasoning_gym import dataset_names


def main(names: list[str]) -> None:
    began, without = time.perf_counter(), []
    for name in names:
        try:
            found = audit(load_task(f"reasoning-gym:{name}"))
        except UserError as problem:
            print(f"{name}: {problem}", flush=True)
            continue
        if not found.of("expected"):
            without.append(name)
        for remark in found.remarks(name):
            print(remark, flush=True)
    print(f"no expected answer: {', '.join(without) or 'none'}")
    print(f"{len(names)} datasets in {time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main(sys.argv[1:] or dataset_names())
