"""Folders of runs for the tests of the board's server, written as the library does, and a client that asks as browsers do."""

from __future__ import annotations

import dataclasses
import gzip
import json
import threading
from pathlib import Path
from typing import Any

import tomli_w
from starlette.testclient import TestClient

from upslope.board.access import Door
from upslope.board.app import make_app
from upslope.methods import find
from upslope.policies.control.networks import in_domains
from upslope.runtime.method_file import method_table
from upslope.runtime.settings import Settings
from upslope.tasks import domain_of

ADDRESS = "http://127.0.0.1:8420"


def client(root: Path, allow_control: bool = False, **door: Any) -> TestClient:
    """A browser on the board of a folder, whose first look at it is over: whoever asks meanwhile gets what it has seen so far."""
    app = make_app(root, Door(**door), allow_control)
    for thread in [each for each in threading.enumerate() if each.name == "upslope-board-look"]:
        thread.join(30)
    return TestClient(app, base_url=ADDRESS, raise_server_exceptions=False)


def plan(method: str = "grpo", task: str = "reverse", knobs: dict[str, Any] | None = None, **settings: Any) -> dict[str, Any]:
    """What stands in ``run.toml``."""
    domain = domain_of(task)
    whole = Settings(**settings).resolved(domain, "tiny", max_tokens=8)
    settled = in_domains(find(method), domain).with_knobs(knobs or {}).derive(on=())
    return {
        "upslope": "0.1.0", "domain": domain, "task": task, "model": "tiny", "reward": "", "test_data": "", "trackers": [],
        "data": {}, "build": {"python": "3.11", "torch": "2"},
        "settings": {key: value for key, value in dataclasses.asdict(whole).items() if value is not None},
        "method": method_table(settled),
    }  # fmt: skip


def step(number: int, **metrics: Any) -> dict[str, Any]:
    return {"kind": "step", "step": number, "reward": number / 10, "samples": 4, "tokens": 100.0, "seconds": 0.5, **metrics}


def evaluation(number: int, score: float) -> dict[str, Any]:
    return {"kind": "evaluation", "step": number, "score": score, "low": score - 0.1, "high": score + 0.1, "problems": 20}


def append(run: Path, *records: dict[str, Any] | str) -> None:
    """Lines at the end of a run's log; text is written as it is."""
    with (run / "metrics.jsonl").open("a") as file:
        for record in records:
            file.write(record if isinstance(record, str) else json.dumps(record) + "\n")


def write_run(run: Path, steps: int = 10, finished: bool = True, **planned: Any) -> Path:
    """A run of that many steps."""
    run.mkdir(parents=True)
    table = plan(steps=steps, **planned)
    (run / "run.toml").write_text(tomli_w.dumps(table))
    append(run, evaluation(0, 0.2), *(step(number) for number in range(1, steps + 1)), evaluation(steps, 0.8))
    if finished:
        summary = {
            "method": table["method"]["name"], "task": table["task"], "model": "tiny", "seed": 0, "steps": steps,
            "score": "accuracy", "score_before": 0.2, "score_after": 0.8, "score_after_interval": [0.7, 0.9], "seconds": 5.0,
            "tokens": 1000.0,
        }  # fmt: skip
        (run / "summary.json").write_text(json.dumps(summary))
    return run


def write_rollout(run: Path, number: int, record: Any) -> Path:
    """A recorded step; bytes are packed as they are."""
    path = run / "rollouts" / f"step-{number:06d}.json.gz"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(gzip.compress(record if isinstance(record, bytes) else json.dumps(record).encode()))
    return path
