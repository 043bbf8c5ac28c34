"""Runs to which something happens while they write; each goes on afterwards and ends as if nothing had.

``python faulty_runs.py FOLDER disk`` wants a small file system of its own at FOLDER, ``FOLDER killed`` any folder. It prints what
it found, as JSON.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

import upslope as up
from upslope.errors import UserError
from upslope.runtime.checkpoint_files import CheckpointWriter
from upslope.runtime.run_folder import RunFolder

LETTERS = "def score(prompts, responses, answers):\n    return [sum(map(str.isalpha, each)) / 4 for each in responses]\n"
"""What an untrained model earns something from."""
SIZES = {"task": "reverse:length=2", "model": "tiny:layers=1,width=16", "steps": 6, "warm_start": 0.0, "tasks_per_step": 4,
         "samples_per_task": 4, "eval_problems": 4, "threads": 1}  # fmt: skip
CASES: dict[str, dict[str, Any]] = {
    "log line": {"record": "none", "samples_logged": 0, "steps": 40, "checkpoint_every": 1000},
    "rollout record": {"checkpoint_every": 1000},
    "checkpoint": {"record": "none", "samples_logged": 0, "checkpoint_every": 4},
}
"""What is written first once the disk is full."""
PAGE = 4096


class Fills:
    """Leaves nothing of the disk but a few pages, after a step."""

    def __init__(self, filler: Path, step: int, leaves: int):
        self.filler, self.step, self.leaves = filler, step, leaves

    def on_step(self, step: int, metrics: dict) -> None:
        if step != self.step:
            return
        spare = self.filler.with_name("spare")
        spare.write_bytes(bytes(max(self.leaves, 1) * PAGE))
        with self.filler.open("wb", buffering=0) as file, suppress(OSError):
            while file.write(bytes(PAGE)):
                pass
        if self.leaves:
            spare.unlink()


def trained(out: Path, **changes: Any) -> up.Run:
    """A run of a second."""
    letters = out.parent / "letters.py"
    letters.write_text(LETTERS)
    return up.train("grpo", **SIZES | changes, reward=f"{letters}:score", out=out)


def same(one: up.Run, other: up.Run) -> bool:
    weights = other.policy.weights()
    return all(torch.equal(tensor, weights[name]) for name, tensor in one.policy.weights().items())


def learned(run: up.Run) -> bool:
    """Whether it moved at all: else every run would end like every other."""
    return any(record.get("grad_norm", 0) > 0 for record in run.metrics)


def drafts(path: Path) -> list[str]:
    return [file.name for file in path.rglob("*.tmp")]


def curve(run: up.Run) -> list[tuple[int, float]]:
    return [(record["step"], record["reward"]) for record in run.metrics]


def full_disk(folder: Path) -> dict[str, Any]:
    """The disk is full before each kind of thing that a run writes."""
    found = {}
    for name, case in CASES.items():
        whole = trained(folder / f"whole {name}", **case)
        fills = Fills(folder / "filler", 3, leaves=2 if name == "checkpoint" else 0)
        path = folder / name
        try:
            trained(path, **case, callbacks=[fills])
            said = "nothing"
        except UserError as problem:
            said = str(problem)
        lines, recorded = (path / "metrics.jsonl").read_bytes(), len(RunFolder(path).rollout_steps())
        for file in folder.glob("filler"):
            file.unlink()
        (folder / "spare").unlink(missing_ok=True)
        again = up.resume(path)
        found[name] = {
            "said": said, "drafts": drafts(path), "filled": len(lines) % PAGE == 0, "steps": lines.count(b'"kind": "step"'),
            "recorded": recorded, "same": same(whole, again), "learned": learned(whole), "curve": curve(whole) == curve(again),
        }  # fmt: skip
    return found


def killed_while_saving(folder: Path) -> dict[str, Any]:
    """The run is killed while it writes the second checkpoint: at some tensors, at its last file, when old ones are deleted."""
    whole = trained(folder / "whole", checkpoint_every=2)
    moments: dict[str, Callable[[list[str]], bool]] = {
        "tensors": lambda seen: len([name for name in seen if name.endswith("safetensors")]) > 3,
        "digests": lambda seen: seen.count("closed") > 2,
        "deleted": lambda seen: seen.count("pruned") > 3,
    }
    found = {}
    for name, is_now in moments.items():
        path = folder / name
        child = os.fork()
        if not child:
            _die_at(is_now)
            trained(path, checkpoint_every=2)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        left = [each.name for each in RunFolder(path).checkpoints()]
        again = up.resume(path)
        found[name] = {
            "killed": os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL, "left": left,
            "same": same(whole, again), "learned": learned(whole), "curve": curve(whole) == curve(again), "drafts": drafts(path),
        }  # fmt: skip
    return found


def _die_at(is_now: Callable[[list[str]], bool]) -> None:
    """Kills this process where the names of what it has written so far say so."""
    seen: list[str] = []
    write, close, prune = CheckpointWriter.write_tensors, CheckpointWriter.close, RunFolder.prune

    def note(name: str) -> None:
        seen.append(name)
        if is_now(seen):
            os.kill(os.getpid(), signal.SIGKILL)

    def write_noted(self: CheckpointWriter, name: str, *rest: Any) -> None:
        write(self, name, *rest)
        if self.folder != Path():  # on the disk, not taken for it
            note(name)

    def close_noted(self: CheckpointWriter) -> None:
        note("closed")
        close(self)

    def prune_noted(self: RunFolder, keep: int) -> None:
        prune(self, keep)
        note("pruned")

    CheckpointWriter.write_tensors, CheckpointWriter.close, RunFolder.prune = write_noted, close_noted, prune_noted  # type: ignore


if __name__ == "__main__":
    place, what = Path(sys.argv[1]), sys.argv[2]
    print(json.dumps((full_disk if what == "disk" else killed_while_saving)(place)))
