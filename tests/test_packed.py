"""Images and numbers in one observation: packed into rows of bytes, learned from, resumed, predicted for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from camera_environment import CameraAndJoints

import upslope as up
from upslope.errors import TaskError, UserError
from upslope.packed import Piece, arrays_of, numbers_of, packed, packed_size, packing
from upslope.rollout.normalise import ObservationNormaliser, PackedNormaliser
from upslope.tasks import load_task
from upslope.testing.runs import Breaks, Crash, assert_same_run

CAMERA = "gym:CameraAndJoints-v0"
PIECES = packing([Piece("eye", (3, 2, 1), True), Piece("z", (2, 2), False), Piece("a", (1,), False), Piece("b", (5, 1, 1), True)])


def test_numbers_come_first_then_images_by_name_and_a_row_is_whole_floats():
    assert [(piece.name, piece.begin, piece.end) for piece in PIECES] == [("a", 0, 4), ("z", 4, 20), ("b", 20, 25), ("eye", 25, 31)]
    assert packed_size(PIECES) == 32 and packed_size(PIECES[:2]) == 20
    assert [piece.channel_axis for piece in PIECES] == [None, None, 2, 2]
    assert ", ".join(map(str, PIECES)) == "a 1, z 2x2, b 5x1x1 bytes, eye 3x2x1 bytes"


def test_what_is_packed_comes_out_again():
    rng = np.random.default_rng(0)
    values = {piece.name: rng.integers(0, 256, (7, *piece.shape)).astype(np.uint8) for piece in PIECES if piece.is_image}
    values |= {piece.name: rng.normal(size=(7, *piece.shape)).astype(np.float32) for piece in PIECES if not piece.is_image}
    rows = packed(values, PIECES, 7)
    assert rows.shape == (7, 32) and rows.dtype == np.uint8 and not rows[:, 31].any()
    found = arrays_of(rows, PIECES)
    assert all(np.array_equal(found[name], value) for name, value in values.items()) and found.keys() == values.keys()
    assert np.array_equal(numbers_of(rows, PIECES), np.concatenate([values["a"], values["z"].reshape(7, 4)], axis=1))
    numbers_of(rows, PIECES)[3, 0] = 2.5
    assert arrays_of(rows, PIECES)["a"][3] == 2.5
    assert numbers_of(rows, packing([Piece("b", (32, 1, 1), True)])).shape == (7, 0)


@pytest.mark.parametrize(
    ("broken", "said"),
    [("nan", r"gave the observation .*nan.* which is not a finite number, from step\(\)"),
     ("float camera", r"'camera' has the shape \(8, 8, 3\) and the type float64.*camera 8x8x3 bytes")],
)  # fmt: skip
def test_what_is_no_such_observation_is_told(broken: str, said: str):
    place = load_task(f"{CAMERA}:broken={broken}").make(1, 1)
    place.reset(0, 0)
    with pytest.raises(TaskError, match=said):
        place.step(np.zeros(1, np.int64), [0])
    place.close()


@pytest.mark.slow
def test_a_policy_learns_what_only_both_together_say(tmp_path):
    knobs = {"policy.encoder": "SmallCNN(features=32, channels=8)", "policy.hidden": (32,)}
    run = up.train("ppo", CAMERA, steps=8, envs=8, horizon=64, lr=3e-3, knobs=knobs, out=tmp_path / "run", threads=1)
    returns = [record["episode_return"] for record in run.metrics]
    assert returns[0] < 1.8 and returns[-1] > 2.7  # of 3; by the camera or the joints alone it stays at 1.5


STORED = dict(steps=4, envs=2, horizon=20, updates_per_step=6, minibatch=8, checkpoint_every=2, eval_problems=2, threads=1)
SMALL = "SmallCNN(features=8, channels=4)"


@pytest.mark.parametrize(
    ("method", "task", "knobs"),
    [
        ("dqn", CAMERA, {"acting.0.steps": 8, "models.q.network.encoder": SMALL}),
        ("sac", f"{CAMERA}:continuous=true",
         {"acting.steps": 8, "models.q.network.encoder": SMALL, "policy.encoder": SMALL, "data.augment": "RandomCrop(padding=2)"}),
        ("ppo", CAMERA, {"policy.encoder": SMALL}),
        ("ppo", CAMERA, {"policy": "Recurrent(memory=8)", "policy.encoder": SMALL}),
    ],
    ids=["dqn", "sac with crops", "ppo", "with a memory"],
)  # fmt: skip
def test_a_run_that_goes_on_equals_one_that_never_stopped(method: str, task: str, knobs: dict, tmp_path: Path):
    settings = STORED if method != "ppo" else {key: STORED[key] for key in STORED if key not in ("updates_per_step", "minibatch")}
    whole = up.train(method, task, knobs=knobs, out=tmp_path / "whole", **settings)
    with pytest.raises(Crash):
        up.train(method, task, knobs=knobs, out=tmp_path / "cut", watcher=Breaks(3), **settings)
    up.resume(tmp_path / "cut")
    assert_same_run(whole.path, tmp_path / "cut")
    env = CameraAndJoints("continuous" in task)
    seen = [env.reset(seed=seed)[0] for seed in range(3)]
    single = [whole.predict(each, deterministic=True)[0] for each in seen]
    together = whole.predict({
        "camera": np.stack([each["camera"] for each in seen]),
        "body": {key: np.stack([each["body"][key] for each in seen]) for key in ("sign", "step")},
    }, deterministic=True)[0]  # fmt: skip
    assert np.allclose(np.stack(single), together, atol=1e-6)
    with pytest.raises(UserError, match=r"no part 'body\.sign'"):
        whole.predict({"camera": seen[0]["camera"], "body": {"step": 1}})


def test_numbers_are_normalised_and_images_are_not():
    rows = np.random.default_rng(0).integers(0, 256, (50, packed_size(PIECES))).astype(np.uint8)
    numbers = np.random.default_rng(1).normal(3, 2, (50, 5)).astype(np.float32)
    numbers_of(rows, PIECES)[...] = numbers
    before, plain, both = rows.copy(), ObservationNormaliser(5), PackedNormaliser(PIECES)
    plain.update(numbers)
    both.update(rows)
    shown = both(rows)
    assert np.array_equal(numbers_of(shown, PIECES), plain(numbers)) and np.array_equal(shown[:, 20:], rows[:, 20:])
    assert np.array_equal(rows, before), "what is stored stays as it was"


@pytest.mark.parametrize(("method", "task"), [("ppo", ":continuous=true"), ("dqn", "")])
def test_a_run_with_normalised_numbers_goes_on(method: str, task: str, tmp_path: Path):
    settings = {"steps": 4, "envs": 2, "horizon": 20, "checkpoint_every": 2, "eval_problems": 2, "threads": 1}
    settings |= {"updates_per_step": 6, "minibatch": 8, "normalise_observations": True} if method == "dqn" else {}
    settings["knobs"] = {"acting.0.steps": 8, "models.q.network.encoder": SMALL} if method == "dqn" else {"policy.encoder": SMALL}
    whole = up.train(method, CAMERA + task, out=tmp_path / "whole", **settings)
    assert whole.plan.settings.normalise_observations  # which ppo does by itself where actions are vectors
    with pytest.raises(Crash):
        up.train(method, CAMERA + task, out=tmp_path / "cut", watcher=Breaks(3), **settings)
    up.resume(tmp_path / "cut")
    assert_same_run(whole.path, tmp_path / "cut")


def test_two_cameras_have_nothing_to_normalise(tmp_path):
    with pytest.raises(UserError, match=r"normalise_observations=true: .* shows images alone"):
        up.train("ppo", "gym:TwoCameras-v0", normalise_observations=True, out=tmp_path / "run")
    run = up.train("ppo", "gym:TwoCameras-v0", steps=1, horizon=8, eval_problems=2, threads=1, out=tmp_path / "run")
    assert not run.plan.settings.normalise_observations and np.isfinite(run.metrics[-1]["loss"])


class Both(torch.nn.Module):
    """A network of one's own sees the pieces by their names."""

    def __init__(self) -> None:
        super().__init__()
        self.of_camera, self.of_body = torch.nn.Linear(3, 5), torch.nn.Linear(2, 4)

    def forward(self, seen):
        camera = self.of_camera(seen["camera"].float().mean((1, 2)) / 255)
        return torch.relu(torch.cat([camera, self.of_body(seen["body.sign"]), seen["body.step"]], 1))


@pytest.mark.parametrize("method", ["ppo", "dqn"])
def test_a_network_of_ones_own_is_given_a_dict(method: str, tmp_path: Path):
    settings = {"steps": 1, "horizon": 16, "eval_problems": 2, "threads": 1}
    settings |= {"updates_per_step": 2, "minibatch": 8, "knobs": {"acting.0.steps": 8}} if method == "dqn" else {}
    run = up.train(method, CAMERA, model=Both(), out=tmp_path / "run", **settings)
    module, learned = Both(), {name.rpartition("module.")[2]: weight for name, weight in run.policy.weights().items()}
    assert {name: weight.shape for name, weight in module.state_dict().items()}.items() <= {
        name: weight.shape for name, weight in learned.items()
    }.items()
    with pytest.raises(UserError, match=r"model=Linear: .*, a dict of body.sign 2, body.step 4, camera 8x8x3 bytes"):
        up.train(method, CAMERA, model=torch.nn.Linear(2, 2), out=tmp_path / "other", **settings)


@pytest.mark.slow
def test_data_of_both_are_made_described_and_learned_from(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made = up.make_data("seen", CAMERA, recipe="random", steps=60, seed=1)
    assert [piece.name for piece in made.episodes.pieces] == ["body.sign", "body.step", "camera"]
    again = up.load_data("seen")
    assert again.card == made.card and again.episodes.pieces == made.episodes.pieces
    assert "body.sign 2, body.step 4, camera 8x8x3 bytes" in str(again.card.observation)
    assert up.describe(again).neighbourhoods.states == 60
    run = up.train("bc", CAMERA, data="seen", steps=2, updates_per_step=3, minibatch=8, eval_problems=2, threads=1,
                   knobs={"policy.encoder": SMALL}, out=tmp_path / "run")  # fmt: skip
    assert np.isfinite(run.metrics[-1]["loss"])
