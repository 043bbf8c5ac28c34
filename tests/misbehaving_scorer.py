"""A reward process whose answers say what it does: a number is its own reward, a word a fault. Started by `test_scoring.py`."""

from __future__ import annotations

import sys
from pathlib import Path

if (Path(sys.argv[1]) / "never-ready").exists():  # before anything that takes long to load
    sys.exit("no such reward")

import math
import os
import signal
import socket
import time
import uuid

from upslope.run.scorer import answer
from upslope.runtime.messages import Message, receive, send
from upslope.tasks.text import Scores


class Faulty:
    """A task that notes every call, and does what the answers say; ``once-die`` dies the first time alone."""

    name = "faulty"
    tells_seconds = False

    def __init__(self, folder: Path):
        self.folder = folder

    def score(self, problems, responses):
        (self.folder / f"call-{uuid.uuid4().hex}").write_text("\n".join(responses))
        for response in responses:
            once = self.folder / f"done-{response}"
            if response.startswith("once-") and once.exists():
                continue
            once.touch()
            fault = response.removeprefix("once-")
            if fault == "die":
                os.kill(os.getpid(), signal.SIGKILL)
            elif fault == "hang":
                time.sleep(1000)
            elif fault == "slow":
                time.sleep(1.0)
            elif fault == "raise":
                raise ZeroDivisionError("divided by the answer")
        paid = [float(text) if text[0].isdigit() else math.nan if text == "nan" else 7.0 for text in responses]
        return Scores(paid, [True] * len(paid), {"length": [float(len(text)) for text in responses]})


def main(folder: Path, number: int, timed: bool) -> None:
    channel, task = socket.socket(fileno=number), Faulty(folder)
    send(channel, Message("ready"))
    while (message := receive(channel)).kind != "quit":
        send(channel, Message("scored", answer(task, message.data, timed)))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), "--timed" in sys.argv)
