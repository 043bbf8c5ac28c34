"""Gradients and weights that are not finite are told at the first, kept to be looked at, and end a run that learns no more."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import upslope as up
from upslope.errors import Remark, UserError
from upslope.learners import nonfinite
from upslope.learners.nonfinite import IN_A_ROW, NonFinite, NonFiniteUpdate, describe
from upslope.learners.policy_gradient import PolicyGradient
from upslope.methods import find
from upslope.report.live import LiveTable
from upslope.runtime.settings import Settings
from upslope.setting_up import set_up

POISON = '''
from dataclasses import dataclass
import upslope as up
from upslope.objective.base import Regularizer

@dataclass(frozen=True)
class Poison(Regularizer):
    """NaN in the first row, from one share of the run to another."""

    after: float = {after}
    until: float = {until}

    def __call__(self, batch):
        loss = batch.current.logp * 0.0
        if self.after <= batch.progress < self.until:
            loss[0] = loss[0] * float("nan")
        return loss

method = up.method("{parent}").derive(name="poisoned", regularize=Poison(), on=())
'''
TEXT = {
    "task": "reverse:length=2", "model": "tiny:layers=1,width=16", "steps": 20, "tasks_per_step": 2, "samples_per_task": 4,
    "warm_start": 0.0, "eval_problems": 4, "record": "none",
}  # fmt: skip
CONTROL = {"task": "gym:CartPole-v1", "steps": 4, "envs": 2, "horizon": 32, "passes": 2, "eval_problems": 2, "checkpoint_every": 1}


def poisoned(folder: Path, parent: str, after: float, until: float = 2.0) -> str:
    file = folder / "poisoned.py"
    file.write_text(POISON.format(parent=parent, after=after, until=until))
    return str(file)


def finite_checkpoints(run: Path) -> list[str]:
    """Names of a run's checkpoints, each of which must hold finite weights."""
    folders = sorted((run / "checkpoints").iterdir())
    for file in (file for folder in folders for file in folder.glob("*.safetensors") if file.name != "learner.safetensors"):
        assert all(tensor.isfinite().all() for tensor in load_file(file).values())
    return [folder.name for folder in folders]


def test_a_run_whose_gradients_stay_nan_ends_with_its_last_checkpoint(tmp_path: Path):
    run = tmp_path / "run"
    with pytest.raises(NonFinite) as told:
        up.train(poisoned(tmp_path, "grpo", after=0.5), **TEXT, checkpoint_every=10, out=run)
    said = str(told.value)
    assert (
        "step 15: the gradient was not finite in 5 updates in a row" in said and "checkpoint step-000010 is good (--model " in said
    )
    assert f"upslope check {run}" in said and "--lr" in said and "\n" not in said
    assert finite_checkpoints(run)[-1] == "step-000010" and not (run / "summary.json").exists()
    skipped = {record["step"]: record["skipped_updates"] for record in up.load(run).metrics if "skipped_updates" in record}
    assert all(skipped[step] == (step > 10) for step in skipped) and max(skipped) == 14
    assert sorted(file.name for file in (run / "nonfinite").iterdir()) == ["step-000011.safetensors", "step-000015.safetensors"]


def test_what_is_not_finite_is_named_by_column_row_and_parameter(tmp_path: Path):
    with pytest.raises(NonFinite):
        up.train(poisoned(tmp_path, "grpo", after=0.0), **TEXT, out=tmp_path / "run")
    lines = describe(tmp_path / "run" / "nonfinite" / "step-000001.safetensors")
    assert lines[0].startswith("step 1: 8 rows, ")
    assert lines[1].startswith("gradients that are not finite: model.embed_tokens.weight, ") and lines[1].endswith(" more")
    (column,) = lines[2:]
    assert column.startswith("gradient.logp: ") and column.endswith("in 1 of 8 rows: 0")
    columns = load_file(tmp_path / "run" / "nonfinite" / "step-000001.safetensors")
    assert {"sampled", "reward", "advantage", "action", "behavior.logp", "current.logp", "signal.weight", "inputs.prompt"} <= set(
        columns
    )


def test_one_skipped_update_is_told_and_the_run_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    from upslope.run import Plan, start

    method = up.method(poisoned(tmp_path, "grpo", after=0.5, until=0.55))
    sizes = {name: value for name, value in TEXT.items() if name not in ("task", "model")}
    with LiveTable(terminal=False) as watcher:
        run = start(Plan(method, TEXT["task"], TEXT["model"], Settings(**sizes)), out=tmp_path / "run", watcher=watcher)
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("warning")]
    assert len(said) == 1 and "not finite in step 11; the update was skipped" in said[0] and "step-000011.safetensors" in said[0]
    assert run.summary["steps"] == 20 and [r["step"] for r in run.metrics if r.get("skipped_updates")] == [11]


def test_a_run_that_is_resumed_inside_of_a_series_counts_on(tmp_path: Path):
    run, ends = tmp_path / "run", []
    for _ in range(2):
        with pytest.raises(NonFinite) as told:
            if run.exists():
                up.resume(run)
            else:
                up.train(poisoned(tmp_path, "grpo", after=0.5), **TEXT, checkpoint_every=12, out=run)
        ends.append(str(told.value))
    assert ends[0] == ends[1] and "step 15" in ends[0] and "step-000012" in ends[0]


@pytest.mark.parametrize(("method", "sizes", "further"), [("grpo", TEXT, {"warmup": 0}), ("ppo", CONTROL, {})])
def test_a_learning_rate_that_destroys_the_weights_ends_the_run_before_they_are_saved(method, sizes, further, tmp_path: Path):
    run = tmp_path / "run"
    if method == "grpo":
        (tmp_path / "letters.py").write_text("def score(prompts, responses, answers): return [sum(map(ord, r)) for r in responses]")
        further = {**further, "reward": f"{tmp_path / 'letters.py'}:score"}
    with pytest.raises(NonFinite, match=r"at learning rate 1e\+[0-9]+ left weights that are not finite or about to overflow"):
        up.train(method, **{**sizes, **further, "lr": 1e30}, out=run)
    assert finite_checkpoints(run)[-1] == "step-000000"
    (file,) = (run / "nonfinite").iterdir()
    assert file.name == "step-000001.safetensors"
    assert describe(file)[1].startswith("weights that are not finite or too large: ")


def test_in_control_a_series_ends_within_the_step(tmp_path: Path):
    with pytest.raises(NonFinite, match="step 3: the gradient was not finite"):
        up.train(poisoned(tmp_path, "ppo", after=0.5), **{**CONTROL, "minibatch": 8}, out=tmp_path / "run")
    assert finite_checkpoints(tmp_path / "run")[-1] == "step-000002"
    lines = describe(tmp_path / "run" / "nonfinite" / "step-000003.safetensors")
    assert "gradients that are not finite: flat.policy" in lines and any(line.startswith("gradient.logp") for line in lines)


def test_weights_that_are_not_finite_at_the_start_are_refused():
    bench = set_up(find("grpo"), "reverse", "tiny:layers=1,width=16", Settings(warm_start=0.0))
    bench.policy.trainable()["policy"][0].data[0, 0] = torch.nan
    with pytest.raises(NonFinite, match="not finite before the first step"):
        PolicyGradient(bench.method, bench.policy, bench.rollout, bench.settings)


def test_a_finite_update_ends_a_series():
    bench = set_up(find("grpo"), "reverse", "tiny:layers=1,width=16", Settings(warm_start=0.0, watch_kl=False))
    made = PolicyGradient(bench.method.derive(regularize=None), bench.policy, bench.rollout, bench.settings)
    from upslope.learners.metrics import MetricSums

    made.optimizer.zero_grad()
    assert [made.optimizer_step.apply(norm, MetricSums()) for norm in (torch.nan, torch.inf, 1.0, torch.nan)] == [
        False,
        False,
        True,
        False,
    ]
    assert made.optimizer_step.skipped == 1 < IN_A_ROW and made.state()["skipped"] == 1


def test_of_many_such_updates_the_first_are_kept_and_a_full_disk_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(nonfinite, "KEPT", 2)
    saved = [NonFiniteUpdate(step, {"sampled": torch.ones(1, 1)}, (), "gradient").save(tmp_path / "kept") for step in (1, 2, 3, 1)]
    assert [file and file.name[:11] for file in saved] == ["step-000001", "step-000002", None, "step-000001"]
    (tmp_path / "file").write_text("")
    with pytest.warns(Remark, match="the rows of step 1 could not be kept"):
        assert NonFiniteUpdate(1, {"sampled": torch.ones(1, 1)}, (), "gradient").save(tmp_path / "file") is None


def test_rows_that_cannot_be_looked_at_again_are_kept_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def full(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(nonfinite, "_seen_again", full)
    with pytest.warns(Remark, match="kept without what the policy makes of them: CUDA out of memory"), pytest.raises(NonFinite):
        up.train(poisoned(tmp_path, "grpo", after=0.0), **TEXT, out=tmp_path / "run")
    assert "behavior.logp" in load_file(tmp_path / "run" / "nonfinite" / "step-000001.safetensors")


def test_columns_count_only_where_somebody_decided(tmp_path: Path):
    nan, sampled = torch.nan, torch.tensor([[1.0, 0.0], [1.0, 1.0]])
    columns = {
        "sampled": sampled,
        "behavior.logp": torch.tensor([[0.0, nan], [0.0, 0.0]]),
        "current.logp": torch.tensor([[0.0, 0.0], [0.0, nan]]),
        "reward": torch.tensor([torch.inf, 0.0]),
        "action": torch.zeros(2, 2, dtype=torch.int64),
    }
    file = NonFiniteUpdate(7, columns, ("a", "b"), "weights").save(tmp_path)
    assert file is not None and describe(file) == [
        "step 7: 2 rows, 3 decisions",
        "weights that are not finite or too large: a, b",
        "current.logp: 1 values that are not finite, in 1 of 2 rows: 1",
        "reward: 1 values that are not finite, in 1 of 2 rows: 0",
    ]


def test_a_file_that_is_none_of_ours_is_refused(tmp_path: Path):
    (tmp_path / "x.safetensors").write_bytes(b"nothing")
    with pytest.raises(UserError, match="does not hold the rows of an update"):
        describe(tmp_path / "x.safetensors")


def test_one_broken_number_of_an_action_is_enough(tmp_path: Path):
    action = torch.zeros(2, 2, 3)
    action[1, 0, 2] = torch.nan
    file = NonFiniteUpdate(7, {"sampled": torch.ones(2, 2), "action": action}, (), "gradient").save(tmp_path)
    assert file is not None and describe(file)[1:] == ["action: 1 values that are not finite, in 1 of 2 rows: 1"]
