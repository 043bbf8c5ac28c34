"""A user's own module in the place of an encoder: trained as a copy, asked for again, refused where it cannot be."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
import torch
from cue_environment import Cue
from picture_environment import Sides
from torch import nn

import upslope as up
from upslope.errors import UserError
from upslope.policies.control.own_module import OwnModule
from upslope.tasks.gym import GymTask
from upslope.testing.runs import Breaks, Crash, assert_same_run

QUICK = dict(steps=3, envs=2, horizon=16, passes=1, eval_problems=2, checkpoint_every=2, threads=1)


@pytest.fixture(scope="module", autouse=True)
def registered():
    gymnasium.register("Cue-v0", entry_point=Cue, max_episode_steps=6)
    gymnasium.register("Sides-v0", entry_point=Sides, max_episode_steps=6)
    yield
    gymnasium.registry.pop("Cue-v0")
    gymnasium.registry.pop("Sides-v0")


def layers(width: int = 8) -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(4, width), nn.LayerNorm(width), nn.SiLU())


def test_a_run_trains_a_copy_with_heads_behind_it(tmp_path):
    module = layers()
    before = {name: weight.clone() for name, weight in module.state_dict().items()}
    run = up.train("ppo", "gym:CartPole-v1", model=module, out=tmp_path / "run", **QUICK)
    assert all(torch.equal(weight, before[name]) for name, weight in module.state_dict().items()), "the user's stays as it is"
    own = run.policy.encoder.module
    assert not torch.equal(own[0].weight, module[0].weight) and run.policy.stacks["value"][0].weight.shape == (64, 8)
    assert (own[0].weight - module[0].weight).abs().max() < 0.05, "it began with the user's weights"
    assert run.table["unkept"] == ["model"] and run.table["model"] == "Sequential"
    again = up.load(run.path, model=layers())
    seen = np.zeros((3, 4), np.float32)
    assert (again.predict(seen, deterministic=True)[0] == run.predict(seen, deterministic=True)[0]).all()
    with pytest.raises(UserError, match=r"was given its model as a Python object.*model=\.\.\."):
        up.load(run.path).predict(seen)
    with pytest.raises(UserError, match=r"another network: the two differ in encoder\.module"):
        up.load(run.path, model=layers(9)).predict(seen)


def test_a_stopped_run_ends_as_one_that_was_not(tmp_path):
    whole = up.train("ppo", "gym:CartPole-v1", model=layers(), out=tmp_path / "whole", **QUICK)
    with pytest.raises(Crash):
        up.train("ppo", "gym:CartPole-v1", model=layers(), out=tmp_path / "cut", watcher=Breaks(3), **QUICK)
    with pytest.raises(UserError, match=r"up\.resume\(.*model=\.\.\."):
        up.resume(tmp_path / "cut")
    up.resume(tmp_path / "cut", model=layers())
    assert_same_run(whole.path, tmp_path / "cut")


class Look(nn.Module):
    """Of a picture the mean of each column."""

    def __init__(self, features: int = 9):
        super().__init__()
        self.columns, self.last = nn.Linear(9, features), nn.ReLU()
        self.register_buffer("scale", torch.tensor(255.0))

    def forward(self, picture):
        return self.last(self.columns(picture.float().mean((1, 2)) / self.scale))


def test_it_may_look_at_images_and_stand_before_a_memory(tmp_path):
    run = up.train("ppo", "gym:Sides-v0:side=9", model=Look(), out=tmp_path / "images", **QUICK | {"steps": 1})
    assert run.policy.weights()["encoder.module.scale"] == 255.0, "what it keeps in buffers is in the checkpoint, too"
    made = up.train("ppo", "gym:Cue-v0", model=nn.Linear(2, 5), knobs={"policy": "Recurrent(memory=4)"}, out=tmp_path / "cue",
                    **QUICK | {"steps": 1})  # fmt: skip
    assert made.policy.memory.inputs == 5
    _, state = made.predict(np.zeros(2, np.float32))
    assert state.shape == (1, 4)


def test_what_the_user_froze_stays_frozen():
    module = layers()
    module[0].requires_grad_(False)
    built = OwnModule(module).built(GymTask("CartPole-v1"))
    assert [weight.requires_grad for weight in built.parameters()] == [False, False, True, True]


class Gives(nn.Module):
    def __init__(self, given):
        super().__init__()
        self.given = given

    def forward(self, observation):
        return self.given(observation)


@pytest.mark.parametrize(
    ("module", "said"),
    [
        (nn.Linear(3, 8), r"two observations of gym:CartPole-v1, numbers \(2, 4\), make it raise RuntimeError: mat1 and mat2"),
        (Gives(lambda seen: seen.sum()), r"give torch.float32 \(\); it must be features, a row of floats for each: \(2, F\)"),
        (Gives(lambda seen: seen[:, None]), r"give torch.float32 \(2, 1, 4\)"),
        (Gives(lambda seen: seen[:1]), r"give torch.float32 \(1, 4\)"),
        (Gives(lambda seen: seen.long()), r"give torch.int64 \(2, 4\)"),
        (Gives(lambda seen: (seen, seen)), "give tuple"),
        (Gives(lambda seen: seen / 0), "features that are not finite"),
        (nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8)), r"has BatchNorm1d \(1\), which computes something else"),
        (nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.1)), r"has Dropout \(1\).*LayerNorm"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_trained(module: nn.Module, said: str, tmp_path):
    with pytest.raises(UserError, match=said):
        up.train("ppo", "gym:CartPole-v1", model=module, out=tmp_path / "run", **QUICK)
    assert not (tmp_path / "run").exists()


def test_bytes_methods_and_text_that_do_not_go_with_it_are_refused(tmp_path):
    with pytest.raises(UserError, match=r"bytes \(2, 1, 9, 9\).*begin with observation\.float\(\) / 255"):
        up.train("ppo", "gym:Sides-v0:side=9", model=nn.Conv2d(1, 4, 3), out=tmp_path / "run", **QUICK)
    with pytest.raises(UserError, match="model=Linear goes with methods whose policy is MLP or Recurrent; sac has Stochastic"):
        up.train("sac", "gym:CartPole-v1", model=nn.Linear(4, 8), out=tmp_path / "run", steps=1)
    with pytest.raises(UserError, match="'Linear', no model of transformers"):
        up.train("grpo", "reverse", model=nn.Linear(4, 8), out=tmp_path / "run", steps=1)
    shared = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    shared[1].weight = shared[0].weight
    with pytest.raises(UserError, match=r"the same weights as 0\.weight and as 1\.weight"):
        up.train("ppo", "gym:CartPole-v1", model=shared, out=tmp_path / "run", **QUICK)
