"""The folder of a run: what was asked for, what was measured, and checkpoints to go on from.

``run.toml`` is the whole plan; ``metrics.jsonl`` and ``samples.jsonl`` grow a line at a time; a checkpoint remembers how many
lines there were, so that going on from it drops exactly what came after.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from upslope.errors import UserError
from upslope.runtime.files import write_text

LOGS = ("metrics.jsonl", "samples.jsonl")


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
