"""The curve of a run as a JSON file: written whole whenever a point comes, so that of a run that is stopped it is there."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any


class CurveFile:
    """Points of a run by kind, and how long it took.

    Args:
        file: one that is there is gone on with.
        about: what else is to stand in it.
    """

    def __init__(self, file: Path, about: dict[str, Any]):
        self.file, self.began = file, time.monotonic()
        known = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
        self.found: dict[str, Any] = {"evaluations": [], "training": [], "minutes": 0.0} | known | about
        self._before = self.found["minutes"]

    @property
    def minutes(self) -> float:
        """Of this run, those of earlier processes counted in."""
        return self._before + (time.monotonic() - self.began) / 60

    def take(self, kind: str, point: dict[str, Any]) -> None:
        """A point of a step. A run that goes on repeats the steps behind its last checkpoint: the newer ones count."""
        self.found[kind] = [each for each in self.found[kind] if each["step"] < point["step"]] + [point]
        self.write()

    def write(self) -> None:
        self.found["minutes"] = self.minutes
        draft = self.file.with_suffix(".part")
        draft.write_text(json.dumps(self.found, indent=1) + "\n", encoding="utf-8")
        draft.replace(self.file)
