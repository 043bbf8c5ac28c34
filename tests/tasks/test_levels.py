"""Levels: each episode has a physics of its own, drawn by a counter; evaluation goes evenly through the ranges."""

from __future__ import annotations

import json

import numpy as np
import pytest

import upslope as up
from upslope.errors import TaskError
from upslope.policies.control.mlp import MLPPolicy
from upslope.rollout.environments import evaluate_control
from upslope.tasks import load_task
from upslope.tasks.gym import GymTask
from upslope.tasks.levels import Level, Levels
from upslope.tasks.physics import Change

SMALL = dict(steps=1, envs=2, horizon=64, passes=1, eval_problems=4, threads=1)


def levels(spec: str) -> Levels:
    return load_task(f"gym:{spec}").levels


def test_ranges_choices_factors_and_seeds_are_read_and_named():
    task = load_task("gym:Pendulum-v1:levels.gravity=[8,12],levels.length=0.5/1/2,levels.mass=[0.8x,1.2x],levels.seed=[0,100)")
    text = "levels.gravity=[8,12],levels.length=0.5/1/2,levels.mass=[0.8x,1.2x],levels.seed=[0,99]"
    assert task.name == f"gym:Pendulum-v1:{text}"
    assert load_task(task.name).levels == task.levels  # what a run keeps brings the same levels back
    assert GymTask("Pendulum-v1", **{"levels.gravity": (8, 12)}).name == "gym:Pendulum-v1:levels.gravity=[8,12]"


def test_a_level_is_a_function_of_its_number_and_uniform_in_its_range():
    found = levels("Pendulum-v1:levels.gravity=[8,12],levels.length=0.5/1/2,levels.seed=[3,5]")
    assert found.draw(7) == found.draw(7) != found.draw(8)
    drawn = [found.draw(number) for number in range(400)]
    gravity, length = ([level.changes[place].value for level in drawn] for place in (0, 1))
    assert 8 <= min(gravity) < 8.1 and 11.9 < max(gravity) < 12 and abs(np.mean(gravity) - 10) < 0.2
    assert {each: length.count(each) > 90 for each in set(length)} == {0.5: True, 1.0: True, 2.0: True}
    assert {level.seed for level in drawn} == {3, 4, 5}


def test_evaluation_takes_the_middles_of_equal_parts_of_every_range():
    found = levels("Pendulum-v1:levels.gravity=[8,12],levels.length=0.5/1,levels.seed=[0,3]")
    spread = [found.spread(number, 4) for number in range(4)]
    assert [level.changes[0].value for level in spread] == [8.5, 9.5, 10.5, 11.5]
    assert sorted(level.changes[1].value for level in spread) == [0.5, 0.5, 1.0, 1.0]
    assert sorted(level.seed for level in spread) == [0, 1, 2, 3]
    assert spread == [found.spread(number, 4) for number in range(4)]


def test_the_hash_of_a_level_is_its_own():
    one, other = Level((Change("gravity", 8.0, False),)), Level((Change("gravity", 8.0, True),))
    ids = {level.task_id("gym:Pendulum-v1") for level in (one, other, Level((), 3), Level())} | {one.task_id("gym:Hopper-v5")}
    assert len(ids) == 5 and one.task_id("a") == Level((Change("gravity", 8.0, False),)).task_id("a")


@pytest.mark.parametrize(
    "spec",
    [
        "Pendulum-v1:levels.gravity=[5,15],levels.length=[0.5x,2x]",
        "CartPole-v1:levels.masspole=[0.1x,5x],levels.length=0.25/1",
        "Hopper-v5:levels.gravity=[0.5x,1.5x],levels.body_mass=[0.5x,2x]",
    ],
)
def test_an_episode_goes_as_in_an_environment_made_with_that_physics(spec: str):
    """Factors are of the environment as it was made: the level before leaves no trace."""
    task = load_task(f"gym:{spec}")
    places = task.make(1)
    for number in (0, 1, 0):
        level = task.levels.draw(number)
        single = load_task(f"{task.source.name}:{','.join(map(str, level.changes))}").make(1)
        seen, theirs = places.reset(0, 5, level), single.reset(0, 5)
        for step in range(20):
            assert np.array_equal(seen, theirs), (number, step)
            action = np.zeros((1, task.action_size), np.float32) if task.continuous else np.array([step % 2])
            seen, theirs = (each.step(action, [0]).observation[0] for each in (places, single))
        single.close()
    places.close()


def test_without_a_level_the_seed_draws_one_and_a_seed_of_the_level_is_the_episodes():
    task = load_task("gym:Pendulum-v1:levels.gravity=[8,12],levels.seed=[0,9]")
    places = task.make(2)
    first = places.reset(0, 123)
    assert places.level(0) == task.levels.draw(123)
    assert np.array_equal(places.reset(1, 77, places.level(0)), first)  # the level's seed, not the caller's
    before = places.level(0)
    places.reset(0)
    assert places.level(0) == before
    places.close()


def test_a_seed_alone_lays_out_a_maze():
    task = load_task("gym:MiniGrid-SimpleCrossingS9N1-v0:levels.seed=[0,9]")
    places = task.make(2)
    layouts = {tuple(places.reset(0, number, task.levels.spread(number, 10))) for number in range(10)}
    again = places.reset(1, 5, task.levels.spread(0, 10))
    assert len(layouts) > 1 and tuple(again) in layouts
    places.close()


def test_other_processes_play_the_same_levels():
    task, found = load_task("gym:Pendulum-v1:levels.gravity=[5,15]"), []
    for workers in (1, 2):
        places = task.make(2, workers)
        for env in range(2):
            places.reset(env, 3, task.levels.draw(env))
        found.append(np.stack([places.step(np.ones((2, 1), np.float32), [0, 1]).observation for _ in range(10)]))
        places.close()
    assert np.array_equal(*found) and not np.array_equal(found[0][:, 0], found[0][:, 1])


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("Pendulum-v1:levels.gravity=12", r"levels.gravity is 12; it must be a range, as in levels.gravity=\[8,12\]"),
        ("Pendulum-v1:levels.gravity=[12,8]", r"levels.gravity is \[12,8\]; a range goes from a smaller value to a larger one"),
        ("Pendulum-v1:levels.gravity=[8,9,10]", r"levels.gravity is \[8, 9, 10\]; it must be a range"),
        ("Pendulum-v1:levels.gravity=[8,2x]", r"levels.gravity is '\[8,2x\]'; it must be a range"),
        ("Pendulum-v1:levels.gravity=[8,nan]", r"it must be a range"),
        ("Pendulum-v1:levels.length=1/1", r"levels.length is 1/1, which names a value twice"),
        ("Pendulum-v1:levels.gravity=[-3,8]", r"levels.gravity=\[-3,8\] must be at least 0"),
        ("Pendulum-v1:levels.mass=[0,2]", r"levels.mass=\[0,2\] must be above 0"),
        ("Pendulum-v1:levels.gravty=[1,2]", r"no parameter 'gravty'. Did you mean 'gravity'\?"),
        ("Pendulum-v1:levels.max_torque=[1,2]", r"levels.max_torque=\[1,2\] changes which actions there are"),
        ("Pendulum-v1:levels.seed=[0.5,2]", r"levels.seed is \[0.5,2\]; seeds are whole numbers from 0 on"),
        ("Pendulum-v1:levels.seed=[-1,2]", r"seeds are whole numbers from 0 on"),
        ("Pendulum-v1:params.gravity=3,levels.gravity=[1,2]", r"params.gravity sets what levels.gravity draws anew"),
        ("Hopper-v5:levels.body_mass=[1,2]", r"levels.body_mass=\[1,2\]: it has 5 values; multiply them by a factor"),
        ("FrozenLake-v1:levels.gravity=[1,2]", r"no physics that can be set.* Levels of it are levels.seed=\[0,99\]"),
    ],
)
def test_what_is_no_level_is_refused_with_its_value(spec: str, said: str):
    with pytest.raises(TaskError, match=rf"gym:{spec.partition(':')[0]}.*{said}"):
        load_task(f"gym:{spec}")


def test_evaluation_spreads_its_episodes_over_the_levels():
    task = load_task("gym:Pendulum-v1:levels.gravity=[0,20],levels.length=1/2")
    policy = MLPPolicy.for_task(task)
    returns = evaluate_control(task, policy, None, episodes=4, seed=3, envs=2)
    for number, found in enumerate(returns):
        level = task.levels.spread(number, 4)
        single = load_task(f"gym:Pendulum-v1:{','.join(map(str, level.changes))}")
        alone = evaluate_control(single, policy, None, episodes=4, seed=3, envs=1)
        assert alone[number] == pytest.approx(found, rel=1e-5)
    assert len(set(returns)) == 4


@pytest.mark.parametrize("method", ["ppo", "sac"])
def test_a_run_learns_in_levels_and_is_judged_in_one_world(tmp_path, monkeypatch: pytest.MonkeyPatch, method: str):
    monkeypatch.chdir(tmp_path)
    sizes = SMALL if method == "ppo" else dict(steps=1, horizon=450, updates_per_step=4, eval_problems=2, threads=1)
    run = up.train(method, "gym:Pendulum-v1:levels.gravity=[8,12]", test_task="gym:Pendulum-v1:params.gravity=12", **sizes)
    assert run.path.name == f"{method}-gym-Pendulum-v1-levels.gravity-8-12-0"
    assert run.components.test_task.make_one().unwrapped.g == 12.0 and not run.components.test_task.levels
    rollout = run.components.rollout
    drawn = [rollout._levels.levels.draw(number).changes[0].value for number in range(3)]
    assert all(8 <= value <= 12 for value in drawn) and rollout._levels.playing[0] is not None


def test_the_recorded_episode_says_its_level_and_is_drawn_in_it(tmp_path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    run = up.train("ppo", "gym:Pendulum-v1:levels.gravity=[8,12]", **SMALL)
    record = json.loads((run.path / "episodes" / "step-000001.json").read_text())
    level = load_task(run.table["task"]).levels.draw(record["seed"])
    assert record["level"] == level.values() and 8 <= record["level"]["gravity"] <= 12
    told = [json.loads(line) for line in (run.path / "samples.jsonl").read_text().splitlines()]
    assert all(len(each["episode_levels"]) == len(each["episode_returns"]) for each in told if "episode_returns" in each)
