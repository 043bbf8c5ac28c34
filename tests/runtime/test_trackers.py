"""Metrics reach TensorBoard and Weights & Biases where a run asks for it, and a missing one is refused before any work."""

import contextlib
import json
import os
import sqlite3
import subprocess
import sys
import warnings
from pathlib import Path
from unittest import mock

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


def test_tensorboard_gets_evaluations_samples_and_the_configuration(tmp_path: Path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = up.train("grpo", **SMALL, out=tmp_path / "run", trackers=(f"tensorboard:dir={tmp_path / 'all'}",))
    (place,) = (tmp_path / "all").iterdir()
    events = EventAccumulator(str(place))
    events.Reload()
    assert [(event.step, event.value) for event in events.Scalars("eval/score")] == [(0, 0.0), (2, 0.0)]
    texts = {name: events.Tensors(f"{name}/text_summary") for name in ("config", "completions", "summary")}
    said = {name: b"".join(each.tensor_proto.string_val[0] for each in found).decode() for name, found in texts.items()}
    assert [each.step for each in texts["completions"]] == [1, 2]
    assert '"tasks_per_step": 2' in said["config"] and '"score_after"' in said["summary"]
    assert all(json.dumps(row["response"], ensure_ascii=False) in said["completions"] for row in run.folder.read("samples.jsonl"))


@pytest.fixture
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """W&B without a server, and without files outside the test's folder."""
    for name, value in {
        "MODE": "offline",
        "SILENT": "true",
        "CONFIG_DIR": tmp_path / "config",
        "CACHE_DIR": tmp_path / "c",
    }.items():
        monkeypatch.setenv(f"WANDB_{name}", str(value))


@pytest.mark.slow
def test_wandb_gets_every_step(offline, tmp_path: Path):
    run = up.train("grpo", **SMALL, out=tmp_path / "run", trackers=("wandb",))
    (journal,) = (run.path / "wandb").glob("offline-run-*/*.wandb")
    written = journal.read_bytes()
    for record in run.metrics:
        assert str(record["entropy"]).encode() in written
    assert b"eval/score" in written and b"score_after" in written and b"tasks_per_step" in written
    assert list((run.path / "wandb").glob("offline-run-*/files/media/table/completions*.json"))


def test_wandb_gets_its_options_and_the_same_unique_id_when_a_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    import wandb

    asked = []
    monkeypatch.setattr(wandb, "init", lambda **options: asked.append(options) or mock.MagicMock())
    tracker = "wandb:project=mine,entity=us,group=sweep,tags=a+b"
    for place in ("a/run", "b/run"):
        up.train("grpo", **SMALL | {"steps": 1, "warmup": 0}, out=tmp_path / place, trackers=(tracker,))
    up.resume(tmp_path / "a" / "run", steps=2)
    assert [(each["project"], each["entity"], each["group"], each["tags"]) for each in asked] == [
        ("mine", "us", "sweep", ["a", "b"])
    ] * 3
    first, other, again = (each["id"] for each in asked)
    assert first == again != other
    assert asked[0]["name"] == asked[1]["name"] == "run"
    assert asked[0]["config"]["settings"]["tasks_per_step"] == 2


@pytest.mark.slow
def test_mlflow_gets_everything_and_goes_on_with_the_same_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from mlflow import MlflowClient

    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    where = (tmp_path / "mlruns").as_uri()
    tracker = f"mlflow:experiment=mine,uri={where}"
    up.train("grpo", **SMALL | {"steps": 1, "warmup": 0}, out=tmp_path / "run", trackers=(tracker,))
    run = up.resume(tmp_path / "run", steps=2)
    client = MlflowClient(where)
    (logged,) = client.search_runs([client.get_experiment_by_name("mine").experiment_id])
    history = client.get_metric_history(logged.info.run_id, "entropy")
    assert [(each.step, each.value) for each in history] == [(record["step"], record["entropy"]) for record in run.metrics]
    assert [each.step for each in client.get_metric_history(logged.info.run_id, "eval/score")] == [0, 1, 2]
    assert logged.data.params["settings.tasks_per_step"] == "2"
    assert {each.path for each in client.list_artifacts(logged.info.run_id)} == {"config.json", "completions", "summary.json"}
    assert logged.info.status == "FINISHED"


@pytest.mark.slow
def test_trackio_gets_everything_and_prints_nothing_to_stdout(tmp_path: Path):
    script = (
        f"import upslope as up; up.train('grpo', **{SMALL!r}, out={str(tmp_path / 'run')!r}, trackers=('trackio:project=mine',))"
    )
    alone = {**os.environ, "TRACKIO_DIR": str(tmp_path / "trackio"), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run([sys.executable, "-c", script], env=alone, capture_output=True, text=True, check=True)
    assert done.stdout == "" and "failed and is left out" not in done.stderr
    (database,) = (tmp_path / "trackio").glob("mine*.db")
    with contextlib.closing(sqlite3.connect(database)) as held:
        rows = held.execute("select run_name, step, metrics from metrics order by step").fetchall()
    assert {name for name, _, _ in rows} == {f"run-{json.loads((tmp_path / 'run' / 'trackers.json').read_text())['trackio'][:6]}"}
    logged = [(step, json.loads(metrics)) for _, step, metrics in rows]
    assert [step for step, metrics in logged if "entropy" in metrics] == [1, 2]
    assert [step for step, metrics in logged if "eval/score" in metrics] == [0, 2]
    assert [step for step, metrics in logged if "completions" in metrics] == [1, 2]


class Mine:
    """A tracker of the user's own."""

    def __init__(self):
        self.told: list[str] = []

    def begin(self, folder, config):
        self.told.append(f"begin {folder.name} {config['settings']['steps']}")

    def log(self, step, metrics):
        self.told.append(f"log {step} {metrics['entropy']}")

    def log_samples(self, step, rows):
        self.told.append(f"samples {step} {len(rows)}")

    def log_evaluation(self, step, result):
        self.told.append(f"evaluation {step}")

    def log_summary(self, summary):
        self.told.append(f"summary {summary['steps']}")

    def close(self):
        self.told.append("close")


class OnlyLog:
    """The least there can be."""

    def __init__(self):
        self.steps: list[int] = []

    def log(self, step, metrics):
        self.steps.append(step)


@pytest.mark.filterwarnings("ignore:trackers are objects")
def test_trackers_as_objects_get_everything_they_have_a_method_for(tmp_path: Path):
    mine, least = Mine(), OnlyLog()
    run = up.train("grpo", **SMALL, out=tmp_path / "run", trackers=[mine, "tensorboard", least])
    first, second = (record["entropy"] for record in run.metrics)
    assert mine.told == [
        "begin run 2", "evaluation 0", "samples 1 4", f"log 1 {first}", "samples 2 4", f"log 2 {second}", "evaluation 2",
        "summary 2", "close",
    ]  # fmt: skip
    assert least.steps == [1, 2]
    assert run.table["trackers"] == ["tensorboard"] and run.table["listeners"] == {"trackers": ["Mine", "OnlyLog"]}


@pytest.mark.filterwarnings("ignore")
def test_a_run_that_goes_on_takes_further_trackers(tmp_path: Path):
    up.train("grpo", **SMALL, out=tmp_path / "run", trackers=[Mine()])
    mine = Mine()
    run = up.resume(tmp_path / "run", steps=3, trackers=[mine, "tensorboard"])
    assert mine.told[0] == "begin run 3" and mine.told[1].startswith("samples 3") and mine.told[-1] == "close"
    assert (run.path / "tensorboard").is_dir()


@pytest.mark.filterwarnings("ignore:.*are objects")
def test_a_tracker_is_closed_however_the_run_ends(tmp_path: Path):
    class Bad:
        def on_step(self, step, metrics):
            raise ValueError("no")

    mine = Mine()
    with pytest.raises(UserError, match=r"Bad\.on_step"):
        up.train("grpo", **SMALL, out=tmp_path / "run", trackers=[mine], callbacks=[Bad()])
    assert mine.told[-1] == "close" and "summary 2" not in mine.told


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("wandb", "trackers is 'wandb' \\(str\\); it must be a list of names"),
        (7, "trackers is 7 \\(int\\); it must be a list"),
        ([Mine], "Mine is a class, not an object of it"),
        ([7], r"trackers: 7 \(int\) has no log\(step, metrics\)"),
        (["wandb:projekt=a"], "no option named 'projekt'. Did you mean 'project'"),
        (["wandb:project"], "project has no value"),
    ],
)
def test_what_is_no_tracker_is_refused_before_the_run(given: object, told: str, tmp_path: Path):
    with pytest.raises(UserError, match=told):
        up.train("grpo", **SMALL, out=tmp_path / "run", trackers=given)
    assert not (tmp_path / "run").exists()


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
