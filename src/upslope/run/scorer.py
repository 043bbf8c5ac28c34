"""A reward process: it scores answers for a run, with the run's task and reward, and can be killed at any time.

The run starts it (``python -m upslope.run.scorer FOLDER CHANNEL``) and sends it problems and answers over the channel. It ends when
the channel does.
"""

from __future__ import annotations

import ctypes
import math
import os
import signal
import socket
import sys
import threading
import time
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any

from upslope.errors import UserError
from upslope.plain_data import JsonDict
from upslope.plan import Plan
from upslope.rewards.errors import NotFinite
from upslope.rewards.model_reward import reward_models
from upslope.runtime.messages import Message, receive, send
from upslope.runtime.run_folder import RunFolder
from upslope.runtime.threads import use_threads
from upslope.setting_up import load_plan_task
from upslope.tasks.problem_text import problem_of
from upslope.tasks.scoring import timed_scores
from upslope.tasks.text import Scores, TextTask

PARENT_SECONDS = 1.0
DIE_WITH_PARENT = 1
"""``PR_SET_PDEATHSIG`` of ``prctl``."""


def of_run(folder: Path, trusted: bool = False) -> TextTask:
    """The task of a run with its reward, as its folder has them. No model is loaded."""
    plan = Plan.from_folder(RunFolder.open(folder), trusted)
    use_threads(plan.settings.threads or 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the run has said it
        task: Any = load_plan_task(plan.task, plan.settings, plan.reward, plan.test_data, plan.objects, for_training=True)
    for reward in reward_models(getattr(task, "reward", None)):
        reward.device = plan.settings.device
    return task


def answer(task: TextTask, asked: JsonDict, timed: bool) -> JsonDict:
    """What the answers that were sent are worth, or why that cannot be said."""
    problems = [problem_of(text) for text in asked["problems"]]
    try:
        scores = timed_scores(task.score, problems, asked["responses"], each=timed and not task.tells_seconds)
        if len(scores.reward) != len(problems):
            raise NotFinite(f"{task.name} gave {len(scores.reward)} rewards for {len(problems)} answers")
        if not all(math.isfinite(value) for value in scores.reward):
            raise NotFinite(f"{task.name} gave the rewards {scores.reward}, which are not all finite numbers")
        return plain(scores)
    except NotFinite as problem:
        return {"failed": str(problem), "kind": "reward_not_finite"}
    except UserError as problem:
        return {"failed": str(problem), "kind": "reward_raised"}
    except Exception as problem:
        return {"failed": f"{task.name} raised {type(problem).__name__}: {problem}", "kind": "reward_raised"}


def plain(scores: Scores) -> JsonDict:
    """Scores as JSON can say them: a number of numpy's is the same number of Python's."""

    def number(value: Any) -> Any:
        return value.item() if hasattr(value, "item") else value

    return {
        "reward": [number(value) for value in scores.reward],
        "correct": [bool(right) for right in scores.correct],
        "components": {name: [number(value) for value in column] for name, column in scores.components.items()},
        "items": [[number(value) for value in row] for row in scores.items],
        "seconds": [float(value) for value in scores.seconds],
    }


def serve(number: int, folder: Path, trusted: bool, timed: bool) -> int:
    """Scores until the run has no more to ask, or is gone.

    Args:
        number: Of the open channel to the run.
    """
    channel = socket.socket(fileno=number)
    end_with_parent()
    try:
        task = of_run(folder, trusted)
        send(channel, Message("ready", {"pid": os.getpid()}))
        while (message := receive(channel)).kind != "quit":
            send(channel, Message("scored", answer(task, message.data, timed)))
    except UserError as problem:
        send(channel, Message("refused", {"why": str(problem)}))
        return 1
    except (ConnectionError, TimeoutError):  # the run is gone
        return 0
    return 0


def end_with_parent() -> None:
    """A reward that never returns must not outlive the run: where the run is gone, so is this process."""
    parent = os.getppid()
    with suppress(OSError, AttributeError):  # Linux, even while the reward holds Python's lock
        ctypes.CDLL(None).prctl(DIE_WITH_PARENT, signal.SIGKILL)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(PARENT_SECONDS)
        os._exit(0)

    threading.Thread(target=watch, daemon=True).start()


if __name__ == "__main__":
    run, channel, *flags = sys.argv[1:]
    sys.exit(serve(int(channel), Path(run), "--trust" in flags, "--timed" in flags))
