"""Datasets as folders and as objects."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from upslope.errors import UserError
from upslope.experience import Dataset, Episode, Episodes, load_dataset
from upslope.experience.dataset import CARD, COLUMNS, dataset_folders
from upslope.runtime.checkpoint_files import Damaged
from upslope.types import Ended


def two_episodes() -> Episodes:
    """One of three decisions that terminates, one of two that is cut."""
    over = Episode(np.arange(8.0).reshape(4, 2), np.array([[0.1], [0.2], [0.3]]), np.array([1.0, 2.0, 3.0]), Ended.TERMINATED)
    cut = Episode(np.arange(6.0).reshape(3, 2) + 20, np.array([[0.4], [0.5]]), np.array([4.0, 5.0]), Ended.TRUNCATED)
    return Episodes.of([over, cut])


def same(one: Episodes, other: Episodes) -> bool:
    return all(
        getattr(one, name).dtype == getattr(other, name).dtype and np.array_equal(getattr(one, name), getattr(other, name))
        for name in ("observation", "action", "reward", "ended")
    )


def test_a_folder_gives_back_what_was_saved(tmp_path: Path):
    made = Dataset.of(two_episodes(), "mine", env="gym:Pendulum-v1", recipe="random", seed=3, random=-1200.0, expert=-150.0)
    made.save(tmp_path / "mine")
    found = load_dataset(tmp_path / "mine")
    assert same(found.episodes, made.episodes) and found.card == made.card
    assert {"dataset.json", "columns.safetensors", "digests.json"} == {file.name for file in (tmp_path / "mine").iterdir()}


def test_what_is_not_known_is_null_and_comes_back_as_nan(tmp_path: Path):
    Dataset.of(two_episodes(), "mine").save(tmp_path / "mine")
    record = json.loads((tmp_path / "mine" / CARD).read_text())
    assert record["random"] is None and record["seed"] is None
    assert math.isnan(load_dataset(tmp_path / "mine").card.expert)


def test_a_bare_name_is_looked_for_in_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    Dataset.of(two_episodes(), "hopper-medium").save("data/hopper-medium")
    assert load_dataset("hopper-medium").card.name == "hopper-medium"
    assert [folder.name for folder in dataset_folders()] == ["hopper-medium"]
    with pytest.raises(UserError, match=r"no dataset 'hopper-medum'. Did you mean 'hopper-medium'\?"):
        load_dataset("hopper-medum")


def test_scores_are_normalised_between_random_and_expert():
    known = Dataset.of(two_episodes(), random=-100.0, expert=300.0)
    assert [known.normalised(score) for score in (-100.0, 300.0, 100.0, 500.0)] == [0.0, 100.0, 50.0, 150.0]
    assert math.isnan(Dataset.of(two_episodes()).normalised(1.0))
    assert math.isnan(Dataset.of(two_episodes(), random=1.0, expert=1.0).normalised(1.0))


def test_objects_are_taken_as_they_are():
    episodes = two_episodes()
    made = Dataset.of(episodes)
    assert load_dataset(made) is made
    assert load_dataset(episodes).digest == load_dataset(list(episodes)).digest == made.digest
    for wrong in (3, [], [1, 2], None):
        with pytest.raises(UserError, match="is no dataset"):
            load_dataset(wrong)


def test_a_digest_tells_every_column(tmp_path: Path):
    digests = {Dataset.of(two_episodes()).digest}
    for column, place, value in (("observation", (0, 0), 9.0), ("action", (0, 0), 9.0), ("reward", 0, 9.0), ("ended", 2, 2)):
        changed = two_episodes()
        getattr(changed, column)[place] = value
        digests.add(Dataset.of(changed).digest)
    assert len(digests) == 5
    beside = two_episodes()
    beside.reward[3], beside.action[3] = 7.0, 7.0  # where nobody acted
    assert Dataset.of(beside).digest == Dataset.of(two_episodes()).digest


def test_a_folder_that_was_changed_is_refused(tmp_path: Path):
    Dataset.of(two_episodes()).save(tmp_path / "mine")
    columns = tmp_path / "mine" / COLUMNS
    data = bytearray(columns.read_bytes())
    data[-1] ^= 1
    columns.write_bytes(data)
    with pytest.raises(Damaged, match=r"columns\.safetensors is damaged"):
        load_dataset(tmp_path / "mine")


def test_saving_is_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from upslope.runtime import checkpoint_files

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    Dataset.of(two_episodes(), "before").save(tmp_path / "mine")
    monkeypatch.setattr(checkpoint_files, "write_tensors", full)
    with pytest.raises(OSError):
        Dataset.of(two_episodes(), "after").save(tmp_path / "mine")
    assert [entry.name for entry in tmp_path.iterdir()] == ["mine"]
    assert load_dataset(tmp_path / "mine").card.name == "before"


@pytest.mark.parametrize("spec", ["", "none.npz", "there.txt", "empty"])
def test_what_is_no_dataset_is_refused(spec: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    Path("there.txt").write_text("x")
    Path("empty").mkdir()
    with pytest.raises(UserError, match=r"FILE.npz|\.npz or \.hdf5|without dataset.json"):
        load_dataset(spec)


def test_a_card_of_a_newer_format_is_refused(tmp_path: Path):
    from upslope.experience.card import Card

    record = Dataset.of(two_episodes()).card.record()
    with pytest.raises(UserError, match="has format 2; this version of upslope reads up to 1"):
        Card.from_record({**record, "format": 2}, "dataset.json")
    with pytest.raises(UserError, match="is no card of a dataset"):
        Card.from_record([], "dataset.json")
