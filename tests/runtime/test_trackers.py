"""Metrics reach TensorBoard and Weights & Biases where a run asks for it, and a missing one is refused before any work."""

import warnings
from pathlib import Path

import pytest

import upslope as up
from upslope.errors import MissingExtra, Remark, UserError
from upslope.runtime import trackers

SMALL = {
    "task": "reverse:length=2", "model": "tiny:layers=1,width=32", "steps": 2, "tasks_per_step": 2, "samples_per_task": 2,
    "warm_start": 0.0, "eval_problems": 4,
}  # fmt: skip


def test_tensorboard_gets_every_step(tmp_path: Path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = up.train("grpo", **SMALL, out=tmp_path, trackers=("tensorboard",))
    events = EventAccumulator(str(run.path / "tensorboard"))
    events.Reload()
    logged = [(event.step, event.value) for event in events.Scalars("entropy")]
    assert logged == [(record["step"], pytest.approx(record["entropy"], rel=1e-6)) for record in run.metrics]


@pytest.mark.slow
def test_wandb_gets_every_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("WANDB_CONFIG_DIR", str(tmp_path / "config"))
    monkeypatch.setenv("WANDB_CACHE_DIR", str(tmp_path / "cache"))
    run = up.train("grpo", **SMALL, out=tmp_path / "run", trackers=("wandb",))
    (journal,) = (run.path / "wandb").glob("offline-run-*/*.wandb")
    written = journal.read_bytes()
    for record in run.metrics:
        assert str(record["entropy"]).encode() in written


def test_an_unknown_tracker_is_refused_before_the_run_begins(tmp_path: Path):
    with pytest.raises(UserError, match=r"no tracker named 'tensorbord'. Did you mean 'tensorboard'"):
        up.train("grpo", **SMALL, out=tmp_path / "run", trackers=("tensorbord",))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("tracker", "command"), [("wandb", r"pip install -e .*\[wandb\]"), ("tensorboard", r"pip install -e .*\[trackers\]")]
)
def test_a_tracker_that_is_not_installed_names_its_install(tracker, command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=command):
        up.train("grpo", **SMALL, out=tmp_path / "run", trackers=(tracker,))
    assert not (tmp_path / "run").exists()


class Failing:
    """Fails when it is made, when it logs or when it is closed."""

    def __init__(self, when: str):
        self.when, self.logged = when, 0
        self.fail("made")

    def fail(self, now: str) -> None:
        if now == self.when:
            raise OSError(28, "No space left on device")

    def log(self, step: int, metrics: dict) -> None:
        self.logged += 1
        self.fail("logs")

    def close(self) -> None:
        self.fail("closed")


@pytest.mark.parametrize("when", ["made", "logs", "closed"])
def test_a_tracker_that_fails_is_told_once_and_ends_nothing(when: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(trackers, "TensorBoard", lambda *_: Failing(when))
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        run = up.train("grpo", **SMALL, out=tmp_path / "run", trackers=("tensorboard",))
    (told,) = [str(warning.message) for warning in said if warning.category is Remark]
    assert "tensorboard failed and is left out from here on (OSError: [Errno 28] No space left on device)" in told
    assert run.summary["steps"] == 2
