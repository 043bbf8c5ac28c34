"""What single settings may be: where a number must lie, and what a text must say."""

from __future__ import annotations

import math

from upslope.errors import UserError, did_you_mean
from upslope.fields import HUGE

ENGINES = ("torch", "vllm")
"""Engines that have a name; a server has its address."""

WHOLE, _COUNT, _FROM_ONE = f"[{-HUGE}, {HUGE})", f"[0, {HUGE})", f"[1, {HUGE})"
BOUNDS: dict[str, str] = {
    **dict.fromkeys(("steps", "offline_steps", "warmup", "lora", "updates_per_step", "top_k", "eval_every"), _COUNT),
    **dict.fromkeys(("samples_logged", "patience", "recompute", "slice_tokens"), _COUNT),
    **dict.fromkeys(("tasks_per_step", "samples_per_task", "envs", "horizon", "env_workers", "passes", "minibatch"), _FROM_ONE),
    **dict.fromkeys(("max_tokens", "checkpoint_every", "keep_checkpoints"), _FROM_ONE),
    **dict.fromkeys(("workers", "max_staleness", "reward_workers", "reward_retries"), "[0, 1024]"),
    **dict.fromkeys(("shares", "learners"), "[1, 1024]"),
    "reward_seconds": "(0, inf)",
    **dict.fromkeys(("lr_floor", "weight_decay"), "[0, inf)"),
    **dict.fromkeys(("lr", "adam_eps", "temperature"), "(0, inf)"),
    "grad_clip": "[0, inf]",
    "adam_beta2": "[0, 1)",
    "top_p": "(0, 1]",
    "min_p": "[0, 1)",
    "warm_start": "[0, 1]",
    "judge_failures": "[0, 1]",
    "threads": "[1, 1024]",
    "speculate": "[1, 64]",
    **dict.fromkeys(("train_problems", "eval_problems"), "[1, 1000000]"),  # all are drawn at once and held in memory
}
"""Where a setting must be (`upslope.fields.Interval`)."""


def best_of(keep: str) -> str | None:
    """The number of an evaluation that ``keep`` goes by."""
    kind, colon, name = keep.partition(":")
    return name if kind == "best" and colon and name in ("score", "reward") else None


def target_of(stop_at: str) -> tuple[str, float] | None:
    """The number of an evaluation that ``stop_at`` names, and the value it must reach."""
    if not stop_at:
        return None
    name, equals, text = (word.strip() for word in stop_at.partition("="))
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not name or not equals or not math.isfinite(value):
        raise UserError(f"--stop-at is {stop_at!r}; it must be a name and a number, as in score=0.95.")
    return name, value


def check_engine(name: object) -> None:
    """Refuses what is neither an engine's name nor a server's address."""
    from upslope.runtime.http_client import server_address

    if not isinstance(name, str) or "://" not in name:
        near = did_you_mean(name, ENGINES) if isinstance(name, str) else ""
        raise UserError(f"--engine is {name!r}; it must be {' or '.join(ENGINES)} or a server such as http://127.0.0.1:8000.{near}")
    server_address(name)
