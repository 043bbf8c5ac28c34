"""A learner beside the run: a process that goes through the updates of each step with it, each on its own share of the rows.

The run starts it (``python -m upslope.run.learner FOLDER CHANNEL RANK SIZE``) and sends it the rows of each step over the channel.
It never samples, rewards or writes. It ends when the channel does.
"""

from __future__ import annotations

import dataclasses
import sys
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import torch

from upslope.errors import UserError
from upslope.learners.base import make_learner
from upslope.learners.lessons import Lesson, unpacked_lesson
from upslope.learners.nonfinite import NonFinite
from upslope.plain_data import JsonDict
from upslope.plan import Plan
from upslope.policies.sharded import shard
from upslope.policies.text_inputs import TextInputs
from upslope.rollout.reference_cache import KeptElsewhere
from upslope.run import set_up_plan
from upslope.runtime.messages import Message
from upslope.runtime.run_folder import RunFolder
from upslope.runtime.team import OthersGone, ProcessTeam
from upslope.runtime.threads import use_threads
from upslope.runtime.worker_channel import WorkerChannel


class FollowingLearner(Protocol):
    """A learner that can be told what to learn."""

    policy: Any

    def follow(self, lesson: Lesson) -> None:
        """Makes the updates of a step."""

    def state(self) -> JsonDict:
        """Of a policy in parts: helps the first process to put together what it saves."""


Begin = Callable[[JsonDict, ProcessTeam], FollowingLearner]
"""Makes the learner as the run's is now."""


class Follower:
    """Does what comes over a channel, and says in between that it is alive.

    Args:
        make: Loads what takes long.
    """

    def __init__(self, channel: WorkerChannel, team: ProcessTeam, make: Callable[[], Begin]):
        self.channel, self.team = channel, team
        channel.say_alive()
        self.begin = make()
        self.learner: FollowingLearner | None = None

    def serve(self) -> None:
        """Until the run has no more to learn."""
        self.channel.tell(Message("ready"))
        while (message := self.channel.hear()).kind != "quit":
            if message.kind == "join":
                self.team.join(Path(message.data["meeting"]))
            elif message.kind == "begin":
                self.learner = self.begin(message.data, self.team)
            elif message.kind == "state":
                assert self.learner is not None
                with self.team.together():
                    self.learner.state()
            else:
                assert self.learner is not None
                self.learner.follow(unpacked_lesson(message.data, TextInputs, self.learner.policy.device))
        self.team.leave()


def of_run(folder: Path, team: ProcessTeam, trusted: bool = False) -> Begin:
    """What is needed of a run, as its folder has it, to learn with it.

    Args:
        trusted: Code in it that this machine did not write may run.
    """
    plan = Plan.from_folder(RunFolder.open(folder), trusted)
    use_threads(plan.settings.threads or 1)
    # The run itself has the judge, the audit and the engine.
    settings = dataclasses.replace(
        plan.settings, judge="", audit="off", engine="torch", workers=0, where="local", pace="exact", interrupt=False
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the run has said it
        made: Any = set_up_plan(dataclasses.replace(plan, settings=settings), for_training=False)

    def begin(told: JsonDict, team: ProcessTeam) -> FollowingLearner:
        policy, start = shard(made.policy) if made.settings.shard else made.policy, None
        policy.load_weights(told["weights"])
        if told["start"] is not None:
            start = policy.frozen_copy()
            start.load_weights(told["start"])
        rollout = SampledElsewhere(made.rollout, told["keeps_references"])
        stages = {name: SampledElsewhere(each) for name, each in made.stage_rollouts.items()}
        learner: Any = make_learner(made.method, policy, rollout, made.settings, start, stages, team)
        if told["state"] is not None:
            learner.load_state(told["state"])
        return learner

    return begin


class SampledElsewhere:
    """The rollout of a process to which rows are sent."""

    def __init__(self, like: Any, keeps_references: bool = False):
        self.provides, self.traced, self.join = like.provides, like.traced, like.join
        self.reference_cache = KeptElsewhere() if keeps_references else None

    def sync(self) -> None:
        return

    def state(self) -> JsonDict:
        return {}

    def load_state(self, state: JsonDict) -> None:
        return


def serve(number: int, team: ProcessTeam, make: Callable[[], Begin]) -> int:
    """Learns until the run has no more to ask, or is gone.

    Args:
        number: Of the open channel to the run.
    """
    channel = WorkerChannel(number)
    try:
        Follower(channel, team, make).serve()
    except (OthersGone, ConnectionError, NonFinite):  # the run knows, or is gone
        return 0
    except UserError as problem:
        return _said(channel, Message("refused", {"why": str(problem)}))
    except Exception:
        return _said(channel, Message("raised", {"why": traceback.format_exc()}))
    return 0


def _said(channel: WorkerChannel, message: Message) -> int:
    try:
        channel.tell(message)
    except OSError:
        return 0
    return 1


def main(folder: Path, channel: int, rank: int, size: int, trusted: bool) -> int:
    """Each learner has a GPU of its own, if any has."""
    device = torch.device("cpu")
    if RunFolder.open(folder).table()["settings"].get("device") == "cuda":
        device = torch.device("cuda", rank)
        torch.cuda.set_device(device)
    team = ProcessTeam(rank, size, device)
    return serve(channel, team, lambda: of_run(folder, team, trusted))


if __name__ == "__main__":
    folder, channel, rank, size, *flags = sys.argv[1:]
    sys.exit(main(Path(folder), int(channel), int(rank), int(size), trusted="--trust" in flags))
