"""One small set of real runs that has everything the board can show: for the walk through all views and the docs' pictures."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import board_runs

import upslope as up

OWN_METHOD = """
from upslope.methods import find
from upslope.types import Batch
from upslope.objective.surrogate import PessimisticClip

gated = find("grpo").derive(name="gated", differs="a narrower clip", surrogate=PessimisticClip(low=0.1, high=0.2))
"""
BREAKING = """
calls = 0

def score(prompts, responses, answers):
    global calls
    calls += 1
    if calls > 3:
        raise ValueError("no price for the answer " + repr(responses[0][:4]))
    return [len(text) / 8 for text in responses]
"""
TOLD = {
    "workers": [
        {"number": 0, "pid": 4711, "doing": "sampling", "version": 3, "rows": 96, "seconds": 12.0, "lost": 1},
        {"number": 1, "pid": 4712, "doing": "waiting", "version": 3, "rows": 80, "seconds": 11.0, "lost": 0},
    ],
    "waiting_for_workers": 2,
    "faults": {"worker_died": 1},
}


QUICK: dict[str, Any] = {
    "text": {**board_runs.SMALL, "steps": 3},
    "rates": (3e-4, 3e-3),
    "control": {"envs": 2, "horizon": 64, "passes": 2, "eval_every": 2, "eval_problems": 3, "steps": 3},
    "stored": {"updates_per_step": 2, "minibatch": 8, "eval_problems": 2, "eval_every": 2, "steps": 3},
}
"""Sizes with which every run takes seconds, and has learned nothing."""
LEARNING: dict[str, Any] = {
    "text": {"model": "tiny:width=128", "warm_start": 0.95, "tasks_per_step": 16, "updates_per_step": 2, "eval_problems": 50,
             "eval_every": 10, "lr": 3e-4, "steps": 40, "max_tokens": 8},
    "rates": (1e-4, 3e-4),
    "control": {"envs": 8, "horizon": 128, "eval_every": 5, "eval_problems": 10, "steps": 40},
    "stored": {"updates_per_step": 100, "minibatch": 128, "eval_problems": 5, "eval_every": 5, "steps": 40},
}  # fmt: skip
"""Sizes with which those learn of which there are pictures."""


def gallery(root: Path, sizes: Mapping[str, Any] = QUICK) -> Path:
    """Trains them all below ``root``."""
    root.mkdir(parents=True)
    code = root.parent
    (code / "reward.py").write_text(board_runs.REWARD)
    (code / "breaking.py").write_text(BREAKING)
    (code / "mine.py").write_text(OWN_METHOD)
    # What knows nothing yet is paid for every answer, else it would have nothing to learn from.
    plain, paid = QUICK["text"], {"reward": f"{code / 'reward.py'}:score"}
    text = sizes["text"] if sizes["text"]["warm_start"] else sizes["text"] | paid
    for lr in sizes["rates"]:
        for high in (0.1, 0.2, 0.3):
            knobs = {"surrogate.high": high}
            name = f"gated-lr{lr:g}-clip{high:g}"
            up.train(f"{code / 'mine.py'}:gated", "reverse:length=2", out=root / "sweep" / name, knobs=knobs, **(text | {"lr": lr}))
    for seed in (0, 1):
        up.train("dhpo", "reverse:length=2", out=root / f"dhpo-{seed}", seed=seed, **text)
    text = plain | paid
    up.train("dpo", "reverse:length=3", out=root / "preferences" / "dpo", **(plain | {"updates_per_step": 1}))
    up.train("inpo", "rps", out=root / "preferences" / "inpo", **(plain | {"updates_per_step": 1, "eval_every": 1}))
    up.train("sec", "reverse:length=2+copy", out=root / "curricula" / "sec", **text)
    up.train("eva", "reverse:length=2", out=root / "curricula" / "eva", **text)
    _with_workers(root / "apart", text)
    up.train("ppo", "gym:CartPole-v1", out=root / "control" / "cartpole", **sizes["control"])
    _from_a_dataset(root / "control" / "pendulum", code, sizes["stored"])
    _crashed(root / "unpriced", text | {"reward": f"{code / 'breaking.py'}:score"})
    _killed(root / "killed", root / "dhpo-0")
    _without_data(root / "without-data", root / "dhpo-0")
    return root


def _with_workers(folder: Path, text: dict[str, Any]) -> None:
    """A run a step ahead of its weights; what its workers would have said is written by hand, as starting them takes long."""
    up.train("asyncflow", "reverse:length=2", max_staleness=1, out=folder, **text)
    log = folder / "metrics.jsonl"
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    for line in lines:
        if line["kind"] == "step":
            line |= {"worker_busy": 0.75, "scoring_busy": 0.3, "seconds": 2.0, "seconds_sampling": 0.5}
            line |= {"fault_worker_died": 1.0} if line["step"] == 3 else {}
    log.write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "workers.json").write_text(json.dumps(TOLD))


def _from_a_dataset(folder: Path, code: Path, sizes: Mapping[str, Any]) -> None:
    data = up.make_data("swung", "gym:Pendulum-v1", "noisy:eps=0.3", steps=40 * sizes["minibatch"], out=code / "data")
    narrow = {"policy.hidden": (64, 64), "models.q.network.hidden": (64, 64)}
    up.train("td3-bc", "gym:Pendulum-v1", data=data, out=folder, knobs=narrow, **sizes)


def _crashed(folder: Path, text: dict[str, Any]) -> None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            up.train("grpo", "reverse:length=2", out=folder, **text)
    except Exception as problem:  # whatever the library makes of it
        print(f"as meant to: {problem}")
    else:
        raise AssertionError("the reward should have broken the run")


def _killed(folder: Path, like: Path) -> None:
    """As a run looks whose process was killed: it names a process that is not there."""
    board_runs.copy_run(like, folder)
    (folder / "summary.json").unlink()
    lines = (folder / "metrics.jsonl").read_text().splitlines(keepends=True)
    (folder / "metrics.jsonl").write_text("".join(lines[:3]))
    import platform

    (folder / "process.json").write_text(json.dumps({"host": platform.node(), "pid": 2**22 - 1, "began": 1}))


def _without_data(folder: Path, like: Path) -> None:
    """A run that ended before its first step."""
    folder.mkdir()
    (folder / "run.toml").write_bytes((like / "run.toml").read_bytes())
    (folder / "process.json").write_text(json.dumps({"ended": 1.0}))
