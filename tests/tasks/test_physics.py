"""Another physics: what is changed is what the simulator computes with, wherever the task goes."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest

import upslope as up
from upslope.errors import TaskError
from upslope.tasks import load_task

SMALL = dict(steps=1, envs=2, horizon=8, passes=1, eval_problems=2, threads=1)


def moved(task, workers: int = 1) -> np.ndarray:
    """Where two environments are after some steps, and after another episode's beginning."""
    places = task.make(2, workers)
    try:
        found = []
        for episode in range(2):
            for env in range(2):
                places.reset(env, 7 + env + episode)
            for step in range(6):
                value = np.sin(np.arange(2 * task.action_size) + step).reshape(2, -1).astype(np.float32)
                action = value if task.continuous else (value[:, 0] > 0).astype(np.int64)
                found.append(places.step(action, [0, 1]).observation)
        return np.stack(found)
    finally:
        places.close()


@pytest.mark.parametrize("how", ["gravity=12", "gravity=1.2x"])
def test_a_number_is_set_or_multiplied(how: str):
    task = load_task(f"gym:Pendulum-v1:params.{how}")
    assert task.name == f"gym:Pendulum-v1:params.{how}"
    assert task.make_one().unwrapped.g == 12.0
    theirs, found = gymnasium.make("Pendulum-v1", g=12.0), moved(task)
    theirs.reset(seed=7)
    for step in range(6):
        wanted, *_ = theirs.step(np.sin(np.arange(1) + step).astype(np.float32))
        assert (found[step, 0] == wanted).all()


@pytest.mark.parametrize(
    "spec",
    [
        "CartPole-v1:params.gravity=3x",
        "CartPole-v1:params.masspole=0.4,params.length=2x",
        "Acrobot-v1:params.LINK_MASS_1=2x",
        "MountainCar-v0:params.force=2x",
        "MountainCarContinuous-v0:params.power=2x",
        "Pendulum-v1:params.mass=2,params.length=0.5x",
        "Hopper-v5:params.gravity=1.5x",
        "HalfCheetah-v5:params.body_mass=2x",
        "HalfCheetah-v5:params.geom_friction=0.1x",
        "HalfCheetah-v5:params.dof_damping=0x",
        "HalfCheetah-v5:params.actuator_gear=0.5x",
        "AntMaze_UMaze-v5:params.gravity=2x",
        "pointmaze-medium-v0:params.actuator_gear=2x",
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_the_simulation_goes_another_way_in_every_episode(spec: str):
    plain, changed = (moved(load_task(f"gym:{each}")) for each in (spec.partition(":")[0], spec))
    assert plain.shape == changed.shape
    for first in (0, 6):
        assert not np.array_equal(plain[first : first + 6], changed[first : first + 6])


def test_what_depends_on_a_parameter_follows_it():
    pole = load_task("gym:CartPole-v1:params.masspole=0.4,params.length=2x").make_one().unwrapped
    assert (pole.total_mass, pole.polemass_length) == (1.4, 0.4)
    strong = load_task("gym:Pendulum-v1:params.max_torque=3")
    assert strong.action_space.high.tolist() == [3.0] and strong.action_space.dtype == np.float32
    hopper, plain = (load_task(f"gym:Hopper-v5{each}").make_one().unwrapped.model for each in (":params.body_mass=2x", ""))
    assert np.allclose(hopper.body_subtreemass, 2 * plain.body_subtreemass) and np.allclose(
        hopper.body_inertia, 2 * plain.body_inertia
    )
    heavy = load_task("gym:Hopper-v5:params.gravity=20").make_one().unwrapped.model
    assert heavy.opt.gravity.tolist() == [0.0, 0.0, -20.0]


def test_a_factor_of_one_changes_no_bit():
    names = ("gravity", "body_mass", "geom_friction", "dof_damping", "actuator_gear")
    same = ",".join(f"params.{name}=1x" for name in names)
    assert np.array_equal(moved(load_task("gym:Hopper-v5")), moved(load_task(f"gym:Hopper-v5:{same}")))


def test_other_processes_have_it_too():
    task = load_task("gym:Hopper-v5:params.gravity=1.5x")
    assert np.array_equal(moved(task), moved(task, workers=2))


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("Hopper-v5:params.gravty=2x", r"no parameter 'gravty'. Did you mean 'gravity'\? It has: gravity \(9.81\), body_mass"),
        ("Pendulum-v1:params.g=2", r"It has: gravity \(10\), mass \(1\), length \(1\), max_torque \(2\)"),
        ("Hopper-v5:params.body_mass=3", r"5 values; multiply them by a factor, as in params.body_mass=1.5x"),
        ("Hopper-v5:params.gravity=-9.81", r"params.gravity=-9.81 must be at least 0"),
        ("Pendulum-v1:params.mass=0", r"params.mass=0 must be above 0"),
        ("Pendulum-v1:params.mass=heavy", r"params.mass is 'heavy'; it must be a number, as in params.gravity=12, or a factor"),
        ("Pendulum-v1:params.mass=true", r"params.mass is True"),
        ("FrozenLake-v1:params.gravity=3", r"no physics that can be set"),
    ],
)
def test_what_cannot_be_set_is_told_with_what_can(spec: str, said: str):
    with pytest.raises(TaskError, match=rf"gym:{spec.partition(':')[0]}.*{said}"):
        load_task(f"gym:{spec}")


def test_a_run_keeps_it(tmp_path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    run = up.train("ppo", "gym:Pendulum-v1:params.gravity=12", **SMALL)
    assert run.path.name == "ppo-gym-Pendulum-v1-params.gravity12-0"
    assert run.table["task"] == "gym:Pendulum-v1:params.gravity=12"
    again = up.load(run.path)
    assert again.policy is not None and again.components.task.make_one().unwrapped.g == 12.0
    (run.path / "summary.json").unlink()
    longer = up.resume(run.path, steps=2)
    assert longer.components.task.make_one().unwrapped.g == 12.0
