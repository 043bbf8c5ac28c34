"""Sides of a measurement that do next to nothing: processes load them by name."""

from __future__ import annotations

import os
import sys
import time
from typing import Any

from places import ROOT

sys.path.insert(0, str(ROOT / "bench"))

from sides import Clock, Setting

CPU_ROWS = (
    *("grpo_short", "grpo_long_prompt", "grpo_early_stop", "grpo_smollm2", "sft_short"),
    *("dpo_short", "dpo_long_prompt", "online_dpo", "guided_step", "async_step", "ppo_cartpole", "ppo_halfcheetah"),
    *("sac_updates", "td3_updates", "td3_bc_updates", "iql_updates"),
)
"""Rows of the performance table that need no GPU."""
IN_SUITE = ("grpo_short", "sft_short", "ppo_cartpole", "td3_updates")
"""One row of each pair of sides; the others, which start as many processes, are run by `make torture`."""


def sleeper(clock: Clock, given: dict[str, Any], setting: Setting) -> None:
    """A side that sleeps for a while per unit of work; the settings say how long and what it claims to have done."""
    clock.ready()
    while True:
        time.sleep(setting.options["seconds"])
        clock.tick(samples=given["samples"], tokens=setting.options.get("tokens", 10))


def broken(clock: Clock, given: Any, setting: Setting) -> None:
    raise ValueError("no such luck")


def environment(clock: Clock, given: Any, setting: Setting) -> None:
    """A side that tells what it finds in its environment."""
    clock.ready()
    while True:
        clock.tick(samples=float(os.environ.get("MIMALLOC_PURGE_DELAY", "nan")), threads=float(os.environ["OMP_NUM_THREADS"]))
