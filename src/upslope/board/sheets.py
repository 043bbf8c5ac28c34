"""Pictures of recorded episodes, drawn when somebody looks at one and kept while the board runs.

A run keeps only the seed and the actions, which costs its training nothing; they are played again here, in a process of its own.
Only gymnasium's own environments are, and those of the packages that it is known to find by id (`upslope.tasks.env_packages`), with
other physics too: a module that a run names would run whatever it holds, and a run's folder may come from anywhere. Nothing is
written into the run's folder.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import re
import subprocess
import sys
import tempfile
import threading
import weakref
from dataclasses import dataclass
from pathlib import Path

from upslope.plain_data import JsonDict
from upslope.tasks.gym import MOST_WATCHED

PATIENCE = 60.0
"""Seconds a drawing may take."""
KEPT = 200
SAFE = re.compile(r"gym:[A-Za-z0-9_/-]+-v\d+(:(params\.\w+=[\d.e+-]+x?,?)+)?", re.ASCII)
"""Tasks that name nothing but an id, and numbers."""


@dataclass(frozen=True)
class Sheet:
    """A sheet of frames and how it is laid out, or why there is none."""

    layout: JsonDict | None
    why: str
    path: Path | None = None


class Sheets:
    """The sheets drawn so far."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="upslope-board-")
        self._drawn: dict[str, Sheet] = {}
        self._one_at_a_time = threading.Lock()
        weakref.finalize(self, self._folder.cleanup)

    def of(self, task: str, record: JsonDict) -> Sheet:
        """The sheet of an episode of a task; the first time this takes a second or more."""
        wanted = {name: record.get(name) for name in ("seed", "length", "actions")}
        name = hashlib.sha256(json.dumps([task, wanted]).encode()).hexdigest()[:24]
        with self._one_at_a_time:
            if name not in self._drawn:
                while len(self._drawn) >= KEPT:
                    oldest = self._drawn.pop(next(iter(self._drawn)))
                    if oldest.path is not None:
                        oldest.path.unlink(missing_ok=True)
                self._drawn[name] = self._draw(task, wanted, Path(self._folder.name) / name)
            return self._drawn[name]

    def _draw(self, task: str, record: JsonDict, stem: Path) -> Sheet:
        if refusal := _refusal(task, record):
            return Sheet(None, refusal)
        episode, sheet = stem.with_suffix(".json"), stem.with_suffix(".png")
        episode.write_text(json.dumps(record))
        command = [sys.executable, "-P", "-m", "upslope.tasks.drawing", task, str(episode), str(sheet)]
        try:
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                timeout=PATIENCE,
                check=False,
                cwd=self._folder.name,
                stdin=subprocess.DEVNULL,
            )
        except subprocess.TimeoutExpired:
            return Sheet(None, f"drawing it took more than {PATIENCE:.0f} seconds.")
        finally:
            episode.unlink(missing_ok=True)
        said = done.stdout.strip().splitlines()
        if done.returncode or not sheet.is_file():
            return Sheet(None, said[-1] if said else f"the renderer ended with {done.returncode} and said nothing.")
        return Sheet(json.loads(said[-1]), "", sheet)


def _refusal(task: str, record: JsonDict) -> str:
    """Why an episode is not even tried; empty if it is."""
    if not SAFE.fullmatch(task):
        return "only gymnasium's own environments are drawn here; 'upslope try RUN --video film.mp4' shows any."
    actions, length, seed = record["actions"], record["length"], record["seed"]
    if not (
        isinstance(actions, list)
        and isinstance(length, int)
        and isinstance(seed, int)
        and 0 < len(actions) == length <= MOST_WATCHED
    ):
        return "its record is not one of ours."
    if importlib.util.find_spec("gymnasium") is None:
        return "gymnasium is not installed."
    return ""
