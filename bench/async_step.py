"""A step that samples while it learns beside one that waits: ``python bench/async_step.py [--device cuda]``.

Both sides are this library and sample and learn as much. Ours has one worker and rows one step old, as with ``--workers 1
--max-staleness 1``, one thread each; the other takes turns in one process, at its better of one and two threads. On a GPU both
processes of ours are on the same one, with a model of SmolLM2's sizes.
"""

from __future__ import annotations

import itertools
import json
import sys
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from guided_step import AsOurs
from side_by_side import arguments, main
from sides import Clock, Row, Setting, Side
from text_sides import LR, InOrder, cut_as_planned
from text_work import TextWork, worth

from upslope.rollout.workers import WorkerPlan, WorkerPool
from upslope.tasks.text import Problem, Scores


@dataclass(frozen=True)
class AsyncWork:
    """The work of a step."""

    text: TextWork = field(default_factory=lambda: TextWork(prompts=16, samples=8, prompt_tokens=231, max_tokens=24))


class Paid(InOrder):
    """Answers earn what they are worth."""

    def score(self, problems: Any, responses: Any) -> Scores:
        rewards = worth([problem.prompt for problem in problems], responses)
        return Scores(rewards, [False] * len(rewards))


@dataclass(frozen=True)
class BenchPlan(WorkerPlan):
    """Workers that make the work of this script, not that of a run."""

    work: TextWork = field(default_factory=TextWork)

    def command(self, channel: int) -> list[str]:
        sizes = {
            name: getattr(self.work, name) for name in ("model", "prompts", "samples", "prompt_tokens", "max_tokens", "device")
        }
        return [sys.executable, str(Path(__file__).with_name("async_worker.py")), str(channel), json.dumps(sizes)]


def rollout_of(given: TextWork, policy: Any, ahead: int) -> Any:
    from upslope.rollout.text import TextRollout
    from upslope.types import Sampling

    task = Paid([Problem(text, "") for text in given.texts()], given.max_tokens)
    sampling = Sampling(max_tokens=given.max_tokens)
    made = TextRollout(task, policy, tasks=given.prompts, samples=given.samples, sampling=sampling, seed=given.seed)
    made.reuse, made.under_way.dates_rows = not ahead, bool(ahead)
    return made


def run_async(clock: Clock, given: AsyncWork, setting: Setting) -> None:
    pool = WorkerPool(BenchPlan(Path(tempfile.mkdtemp()), 1, device=given.text.device, work=given.text))
    try:
        run(clock, given.text, setting, "asyncflow", 1, pool)
    finally:
        pool.close()


def run_sync(clock: Clock, given: AsyncWork, setting: Setting) -> None:
    run(clock, given.text, setting, "grpo", 0, None)


def run(clock: Clock, given: TextWork, setting: Setting, method: str, ahead: int, pool: WorkerPool | None) -> None:
    from upslope.learners.policy_gradient import PolicyGradient
    from upslope.methods import find
    from upslope.runtime.settings import Settings
    from upslope.runtime.threads import use_threads

    use_threads(setting.threads)
    settings = Settings(
        steps=10**6, lr=LR, schedule="constant", warmup=0, tasks_per_step=given.prompts, warm_start=0.0,
        samples_per_task=given.samples, max_tokens=given.max_tokens, watch_kl=False, max_staleness=ahead, device=given.device,
    ).resolved("text", given.model, max_tokens=given.max_tokens)  # fmt: skip
    policy = given.policy()
    if given.device == "cuda":
        settings = cut_as_planned(policy, find(method), settings, [given.prompt_tokens] * given.prompts)
    rollout = rollout_of(given, policy, ahead)
    if pool is not None:
        rollout.under_way.pool = pool
    learner, numbers = PolicyGradient(find(method).derive(regularize=None), policy, rollout, settings), itertools.count(1)
    learner.step(next(numbers))  # workers are up, and steps under way
    clock.ready()
    begins = True
    while True:
        if begins:  # its rows were sampled while nobody measured; behind it one step is under way, as at the window's end
            learner.step(next(numbers))
            clock.begin_again()
        told = learner.step(next(numbers))
        spent = {name: told[name] for name in ("waited", "seconds_sampling") if name in told}
        begins = clock.tick(samples=told["samples"], tokens=told["tokens"], updates=told["updates"], **spent)


ROW = Row(
    name="async_step",
    work="a GRPO step on prompts of 231 tokens, 16 x 8 answers of 24: Llama of 4 layers, width 128, 53 characters; sampled by one "
    "worker while the step before is learned from, beside the same in turns",
    unit="s a step",
    ours=Side("upslope, 1 worker, 1 step ahead", run_async, (Setting("1 thread each"),)),
    peer=Side("upslope, in turns", run_sync, (AsOurs("1 thread"), AsOurs("2 threads", 2))),
    given=AsyncWork(),
    window=3,
    exact=("samples", "tokens", "updates"),
    wanted=1.3,
    goal="1.3 times as fast as our own step that waits, at its better of one and two threads",
)

GPU_ROW = replace(
    ROW,
    name="gpu_async",
    work="a GRPO step of SmolLM2-135M's sizes, all weights, 64 x 8 answers of 128 tokens; random weights; sampled by one worker on "
    "the same GPU while the step before is learned from, beside the same in turns",
    ours=Side("upslope, 1 worker, 1 step ahead", run_async, (Setting("one GPU, two processes"),)),
    peer=Side("upslope, in turns", run_sync, (AsOurs("one process"),)),
    given=AsyncWork(TextWork(model="random", prompts=64, samples=8, prompt_tokens=28, max_tokens=128, device="cuda")),
    window=10,
    wanted=1.0,
    goal="no slower than our own step that waits",
    device="cuda",
)

if __name__ == "__main__":
    row = GPU_ROW if any(word.endswith("cuda") for word in sys.argv) else ROW
    parser = arguments(row)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="cuda: SmolLM2's sizes, answers of 128 tokens")
    main(row, parser.parse_args())
