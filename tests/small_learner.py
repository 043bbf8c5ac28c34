"""The learner of a small language model that is paid for letters, so that its first step already has something to learn."""

from __future__ import annotations

import torch

from upslope.learners.policy_gradient import PolicyGradient
from upslope.methods import find
from upslope.runtime.settings import Settings
from upslope.setting_up import set_up
from upslope.tasks.text import Scores
from upslope.types import Method

SIZES = Settings(tasks_per_step=4, samples_per_task=4, warm_start=0.0, eval_problems=4, max_tokens=5, steps=10, lr=1e-3, warmup=0)


class Paid:
    """Pays for letters, so that an untrained model's groups differ; ``flat`` problems of the first round pay the same for all. It
    tells how long each answer took, the same every time."""

    tells_seconds = True

    def __init__(self, task, flat=(), always=False):
        self.task, self.flat, self.name, self.max_tokens = task, set(flat), task.name, 5
        self.rounds, self.always, self.separator, self.answer_class = 0, always, task.separator, task.answer_class
        self.hints, self.guided, self.pair, self.compares = task.hints, task.guided, task.pair, False
        self.harder, self.easier, self.alike, self.revision = task.harder, task.easier, task.alike, task.revision

    def sample(self, *arguments):
        return self.task.sample(*arguments)

    def score(self, problems, responses):
        reward = [sum(map(str.isalpha, response)) / 5 for response in responses]
        names = list(dict.fromkeys(problem.prompt for problem in problems)) if not self.rounds or self.always else []
        self.rounds += 1
        reward = [1.0 if names and names.index(p.prompt) in self.flat else r for p, r in zip(problems, reward, strict=True)]
        return Scores(reward, [r == 1 for r in reward], {}, seconds=[1.0 + len(response) % 3 for response in responses])


def task_for(method: Method) -> str:
    """A task that gives what the method needs."""
    needs = {word for _, part in method.parts() for word in part.needs_of_task}
    return "rulebook" if "documents" in needs else "reverse+copy" if "several categories" in needs else "reverse"


def learner(method, settings=SIZES, flat=(), always=False, task="") -> PolicyGradient:
    method = find(method) if isinstance(method, str) else method
    bench = set_up(method, task or task_for(method), "tiny:layers=1,width=32", settings)
    bench.rollout.task = Paid(bench.task, flat, always)
    return PolicyGradient(bench.method, bench.policy, bench.rollout, bench.settings, bench.policy.frozen_copy())


def weights(made: PolicyGradient) -> torch.Tensor:
    return torch.cat([p.detach().flatten().clone() for group in made.policy.trainable().values() for p in group])
