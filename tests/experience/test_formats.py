"""Round trips through files of others, exact, and files that cannot be read."""

import copy
import dataclasses
import json
import sys
from pathlib import Path

import numpy as np
import pytest

from upslope.errors import MissingExtra, UserError
from upslope.experience import Dataset, Episode, Episodes, Space, load_dataset
from upslope.experience.formats import CARD_KEY, write_hdf5, write_npz
from upslope.experience.minari_files import write_minari
from upslope.experience.shapes import check_episodes
from upslope.types import Ended


def made(kind: str) -> Dataset:
    """Two episodes of vectors with vectors, of vectors with choices, of images with choices, or of images and numbers."""
    rng = np.random.default_rng(0)

    def episode(length: int, ended: Ended) -> Episode:
        seen = (
            rng.integers(0, 256, (length + 1, 4, 4, 3)).astype(np.uint8) if kind == "images" else rng.normal(size=(length + 1, 3))
        )
        action = rng.uniform(-2, 2, (length, 2)) if kind == "vectors" else rng.integers(0, 3, length)
        if kind == "both":
            seen = {
                "camera": rng.integers(0, 256, (length + 1, 4, 5)).astype(np.uint8),
                "arm": {"joints": seen, "grip": seen[:, 0]},
            }
        return Episode(seen, action, rng.normal(size=length), ended)

    episodes = Episodes.of(check_episodes([episode(5, Ended.TERMINATED), episode(3, Ended.TRUNCATED)], "mine"))
    action = Space((2,), "float32", low=(-2.0,), high=(2.0, 3.0)) if kind == "vectors" else Space((), "int64", n=4)
    return Dataset.of(episodes, "mine", env="gym:CartPole-v1", recipe="random", seed=1, random=20.0, expert=500.0, action=action)


@pytest.fixture(autouse=True)
def own_minari(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))


KINDS = ("vectors", "choices", "images", "both")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("suffix", [".npz", ".hdf5", ".h5"])
def test_flat_files_give_back_what_was_written(kind: str, suffix: str, tmp_path: Path):
    dataset, path = made(kind), tmp_path / f"there{suffix}"
    (write_npz if suffix == ".npz" else write_hdf5)(dataset, path)
    found = load_dataset(path)
    assert found.digest == dataset.digest and found.card == dataset.card and found.episodes.pieces == dataset.episodes.pieces
    assert [file.name for file in tmp_path.glob("*there*")] == [path.name]


@pytest.mark.parametrize("kind", KINDS)
def test_minari_gives_back_what_was_written(kind: str):
    dataset = made(kind)
    write_minari(dataset, "minari:me/mine-v0")
    found = load_dataset("minari:me/mine-v0")
    assert found.digest == dataset.digest and found.card == dataset.card and found.episodes.pieces == dataset.episodes.pieces


def test_files_of_images_and_numbers_have_an_array_for_each(tmp_path: Path):
    import h5py

    dataset = made("both")
    write_npz(dataset, tmp_path / "mine.npz")
    write_hdf5(dataset, tmp_path / "mine.hdf5")
    with np.load(tmp_path / "mine.npz") as file:
        assert file["observations.camera"].shape == (8, 4, 5, 1) and file["next_observations.arm.joints"].dtype == np.float32
        columns = {name: file[name] for name in file.files if name != CARD_KEY}
    with h5py.File(tmp_path / "mine.hdf5") as file:
        assert file["observations/arm/grip"].shape == (8, 1)
    np.savez(tmp_path / "without.npz", **columns)  # as a robot would write it
    found = load_dataset(tmp_path / "without.npz")
    assert found.digest == dataset.digest and str(found.card.observation) == "arm.grip 1, arm.joints 3, camera 4x5x1 bytes"


def test_others_can_read_what_we_write(tmp_path: Path):
    import h5py
    import minari

    dataset = made("vectors")
    write_hdf5(dataset, tmp_path / "there.hdf5")
    with h5py.File(tmp_path / "there.hdf5") as file:
        assert set(file) == {"observations", "actions", "rewards", "terminals", "timeouts", "next_observations"}
        assert file["terminals"][()].tolist() == [False] * 4 + [True] + [False] * 3
    write_minari(dataset, "minari:mine-v0")
    theirs = minari.load_dataset("mine-v0")
    assert theirs.total_steps == 8 and theirs[0].observations.shape == (6, 3)
    assert minari.get_normalized_score(theirs, np.array([500.0])).item() == 1.0
    assert theirs.recover_environment().spec.id == "CartPole-v1"


@pytest.mark.filterwarnings("ignore::UserWarning")  # Minari's, that nobody named an author
def test_what_others_wrote_with_minari_is_read(tmp_path: Path):
    """A Dict of a vector and a choice, choices that begin at 1, an environment made with an option; no card of ours."""
    import gymnasium
    import minari
    from gymnasium import spaces
    from minari.data_collector import EpisodeBuffer

    space = spaces.Dict({"pose": spaces.Box(-1, 1, (2,)), "gear": spaces.Discrete(3)})
    one = EpisodeBuffer(
        id=0, observations={"pose": np.array([[0.1, 0.2], [0.3, 0.4]], np.float32), "gear": np.array([2, 0])},
        actions=np.array([2]), rewards=np.array([1.5]), terminations=np.array([False]), truncations=np.array([True]), infos={},
    )  # fmt: skip
    env = copy.deepcopy(gymnasium.spec("FrozenLake-v1"))
    env.kwargs = {**env.kwargs, "is_slippery": False}
    minari.create_dataset_from_buffers(
        "robot/log-v0", [one], observation_space=space, action_space=spaces.Discrete(2, start=1), env=env,
    )  # fmt: skip
    found = load_dataset("minari:robot/log-v0")
    # gear stands before pose: gymnasium sorts the names of a Dict.
    assert np.allclose(found.episodes.observation, [[0, 0, 1, 0.1, 0.2], [1, 0, 0, 0.3, 0.4]])
    assert found.episodes.action.tolist() == [1, 0] and found.card.action == Space((), "int64", n=2)
    assert found.card.env == "gym:FrozenLake-v1:is_slippery=False" and found.card.origin == "minari:robot/log-v0"


@pytest.mark.parametrize(
    ("env", "limit"), [("gym:CartPole-v1:max_episode_steps=50", 50), ("gym:CartPole-v1:params.gravity=5", None)]
)
def test_minari_makes_the_environment_again_if_it_can(env: str, limit: int | None):
    import minari

    dataset = made("vectors")
    write_minari(dataclasses.replace(dataset, card=dataclasses.replace(dataset.card, env=env)), "minari:mine-v0")
    found = minari.load_dataset("mine-v0").env_spec
    assert (found.max_episode_steps if found else None) == limit
    assert load_dataset("minari:mine-v0").card.env == env


def test_a_card_that_is_not_of_these_numbers_is_left_out(tmp_path: Path):
    write_npz(made("vectors"), tmp_path / "there.npz")
    with np.load(tmp_path / "there.npz") as file:
        columns = dict(file)
    columns["rewards"] = columns["rewards"] + 1
    np.savez(tmp_path / "changed.npz", **columns)
    found = load_dataset(tmp_path / "changed.npz").card
    assert json.loads(str(columns[CARD_KEY]))["recipe"] == "random"
    assert (found.name, found.recipe, found.env) == ("changed", "", "")


def test_files_that_cannot_be_read(tmp_path: Path):
    for name in ("bad.npz", "bad.hdf5"):
        (tmp_path / name).write_bytes(b"not a file of that kind")
        with pytest.raises(UserError, match="cannot be read as"):
            load_dataset(tmp_path / name)
    np.savez(tmp_path / "objects.npz", observations=np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(UserError, match="it holds Python objects; save plain arrays of numbers"):
        load_dataset(tmp_path / "objects.npz")
    np.savez(tmp_path / "other.npz", states=np.zeros(3), rewards=np.zeros(3))
    with pytest.raises(UserError, match=r"has no 'observations'.*it has rewards, states"):
        load_dataset(tmp_path / "other.npz")


def test_ids_of_minari_that_are_not_there_or_already_there():
    with pytest.raises(UserError, match="Minari has no dataset 'no/such-v0' on this machine"):
        load_dataset("minari:no/such-v0")
    with pytest.raises(UserError, match="ends in its version, as in minari:me/mine-v0"):
        write_minari(made("vectors"), "minari:mine")
    write_minari(made("vectors"), "minari:mine-v0")
    with pytest.raises(UserError, match="has a dataset 'mine-v0' already"):
        write_minari(made("vectors"), "minari:mine-v0")


@pytest.mark.parametrize(("spec", "package"), [("log.hdf5", "h5py"), ("minari:mine-v0", "minari")])
def test_a_missing_package_names_the_extra(spec: str, package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    Path("log.hdf5").write_bytes(b"")
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtra, match=rf"{package} is not installed.*\n.*offline"):
        load_dataset(spec)
