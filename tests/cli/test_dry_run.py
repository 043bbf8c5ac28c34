"""``upslope train ... --dry-run``: a table, JSON, and an exit code of its own for what does not fit."""

from __future__ import annotations

import json
import shutil
from collections import namedtuple

import pytest

from upslope.cli import main

WORDS = ["train", "dr-grpo", "reverse:length=2", "--model", "tiny:layers=2,width=64", "--dry-run"]
GPU = ["--device", "cuda"]


def test_what_fits_is_told_and_ends_well(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main([*WORDS, *GPU, "--memory", "8GB"]) == 0
    said = capsys.readouterr().out
    for words in ("parameters", "weights, float32", "weights, bfloat16", "Adam's moments", "activations", "keys and values",
                  "CUDA's own", "of a GPU with 8GB", "checkpoints, each", "tokens, at most", "layers recomputed"):  # fmt: skip
        assert words in said
    assert list(tmp_path.iterdir()) == [], "no folder is made"


def test_what_does_not_fit_ends_with_a_code_of_its_own_and_a_setting_that_works(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    large = [*WORDS, *GPU, "--samples-per-task", "64", "--max-tokens", "400", "--memory", "900MB", "--json"]
    assert main(large) == 3
    told = capsys.readouterr()
    found = json.loads(told.out)
    assert not found["fits"] and found["memory"]["total"] > found["device"]["memory"] == 9 * 10**8
    assert "upslope: the run would take about" in told.err and "It fits with --" in told.err and told.err.count("\n") == 1
    flags = told.err.partition("It fits with ")[2].partition(" (")[0].split()
    assert main([*large, *flags]) == 0, "and so it does"


def test_a_disk_that_is_too_small_is_told_too(capsys, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: namedtuple("Usage", "total used free")(10**9, 0, 1000))
    assert main(WORDS) == 3
    assert "--checkpoint-every none" in capsys.readouterr().err
    assert main([*WORDS, "--checkpoint-every", "none"]) == 0


@pytest.mark.parametrize(("flags", "says"), [
    (["--memory", "lots", *GPU], "--memory is 'lots'"),
    (["--recompute", "some"], "'some' is neither a whole number nor auto or all or off"),
    (["--recompute", "-1"], "--recompute is -1"),
])  # fmt: skip
def test_bad_input(flags: list[str], says: str, capsys):
    assert main([*WORDS, *flags]) == 2
    assert says in capsys.readouterr().err


def test_memory_and_json_go_with_a_dry_run(capsys):
    for flags in (["--memory", "8GB"], ["--json"]):
        assert main([*WORDS[:-1], *flags]) == 2
        assert "goes with --dry-run" in capsys.readouterr().err


@pytest.mark.parametrize(("flags", "layers"), [
    (["--recompute"], "all"), (["--recompute", "all"], "all"), (["--recompute", "true"], "all"), (["--recompute", "1"], 1),
    (["--no-recompute"], "off"), (["--recompute", "off"], "off"), (["--recompute", "false"], "off"), ([], "off"),
])  # fmt: skip
def test_layers_to_recompute_as_now_and_as_they_were_given_before(flags: list[str], layers: object, capsys):
    assert main([*WORDS, *flags, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["recompute"] == layers
