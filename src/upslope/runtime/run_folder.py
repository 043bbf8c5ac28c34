"""The folder of a run: what was asked for, what was measured, and checkpoints to go on from.

``run.toml`` is the whole plan; ``metrics.jsonl``, ``samples.jsonl`` and ``rollouts.jsonl`` grow a line at a time; a checkpoint
remembers how many lines there were, so that going on from it drops exactly what came after. ``rollouts/`` has a file for each line
of the last.
"""

from __future__ import annotations

import gzip
import json
import math
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from upslope.errors import UserError
from upslope.runtime.files import write_text

LOGS = ("metrics.jsonl", "samples.jsonl", "rollouts.jsonl")
MOST_UNPACKED = 64 * 2**20
"""Bytes of a step's rollouts that are read: beyond that it is no record of ours, or one too large to look at."""


class RunFolder:
    """Paths and logs of one run."""

    def __init__(self, path: str | Path):
        self.path = Path(path)
        self.lines = dict.fromkeys(LOGS, 0)

    @classmethod
    def create(cls, path: Path | None, name: str) -> RunFolder:
        """A new folder: the one asked for, or ``runs/name`` with a number behind it if that is taken."""
        if path is not None:
            if (path / "run.toml").exists():
                raise UserError(f"{path} already holds a run. Go on with 'upslope resume {path}', or choose another --out.")
            path.mkdir(parents=True, exist_ok=True)
            return cls(path)
        number = 1
        while True:
            candidate = Path("runs") / (name if number == 1 else f"{name}-{number}")
            try:
                candidate.mkdir(parents=True)
                return cls(candidate)
            except FileExistsError:
                number += 1

    @classmethod
    def open(cls, path: str | Path) -> RunFolder:
        """An existing run."""
        folder = cls(path)
        if not (folder.path / "run.toml").is_file():
            raise UserError(f"{path} is not a run: it has no run.toml. A run is a folder that 'upslope train' made.")
        return folder

    # -- logs ----------------------------------------------------------------------------------------------------------

    def append(self, log: str, record: dict[str, Any]) -> None:
        """One line at the end of a log."""
        with (self.path / log).open("a", encoding="utf-8") as file:
            file.write(json.dumps(_finite(record)) + "\n")
        self.lines[log] += 1

    def read(self, log: str) -> list[dict[str, Any]]:
        """All whole lines of a log."""
        return list(self._whole_lines(log))

    def _whole_lines(self, log: str) -> Iterator[dict[str, Any]]:
        file = self.path / log
        if not file.exists():
            return
        for line in file.read_text(encoding="utf-8").splitlines():
            try:
                yield json.loads(line)
            except json.JSONDecodeError:  # the line a kill cut in half
                return

    def rewind(self, lines: dict[str, int]) -> None:
        """Drops what was logged after a checkpoint."""
        for log in LOGS:
            kept = self.read(log)[: lines.get(log, 0)]
            write_text(self.path / log, "".join(json.dumps(record) + "\n" for record in kept))
            self.lines[log] = len(kept)
        known = {record["step"] for record in self.read("rollouts.jsonl")}
        for step in self.rollout_steps():
            if step not in known:
                self._rollout_file(step).unlink()

    # -- rollouts ------------------------------------------------------------------------------------------------------

    def write_rollouts(self, record: dict[str, Any], look: dict[str, Any]) -> None:
        """A step's rollouts, whole or not at all, and the line on where to look in them."""
        file = self._rollout_file(record["step"])
        file.parent.mkdir(exist_ok=True)
        draft = file.with_name(f".{file.name}.tmp")
        # Not forced to the disk: after a power cut the run goes on from a checkpoint and writes it again.
        draft.write_bytes(gzip.compress(json.dumps(record, separators=(",", ":")).encode(), compresslevel=1, mtime=0))
        draft.replace(file)
        self.append("rollouts.jsonl", look)

    def read_rollouts(self, step: int) -> dict[str, Any]:
        """What `write_rollouts` wrote of a step."""
        file = self._rollout_file(step)
        if not file.is_file():
            steps = self.rollout_steps()
            there = f"it has {steps[0]} to {steps[-1]}" if steps else "it has none (--record none, or not yet)"
            raise UserError(f"{self.path} has no rollouts of step {step}; {there}.")
        with gzip.open(file) as packed:
            text = packed.read(MOST_UNPACKED + 1)
        if len(text) > MOST_UNPACKED:
            raise UserError(f"{file} holds more than {MOST_UNPACKED >> 20} MiB; it is too large to be shown.")
        return json.loads(text)

    def rollout_steps(self) -> list[int]:
        """Steps whose rollouts are recorded."""
        return sorted(int(file.name[5:-8]) for file in (self.path / "rollouts").glob("step-*.json.gz") if file.name[5:-8].isdigit())

    def write_episode(self, record: dict[str, Any]) -> None:
        """An episode that was played after a step."""
        write_text(self.path / "episodes" / f"step-{record['step']:06d}.json", json.dumps(_finite(record)))

    def episode_steps(self) -> list[int]:
        """Steps after which an episode was kept."""
        return sorted(int(file.stem[5:]) for file in (self.path / "episodes").glob("step-*.json") if file.stem[5:].isdigit())

    def _rollout_file(self, step: int) -> Path:
        return self.path / "rollouts" / f"step-{step:06d}.json.gz"

    # -- checkpoints ---------------------------------------------------------------------------------------------------

    @property
    def start(self) -> Path:
        """The policy as the run began."""
        return self.path / "checkpoints" / "start"

    def checkpoint(self, step: int) -> Path:
        return self.path / "checkpoints" / f"step-{step:06d}"

    def checkpoints(self) -> list[Path]:
        """Finished checkpoints, oldest first."""
        return sorted((self.path / "checkpoints").glob("step-*"))

    def latest(self) -> Path:
        """The last checkpoint."""
        found = self.checkpoints()
        if not found:
            raise UserError(
                f"{self.path} has no checkpoint yet, so there is nothing to use. 'upslope resume {self.path}' goes on with it."
            )
        return found[-1]

    def prune(self, keep: int) -> None:
        """Deletes all but the last ``keep`` checkpoints."""
        for old in self.checkpoints()[:-keep]:
            shutil.rmtree(old)


def _finite(value: Any) -> Any:
    """JSON has no NaN; what is not a number is null."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
