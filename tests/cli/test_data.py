"""``upslope data``: made, measured, listed, converted; and what goes wrong."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from upslope.cli import main
from upslope.experience import load_dataset

Upslope = Callable[..., tuple[int, str, str]]
MAKE = ["data", "make", "mine", "--task", "gym:Pendulum-v1:max_episode_steps=20", "--steps", "100"]


@pytest.fixture
def upslope(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Upslope:
    """Runs a command in an empty folder; its exit code, standard output and standard error."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    monkeypatch.setattr("upslope.datasets.making.REFERENCE_EPISODES", 3)

    def call(*words: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main(list(words))
        told = capsys.readouterr()
        return code, told.out, told.err

    return call


def test_data_are_made_described_listed_and_converted(upslope: Upslope):
    code, out, err = upslope(*MAKE, "--recipe", "mixed:expert=0.4", "--seed", "3")
    assert (code, err) == (0, "") and out.splitlines()[-1] == "data/mine"
    assert "mixed:expert=0.4 on gym:Pendulum-v1:max_episode_steps=20: 5 episodes, 100 steps" in out
    assert "over 3 episodes each" in out
    assert upslope(*MAKE, "--recipe", "mixed:expert=0.4", "--seed", "3", "--quiet") == (0, "data/mine\n", "")
    code, out, _ = upslope("data", "describe", "mine")
    assert code == 0 and all(word in out for word in ("TQ", "SACo", "--reference", "action variance", "5 truncated", "try "))
    assert [line.split()[:3] for line in upslope("data", "list")[1].splitlines()[1:]] == [["mine", "5", "100"]]
    digest = load_dataset("mine").digest
    for target in ("there.npz", "there.hdf5", "minari:me/mine-v0", "copy", "some/folder"):
        code, out, err = upslope("data", "convert", "mine", target)
        assert (code, err) == (0, ""), err
        assert load_dataset(out.strip()).digest == digest
    assert Path("data/copy").is_dir() and Path("some/folder").is_dir()
    names = [line.split()[0] for line in upslope("data", "list")[1].splitlines()[1:]]
    assert names == ["copy", "mine", "minari:me/mine-v0"]


def test_the_same_as_json(upslope: Upslope):
    upslope(*MAKE)
    found = json.loads(upslope("data", "describe", "mine", "--json", "--reference", "mine")[1])
    assert found["coverage"]["saco"] == 1 and found["decisions"] == 100 and found["advice"]["family"]
    (listed,) = json.loads(upslope("data", "list", "--json")[1])
    assert listed["name"] == "mine" and listed["decisions"] == 100 and listed["recipe"] == "random"


def test_a_log_of_ones_own_is_described(upslope: Upslope):
    np.savez(
        "log.npz", observations=np.random.default_rng(0).normal(size=(40, 3)), actions=np.zeros((40, 1)), rewards=np.ones(40),
        terminations=np.zeros(40), truncations=np.arange(40) % 10 == 9,
    )  # fmt: skip
    code, out, _ = upslope("data", "describe", "log.npz")
    assert code == 0 and "needs the returns of random actions and of an expert" in out


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["describe", "none"], "no dataset 'none'. data/ has none yet: 'upslope data make' makes one."),
        (["make", "mine"], "--task is missing"),
        (["make", "mine", "--task", "gym:Pendulum-v1", "--recipe", "medum"], "no recipe 'medum'. Did you mean 'medium'"),
        (["make", "mine", "--steps", "0"], "--steps"),
        (["make", "mine", "--stepz", "3"], "data make: no flag '--stepz'. Did you mean '--steps'"),
        (["convert", "none", "there.npz"], "no dataset 'none'"),
        (["convert", "none", ""], "the target is empty"),
        (["mak"], "invalid choice: 'mak'"),
    ],
)
def test_what_goes_wrong_is_told_in_a_line(words: list[str], told: str, upslope: Upslope):
    code, out, err = upslope("data", *words)
    assert (code, out) == (2, "") and told in err and err.count("\n") == 1 and "Traceback" not in err


def test_nothing_is_written_over(upslope: Upslope):
    upslope(*MAKE)
    Path("there.npz").write_bytes(b"mine")
    for target in ("there.npz", "mine"):
        code, _, err = upslope("data", "convert", "mine", target)
        assert code == 2 and "is there already, and nothing is written over" in err
    assert upslope(*MAKE, "--seed", "1")[0] == 2 and Path("there.npz").read_bytes() == b"mine"


def test_without_minari_there_is_a_list(upslope: Upslope, monkeypatch: pytest.MonkeyPatch):
    assert upslope("data", "list")[0] == 0 and not Path("minari").exists()  # looking makes nothing
    monkeypatch.setitem(sys.modules, "minari", None)
    code, out, err = upslope("data", "list")
    assert (code, out.strip()) == (0, "") and "no dataset in data/" in err
    Path("minari").mkdir()
    assert upslope("data", "list")[0] == 0
    assert upslope(*MAKE)[0] == 0 and "mine" in upslope("data", "list")[1]


def test_data_alone_shows_its_commands(upslope: Upslope):
    code, out, _ = upslope("data")
    assert code == 0 and all(word in out for word in ("make", "describe", "list", "convert"))
    assert "recipes:" in upslope("data", "make", "--help")[1]
