"""Weights of 135 million parameters on their way to a worker of this machine: ``python bench/weights_sync.py``.

Ours publishes them in shared memory, and the worker takes them over and proves it; the other side is the same model's ``PUT`` to
``upslope serve``, which is how a server is kept up to date.
"""

from __future__ import annotations

import itertools
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from side_by_side import arguments, main
from sides import Clock, Row, Setting, Side

from upslope.rollout.workers import WorkerPlan, WorkerPool

MODEL = "tiny:layers=12,width=960,heads=10"


@dataclass(frozen=True)
class Sent:
    """What is sent."""

    model: str = MODEL

    def policy(self) -> Any:
        from upslope.policies import load_language_model
        from upslope.runtime.threads import use_threads

        use_threads(1)
        return load_language_model(self.model, seed=0)


class OneRow:
    """A rollout that samples nothing worth the time."""

    interrupt_every = 0

    def __init__(self, policy: Any):
        self.policy = policy

    def sync(self) -> None:
        """Nothing follows the policy."""

    def fulfilled(self, assignment: Any) -> Any:
        import torch

        from upslope.policies.text_inputs import TextInputs
        from upslope.rollout.pool import Fulfilled
        from upslope.types import Trajectories, View

        one, nobody = torch.ones(1, 1), torch.zeros(1, dtype=torch.int64)
        inputs = TextInputs(torch.ones(1, 1, dtype=torch.int64), torch.ones(1, 1, dtype=torch.int64))
        return Fulfilled(Trajectories(one, nobody.float(), nobody, nobody, View(one), action=one.long(), inputs=inputs, info=[{}]))


@dataclass(frozen=True)
class SendingPlan(WorkerPlan):
    """A worker that takes weights and does nothing with them."""

    model: str = MODEL

    def command(self, channel: int) -> list[str]:
        return [sys.executable, str(Path(__file__)), "worker", str(channel), self.model]


def run_worker(clock: Clock, given: Sent, setting: Setting) -> None:
    from upslope.types import Assignment

    policy, steps = given.policy(), itertools.count(1)
    pool = WorkerPool(SendingPlan(Path(tempfile.mkdtemp()), 1, model=given.model))

    def send() -> None:
        (assignment,) = Assignment(step := next(steps), version=step, numbers=(0,), samples=(1,)).cut(1)
        pool.publish(step, policy.weights)
        pool.give([assignment])
        pool.result(assignment)
        pool.forget(assignment)

    try:
        send()  # the worker is up
        clock.ready()
        while True:
            send()
            clock.tick(parameters=policy.parameter_count())
    finally:
        pool.close()


def run_server(clock: Clock, given: Sent, setting: Setting) -> None:
    from upslope.rollout.engines.server_engine import ServerEngine

    policy = given.policy()
    words = [sys.executable, "-m", "upslope", "serve", given.model, "--port", "0", "--threads", "1"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            engine = ServerEngine(process.stdout.readline().strip(), policy)
            engine.sync(policy)
            assert engine.follows, "the server must take weights"
            clock.ready()
            while True:
                engine.sync(policy)
                clock.tick(parameters=policy.parameter_count())
        finally:
            process.terminate()


ROW = Row(
    name="weights_sync",
    work="the weights of a Llama of 12 layers, width 960 (about 135 million parameters, float32) to one process of this machine",
    unit="s a version",
    ours=Side("upslope, to a worker", run_worker, (Setting("1 thread each"),)),
    peer=Side("upslope serve, PUT", run_server, (Setting("1 thread each"),)),
    given=Sent(),
    window=3,
    exact=("parameters",),
    wanted=5.0,
    goal="5 times as fast as the PUT, and no file written",
)

if __name__ == "__main__":
    if sys.argv[1:2] == ["worker"]:
        from upslope.run.worker import serve

        def made() -> tuple[Any, dict[str, Any]]:
            policy = Sent(sys.argv[3]).policy()
            return policy, {"": OneRow(policy)}

        sys.exit(serve(int(sys.argv[2]), made))
    main(ROW, arguments(ROW).parse_args())
