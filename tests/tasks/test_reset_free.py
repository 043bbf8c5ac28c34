"""Two tasks that take turns in an environment that is reset once."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pushed_and_back
import pytest
from pushed_and_back import STEPS, Kept, Pushed, is_back

import upslope as up
from upslope.errors import Remark, TaskError, UserError
from upslope.given import task_argument
from upslope.tasks import load_task
from upslope.testing.runs import Breaks, Crash, assert_same_run, experience, random_dataset

FILE = Path(pushed_and_back.__file__)
PAIR, WITHOUT, FORWARD = (f"{FILE}:{name}" for name in ("pair", "pair_without_state", "forward"))
KNOBS = {
    "policy.hidden": (8,), "models.q.network.hidden": (8,), "models.q.network.members": 2, "acting.steps": 8,
    "policy.pair": True, "models.q.network.pair": True, "models.temperature.pair": True,
}  # fmt: skip
SIZES = {
    "steps": 4,
    "horizon": 20,
    "updates_per_step": 6,
    "minibatch": 16,
    "eval_problems": 2,
    "checkpoint_every": 2,
    "eval_every": 2,
}


def push(env: Any, *actions: float) -> list[tuple[float, float, bool, bool]]:
    """What came of pushes: the number of the task, reward, ended, cut."""
    found = []
    for action in actions:
        seen, reward, ended, cut, _ = env.step(np.array([action], np.float32))
        found.append((float(seen[-1]), reward, ended, cut))
    return found


class Certain(Kept):
    """Without drift."""

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        self.place += 0.5 * float(action[0])
        self.steps += 1
        there = self.place > 1.0
        return self.seen(), float(there), there, self.steps >= 5, {}


def test_the_tasks_take_turns_and_each_begins_where_the_other_ended():
    env = up.reset_free(Certain(), is_back, STEPS)
    seen, _ = env.reset(seed=1)
    start = env.unwrapped.place
    assert seen.dtype == np.float32 and seen.tolist() == [np.float32(start), 0.0, 0.0] and env.observation_space.contains(seen)
    assert push(env, 0.9, 0.9, 0.9) == [(0, 0, False, False), (0, 0, False, False), (0, 1, True, False)]
    seen, _ = env.reset()
    assert env.unwrapped.place == pytest.approx(start + 1.35) and seen[-1] == 1 and seen[0] == np.float32(env.unwrapped.place)
    assert push(env, -1, -1, -1)[-1] == (1, 1, True, False), "the way back pays where it is back"
    assert env.reset()[0][-1] == 0
    idle = push(env, *[0] * STEPS)
    assert idle[:-1] == [(0, 0, False, False)] * (STEPS - 1) and idle[-1] == (0, 0, False, True), "its own limit no longer counts"
    assert env.reset()[0][-1] == 1, "a phase that was cut is over too"
    assert push(env, -1) == [(1, 1, True, False)]
    assert env.unwrapped.resets == 1


def test_in_the_middle_of_a_phase_a_reset_goes_on():
    env = up.reset_free(Certain(), is_back, STEPS)
    env.reset(seed=1)
    before = push(env, 0, 0)
    place = env.unwrapped.place
    seen, _ = env.reset(seed=5)
    assert seen[-1] == 0 and env.unwrapped.place == place and not any(ended or cut for _, _, ended, cut in before)
    assert push(env, 0, 0, 0, 0)[-1] == (0, 0, False, True), "the steps before it count"
    assert env.unwrapped.resets == 1


def test_a_reset_with_a_seed_begins_its_random_numbers_anew():
    env = up.reset_free(Kept(), is_back, STEPS)
    env.reset(seed=1)
    push(env, 0, 0)
    env.reset(seed=9)
    assert env.unwrapped.np_random.normal() == np.random.Generator(np.random.PCG64(9)).normal()


def test_forward_alone_is_reset_for_each_episode():
    env = up.reset_free(Certain(), is_back, STEPS, forward_only=True)
    env.reset(seed=1)
    push(env, 1, 1, 1)
    assert env.reset(seed=1)[0][-1] == 0 and env.unwrapped.resets == 2 and abs(env.unwrapped.place) < 0.31


def trained(out: Path, task: Any = PAIR, method: str = "sac", **more: Any) -> Any:
    knobs = {key: value for key, value in KNOBS.items() if method == "serl" or "members" not in key}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Remark)
        return up.train(method, task, knobs=knobs, out=out, record="none", **{**SIZES, **more})


def test_a_run_resets_each_of_its_environments_once(tmp_path: Path):
    """With checkpoints and evaluations between, whose environments are their own."""
    Pushed.made.clear()
    data = random_dataset(PAIR).save(tmp_path / "random")
    run = trained(tmp_path / "run", lambda: pushed_and_back.pair(), method="serl", data=str(data), checkpoint_every=1)
    assert run.metrics[-1]["env_steps"] == 80
    assert [env.resets for env in Pushed.made if env.steps == 80] == [1], "it was acted in from the first to the last step"
    assert all(env.resets <= 1 for env in Pushed.made)
    ends = np.frombuffer((run.path / "experience" / "0.ended").read_bytes(), np.int8)
    seen = np.frombuffer((run.path / "experience" / "0.observation").read_bytes(), np.float32).reshape(-1, 3)
    begins = np.flatnonzero(ends[:-1] == -1) + 1
    assert len(begins) > 8 and {0.0, 1.0} == set(seen[:, 2].tolist())
    assert np.array_equal(seen[begins, :2], seen[begins - 1, :2]), "each episode begins where the last one ended"


@pytest.mark.parametrize("method", ["sac", pytest.param("ppo", marks=pytest.mark.slow)])
def test_resuming_equals_never_stopping_where_the_environment_says_where_it_is(method: str, tmp_path: Path):
    if method == "ppo":

        def train(out: Path, **more: Any) -> Any:
            return up.train("ppo", PAIR, out=out, record="none", envs=2, **{**SIZES, "minibatch": 10, **more})
    else:

        def train(out: Path, **more: Any) -> Any:
            return trained(out, **more)

    whole = train(tmp_path / "whole")
    with pytest.raises(Crash):
        train(tmp_path / "cut", watcher=Breaks(3))
    up.resume(tmp_path / "cut")
    assert_same_run(whole.path, tmp_path / "cut")


@pytest.mark.slow
def test_an_environment_that_does_not_say_where_it_is_goes_on_from_a_reset(tmp_path: Path):
    told: Any = load_task(WITHOUT)
    assert any(
        "is not reset, and it has no get_state() and set_state(): a run that is interrupted" in line for line in told.remarks
    )
    whole = trained(tmp_path / "whole", WITHOUT)
    with pytest.raises(Crash):
        trained(tmp_path / "cut", WITHOUT, watcher=Breaks(3))
    up.resume(tmp_path / "cut")
    one, other = experience(whole.path), experience(tmp_path / "cut")
    at_checkpoint = 2 * SIZES["horizon"] * 4  # bytes of rewards
    assert one["0.reward"][:at_checkpoint] == other["0.reward"][:at_checkpoint] and one["0.observation"] != other["0.observation"]


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_where_environments_are_is_kept_and_restored_in_any_process(workers: int):
    task: Any = load_task(PAIR)
    assert task.is_pair and task.max_episode_steps == STEPS and not task.remarks
    envs, again = task.make(2), task.make(2, workers)
    assert envs.states() is None, "nothing was reset yet"
    for env in range(2):
        envs.reset(env, env)
    envs.step(np.full((2, 1), 0.7, np.float32), [0, 1])
    states = envs.states()
    for env in (1, 0):
        again.restore(env, states[env])
    assert again.states() == states
    for env in (0, 1):
        assert np.array_equal(envs.reset(env, 5), again.reset(env, 5))
    for _ in range(STEPS - 1):
        one, other = (each.step(np.full((2, 1), -0.1, np.float32), [0, 1]) for each in (envs, again))
        assert all(np.array_equal(mine, theirs) for mine, theirs in zip(one, other, strict=True))
    assert one.truncated.tolist() == [True, True]
    envs.close()
    again.close()


def test_others_keep_nothing():
    task: Any = load_task("gym:Pendulum-v1")
    envs = task.make(1)
    envs.reset(0, 1)
    assert envs.states() is None and not task.is_pair
    envs.close()


def test_judged_forward(tmp_path: Path):
    run = trained(tmp_path / "run", test_task=FORWARD, steps=1)
    assert 0 <= run.summary["score_after"] <= 1


def test_an_environment_given_in_python_is_made_again():
    task = task_argument(up.reset_free(gymnasium.make("Pendulum-v1"), is_back, 7), "")[2].task
    assert task.is_pair and task.observation_size == 4 and task.max_episode_steps == 7
    envs = task.make(2)
    assert [envs.reset(env, env)[-1] for env in range(2)] == [0, 0]
    envs.close()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("Pendulum-v1", is_back, 5), r"reset_free was given 'Pendulum-v1', which is no gymnasium\.Env"),
        ((gymnasium.make("FrozenLake-v1"), is_back, 5), r"the observations here are Discrete\(16\)\. Put gymnasium's FlattenObs"),
        ((Pushed(), 0.5, 5), r"backward is 0\.5; it must be a function of an observation"),
        ((Pushed(), is_back, 0), r"steps is 0; it must be a whole number of steps of a phase, at least 1"),
        ((Pushed(), is_back, 2.5), r"steps is 2\.5; it must be a whole number"),
    ],
)
def test_what_cannot_be_is_refused(arguments: tuple, said: str):
    with pytest.raises(TaskError, match=said):
        up.reset_free(*arguments)


def test_a_pair_of_networks_wants_a_pair_of_tasks(tmp_path: Path):
    with pytest.raises(
        UserError, match=r"policy\.pair is for two tasks that take turns, and gym:Pendulum-v1 is one\. Make it with up"
    ):
        up.train("sac", "gym:Pendulum-v1", knobs={"policy.pair": True}, out=tmp_path / "run", **SIZES)
