"""A process that scores for ``bench/scored_step.py``, and takes its time."""

from __future__ import annotations

import socket
import sys
import time
from typing import Any

from text_work import worth

from upslope.run.scorer import answer, end_with_parent
from upslope.runtime.messages import Closed, Message, receive, send
from upslope.tasks.text import Scores


class Slow:
    """Answers earn what they are worth, after a while."""

    name = "slow"
    tells_seconds = False

    def __init__(self, seconds: float):
        self.seconds = seconds

    def score(self, problems: Any, responses: Any) -> Scores:
        time.sleep(self.seconds * len(responses))
        rewards = worth([problem.prompt for problem in problems], responses)
        return Scores(rewards, [False] * len(rewards))


if __name__ == "__main__":
    channel, task = socket.socket(fileno=int(sys.argv[1])), Slow(float(sys.argv[2]))
    end_with_parent()
    send(channel, Message("ready"))
    try:
        while (message := receive(channel)).kind != "quit":
            send(channel, Message("scored", answer(task, message.data, timed=False)))  # type: ignore[arg-type]
    except Closed:
        pass
