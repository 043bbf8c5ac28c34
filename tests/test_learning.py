"""Every method of the catalogue learns: a language model from text problems, a controller from an environment."""

import pytest

import upslope as up
from upslope.methods import catalogue

TEXT = {"task": "reverse:length=3,letters=6", "model": "tiny:width=96", "warm_start": 0.3, "lr": 5e-4, "steps": 40,
        "tasks_per_step": 24, "updates_per_step": 2, "eval_problems": 200}  # fmt: skip
"""Short answers, so the sequence ratio needs a wider region than its paper's: 0.2 / sqrt(4)."""
SHORT = {"gspo": {"surrogate.low": 0.1, "surrogate.high": 0.14}}


@pytest.mark.slow
@pytest.mark.learns(seconds=15)
@pytest.mark.parametrize("method", [name for name, method in catalogue().items()])
def test_every_method_improves_a_tiny_language_model(method, tmp_path):
    knobs = SHORT.get(method, {"surrogate.sequence.low": 0.1, "surrogate.sequence.high": 0.14} if "dhpo" in method else {})
    run = up.train(method, **TEXT, knobs=knobs, out=tmp_path)
    before, after = run.summary["score_before"], run.summary["score_after"]
    low = run.summary["score_after_interval"][0]
    assert low > before + 0.1, f"{method}: {before:.2f} -> {after:.2f}"


@pytest.mark.slow
@pytest.mark.learns(seconds=40)
def test_ppo_solves_cartpole(tmp_path):
    run = up.train("ppo", "gym:CartPole-v1", out=tmp_path)
    assert run.summary["score_after"] >= 475
    assert run.metrics[-1]["env_steps"] <= 60_000


@pytest.mark.slow
@pytest.mark.learns(seconds=60)
@pytest.mark.parametrize(("task", "steps", "better"), [("gym:Pendulum-v1", 40, 300.0), ("gym:Hopper-v5", 25, 100.0)])
def test_ppo_learns_continuous_control(task, steps, better, tmp_path):
    run = up.train("ppo", task, steps=steps, eval_problems=20, out=tmp_path)
    assert run.summary["score_after"] > run.summary["score_before"] + better
