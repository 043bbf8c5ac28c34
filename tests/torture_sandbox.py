"""A thousand hostile programs in a row, which must leave nothing behind: part of ``make torture``.

Each of them does its worst in the sandbox, in an order drawn anew. After every hundred, and at the end, there must be no process of
theirs, no file, no mount, no control group and no user number held, and the sandbox must still run what is harmless.
"""

from __future__ import annotations

import argparse
import collections
import os
import random
import sys
import time

from hostile_programs import LACKS, PROGRAMS, Traces, own_users

from upslope.runtime.sandbox import Limits, Sandbox, pool

SLOTS = 2
OWN = own_users(SLOTS)
LIMITS = Limits(seconds=1.0, cpu=1, memory=64, scratch=2, processes=16, files=32)


def hundred(names: list[str]) -> collections.Counter[str]:
    """Runs programs in a sandbox of their own; how they ended."""
    before = Traces.now(OWN)
    with Sandbox(LIMITS, SLOTS, checked=False) as sandbox:  # the check needs more slots than there are numbers
        running = [sandbox.submit(PROGRAMS[name]) for name in names]
        reasons = collections.Counter(each.result().reason for each in running)
        said = sandbox.run("print(6 * 7)")
    assert said.stdout == "42\n", f"a harmless program ended as {said}"
    left = Traces.now(OWN).since(before)
    assert not left, f"something is left: {left}"
    return reasons


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=1000, help="programs in all (1000)")
    parser.add_argument("--seed", type=int, default=0, help="of their order")
    given = parser.parse_args()
    if LACKS:
        sys.exit(f"programs cannot be sandboxed here. Install with:\n  apt-get install {' '.join(LACKS)}")
    if OWN is not None:
        pool.user_range = lambda: OWN
    drawn, began, reasons = random.Random(given.seed), time.monotonic(), collections.Counter[str]()
    names = [drawn.choice(list(PROGRAMS)) for _ in range(given.count)]
    threads = len(os.listdir("/proc/self/task"))
    for start in range(0, given.count, 100):
        reasons += hundred(names[start : start + 100])
        told = ", ".join(f"{reason} {count}" for reason, count in sorted(reasons.items()))
        print(f"{sum(reasons.values()):>5} programs, {time.monotonic() - began:.0f} s: {told}; nothing left", flush=True)
    assert len(os.listdir("/proc/self/task")) == threads, "threads are left"


if __name__ == "__main__":
    main()
