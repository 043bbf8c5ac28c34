"""Updates that are replayed are the updates, to the last bit; where they would not be they are made one by one."""

import json
from dataclasses import dataclass

import image_environment
import numpy as np
import pytest
import torch

from upslope.errors import Remark
from upslope.learners.actor_critic import ActorCritic
from upslope.learners.cpu_graphed_updates import WARM
from upslope.learners.graphed_updates import recordable
from upslope.methods import catalogue, find
from upslope.objective import estimator
from upslope.objective.base import Controller
from upslope.objective.controller.schedule import LinearSchedule
from upslope.objective.critics.members import SmallestMember
from upslope.policies.control.own_module import OwnModule
from upslope.runtime.cpu_graph import CPUGraph
from upslope.runtime.python_objects import PythonObjects
from upslope.runtime.settings import Settings
from upslope.setting_up import set_up
from upslope.testing.drawn import kinds
from upslope.testing.runs import STORED, random_dataset
from upslope.testing.table_nets import small

STORED_METHODS = [name for name, method in catalogue().items() if method.learner == "actor-critic"]
TASKS = {"continuous": "gym:Pendulum-v1", "discrete": "gym:CartPole-v1"}


def learner(name: str, kind: str, plain: bool, updates: int = 50, **changes) -> ActorCritic:
    method = find(name)
    asks = method.offline or any(getattr(part, "needs_dataset", False) for _, part in method.parts())
    waits = {f"{path}.steps": 8 for path, part in method.held("acting") if getattr(part, "steps", 0) > 8}
    settings = Settings(**{**STORED, "offline_steps": 1 if asks else 0, "horizon": 10, "updates_per_step": updates, **changes})
    dataset = random_dataset(TASKS[kind]) if asks else None
    made = set_up(small(method).with_knobs(waits), TASKS[kind], "tiny", settings, dataset=dataset)
    made.policy.plain = plain
    return ActorCritic(made.method, made.policy, made.rollout, made.settings)


def told(metrics: dict[str, float]) -> dict[str, float]:
    return {name: value for name, value in metrics.items() if "second" not in name}


def same_weights(one: ActorCritic, other: ActorCritic) -> bool:
    weights = other.policy.weights()
    return all(torch.equal(weight, weights[name]) for name, weight in one.policy.weights().items())


def replays(name: str) -> bool:
    """Whether nothing of an update is outside torch, or another in each step."""
    method = find(name)
    remember = [part for part in estimator.stateful(method).values() if not isinstance(part, Controller)]
    return recordable(method) and not method.references and not remember


@pytest.mark.parametrize("name", STORED_METHODS)
def test_weights_and_metrics_are_those_of_updates_made_one_by_one(name):
    for kind in kinds(find(name)):
        fast, plain = learner(name, kind, False), learner(name, kind, True)
        for step in (1, 2):
            assert told(fast.step(step)) == told(plain.step(step))
        assert same_weights(fast, plain) and not fast.replayed.refused and not plain.replayed.kinds
        made = fast.replayed.kinds
        assert set(made) == (set(range(fast.replayed.cycle)) if replays(name) else set())
        assert all(each.trusted and each.made > WARM + 2 for each in made.values())
        assert torch.equal(fast.last.inputs.observation, plain.last.inputs.observation)


@pytest.mark.parametrize(("name", "task"), [("dqn", "Beacon"), ("sac", "Steered")])
def test_from_images_too(name, task):
    found = []
    for plain in (False, True):
        settings = Settings(steps=4, envs=2, horizon=10, updates_per_step=12, minibatch=4, seed=3)
        knobs = {"acting.0.steps": 8, "models.q.network.encoder": "SmallCNN(features=8, channels=4)"}
        if name == "sac":  # crops at random, which are drawn outside of the update
            knobs |= {"policy.encoder": "SmallCNN(features=8, channels=4)", "data.augment": "RandomCrop()"}
        made = set_up(find(name), f"{image_environment.__file__}:{task}", "tiny", settings, knobs=knobs)
        made.policy.plain = plain
        found.append(ActorCritic(made.method, made.policy, made.rollout, made.settings))
    for step in (1, 2, 3):
        metrics = [told(made.step(step)) for made in found]
        assert metrics[0] == metrics[1]
    assert same_weights(*found) and not found[0].replayed.refused
    assert all(kind.trusted for kind in found[0].replayed.kinds.values())


def test_those_that_are_not_replayed():
    assert [name for name in STORED_METHODS if not replays(name)] == ["mdpo-off", "prdc"]


def test_the_learning_rate_of_each_step_is_the_one_that_counts():
    fast, plain = (learner("td3", "continuous", each, schedule="linear", lr_floor=0.1, steps=3, lr=1e-2) for each in (False, True))
    rates = [(fast.step(step)["lr"], plain.step(step)["lr"]) for step in (1, 2, 3)]
    assert len({rate for rate, _ in rates}) == 3 and same_weights(fast, plain)


def test_copies_that_move_seldom_move_between_replays():
    found = []
    for plain in (False, True):
        made = learner("dqn", "discrete", plain)
        made.policy.lags["q"] = (1.0, 70)
        made.replayed = type(made.replayed)(made.policy, made.method, made._learn)
        for step in (1, 2, 3):
            made.step(step)
        found.append(made)
    assert found[0].replayed.kinds[0].trusted and same_weights(*found)


def test_a_run_goes_on_from_a_checkpoint_with_the_same_numbers():
    whole, first, second = (learner("td3-bc", "continuous", False, offline_steps=4) for _ in range(3))
    for step in (1, 2, 3, 4):
        whole.step(step)
    for step in (1, 2):
        first.step(step)
    second.step(1)  # it has recorded something by then
    second.policy.load_weights(first.policy.weights())
    second.load_state(first.state())
    assert not second.replayed.kinds
    for step in (3, 4):
        second.step(step)
    assert same_weights(whole, second) and all(kind.trusted for kind in second.replayed.kinds.values())


def test_knobs_that_keep_moving_end_it():
    found = []
    for plain in (False, True):
        made = learner("td3", "continuous", plain)
        narrows = LinearSchedule(moves=("models.q.target.noise",), start=0.5, end=0.1)
        method = made.method.derive(name="blur", differs="a blur that narrows", controller=narrows)
        found.append(ActorCritic(method, made.policy, made.rollout, made.settings))
    for step in range(1, 7):
        metrics = [told(made.step(step)) for made in found]
        assert metrics[0] == metrics[1] and bool(found[0].replayed.kinds) is (step <= 3)
    assert found[0].replayed.refused == "knobs keep moving" and same_weights(*found)


def test_rows_of_another_size_begin_anew():
    fast, plain = learner("sac", "continuous", False), learner("sac", "continuous", True)
    for step, rows in ((1, 8), (2, 8), (3, 12), (4, 12)):
        for made in (fast, plain):
            made.settings = Settings(**{**made.settings.__dict__, "minibatch": rows})
            made.step(step)
    assert same_weights(fast, plain) and fast.replayed.kinds[0].trusted and len(fast.replayed._columns[0]) == 12


# -- what may not be replayed --------------------------------------------------------------------------------------------------


def with_work(change) -> tuple[ActorCritic, ActorCritic]:
    """Two learners whose updates do something more; one of them is told to make every update."""
    pair = learner("td3", "continuous", False), learner("td3", "continuous", True)
    for made in pair:
        learn = made._learn

        def more(rows, noise, number, sums, learn=learn, made=made):
            learn(rows, noise, number, sums)
            change(made, rows, number)

        made.replayed.learn = more
    return pair


def test_an_operation_that_cannot_be_called_again_is_told(monkeypatch):
    def broken(graph):
        raise RuntimeError("Expected another tensor\nin detail")

    fast, plain = learner("td3", "continuous", False), learner("td3", "continuous", True)
    monkeypatch.setattr(CPUGraph, "replay", broken)
    with pytest.warns(Remark, match=r"\(Expected another tensor\)"):
        assert told(fast.step(1)) == told(plain.step(1))
    assert same_weights(fast, plain) and fast.replayed.refused == "Expected another tensor"


@dataclass(frozen=True)
class Certain(SmallestMember):
    """A part of somebody else."""


class Wide(torch.nn.Module):
    """A network of somebody else."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(3, 8)

    def forward(self, seen):
        return self.layer(seen).tanh()


@pytest.mark.parametrize("own", ["part", "network"])
def test_what_a_user_wrote_is_not_recorded(own):
    """Python can do more in it than a recording shows."""
    method, settings = small(find("td3")), Settings(**{**STORED, "offline_steps": 0, "horizon": 10, "updates_per_step": 50})
    knobs = {"acting.0.steps": 8} | ({"models.q.over": Certain()} if own == "part" else {})
    objects = PythonObjects(model=OwnModule(Wide())) if own == "network" else None
    made = set_up(method, TASKS["continuous"], "tiny", settings, knobs=knobs, objects=objects)
    found = ActorCritic(made.method, made.policy, made.rollout, made.settings)
    found.step(1)
    assert found.updates > 2 * (WARM + 3) and not found.replayed.kinds and not found.replayed.records and not found.replayed.refused


def weights_of(made: ActorCritic) -> torch.Tensor:
    return made.policy.networks["q"].stack.flat.data


OUTSIDE = {
    "left other numbers": lambda made, rows, number: weights_of(made).mul_(1 + 1e-4 * (number % 5)),
    "gives numbers to Python": lambda made, rows, number: weights_of(made).mul_(1 + 1e-6 * float(rows.step_reward.sum())),
    "takes them from there": lambda made, rows, number: weights_of(made).add_(
        torch.from_numpy(np.full(1, 1e-5 * number, np.float32))
    ),
}


@pytest.mark.parametrize("reason", OUTSIDE)
def test_what_python_decides_is_seen_and_no_number_is_lost(reason):
    fast, plain = with_work(OUTSIDE[reason])
    with pytest.warns(Remark, match=rf"updates cannot be recorded \(.*{reason}.*\); they are made one by one"):
        for step in (1, 2, 3):
            assert told(fast.step(step)) == told(plain.step(step))
    assert reason in fast.replayed.refused and not fast.replayed.records and same_weights(fast, plain)


def test_the_state_of_a_checkpoint_is_of_plain_kinds():
    """Learning rates are tensors now, and a checkpoint holds tensors, numbers and text."""
    made = learner("td3", "continuous", False)
    made.step(1)
    group = made.state()["optimizers"]["q"]["param_groups"][0]
    json.dumps({name: float(value) if isinstance(value, torch.Tensor) else value for name, value in group.items()})
    assert group["lr"].dtype == torch.float64 and float(group["lr"]) == made.step(2)["lr"]
