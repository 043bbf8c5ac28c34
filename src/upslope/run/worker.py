"""A worker: a process that samples for a run, with a task, a copy of the policy and an engine of its own.

The run starts it (``python -m upslope.run.worker FOLDER CHANNEL``) and tells it over the channel what to sample with which weights.
It ends when the channel does.
"""

from __future__ import annotations

import dataclasses
import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from upslope.errors import UserError
from upslope.plan import Plan
from upslope.rollout.replica import Replica, failure
from upslope.run import set_up_plan
from upslope.runtime.messages import Message
from upslope.runtime.run_folder import RunFolder
from upslope.runtime.shared_weights import ReadWeights
from upslope.runtime.threads import use_threads
from upslope.runtime.worker_channel import WorkerChannel
from upslope.types import Assignment


class Worker:
    """Answers what comes over a channel, and says in between that it is alive.

    Args:
        make: Makes the policy and, by stage, the rollouts that sample with it.
    """

    def __init__(self, channel: WorkerChannel, make: Callable[[], tuple[Any, dict[str, Any]]]):
        self.channel = channel
        channel.say_alive()
        self.replica = Replica(*make())
        self.published = ReadWeights(for_gpu=self.replica.policy.device.type == "cuda")

    def serve(self) -> None:
        """Until the run has no more to ask."""
        self.channel.tell(Message("ready", {"pid": os.getpid()}))
        while (message := self.channel.hear()).kind != "quit":
            self.channel.tell(self._answer(message))

    def _answer(self, message: Message) -> Message:
        try:
            assignment = Assignment.from_table(message.data["assignment"])
            if message.files:
                self.replica.load(self.published.of(message.files[0], message.data["weights"]), assignment.version)
            return self.replica.answer(assignment)
        except Exception as problem:
            return failure(problem)


def of_run(folder: Path, trusted: bool = False) -> tuple[Any, dict[str, Any]]:
    """The policy and the rollouts of a run, as its folder has them.

    Args:
        trusted: Code in it that this machine did not write may run.
    """
    plan = Plan.from_folder(RunFolder.open(folder), trusted)
    use_threads(plan.settings.threads or 1)
    # The run itself has the judge and the audit.
    settings = dataclasses.replace(plan.settings, judge="", audit="off")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the run has said it
        components: Any = set_up_plan(dataclasses.replace(plan, settings=settings), for_training=False)
    rollouts = {"": components.rollout, **components.stage_rollouts}
    for rollout in rollouts.values():
        rollout.scored_apart = settings.reward_workers > 0  # the run has others for it
    return components.policy, rollouts


def serve(number: int, make: Callable[[], tuple[Any, dict[str, Any]]]) -> int:
    """Works until the run has no more to ask, or is gone.

    Args:
        number: Of the open channel to the run.
    """
    channel = WorkerChannel(number)
    try:
        Worker(channel, make).serve()
    except UserError as problem:
        channel.tell(Message("refused", {"why": str(problem)}))
        return 1
    except (ConnectionError, TimeoutError):  # the run is gone
        return 0
    return 0


if __name__ == "__main__":
    folder, channel, *flags = sys.argv[1:]
    sys.exit(serve(int(channel), lambda: of_run(Path(folder), trusted="--trust" in flags)))
