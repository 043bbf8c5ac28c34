"""Folders of finished runs with numbers of one's choice, for what reads runs and need not train them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import tomli_w

from upslope.methods import catalogue
from upslope.runtime.method_file import method_table
from upslope.runtime.settings import Settings
from upslope.tasks import domain_of


def fake_run(
    root: Path,
    method: str,
    seed: int,
    after: float,
    *,
    task: str = "reverse",
    before: float = 0.4,
    knobs: dict[str, Any] | None = None,
    right: list[int] | None = None,
    finished: bool = True,
    extra: dict[str, Any] | None = None,
    **settings: Any,
) -> Path:
    """A run whose held-out score goes in a straight line from ``before`` to ``after``. Its ``run.toml`` is old: it has no domain.

    Args:
        right: of 4 samples, how many were right of each problem.
        extra: further keys of every step.
    """
    control = domain_of(task) == "control"
    given = {"steps": 20, "eval_problems": 200, **settings, "seed": seed}
    resolved = Settings(**given).resolved(domain_of(task), "tiny", max_tokens=5)
    path = root / f"{method}-{task.replace(':', '-')}-{seed}-{len(list(root.iterdir())) if root.is_dir() else 0}"
    path.mkdir(parents=True)
    table = {
        "upslope": "0.1.0", "task": task, "model": "tiny", "reward": "", "test_data": "", "trackers": [],
        "build": {"python": "3.11", "torch": "2.13"}, "data": {},
        "settings": {key: value for key, value in vars(resolved).items() if value is not None},
        "method": method_table(catalogue()[method].with_knobs(knobs or {})),
    }  # fmt: skip
    (path / "run.toml").write_text(tomli_w.dumps(table))
    steps = resolved.steps or 0
    counted = {"episodes": 100} if control else {"problems": resolved.eval_problems}
    records = _records(steps, seed, control, before, after, counted, extra or {})
    (path / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    if finished:
        summary = {
            "method": method, "task": task, "model": "tiny", "seed": seed, "steps": steps, "score_before": before,
            "score": "mean return" if control else "accuracy", "score_after": after, "score_after_interval": [after, after],
            "seconds": 10.0 + seed, "tokens": 1000.0,
        }  # fmt: skip
        (path / "summary.json").write_text(json.dumps(summary))
    if right is not None:
        (path / "samples-at-k.json").write_text(json.dumps({"problems": len(right), "samples": 4, "right": right}))
    return path


def _records(
    steps: int, seed: int, control: bool, before: float, after: float, counted: dict[str, Any], extra: dict[str, Any]
) -> list[dict[str, Any]]:
    """The lines of ``metrics.jsonl``."""
    records: list[dict[str, Any]] = []
    for step in range(steps + 1):
        if step:
            records.append({"kind": "step", "step": step, **_metrics(step, steps, seed, control), **extra})
        if step % 2 == 0:
            score = before + (after - before) * step / steps
            records.append({"kind": "evaluation", "step": step, "score": score, "low": score, "high": score, **counted})
    return records


def _metrics(step: int, steps: int, seed: int, control: bool) -> dict[str, Any]:
    shared = {
        "entropy": 2.0 - step / steps, "clip_fraction": 0.01, "grad_norm": 1.0, "learning": 0.5, "samples": 256.0,
        "tokens": 1000.0 + 10 * seed, "seconds": 0.5 + 0.01 * seed, "memory": 400.0 + seed,
    }  # fmt: skip
    if control:
        return {**shared, "episode_return": float(step), "episode_length": 30.0}
    return {**shared, "reward": step / steps, "kl_start": 0.1 * step, "length": 5.0, "kept_rows": 0.75, "constant_groups": 0.2}
