"""Blocks of updates are the same updates: here without a recording; on a GPU the recording is held against these."""

import gc
from typing import Any

import choice_environments
import image_environment
import pytest
import torch
from pushed_and_back import FILE, PAIR_KNOBS, VICE_KNOBS
from torch.utils._python_dispatch import TorchDispatchMode

from upslope.errors import Remark
from upslope.learners.actor_critic import ActorCritic
from upslope.learners.graphed_updates import BLOCK, GraphedUpdates, cycle_of, recordable
from upslope.methods import catalogue, find
from upslope.runtime.settings import Settings
from upslope.setting_up import set_up
from upslope.testing.drawn import kinds
from upslope.testing.runs import STORED, random_dataset
from upslope.testing.table_nets import small

SMALL = {"policy.hidden": (8, 8), "models.q.network.hidden": (8, 8)}
TASKS = {"sac": "gym:Pendulum-v1", "td3": "gym:Pendulum-v1", "dqn": "gym:CartPole-v1"}
OF_DATASETS = ("cal-ql", "rlpd", "moorl", "h2o", "serl")
TASKS |= dict.fromkeys(("mdpo-off", *OF_DATASETS), "gym:Pendulum-v1") | {"serl": f"{FILE}:pair"}


def learner(name: str, blocks: bool, updates: int = 50) -> ActorCritic:
    knobs = {path: value for path, value in SMALL.items() if name != "dqn" or not path.startswith("policy")}
    knobs |= {"acting.0.steps": 20} | ({"models.q.lag_every": 70} if name == "dqn" else {})
    knobs |= {f"models.{each}.network.hidden": (8, 8) for each in ("pair_source", "step_source") if name == "h2o"}
    knobs |= {**PAIR_KNOBS, **VICE_KNOBS, "models.q.network.members": 2} if name == "serl" else {}
    settings = Settings(steps=4, horizon=25, updates_per_step=updates, minibatch=8, seed=3, offline_steps=0)
    dataset = random_dataset(TASKS[name]) if name in OF_DATASETS else None
    made = set_up(find(name), TASKS[name], "tiny", settings, knobs=knobs, dataset=dataset)
    found = ActorCritic(made.method, made.policy, made.rollout, made.settings)
    if blocks:
        found.graphed = GraphedUpdates(made.policy, made.method, found._draw, found._learn)
    return found


@pytest.mark.parametrize("name", [*TASKS, "dqn with masks"])
def test_blocks_end_in_the_same_weights_and_metrics(name, monkeypatch):
    if name.endswith("masks"):
        name = "dqn"
        monkeypatch.setitem(TASKS, name, f"{choice_environments.__file__}:Traps")
    plain, blocks = learner(name, False), learner(name, True)
    for step in (1, 2, 3):
        found, expected = blocks.step(step), plain.step(step)
        assert {key for key in expected if "second" not in key} == {key for key in found if "second" not in key}
        for key in ("q_loss", "q_value", "updates"):
            assert found.get(key) == pytest.approx(expected.get(key), rel=1e-12)
    weights = plain.policy.weights()
    assert all(torch.equal(weight, weights[key]) for key, weight in blocks.policy.weights().items())


def test_a_block_begins_anywhere_in_the_cycle_of_delays():
    """td3's policy moves every second update; blocks of three begin at both kinds."""
    plain, blocks = learner("td3", False, updates=75), learner("td3", True, updates=75)
    for step in (1, 2):
        plain.step(step), blocks.step(step)
    assert {key for key in blocks.graphed._recordings} == {(0, 3), (1, 3)}
    assert torch.equal(plain.policy.weights()["policy.0.weight"], blocks.policy.weights()["policy.0.weight"])
    assert cycle_of(plain.method, plain.policy) == 2 and BLOCK % 2 == 0


def test_a_meta_step_is_part_of_the_cycle():
    plain = learner("moorl", False)
    assert cycle_of(plain.method, plain.policy) == 5


def test_slowly_renewed_copies_are_part_of_the_cycle_only_where_that_is_short():
    long = learner("dqn", False)
    assert long.policy.lags["q"] == (1.0, 70) and cycle_of(long.method, long.policy) == 1


def test_a_knob_that_moves_drops_what_was_recorded():
    found = learner("sac", True)
    found.step(1)
    assert found.graphed._recordings
    found.graphed.forget()
    assert not found.graphed._recordings
    found.step(2)
    assert found.graphed._recordings


def test_blocks_from_images_end_in_the_same_weights():
    def of_images(blocks: bool) -> ActorCritic:
        settings = Settings(steps=4, envs=2, horizon=10, updates_per_step=20, minibatch=4, seed=3)
        knobs = {"acting.0.steps": 8, "models.q.network.encoder": "SmallCNN(features=8, channels=4)"}
        made = set_up(find("dqn"), f"{image_environment.__file__}:Beacon", "tiny", settings, knobs=knobs)
        found = ActorCritic(made.method, made.policy, made.rollout, made.settings)
        if blocks:
            found.graphed = GraphedUpdates(made.policy, made.method, found._draw, found._learn)
        return found

    plain, blocks = of_images(False), of_images(True)
    for step in (1, 2, 3):
        found, expected = blocks.step(step), plain.step(step)
        assert found["q_loss"] == pytest.approx(expected["q_loss"], rel=1e-12)
    weights = plain.policy.weights()
    assert all(torch.equal(weight, weights[key]) for key, weight in blocks.policy.weights().items())
    assert any(key.startswith("lagged.q.encoder.") for key in weights)


# -- what cannot be recorded ---------------------------------------------------------------------------------------------------

WAITS = ("_local_scalar_dense", "is_nonzero", "nonzero", "masked_select", "_unique2", "unique_dim", "equal", "bincount",
         "repeat_interleave", "lift_fresh")  # fmt: skip
"""Operations whose result the CPU reads, or that bring numbers from there: on a GPU they wait, and a recording fails."""
STORED_METHODS = [name for name, method in catalogue().items() if method.learner == "actor-critic"]


class NothingWaits(TorchDispatchMode):
    """Refuses what a recording on a GPU would."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        by_mask = name.startswith("index") and any(
            each is not None and each.dtype in (torch.bool, torch.uint8)
            for each in (args[1] if len(args) > 1 and isinstance(args[1], (list, tuple)) else ())
        )
        if name in WAITS or by_mask:
            raise AssertionError(f"{func} waits for the device")
        return func(*args, **(kwargs or {}))


def watched(name: str, kind: str) -> ActorCritic:
    """A learner that makes blocks, each in a world in which nothing can be read or made on the CPU once it has been made."""
    method, task = find(name), {"continuous": "gym:Pendulum-v1", "discrete": "gym:CartPole-v1"}[kind]
    asks = method.offline or any(getattr(part, "needs_dataset", False) for _, part in method.parts())
    waits = {f"{path}.steps": 8 for path, part in method.held("acting") if getattr(part, "steps", 0) > 8}
    settings = Settings(**{**STORED, "offline_steps": 1 if asks else 0, "horizon": 1, "updates_per_step": 2 * BLOCK})
    dataset = random_dataset(task) if asks else None
    made = set_up(small(method).with_knobs(waits), task, "tiny", settings, dataset=dataset)
    found = ActorCritic(made.method, made.policy, made.rollout, made.settings)
    blocks = found.graphed = GraphedUpdates(made.policy, made.method, found._draw, found._learn)
    play = blocks._play

    def checked(recording: Any, first: int) -> None:
        # What is made without saying where lands on a device that nothing can be computed on together with the others.
        with torch.device("meta"), NothingWaits():
            play(recording, first)
        checked.played += 1

    checked.played = 0
    blocks._play = checked
    return found


@pytest.mark.parametrize("name", [name for name in STORED_METHODS if recordable(find(name))])
def test_an_update_can_be_recorded(name):
    """On a GPU it could: nothing in it waits for a number, and nothing is made on the CPU."""
    for kind in kinds(find(name)):
        found = watched(name, kind)
        for step in range(1, 9):  # until enough was gathered to learn from
            found.step(step)
            if found.graphed._play.played:
                break
        else:
            raise AssertionError(f"{kind}: no block was made twice")


def test_a_search_on_the_cpu_is_not_recorded():
    assert [name for name in STORED_METHODS if not recordable(find(name))] == ["prdc"]


class BrokenRecording:
    """A recording that fails at its end, as torch's do, and leaves its stream behind."""

    def __init__(self, streams: list[str]):
        self.streams = streams

    def __enter__(self) -> None:
        self.streams.append("recording")

    def __exit__(self, *raised: Any) -> None:
        raise RuntimeError("operation failed due to a previous error during capture\nin detail")


class Stream:
    """Torch's context: it goes back to where it came from."""

    def __init__(self, streams: list[str]):
        self.streams = streams

    def __enter__(self) -> None:
        self.before = list(self.streams)

    def __exit__(self, *raised: Any) -> None:
        self.streams[:] = self.before


def test_a_recording_that_fails_leaves_everything_as_it_was(monkeypatch):
    """The updates are made one by one, on the stream of before, and are the same."""
    streams = ["own"]
    for name, fake in {
        "synchronize": lambda: None, "CUDAGraph": object, "current_stream": lambda: None,
        "stream": lambda _: Stream(streams), "graph": lambda _, **how: BrokenRecording(streams),
    }.items():  # fmt: skip
        monkeypatch.setattr(torch.cuda, name, fake)
    plain, blocks = learner("td3", False), learner("td3", True)
    blocks.graphed.records = True
    made, play = [], blocks.graphed._play
    # What is recorded is not computed.
    monkeypatch.setattr(
        blocks.graphed, "_play", lambda *given: made.append(streams[-1]) if streams[-1] == "recording" else play(*given)
    )
    plain.step(1)
    with pytest.warns(Remark, match=r"as a CUDA graph \(operation failed .* capture\); they are made one by one"):
        blocks.step(1)
    assert made == ["recording"] and streams == ["own"] and gc.isenabled() and not blocks.graphed.records
    weights = plain.policy.weights()
    assert all(torch.equal(weight, weights[key]) for key, weight in blocks.policy.weights().items())


def test_what_waits_is_seen():
    given = torch.tensor([1.0, -1.0, 2.0])
    for wrong in (
        lambda x: x[x > 0],
        lambda x: x.sum().item(),
        lambda x: x + torch.arange(3),
        lambda x: torch.tensor([1.0, 2.0, 3.0]) * x,
        lambda x: x.nonzero(),
        lambda x: float(x[0]) if x[0] else 0.0,
    ):
        with pytest.raises((AssertionError, RuntimeError)), torch.device("meta"), NothingWaits():
            wrong(given)
