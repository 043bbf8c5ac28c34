"""On a GPU: recorded updates of learning from stored experience, PPO and checkpoints give what the CPU gives."""

from __future__ import annotations

import warnings
from typing import Any

import camera_environment
import choice_environments
import gymnasium
import image_environment
import pytest
import torch
from choice_environments import Dials, Traps
from picture_environment import Sides
from pushed_and_back import FILE, PAIR_KNOBS, VICE_KNOBS

from upslope.errors import Remark
from upslope.learners.actor_critic import ActorCritic
from upslope.learners.graphed_updates import recordable
from upslope.learners.policy_gradient import PolicyGradient
from upslope.methods import catalogue, find
from upslope.runtime.checkpoint_files import CheckpointReader
from upslope.runtime.checkpoint_saver import CheckpointSaver
from upslope.runtime.run_folder import RunFolder
from upslope.runtime.settings import Settings
from upslope.setting_up import set_up
from upslope.testing.drawn import kinds
from upslope.testing.runs import random_dataset

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

STORED = [name for name, method in catalogue().items() if method.learner == "actor-critic" and not method.solved]
"""Solved models are asked on the CPU: --device cuda is refused with them."""


def stored_learner(name: str, device: str, updates: int = 80) -> ActorCritic:
    """A learner on a small task; of a method made for datasets, on random episodes first, and acting from the third step on."""
    method = find(name.split()[0])
    pair = name.endswith("a pair")
    asks = method.offline or any(getattr(part, "needs_dataset", False) for _, part in method.parts())
    task = "gym:Pendulum-v1" if "continuous" in kinds(method) else "gym:CartPole-v1"
    task = f"{image_environment.__file__}:Beacon" if "images" in name else task
    task = f"{camera_environment.__file__}:CameraAndJoints" if "images and numbers" in name else task
    task = f"{choice_environments.__file__}:Traps" if "masks" in name else task
    task = f"{FILE}:pair" if pair else task
    more = PAIR_KNOBS | VICE_KNOBS if pair else {}
    waits = {f"{path}.steps": 40 for path, part in method.held("acting") if getattr(part, "steps", 0) > 40}
    settings = Settings(
        steps=6, horizon=40, updates_per_step=updates, minibatch=64, seed=3, device=device, lr=1e-4, offline_steps=2 if asks else 0
    )
    made = set_up(method, task, "tiny", settings, knobs=waits | more, dataset=random_dataset(task) if asks else None)
    return ActorCritic(made.method, made.policy, made.rollout, made.settings)


@pytest.mark.parametrize(
    "name",
    [*STORED, "dqn from images", "dqn from images and numbers", "dqn with masks", "sac with masks", "serl with VICE and a pair"],
)
def test_recorded_updates_on_a_gpu_are_those_of_the_cpu(name, monkeypatch):
    """Losses to rounding, over blocks that are made, recorded and played again; nobody says that a recording failed."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)  # of convolutions torch keeps ten bits otherwise
    there, here = stored_learner(name, "cuda"), stored_learner(name, "cpu")
    with warnings.catch_warnings():
        warnings.simplefilter("error", Remark)
        # a2pr asks whether an action is better than its state, and rounding answers differently now and then: after 480
        # updates even two runs on one CPU are 0.1 % apart if their first weights are by 1e-7 (td3-bc: 2e-8). 240 are compared.
        for step in range(1, 4 if name == "a2pr" else 7):
            found, expected = there.step(step), here.step(step)
    assert there.graphed is not None and there.graphed.records == recordable(there.method)
    assert any(each.graph is not None for each in there.graphed._recordings.values()) == recordable(there.method)
    for key in (key for key in expected if key.endswith(("loss", "_value"))):
        assert found[key] == pytest.approx(expected[key], rel=1e-3, abs=1e-4), key


@pytest.fixture
def environments():
    """Small ones that gymnasium knows by name."""
    gymnasium.register("Sides-v0", entry_point=Sides, max_episode_steps=6)
    gymnasium.register("Traps-v0", entry_point=Traps)
    gymnasium.register("Dials-v0", entry_point=Dials)
    yield
    for name in ("Sides-v0", "Traps-v0", "Dials-v0"):
        gymnasium.registry.pop(name)


def compare_a_step_of_ppo(task: str, policy: str) -> None:
    """Rows, and weights after two passes over them."""
    found = {}
    for device in ("cpu", "cuda"):
        given = Settings(steps=1, envs=4, horizon=16, passes=2, device=device, threads=1)
        made = set_up(find("ppo"), task, "tiny", given, knobs={"policy": policy})
        learner = PolicyGradient(made.method, made.policy, made.rollout, made.settings)
        found[device] = learner.step(1), learner.last, {name: weight.cpu() for name, weight in made.policy.weights().items()}
        assert made.policy.device.type == device and learner.last.sampled.device.type == "cpu"
        made.rollout.close()
    (wanted, rows, weights), (metrics, other, moved) = found["cpu"], found["cuda"]
    assert torch.equal(rows.action, other.action)
    torch.testing.assert_close(other.behavior.logp, rows.behavior.logp, rtol=1e-4, atol=1e-4)
    assert metrics["grad_norm"] == pytest.approx(wanted["grad_norm"], rel=1e-2)
    for name, weight in weights.items():
        torch.testing.assert_close(moved[name], weight, rtol=1e-3, atol=2e-4)


@pytest.mark.parametrize("policy", ["MLP(encoder=SmallCNN(features=16))", "Recurrent(memory=8, encoder=SmallCNN(features=16))"])
def test_a_step_of_ppo_from_images_is_that_of_the_cpu(policy, environments):
    compare_a_step_of_ppo("gym:Sides-v0:side=9", policy)


@pytest.mark.parametrize("task", ["gym:Traps-v0", "gym:Dials-v0:masked=true"])
def test_a_step_of_ppo_with_masks_is_that_of_the_cpu(task, environments):
    """With a memory: without one, networks this small are refused there, being faster on the CPU."""
    compare_a_step_of_ppo(task, "Recurrent(memory=8)")


def test_a_learner_that_is_gone_does_not_spoil_the_next_recording():
    """One after the other in a process, each left to the garbage collector while the next one records."""
    for name in ("rlpd", "famo2o", "awac", "bc", "sac"):
        there = stored_learner(name, "cuda")
        there.cycle = there  # only the collector frees it
        with warnings.catch_warnings():
            warnings.simplefilter("error", Remark)
            for step in range(1, 4):
                there.step(step)
        assert any(each.graph is not None for each in there.graphed._recordings.values()), name


def test_a_recording_that_fails_goes_back_to_its_stream(monkeypatch):
    """Whatever waits for the device fails; the updates are made one by one and are those of the CPU."""
    there, here = stored_learner("td3", "cuda"), stored_learner("td3", "cpu")
    learn, before = there.graphed.learn, torch.cuda.current_stream()

    def waiting(rows: Any, *given: Any) -> None:
        rows.step_reward.sum().item()
        learn(rows, *given)

    there.graphed.learn = waiting
    with pytest.warns(Remark, match="cannot be recorded"):
        for step in range(1, 7):
            found, expected = there.step(step), here.step(step)
    assert torch.cuda.current_stream() == before and not there.graphed.records
    assert found["q_loss"] == pytest.approx(expected["q_loss"], rel=1e-3, abs=1e-4)
    stored_learner("sac", "cuda").step(1)  # and the next one may record


def test_a_checkpoint_is_copied_beside_kernels_and_before_the_next_update(tmp_path):
    folder, held_as = RunFolder(tmp_path), (torch.float32, torch.bfloat16, torch.int32)
    weights, moments, counted = (torch.ones(1 << 24, device="cuda", dtype=dtype) for dtype in held_as)
    folder.checkpoint(0).parent.mkdir()
    with CheckpointSaver(folder, keep=3) as saver:
        for step in (1, 2, 3):
            held = {"w": weights, "m": moments[3:], "c": counted}
            still, last = (weights, moments), step == 3
            saver.save(folder.checkpoint(step), lambda files, held=held: files.write_tensors("t", held), still, last)
            counted.add_(1)
            saver.wait_for_copy()
            weights.add_(1)
            moments.add_(1)
    for step in (1, 2, 3):
        found = CheckpointReader(folder.checkpoint(step)).read_tensors("t")
        assert {name: tensor.unique().tolist() for name, tensor in found.items()} == {"w": [step], "m": [step], "c": [step]}
