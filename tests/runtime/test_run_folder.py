"""Nothing is lost: foreign files, one owner per run, damaged logs and checkpoints."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import upslope as up
from upslope.cli import main
from upslope.errors import Remark, UserError
from upslope.run import Watcher
from upslope.runtime import run_lock
from upslope.runtime.checkpoint_files import CheckpointReader, Damaged
from upslope.runtime.run_folder import FORMAT, RunFolder

QUICK = {
    "task": "reverse:length=2", "model": "tiny:layers=1,width=16", "steps": 6, "tasks_per_step": 2, "samples_per_task": 2,
    "warm_start": 0.0, "eval_problems": 4, "checkpoint_every": 2, "keep_checkpoints": 2,
}  # fmt: skip
FLAGS = [
    "--task", "reverse:length=2", "--model", "tiny:layers=1,width=16", "--tasks-per-step", "2", "--samples-per-task", "2",
    "--warm-start", "0", "--eval-problems", "4",
]  # fmt: skip


def digest_of_all(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in sorted(folder.rglob("*")) if file.is_file()}


class Breaks(Watcher):
    """Fails like a crash after a step."""

    def __init__(self, step: int):
        self.breaks = step

    def stepped(self, step, metrics):
        if step == self.breaks:
            raise RuntimeError("crash")


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """A run of six steps, never stopped."""
    return up.train("grpo", **QUICK, out=tmp_path_factory.mktemp("whole") / "run").path


@pytest.fixture
def broken_off(tmp_path) -> Path:
    """The same run, crashed after its fifth step: checkpoints of steps 2 and 4."""
    with pytest.raises(RuntimeError, match="crash"):
        up.train("grpo", **QUICK, out=tmp_path / "run", watcher=Breaks(5))
    return tmp_path / "run"


def final_weights(run: Path) -> dict[str, torch.Tensor]:
    return CheckpointReader(RunFolder(run).latest()).read_tensors("model.safetensors")


def assert_same_end(run: Path, other: Path) -> None:
    ours, theirs = final_weights(run), final_weights(other)
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


# -- whose folder it is ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["samples.jsonl", "metrics.jsonl", "notes.txt", "rollouts/step-000001.json.gz"])
def test_a_folder_with_somebodys_files_is_left_alone(name, tmp_path, capsys):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text('{"prompt": "mine", "answer": "mine"}\n')
    before = digest_of_all(tmp_path)
    assert main(["train", "grpo", *FLAGS, "--steps", "1", "--out", str(tmp_path)]) == 2
    assert "not empty" in capsys.readouterr().err and digest_of_all(tmp_path) == before


@pytest.mark.parametrize("out", ["", " ", "a" * 300, "file", "file/below"])
def test_an_out_that_cannot_be_a_folder_is_refused_in_words(out, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("mine")
    assert main(["train", "grpo", *FLAGS, "--steps", "1", "--out", out]) == 2
    said = capsys.readouterr().err
    assert "--out" in said and "Traceback" not in said
    assert [path.name for path in tmp_path.iterdir()] == ["file"] and (tmp_path / "file").read_text() == "mine"


def test_an_empty_folder_will_do_and_one_with_a_run_says_how_to_go_on(whole, broken_off, tmp_path):
    with pytest.raises(UserError, match="upslope resume"):
        up.train("grpo", **QUICK, out=broken_off)
    (tmp_path / "empty").mkdir()
    assert up.train("grpo", **QUICK | {"steps": 0}, out=tmp_path / "empty").path == tmp_path / "empty"
    with pytest.raises(UserError, match="already holds a finished run"):
        up.train("grpo", **QUICK, out=whole)


def test_resuming_deletes_only_what_the_run_itself_wrote_after_its_checkpoint(broken_off, whole):
    kept = {
        "notes.txt": b"mine",
        "checkpoints/step-latest/mine": b"mine",
        "rollouts/step-000001.mine": b"mine",
        "code/mine.py": b"mine",
    }
    for name, content in kept.items():
        (broken_off / name).parent.mkdir(exist_ok=True)
        (broken_off / name).write_bytes(content)
    up.resume(broken_off)
    assert {name: (broken_off / name).read_bytes() for name in kept} == kept
    assert_same_end(broken_off, whole)


# -- one owner -------------------------------------------------------------------------------------------------------------

HOLD = """
import sys, time
from pathlib import Path
from upslope.runtime.run_lock import owned
with owned(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def holder(broken_off):
    """Another process that works on the run."""
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(broken_off)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.wait()


def test_a_second_owner_is_told_who_the_first_is_and_a_killed_one_holds_nothing(holder, broken_off, whole, capsys):
    before = digest_of_all(broken_off)
    assert main(["resume", str(broken_off), "--quiet"]) == 2
    assert f"process {holder.pid} on " in capsys.readouterr().err and digest_of_all(broken_off) == before
    holder.kill()  # SIGKILL: it cannot put anything in order
    holder.wait()
    assert main(["resume", str(broken_off), "--quiet"]) == 0
    assert_same_end(broken_off, whole)


def test_without_locks_the_process_file_decides(holder, broken_off, monkeypatch):
    def unsupported(*_):
        raise OSError(run_lock.NO_LOCKS[0], "no locks available")

    monkeypatch.setattr(run_lock.fcntl, "flock", unsupported)
    with pytest.raises(UserError, match=f"process {holder.pid} .* no locks"):
        up.resume(broken_off)
    record = json.loads((broken_off / "process.json").read_text())
    (broken_off / "process.json").write_text(json.dumps(record | {"host": "elsewhere"}))
    with pytest.raises(UserError, match=r"elsewhere.*delete"):
        up.resume(broken_off)
    holder.kill()
    holder.wait()
    (broken_off / "process.json").write_text(json.dumps(record))
    up.resume(broken_off)


def test_a_forked_child_does_not_keep_the_lock_of_a_parent_that_is_gone(tmp_path):
    code = HOLD.replace("    time.sleep(600)", "    import os\n    if os.fork() == 0:\n        time.sleep(600)\n    os._exit(9)")
    process = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, start_new_session=True)
    try:
        assert process.wait(60) == 9
        with run_lock.owned(tmp_path):
            pass
    finally:
        os.killpg(process.pid, signal.SIGKILL)


# -- logs ------------------------------------------------------------------------------------------------------------------


def test_a_damaged_line_is_put_aside_and_the_rest_of_the_history_stays(broken_off, whole):
    log = broken_off / "metrics.jsonl"
    lines = log.read_bytes().split(b"\n")
    lines[2] = b'{"kind": "step", \xff'
    log.write_bytes(b"\n".join(lines))
    with pytest.warns(Remark, match=r"1 damaged line \(3\)"):
        run = up.resume(broken_off)
    assert [record["step"] for record in run.metrics] == [1, 3, 4, 5, 6] and len(run.evaluations) == 2
    assert (broken_off / "metrics.jsonl.damaged").read_bytes() == lines[2] + b"\n"
    assert all(isinstance(json.loads(line), dict) for line in (broken_off / "metrics.jsonl").read_text().splitlines())
    assert_same_end(broken_off, whole)


def test_lines_before_the_checkpoint_are_kept_byte_by_byte(broken_off):
    before = (broken_off / "metrics.jsonl").read_bytes().split(b"\n")
    folder = RunFolder(broken_off)
    saved = CheckpointReader(folder.latest()).read_json("run.json")
    assert folder.rewind(saved["lines"], 4) == []
    kept = saved["lines"]["metrics.jsonl"]
    assert 0 < kept < len(before) - 1 and (broken_off / "metrics.jsonl").read_bytes() == b"\n".join(before[:kept]) + b"\n"


def test_a_log_that_is_gone_is_told_and_counts_stay_right(broken_off, whole):
    (broken_off / "metrics.jsonl").unlink()
    with pytest.raises(RuntimeError, match="crash"), pytest.warns(Remark, match="missing"):
        up.resume(broken_off, Breaks(6))
    run = up.resume(broken_off)
    assert [record["step"] for record in run.metrics] == [5, 6]
    assert_same_end(broken_off, whole)


# -- checkpoints -----------------------------------------------------------------------------------------------------------


def flip(file: Path, place: float = 0.5) -> None:
    data = bytearray(file.read_bytes())
    data[int(len(data) * place)] ^= 1
    file.write_bytes(data)


FILES = ("model.safetensors", "learner.safetensors", "learner.json", "run.json", "digests.json")


@pytest.mark.parametrize("name", [FILES[0], *(pytest.param(name, marks=pytest.mark.slow) for name in FILES[1:])])
def test_a_flipped_bit_is_found_and_the_checkpoint_before_is_taken(name, broken_off, whole):
    newest = RunFolder(broken_off).latest()
    flip(newest / name)
    with pytest.warns(Remark, match="step-000004 is left out"):
        run = up.resume(broken_off)
    assert (broken_off / "checkpoints" / "damaged-step-000004").is_dir()
    assert [record["step"] for record in run.metrics] == [1, 2, 3, 4, 5, 6]
    assert_same_end(broken_off, whole)


@pytest.mark.slow
@pytest.mark.parametrize("harm", ["cut", "gone", "digests gone", "empty"])
def test_other_damage_is_found_too(harm, broken_off, whole):
    newest = RunFolder(broken_off).latest()
    file = newest / "model.safetensors"
    if harm == "cut":
        file.write_bytes(file.read_bytes()[:-7])
    elif harm == "gone":
        file.unlink()
    elif harm == "digests gone":
        (newest / "digests.json").unlink()
    else:
        shutil.rmtree(newest)
        newest.mkdir()
    with pytest.warns(Remark, match="step-000004"):
        up.resume(broken_off)
    assert_same_end(broken_off, whole)


def test_looking_at_a_run_falls_back_too_and_changes_nothing(whole, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(whole, copy)
    flip(copy / "checkpoints" / "step-000006" / "model.safetensors")
    before = digest_of_all(copy)
    run = up.load(copy)
    with pytest.warns(Remark, match="step-000006"):
        assert run.policy is not None
    assert run.checkpoint is not None and run.checkpoint.name == "step-000004" and digest_of_all(copy) == before


def test_no_whole_checkpoint_is_an_error_in_words(broken_off):
    for path in RunFolder(broken_off).checkpoints():
        flip(path / "model.safetensors")
    with pytest.raises(Damaged, match="no whole checkpoint left"):
        up.resume(broken_off)


def test_a_folder_from_before_there_were_digests_is_read_and_that_is_said(broken_off, whole):
    table = (broken_off / "run.toml").read_text()
    (broken_off / "run.toml").write_text(table.replace(f"format = {FORMAT}\n", ""))
    for file in broken_off.glob("checkpoints/*/digests.json"):
        file.unlink()
    with pytest.warns(Remark, match="unverified"):
        up.resume(broken_off)
    assert_same_end(broken_off, whole)


# -- what a checkpoint is worth without ------------------------------------------------------------------------------------


@pytest.fixture
def base(tmp_path) -> Path:
    """A model in a folder of the user's."""
    from upslope.policies import load_language_model

    load_language_model("tiny:layers=1,width=16", 0).save(tmp_path / "base")
    return tmp_path / "base"


def test_adapters_are_not_judged_on_a_model_they_were_not_trained_on(base, tmp_path):
    run = up.train("grpo", **QUICK | {"model": str(base), "lora": 2, "steps": 1}, out=tmp_path / "run")
    assert up.load(run.path).policy is not None
    flip(base / "model.safetensors", 0.9)
    with pytest.raises(UserError, match="has changed since"):
        _ = up.load(run.path).policy


def test_a_checkpoint_that_lacks_a_tensor_is_refused(whole, tmp_path):
    from safetensors.torch import load_file, save_file

    copy = tmp_path / "copy"
    shutil.copytree(whole, copy)
    (copy / "run.toml").write_text((copy / "run.toml").read_text().replace(f"format = {FORMAT}\n", ""))
    for folder in RunFolder(copy).checkpoints():
        (folder / "digests.json").unlink()
        tensors = load_file(folder / "model.safetensors")
        del tensors["model.layers.0.mlp.up_proj.weight"]
        save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(UserError, match="up_proj"):
        _ = up.load(copy).policy


@pytest.mark.parametrize("harm", ["checkpoints", "recording", "recording gone", "settings"])
def test_check_finds_what_has_no_digest_too(harm, whole, tmp_path, capsys):
    copy = tmp_path / "copy"
    shutil.copytree(whole, copy)
    recorded = sorted((copy / "rollouts").glob("*.gz"))[0]
    if harm == "checkpoints":
        shutil.rmtree(copy / "checkpoints")
    elif harm == "recording":
        flip(recorded)
    elif harm == "recording gone":
        recorded.unlink()
    else:
        toml = copy / "run.toml"
        toml.write_text(toml.read_text().replace("lr = 0.0002", 'lr = "x"'))
    assert main(["check", str(copy)]) == 2
    assert capsys.readouterr().out.count("DAMAGED") == 1


def test_check_names_what_is_damaged_and_changes_nothing(whole, tmp_path, capsys):
    copy = tmp_path / "copy"
    shutil.copytree(whole, copy)
    assert main(["check", str(copy)]) == 0
    assert "DAMAGED" not in capsys.readouterr().out
    flip(copy / "checkpoints" / "step-000006" / "learner.json")
    with (copy / "metrics.jsonl").open("ab") as log:
        log.write(b'{"half": ')
    (copy / "samples.jsonl").write_bytes(b"\xff\xfe\n" + (copy / "samples.jsonl").read_bytes())
    before = digest_of_all(copy)
    assert main(["check", str(copy)]) == 2
    said = [line for line in capsys.readouterr().out.splitlines() if line.startswith("DAMAGED")]
    assert len(said) == 2 and "samples.jsonl" in said[0] and "step-000006" in said[1] and digest_of_all(copy) == before


@pytest.mark.slow
@pytest.mark.parametrize("refusal", ["No space left on device", "Read-only file system"])
def test_what_the_disk_refuses_is_one_line_and_costs_nothing_saved(refusal, tmp_path, monkeypatch, capsys, whole):
    import errno

    number = {os.strerror(each): each for each in (errno.ENOSPC, errno.EROFS)}[refusal]
    real, count = RunFolder.append, 0

    def full(self, log, record):
        nonlocal count
        count += 1
        if count == 12:
            raise OSError(number, refusal, str(self.path / log))
        real(self, log, record)

    monkeypatch.setattr(RunFolder, "append", full)
    words = ["train", "grpo", *FLAGS, "--steps", "6", "--checkpoint-every", "2", "--out", str(tmp_path / "run"), "--quiet"]
    assert main(words) == 2
    said = capsys.readouterr().err
    assert refusal in said and "upslope resume" in said and "Traceback" not in said
    monkeypatch.undo()
    up.resume(tmp_path / "run")
    assert_same_end(tmp_path / "run", whole)


def test_memory_that_runs_out_in_a_step_is_one_line_with_a_cure(tmp_path, monkeypatch, capsys):
    from upslope.learners.policy_gradient import PolicyGradient

    def hungry(self, step):
        return torch.empty(2**60)

    monkeypatch.setattr(PolicyGradient, "step", hungry)
    assert main(["train", "grpo", *FLAGS, "--steps", "1", "--out", str(tmp_path / "run"), "--quiet"]) == 2
    said = capsys.readouterr().err
    assert "memory did not suffice" in said and "--samples-per-task" in said and "Traceback" not in said
