"""Experience: what environments showed is kept, and rows are drawn from it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from upslope.errors import UserError
from upslope.given import task_argument
from upslope.methods import find
from upslope.objective.data.augment import RandomCrop
from upslope.objective.data.stored import MixedReplay, UniformReplay
from upslope.policies.control.networks import Stochastic
from upslope.rollout.acting import UniformFirst
from upslope.rollout.replay import ReplayRollout
from upslope.runtime.seeding import numpy_generator
from upslope.tasks import load_task
from upslope.testing.runs import random_dataset
from upslope.types import Ended, Source


class Counting(gymnasium.Env):
    """Shows how often it was stepped; the fifth step ends it, at which a limit is met too."""

    observation_space = gymnasium.spaces.Box(0.0, 100.0, (1,))
    action_space = gymnasium.spaces.Box(np.float32(-2.0), np.float32(6.0), (1,))

    def reset(self, *, seed: int | None = None, options: dict | None = None):
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: np.ndarray):
        self.steps += 1
        return np.full(1, self.steps, np.float32), float(action[0]), self.steps == 5, self.steps == 5, {}


class Frames(gymnasium.Env):
    """Images that count up: stacked by gymnasium, each shows the last ones."""

    observation_space = gymnasium.spaces.Box(0, 255, (12, 12), np.uint8)
    action_space = gymnasium.spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: dict | None = None):
        self.steps = 10
        return np.full((12, 12), self.steps, np.uint8), {}

    def step(self, action: int):
        self.steps += 1
        return np.full((12, 12), self.steps, np.uint8), 1.0, self.steps == 15, False, {}


class Shades(gymnasium.Env):
    """Images no two pixels of which are alike."""

    observation_space = gymnasium.spaces.Box(0, 255, (9, 8, 3), np.uint8)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict | None = None):
        super().reset(seed=seed)
        self.steps = 0
        return self._image(), {}

    def step(self, action: int):
        self.steps += 1
        return self._image(), 0.0, self.steps == 7, False, {}

    def _image(self) -> np.ndarray:
        return (np.arange(216).reshape(9, 8, 3) + self.steps).astype(np.uint8)


def stacked() -> gymnasium.Env:
    return gymnasium.wrappers.FrameStackObservation(Frames(), 3)


def rollout(task: Any = Counting, envs: int = 1, episodes: Any = None, acting: tuple = (), **more: Any) -> ReplayRollout:
    name, _, objects = task_argument(task, "")
    loaded = objects.task or load_task(name)
    policy = Stochastic(hidden=(8,)).build(loaded, 0)
    data = more.pop("data", UniformReplay(capacity=40))
    made = ReplayRollout(
        loaded, policy, data, acting, envs=envs, seed=5, planned_steps=100, episodes=episodes, **{"normalise": False, **more}
    )
    made.restart(1)
    return made


def acted(made: ReplayRollout, ticks: int) -> ReplayRollout:
    for _ in range(ticks):
        made.act()
    return made


def test_what_happened_is_kept_in_the_environments_own_units():
    made = acted(rollout(), 12)
    lane = made.store.lanes[0]
    seen = lane.columns.observation[:13, 0].tolist()
    assert seen == [0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5, 0] and made.store.decision_count == 12
    taken, paid = lane.columns.action[:5, 0], lane.columns.reward[:5]
    assert np.array_equal(taken, paid), "the environment pays what it was given"
    rows = made.draw(64, 1, [1], made.data)
    assert rows.action.abs().max() <= 1 and (rows.action > 0.1).any() and (rows.action < -0.1).any()
    torch.testing.assert_close(2.0 + 4.0 * rows.action[:, 0], rows.step_reward)


def test_an_end_of_its_own_counts_where_a_limit_is_met_too():
    rows = acted(rollout(), 12).draw(200, 1, [1], UniformReplay())
    last = rows.inputs.observation[:, 0, 0] == 4
    assert last.any() and (rows.ended[last] == Ended.TERMINATED).all() and (rows.ended[~last] == Ended.NO).all()
    assert not rows.signal["discount"][last].any() and (rows.signal["discount"][~last] == torch.tensor(0.99)).all()
    assert torch.equal(rows.inputs.following, rows.inputs.observation + 1), "what follows an end is its own observation"


def test_rows_of_several_steps_stop_at_the_end():
    rows = acted(rollout(), 12).draw(200, 1, [1], UniformReplay(n_steps=3, gamma=0.5))
    first = rows.inputs.observation[:, 0, 0]
    behind = rows.inputs.following[:, 0, 0]
    middle = first <= 1
    assert (behind <= first + 3).all() and (behind[middle] == first[middle] + 3).float().mean() > 0.7, "the newest are shorter"
    assert torch.equal(behind[first >= 2] == 5, rows.signal["discount"][first >= 2, 0] == 0), "nothing is behind an end"
    whole = (behind - first == 3) & (behind < 5)
    assert (rows.signal["discount"][whole] == 0.5**3).all()


@pytest.mark.parametrize("envs", [1, 3])
def test_updates_drawn_together_are_those_drawn_one_by_one(envs: int):
    episodes = random_dataset("gym:Pendulum-v1").episodes
    made = acted(rollout("gym:Pendulum-v1", envs=envs, episodes=episodes, data=MixedReplay()), 20)
    together = made.draw(8, 2, [4, 5, 6], made.data)
    for place, update in enumerate((4, 5, 6)):
        alone = made.draw(8, 2, [update], made.data)
        part = together.take_rows(slice(8 * place, 8 * place + 8))
        assert torch.equal(part.action, alone.action) and torch.equal(part.inputs.following, alone.inputs.following)
        assert torch.equal(part.label["source"], alone.label["source"])
        assert (alone.label["source"] == Source.DEMONSTRATED).sum() == 4
    assert not torch.equal(made.draw(8, 2, [4], made.data).action, made.draw(8, 3, [4], made.data).action)


def test_environments_are_drawn_from_alike():
    made = acted(rollout(envs=4), 10)
    found = [lane.decision_count for lane in made.store.lanes]
    assert found == [10] * 4 and made.env_steps == 40
    rewards = [set(lane.columns.reward[lane.place(lane.decision_rows(np.arange(10)))].tolist()) for lane in made.store.lanes]
    drawn = made.draw(400, 1, [1], made.data).step_reward[:, 0].tolist()
    counts = [sum(value in lane for value in drawn) for lane in rewards]
    assert min(counts) > 60, counts


def test_nothing_is_learned_before_the_first_steps_are_made():
    made = rollout(acting=(UniformFirst(steps=4),))
    for _ in range(4):
        assert not made.warmed_up()
        made.act()
    assert made.warmed_up()
    assert rollout("gym:Pendulum-v1", episodes=random_dataset("gym:Pendulum-v1").episodes).warmed_up()


def test_a_store_that_is_empty_is_named():
    with pytest.raises(UserError, match="come from what is replayed, and there is none"):
        rollout().draw(4, 1, [1], UniformReplay())
    with pytest.raises(UserError, match="Give --data"):
        rollout().world()


def test_the_oldest_is_forgotten_and_returns_are_told():
    made = acted(rollout(), 60)
    assert made.store.decision_count == 40 and made.metrics()["stored"] == 40 and made.env_steps == 60
    assert "episode_return" not in made.metrics(), "those that ended since the last call"
    acted(made, 5)
    assert made.metrics()["episode_length"] == 5


def test_normalised_by_the_dataset_or_by_what_was_acted_on():
    episodes = random_dataset("gym:Pendulum-v1").episodes
    fixed = acted(rollout("gym:Pendulum-v1", episodes=episodes, normalise=True), 5)
    seen = fixed._seen(episodes.observation)
    np.testing.assert_allclose(seen.mean(0), 0, atol=1e-4)
    np.testing.assert_allclose(seen.std(0), 1, atol=1e-2)
    moving = acted(rollout("gym:Pendulum-v1", normalise=True), 30)
    rows = moving.draw(200, 1, [1], moving.data)
    assert rows.inputs.observation.mean((0, 1)).abs().max() < 0.5
    assert np.abs(moving.store.lanes[0].columns.observation[:30]).max() <= 8, "stored as it was"


def test_going_on_sees_what_never_stopping_sees(tmp_path: Path):
    def run(folder: Path, stop: bool) -> tuple[Any, ReplayRollout]:
        made = rollout("gym:Pendulum-v1", envs=2)
        made.keep_in(folder)
        acted(made, 7)
        made.settle()
        if stop:
            state = made.state()
            acted(made, 3)  # after the checkpoint: lost with the process
            made.log.flush()
            made.close()
            made = rollout("gym:Pendulum-v1", envs=2)
            made.keep_in(folder)
            made.load_state(state)
        made.restart(2)
        acted(made, 6)
        made.settle()
        made.close()
        return made.draw(32, 3, [9], made.data), made

    (whole, one), (cut, other) = run(tmp_path / "whole", False), run(tmp_path / "cut", True)
    assert torch.equal(whole.action, cut.action) and torch.equal(whole.inputs.following, cut.inputs.following)
    assert one.env_steps == other.env_steps == 26
    files = [{file.name: file.read_bytes() for file in (tmp_path / name).glob("*")} for name in ("whole", "cut")]
    assert files[0] == files[1]


def test_a_policy_that_reads_a_model_acts_greedily():
    method = find("dqn")
    task = load_task("gym:CartPole-v1")
    policy = method.policy.build(task, 0)
    for name, model in method.learned:
        policy.add_model(name, model, 0)
    made = ReplayRollout(task, policy, UniformReplay(), (), envs=1, seed=0, planned_steps=10)
    made.restart(1)
    acted(made, 6)
    lane = made.store.lanes[0]
    seen = torch.from_numpy(lane.columns.observation[:6])
    assert policy.networks["q"].stack(seen, True).mean(0).argmax(-1).tolist() == lane.columns.action[:6].tolist()


# -- images ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("envs", [1, 2])
def test_stacked_frames_are_stored_once_as_bytes_and_drawn_as_they_were_seen(envs: int, tmp_path: Path):
    made = rollout(stacked, envs=envs)
    made.keep_in(tmp_path)
    acted(made, 13)
    assert made.task.frames == 3 and made.store.lanes[0].columns.observation.shape[1:] == (12, 12)
    rows = made.draw(60, 1, [1], made.data)
    seen, following = rows.inputs.observation[:, 0, :, 0, 0].tolist(), rows.inputs.following[:, 0, :, 0, 0].tolist()
    assert rows.inputs.observation.dtype == torch.uint8 and rows.inputs.observation.shape == (60, 1, 3, 12, 12)
    starts = {(10, 10, 10): (10, 10, 11), (10, 10, 11): (10, 11, 12)} | {(n - 2, n - 1, n): (n - 1, n, n + 1) for n in (12, 13, 14)}
    assert {tuple(now): tuple(then) for now, then in zip(seen, following, strict=True)} == starts
    made.settle()
    state = made.state()
    again = rollout(stacked, envs=envs)
    again.keep_in(tmp_path)
    again.load_state(state)
    drawn = again.draw(60, 1, [1], made.data)
    assert torch.equal(drawn.inputs.observation, made.draw(60, 1, [1], made.data).inputs.observation)


def test_a_policy_acts_on_images_as_its_networks_say():
    made = acted(rollout(stacked), 3)
    seen = made.draw(4, 1, [1], made.data).inputs.observation
    output = made.policy.acting().output(seen[:, 0].numpy())
    torch.testing.assert_close(torch.from_numpy(output), made.policy.actor.output(seen, True)[:, 0])


def test_cropped_images_are_those_of_their_own_update(tmp_path: Path):
    made = acted(rollout(Shades, data=UniformReplay(augment=RandomCrop(padding=2))), 12)
    plain = made.draw(6, 1, [1, 2], UniformReplay())
    together, second = made.draw(6, 1, [1, 2], made.data), made.draw(6, 1, [2], made.data)
    assert torch.equal(together.inputs.following[6:], second.inputs.following)
    assert torch.equal(together.action, plain.action) and not torch.equal(together.inputs.observation, plain.inputs.observation)
    crop = RandomCrop(padding=2)
    for name, at in (("augment now", "observation"), ("augment next", "following")):
        stored = getattr(plain.inputs, at)[6:, 0].numpy()
        wanted = crop(stored, 2, numpy_generator(made.seed, name, 1, 2))
        np.testing.assert_array_equal(getattr(second.inputs, at)[:, 0].numpy(), wanted)


def test_vectors_are_not_cropped():
    with pytest.raises(UserError, match=r"RandomCrop\(padding=4\) changes images.*vectors"):
        rollout("gym:Pendulum-v1", data=UniformReplay(augment=RandomCrop()))
