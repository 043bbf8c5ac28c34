"""Stored images on the device that learns: the same images as the store's own, wherever its rows have gone."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import camera_environment
import image_environment
import numpy as np
import pytest
import torch

from upslope.experience.store import ReplayStore
from upslope.learners.actor_critic import ActorCritic
from upslope.learners.graphed_updates import GraphedUpdates
from upslope.methods import find
from upslope.rollout import device_frames
from upslope.rollout.device_frames import DeviceFrames
from upslope.runtime.settings import Settings
from upslope.setting_up import set_up
from upslope.types import Ended

CPU = torch.device("cpu")


class Stacks:
    """Images of ``frames`` frames, all but the newest of which were in the one before."""

    def __init__(self, frames: int):
        self.random, self.frames = np.random.default_rng(0), frames
        self.last = self.first()

    def _frame(self) -> np.ndarray:
        return self.random.integers(0, 256, (1, 3, 2), np.uint8)

    def first(self) -> np.ndarray:
        self.last = np.repeat(self._frame(), self.frames, 0)
        return self.last if self.frames > 1 else self.last[0]

    def next(self) -> np.ndarray:
        self.last = np.concatenate([self.last[1:], self._frame()])
        return self.last if self.frames > 1 else self.last[0]


def store_of(frames: int, capacity: int) -> ReplayStore:
    shape = (frames, 3, 2) if frames > 1 else (3, 2)
    return ReplayStore((shape, np.uint8), (), True, capacity, 2, frames)


def play(store: ReplayStore, ticks: int, episode: int) -> None:
    """So many steps in each lane, in episodes of so many; the second lane's are one longer."""
    for number, lane in enumerate(store.lanes):
        stacks = Stacks(lane.frames)
        lane.begin(stacks.first())
        for tick in range(ticks):
            ended = (tick + 1) % (episode + number) == 0
            lane.add(np.int64(tick % 2), 0.0, int(Ended.TERMINATED if ended else Ended.NO), stacks.next())
            if ended:
                lane.begin(stacks.first())


def compare(held: DeviceFrames) -> None:
    """Every decision of every lane, and what came behind it."""
    for number, lane in enumerate(held.store.lanes):
        rows = lane.decision_rows(np.arange(lane.decision_count))
        for wanted in (rows, rows + 1):
            found = held.frames[torch.from_numpy(held.lane(number).observations(wanted))]
            assert np.array_equal(found.numpy(), lane.observations(wanted))


@pytest.mark.parametrize("frames", [1, 3])
@pytest.mark.parametrize("sent_at_once", [1, 5, 4096])
def test_places_lead_to_what_the_store_has(frames, sent_at_once, monkeypatch):
    monkeypatch.setattr(device_frames, "SENT_AT_ONCE", sent_at_once)
    store = store_of(frames, 200)
    held, moved = DeviceFrames(store, CPU), []
    for _ in range(12):  # 360 steps of a lane that remembers 100: its oldest are written over
        play(store, 30, 7)
        moved.append(held.follow())
        compare(held)
    assert not any(moved[:2])


def test_episodes_of_one_step_need_more_room_than_was_taken():
    store = store_of(1, 64)
    held = DeviceFrames(store, CPU)
    room = held.room
    play(store, 80, 1)
    assert held.follow() and held.room > room
    compare(held)
    play(store, 10, 1)
    held.follow()
    compare(held)


def test_an_episode_that_nobody_acted_in_is_written_over():
    store = store_of(3, 64)
    held = DeviceFrames(store, CPU)
    play(store, 7, 7)  # lane 0: its episode has just ended, and another begun
    held.follow()
    before = store.lanes[0].rows
    play(store, 4, 7)
    assert store.lanes[0].rows == before + 4  # the row of the new episode was dropped first
    held.follow()
    compare(held)


def test_a_store_filled_anew_is_sent_anew():
    store = store_of(3, 64)
    held = DeviceFrames(store, CPU)
    play(store, 20, 7)
    held.follow()
    for number, lane in enumerate(store.lanes):
        kept, rows = lane.columns, 2 * (8 + number)  # two whole episodes, of other images
        lane.refill(255 - kept.observation[:rows], kept.action[:rows], kept.reward[:rows], kept.ended[:rows])
    held.forget()
    held.follow()
    compare(held)


def test_they_stay_with_the_cpu_where_it_learns():
    assert DeviceFrames.where_they_fit(store_of(1, 64), CPU) is None


def no_memory(frames: DeviceFrames) -> torch.Tensor:
    raise torch.OutOfMemoryError("others have it")


@pytest.mark.parametrize(("total", "empty", "held"), [
    (4 * 2 * 36 * 6, None, True),  # two lanes of 32 + 4 frames of six bytes: a quarter
    (4 * 2 * 36 * 6 - 4, None, False),
    (10**9, no_memory, False),
])  # fmt: skip
def test_they_take_a_quarter_of_a_gpu_at_most_and_what_is_free(total, empty, held, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(total_memory=total))
    monkeypatch.setattr(DeviceFrames, "_empty", empty or (lambda frames: torch.zeros(1)))
    assert (DeviceFrames.where_they_fit(store_of(1, 64), torch.device("cuda")) is not None) == held


# -- learning ------------------------------------------------------------------------------------------------------------------


def learner(held: bool, blocks: bool, task: str) -> ActorCritic:
    settings = Settings(steps=6, envs=2, horizon=20, updates_per_step=20, minibatch=4, seed=3)
    knobs: dict[str, Any] = {"acting.0.steps": 8, "models.q.network.encoder": "SmallCNN(features=8, channels=4)"}
    knobs["data.capacity"] = 50  # the oldest are forgotten in the second step
    made = set_up(find("dqn"), task, "tiny", settings, knobs=knobs)
    if held:
        made.rollout.frames = DeviceFrames(made.rollout.store, CPU)
    found = ActorCritic(made.method, made.policy, made.rollout, made.settings)
    if blocks:
        found.graphed = GraphedUpdates(made.policy, made.method, found._draw, found._learn)
    return found


IMAGES, WITH_NUMBERS = f"{image_environment.__file__}:Beacon", f"{camera_environment.__file__}:CameraAndJoints"


@pytest.mark.parametrize(("task", "blocks"), [(IMAGES, False), (IMAGES, True), (WITH_NUMBERS, True)])
def test_learning_by_place_ends_in_the_same_weights(task, blocks):
    shown, by_place = (learner(held, blocks, task) for held in (False, True))
    for step in range(1, 6):
        found, expected = by_place.step(step), shown.step(step)
        assert found["q_loss"] == expected["q_loss"]
    weights = shown.policy.weights()
    assert all(torch.equal(weight, weights[key]) for key, weight in by_place.policy.weights().items())
    rows, _ = by_place._draw([1])
    assert rows.inputs.observation.dtype == torch.int64 and rows.inputs.observation.shape == (4, 1)


def test_recordings_are_forgotten_when_frames_move():
    found = learner(True, True, IMAGES)
    for step in (1, 2):
        found.step(step)
    assert found.graphed is not None and found.graphed._recordings
    held = found.rollout.frames
    held.room = 1  # as if there had been more episodes than expected
    before = held.frames  # as long as it is there its memory is nobody else's
    assert found.rollout.bring_frames() and held.frames.data_ptr() != before.data_ptr()
    forgotten: list[bool] = []
    found.graphed.forget = lambda: forgotten.append(True)  # type: ignore[method-assign]
    held.room = 1
    found._update(1, None)  # type: ignore[arg-type]
    assert forgotten
