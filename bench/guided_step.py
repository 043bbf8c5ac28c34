"""A step with guidance beside a GRPO step, by sampled tokens: ``python bench/guided_step.py [--method scaf-grpo]``.

Both sides are this library. With guidance every second problem fails without a hint, and answers with one earn what they are worth:
those groups are asked again. Beside it none fails, as a group without signal would cost nothing to learn from. Tokens of further
turns count as sampled, so the figure says what a guided step costs beyond what it samples.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from side_by_side import arguments, main
from sides import Clock, Row, Setting, Side
from text_sides import LR, InOrder
from text_work import TextWork, worth

from upslope.runtime.environment import ALLOCATOR
from upslope.tasks.text import Problem, Scores, Split

STEPS = {"ghpo": (2, 3), "scaf-grpo": (4, 5), "poro": (1, 2)}
"""Steps of a method that guides, and of grpo, in which both sample as many answers: further turns are half as many as the others, a
quarter, and as many."""
ANSWER = "and so it goes on, slowly."


class AsOurs(Setting):
    """The other side is this library too, and begins as it does."""

    @property
    def environment(self) -> dict[str, str]:
        return super().environment | ALLOCATOR


@dataclass(frozen=True)
class GuidedWork:
    """The work of a step, and the method that guides."""

    method: str = "ghpo"
    text: TextWork = field(default_factory=lambda: TextWork(prompts=32, prompt_tokens=12))


class FailsWithoutHints(InOrder):
    """Every second problem of a step earns nothing, until it is asked again; without guidance all earn what they are worth."""

    def __init__(self, given: TextWork, fails: bool):
        hints = [ANSWER[: len(ANSWER) * share // 4] for share in (1, 2, 3, 4)]
        problems = [Problem(text, ANSWER, {"hints": hints, "documents": [ANSWER]}) for text in given.texts()]
        super().__init__(problems, given.max_tokens)
        self.fails, self.failing = fails, set[str]()

    def sample(self, count: int, split: Split, rng: Any) -> list[Problem]:
        chosen = super().sample(count, split, rng)
        self.failing = {problem.prompt for problem in chosen[::2]} if self.fails else set()
        return chosen

    def score(self, problems: Sequence[Problem], responses: Sequence[str]) -> Scores:
        prompts = [problem.prompt for problem in problems]
        rewards = [0.0 if prompt in self.failing else paid for prompt, paid in zip(prompts, worth(prompts, responses), strict=True)]
        self.failing = set()
        return Scores(rewards, [False] * len(rewards))


def run_guided(clock: Clock, given: GuidedWork, setting: Setting) -> None:
    run(clock, given.text, setting, given.method, STEPS[given.method][0])


def run_grpo(clock: Clock, given: GuidedWork, setting: Setting) -> None:
    run(clock, given.text, setting, "grpo", STEPS[given.method][1])


def run(clock: Clock, given: TextWork, setting: Setting, method: str, steps: int) -> None:
    """So many steps of a method on these problems, again and again."""
    from upslope.runtime.threads import use_threads

    use_threads(setting.threads)
    learner, numbers = make_learner(given, method), itertools.count(1)
    clock.ready()
    while True:
        told = [learner.step(next(numbers)) for _ in range(steps)]
        counts = {name: sum(step.get(name, 0.0) for step in told) for name in ("samples", "tokens", "further_tokens", "updates")}
        learned = sum(step["learning"] * step["kept_rows"] for step in told) / steps
        clock.tick(**counts, learning=learned)


def make_learner(given: TextWork, method: str) -> Any:
    """A learner at its first step."""
    from upslope.learners.policy_gradient import PolicyGradient
    from upslope.methods import find
    from upslope.rollout.text import TextRollout
    from upslope.runtime.settings import Settings
    from upslope.types import Sampling

    settings = Settings(
        steps=10**6, lr=LR, schedule="constant", warmup=0, tasks_per_step=given.prompts, warm_start=0.0,
        samples_per_task=given.samples, max_tokens=given.max_tokens, watch_kl=False,
    ).resolved("text", given.model, max_tokens=given.max_tokens)  # fmt: skip
    policy, sampling = given.policy(), Sampling(max_tokens=given.max_tokens)
    found = find(method).derive(regularize=None)
    found = found.with_knobs({"data.begin": 0.0}) if method == "scaf-grpo" else found
    task = FailsWithoutHints(given, fails=method != "grpo")
    rollout = TextRollout(task, policy, tasks=given.prompts, samples=given.samples, sampling=sampling, seed=given.seed)
    return PolicyGradient(found, policy, rollout, settings)


def row_of(method: str) -> Row:
    """The row of a method that guides."""
    guided, plain = STEPS[method]
    return Row(
        name="guided_step" if method == "ghpo" else f"guided_step_{method}",
        work=f"{guided} steps of {method} beside {plain} of grpo, with as many sampled tokens: Llama of 4 layers, width 128, "
        "53 characters; 32 x 8 answers of 24 tokens, half of the guided groups fail and are asked again with a hint",
        unit="s for as many tokens",
        ours=Side(f"upslope {method}", run_guided, (Setting("1 thread"),)),
        peer=Side("upslope grpo", run_grpo, (AsOurs("1 thread"),)),
        given=GuidedWork(method),
        window=1,
        exact=("samples", "tokens"),
        wanted=0.91,
        goal="by sampled token at most 1.1 times what a step of grpo costs (a ratio of 0.91) is wanted",
    )


ROW = row_of("ghpo")

if __name__ == "__main__":
    parser = arguments(ROW)
    parser.add_argument("--method", choices=list(STEPS), default="ghpo")
    asked = parser.parse_args()
    main(row_of(asked.method), asked)
