"""A step whose answers are scored while others are learned from, beside one that waits: ``python bench/scored_step.py``.

Both sides are this library, sample and learn as much, and have one process that scores; scoring a step takes as long as sampling
and learning it, as measured at the start. Ours has rows one step old, as with ``--reward-workers 1 --max-staleness 1``; the other
waits for its rewards.
"""

from __future__ import annotations

import itertools
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from async_step import AsyncWork, rollout_of
from guided_step import AsOurs
from side_by_side import arguments, main
from sides import Clock, Row, Setting, Side
from text_sides import LR
from text_work import TextWork

from upslope.rollout.scoring import ScorerPool, ScoringPlan
from upslope.rollout.store import ScoredRows

WARM = 2
"""Steps before the one that scoring is made to take as long as."""


@dataclass(frozen=True)
class BenchScoring(ScoringPlan):
    """A process that makes the rewards of this script, so slowly."""

    sleeps: float = field(default=0.0)
    """Seconds for each answer."""

    def command(self, channel: int) -> list[str]:
        return [sys.executable, str(Path(__file__).with_name("scored_worker.py")), str(channel), str(self.sleeps)]


def learner_of(given: TextWork, method: str, ahead: int) -> Any:
    from upslope.learners.policy_gradient import PolicyGradient
    from upslope.methods import find
    from upslope.runtime.settings import Settings

    settings = Settings(
        steps=10**6, lr=LR, schedule="constant", warmup=0, tasks_per_step=given.prompts, warm_start=0.0,
        samples_per_task=given.samples, max_tokens=given.max_tokens, watch_kl=False, max_staleness=ahead,
    ).resolved("text", given.model, max_tokens=given.max_tokens)  # fmt: skip
    policy = given.policy()
    rollout = rollout_of(given, policy, ahead)
    rollout.reuse = False  # what both sides must do
    return PolicyGradient(find(method).derive(regularize=None), policy, rollout, settings)


def run(clock: Clock, given: TextWork, setting: Setting, method: str, ahead: int) -> None:
    from upslope.runtime.threads import use_threads

    use_threads(setting.threads)
    tried = learner_of(given, "grpo", 0)
    for step in range(1, WARM + 1):
        tried.step(step)
    began = time.perf_counter()
    tried.step(WARM + 1)
    each = (time.perf_counter() - began) / (given.prompts * given.samples)
    scorers = ScorerPool(BenchScoring(Path(tempfile.mkdtemp()), 1, sleeps=each))
    try:
        learner, numbers = learner_of(given, method, ahead), itertools.count(1)
        rollout = learner.rollout
        rollout.under_way.pool, rollout.scored_apart = ScoredRows(rollout.under_way.pool, scorers, ahead + 1), True
        learner.step(next(numbers))  # the process is up, and steps under way
        clock.ready()
        begins = True
        while True:
            if begins:  # its rows were scored while nobody measured; behind it one step is under way, as at the window's end
                learner.step(next(numbers))
                clock.begin_again()
            told = learner.step(next(numbers))
            begins = clock.tick(samples=told["samples"], tokens=told["tokens"], updates=told["updates"], waited=told["waited"])
    finally:
        scorers.close()


def run_ahead(clock: Clock, given: AsyncWork, setting: Setting) -> None:
    run(clock, given.text, setting, "asyncflow", 1)


def run_waiting(clock: Clock, given: AsyncWork, setting: Setting) -> None:
    run(clock, given.text, setting, "grpo", 0)


ROW = Row(
    name="scored_step",
    work="a GRPO step on prompts of 231 tokens, 16 x 8 answers of 24: Llama of 4 layers, width 128, 53 characters; scored by one "
    "process that takes as long as sampling and learning, while others are sampled and learned from, beside the same in turns",
    unit="s a step",
    ours=Side("upslope, 1 step ahead", run_ahead, (Setting("1 thread"),)),
    peer=Side("upslope, in turns", run_waiting, (AsOurs("1 thread"),)),
    given=AsyncWork(),
    window=3,
    exact=("samples", "tokens", "updates"),
    wanted=1.8,
    goal="1.8 times as fast as our own step that waits for as many processes that score",
)

if __name__ == "__main__":
    main(ROW, arguments(ROW).parse_args())
