"""A judge that kills who asks it: runs with ``--judge`` under kill -9, and what must be the same at their end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fake_servers import FakeServer, judging

from upslope.rewards.judging import VERDICTS
from upslope.rollout.judges import TRIAL

WORDS = [
    "train", "sppo", "--task", "reverse:length=2", "--model", "tiny:layers=1,width=32", "--tasks-per-step", "3",
    "--samples-per-task", "4", "--max-tokens", "4", "--warm-start", "0", "--eval-problems", "8", "--checkpoint-every", "2",
    "--steps", "10", "--quiet",
]  # fmt: skip
"""About thirty questions a step; every second step has a checkpoint."""


class KillingJudge(FakeServer):
    """Prefers the answer that comes first in the alphabet. Where a run is `condemned`, one of its questions gets it killed."""

    def __init__(self) -> None:
        super().__init__(self._answer)
        self.lock = threading.Lock()
        self.victim, self.questions, self.fatal = 0, 0, 0

    def condemned(self, pid: int, question: int) -> None:
        """Kills this process when it asks its n-th question; 0 lets it live."""
        with self.lock:
            self.victim, self.questions, self.fatal = pid, 0, question

    def _answer(self, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        if path == "/v1/chat/completions" and body["messages"][-1]["content"] != TRIAL:
            with self.lock:
                self.questions += 1
                if self.questions == self.fatal:
                    os.kill(self.victim, signal.SIGKILL)
        return judging(path, body)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Quiet: who was killed does not listen to the answer."""


def live(judge: KillingJudge, out: Path, log: Path, fatal: int = 0) -> int:
    """A run is begun or resumed, and killed at its n-th question; its exit status."""
    words = ["resume", str(out), "--quiet"] if (out / "run.toml").exists() else [*WORDS, "--judge", judge.url, "--out", str(out)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with log.open("ab") as file:
        process = subprocess.Popen([sys.executable, "-m", "upslope", *words], stdout=file, stderr=file, env=environment)
    judge.condemned(process.pid, fatal)
    return process.wait(timeout=600)


def killed_at(judge: KillingJudge, out: Path, log: Path, places: Sequence[int]) -> None:
    """A run that is killed in life after life, each time when a question of the undisturbed run is asked, and then ends in peace.

    Args:
        places: of these questions, in rising order. Where the verdict is known by then, it is the next question that is asked.
    """
    for place in places:
        status = live(judge, out, log, max(place - 2 * len(verdicts(out)), 1))
        assert status == -signal.SIGKILL, f"it ended with {status} before question {place}:\n{log.read_text()[-2000:]}"
        assert not (out / "summary.json").exists()
    status = live(judge, out, log)
    assert status == 0, f"it ended with {status}:\n{log.read_text()[-2000:]}"


def verdicts(out: Path) -> dict[tuple[int, ...], list[Any]]:
    """What a run keeps of its judge, by the texts; refused if something stands there twice."""
    file = out / VERDICTS
    lines = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    found = {tuple(line[:3]): line[3:] for line in lines}
    assert len(found) == len(lines), f"{len(lines) - len(found)} verdicts stand twice in {file}"
    return found
