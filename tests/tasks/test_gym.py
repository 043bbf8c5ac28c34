"""Gymnasium environments as tasks: what they say about themselves, and what is refused in words."""

from __future__ import annotations

import subprocess
import sys

import pytest

from upslope.errors import MissingExtra, TaskError
from upslope.tasks.gym import GymTask


def test_what_a_task_says_about_itself():
    task = GymTask("CartPole-v1")
    assert (task.name, task.domain, task.observation_size, task.action_size) == ("gym:CartPole-v1", "control", 4, 2)
    assert (task.max_episode_steps, task.solved, task.continuous) == (500, 475.0, False)
    assert GymTask("CartPole-v1", max_episode_steps=7).max_episode_steps == 7
    assert GymTask("Pendulum-v1").continuous


@pytest.mark.parametrize(
    ("env", "suggestion"), [("CartPol-v1", "CartPole-v1"), ("halfcheetah", "HalfCheetah-v5"), ("HalfCheetah-v3", "HalfCheetah-v5")]
)
def test_an_unknown_environment_is_refused_with_the_nearest(env, suggestion):
    with pytest.raises(TaskError, match=f"{env!r}.*Did you mean '{suggestion}'"):
        GymTask(env)


def test_an_option_the_environment_does_not_know_is_quoted():
    with pytest.raises(TaskError, match="gravitas=3"):
        GymTask("CartPole-v1", gravitas=3)


def test_a_missing_gymnasium_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    with pytest.raises(MissingExtra, match=r"pip install -e '.*\[control\]'"):
        GymTask("CartPole-v1")


def test_looking_at_the_task_module_imports_neither_torch_nor_gymnasium():
    code = "import sys, upslope.tasks.gym; print([name for name in ('torch', 'gymnasium') if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"
