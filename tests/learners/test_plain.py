"""``--plain`` switches every fast path off together, and the run is the same to rounding."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import torch
from fast_methods import few_fast

import upslope as up
from upslope.learners.policy_gradient import PolicyGradient
from upslope.methods import catalogue, find
from upslope.policies.control.mlp import MLPPolicy
from upslope.runtime.settings import Settings
from upslope.setting_up import set_up
from upslope.tasks.text import Scores
from upslope.testing.runs import sums

TEXT = Settings(tasks_per_step=3, samples_per_task=4, warm_start=0.0, eval_problems=4, max_tokens=5, steps=10, lr=1e-3, warmup=0,
                updates_per_step=2, watch_kl=False)  # fmt: skip
CONTROL = Settings(steps=4, envs=4, horizon=32, minibatch=16, passes=3, eval_problems=1, lr=1e-3, warmup=0)


class Letters:
    """Pays for letters, so that an untrained model's groups differ, and tells a time that is the same in every run."""

    tells_seconds = True

    def __init__(self, task):
        self.task = task

    def __getattr__(self, name):
        return getattr(self.task, name)

    def score(self, problems, responses):
        reward = [sum(map(str.isalpha, response)) / 5 for response in responses]
        return Scores(reward, [r > 0.5 for r in reward], {}, seconds=[1.0 + len(response) % 3 for response in responses])


MANY = {"tp-llama": 12, "itool": 12}
"""Problems of a step where a few may give nothing to learn from: one must be answered wrongly, and then rightly."""


def text_learner(name: str, plain: bool, folder: Path) -> PolicyGradient:
    task = "reverse"
    if any(part.needs_of_task & {"documents", "several categories"} for _, part in find(name).parts()):
        task = str(folder / "sums.jsonl")
        Path(task).write_text("".join(json.dumps(line) + "\n" for line in sums()))
    made = set_up(
        find(name), task, "tiny:layers=1,width=32", dataclasses.replace(TEXT, plain=plain, tasks_per_step=MANY.get(name, 3))
    )
    made.rollout.task = Letters(made.task)
    return PolicyGradient(made.method, made.policy, made.rollout, made.settings, made.policy.frozen_copy())


def flat(made: PolicyGradient) -> torch.Tensor:
    return torch.cat([p.detach().flatten().clone() for group in made.policy.trainable().values() for p in group])


@pytest.mark.parametrize("name", few_fast(name for name, method in catalogue().items() if method.learner == "policy-gradient"))
def test_a_step_on_text_is_the_same_with_and_without_fast_paths(name, tmp_path):
    moved, tokens = [], []
    for plain in (False, True):
        made = text_learner(name, plain, tmp_path)
        assert (made.policy.body is None) is plain
        # Adam makes a step of a rounding error's sign; the gradients themselves are what must agree.
        groups = [{**group, "lr": 0.0} for group in made.optimizer.param_groups]
        made.optimizer_step.optimizer = torch.optim.SGD(groups, lr=0.0)
        before = flat(made)
        made.step(1)
        assert plain is False or not made.policy.kept.passes
        moved.append(flat(made) - before)
        tokens.append(None if made.last is None else made.last.action)
    assert tokens[0] is None or tokens[0].equal(tokens[1]), "the same answers are sampled"
    assert moved[0].any(), "it learns something"
    torch.testing.assert_close(moved[1], moved[0], rtol=2e-3, atol=2e-7)


@pytest.mark.parametrize("task", ["gym:CartPole-v1", "gym:Pendulum-v1"])
@pytest.mark.parametrize("name", ["ppo", "bpo"])
def test_a_step_of_control_is_the_same_with_and_without_fast_paths(name, task):
    after = []
    for plain in (False, True):
        made = set_up(find(name), task, "tiny", dataclasses.replace(CONTROL, plain=plain))
        learner = PolicyGradient(made.method, made.policy, made.rollout, made.settings)
        objective = learner.updater(learner.method).objective  # type: ignore[attr-defined]
        assert objective._repeats is not plain and (type(learner.optimizer) is torch.optim.AdamW) is plain
        metrics = learner.step(1)
        after.append((flat(learner), metrics["grad_norm"], metrics["kl_proximal"]))
    torch.testing.assert_close(after[1][0], after[0][0], rtol=1e-3, atol=2e-5)
    assert after[1][1] == pytest.approx(after[0][1], rel=1e-4) and after[1][2] == pytest.approx(after[0][2], rel=1e-3)


@pytest.mark.parametrize("activation", ["tanh", "relu", "silu"])
@pytest.mark.parametrize("continuous", [False, True])
def test_the_plain_network_acts_and_judges_alike(continuous, activation):
    policy = MLPPolicy(3, 2, continuous, hidden=(8, 8), activation=activation, seed=3)
    policy.add_value_head(4)
    observation, noise = torch.randn(5, 3), torch.randn(5, 2) if continuous else torch.rand(5)
    fast = policy.act(observation, noise)
    policy.plain = True
    plain = policy.act(observation, noise)
    for name in ("action", "logp", "entropy", "value"):
        torch.testing.assert_close(getattr(plain, name), getattr(fast, name))


def test_a_plain_run_says_so_and_resumes(tmp_path):
    sizes = {"steps": 2, "tasks_per_step": 2, "samples_per_task": 2, "warm_start": 0.0, "eval_problems": 2, "threads": 1}
    run = up.train("grpo", "reverse:length=2", model="tiny:layers=1,width=16", plain=True, out=tmp_path / "run", **sizes)
    assert run.plan.settings.plain and "plain = true" in (run.path / "run.toml").read_text()
