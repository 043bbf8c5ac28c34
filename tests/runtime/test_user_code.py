"""Code of the user's own: kept whole with the run, found again, and never run by looking."""

from __future__ import annotations

import json
import shutil
import sys
import tomllib
from pathlib import Path

import pytest
import tomli_w

import upslope as up
from upslope.cli import main
from upslope.errors import Remark, UserError
from upslope.report.compare.gathering import expand, gather
from upslope.runtime import trust
from upslope.runtime.trust import Untrusted
from upslope.runtime.user_code import load_file

SMALL = {
    "model": "tiny:layers=1,width=16", "steps": 2, "tasks_per_step": 2, "samples_per_task": 2, "max_tokens": 3, "warm_start": 0.0,
    "eval_problems": 4, "checkpoint_every": 1,
}  # fmt: skip


@pytest.fixture(autouse=True)
def nothing_trusted(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.fixture
def data(tmp_path) -> str:
    lines = [json.dumps({"prompt": f"{number}+{number}=", "answer": str(2 * number)}) for number in range(12)]
    (tmp_path / "data.jsonl").write_text("\n".join(lines) + "\n")
    return str(tmp_path / "data.jsonl")


def write(folder: Path, **files: str) -> Path:
    """Modules by name; ``_in_`` stands for a slash."""
    for name, text in files.items():
        path = folder / f"{'/'.join(reversed(name.split('_in_')))}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def forget(*names: str) -> None:
    """As in another process: what was imported is gone."""
    for name in [each for each in sys.modules if each.partition(".")[0] in names or each.startswith("upslope_user_")]:
        del sys.modules[name]


REWARD = """
from helper import half

def score(prompts, responses, answers):
    import late
    return [half(response) + late.EXTRA for response in responses]
"""


@pytest.fixture
def neighbours(tmp_path) -> Path:
    """A reward that imports a module, a package and, when it is called, one more module from beside it."""
    return write(
        tmp_path / "mine",
        reward=REWARD,
        helper="from tools.letters import count\n\ndef half(text):\n    return count(text) / 2\n",
        late="EXTRA = 0.0\n",
        __init___in_tools="",
        letters_in_tools="from . import words\n\ndef count(text):\n    return words.COUNT * sum(map(str.isalpha, text))\n",
        words_in_tools="COUNT = 1\n",
        unrelated="raise RuntimeError('nobody imports this')\n",
    )


def test_what_the_code_imports_from_beside_it_goes_with_the_run(neighbours, data, tmp_path):
    run = up.train("grpo", data, reward=f"{neighbours / 'reward.py'}:score", **SMALL, out=tmp_path / "run")
    (kept,) = (run.path / "code").iterdir()
    names = {str(file.relative_to(kept)) for file in kept.rglob("*") if file.is_file()}
    assert names == {"reward.py", "helper.py", "late.py", "tools/__init__.py", "tools/letters.py", "tools/words.py"}
    scores = [record["reward"] for record in run.metrics]
    shutil.rmtree(neighbours)
    shutil.rmtree(run.path / "checkpoints" / "step-000002")
    (run.path / "summary.json").unlink()
    forget("helper", "late", "tools")
    again = up.resume(run.path)
    assert [record["reward"] for record in again.metrics] == scores
    assert str(run.path) in str(sys.modules["late"].__file__), "a late import must find the run's own copy"


def test_two_files_of_one_name_stay_two(data, tmp_path):
    reward = "def score(prompts, responses, answers):\n    return [{} for _ in responses]\n"
    write(tmp_path / "a", mine=reward.format("len(responses) / 8"))
    task = (
        "from upslope.tasks.text import Problem, Scores, TextTask\n"
        "class Mine(TextTask):\n"
        "    name, max_tokens = 'mine', 3\n"
        "    def sample(self, count, split, rng):\n        return [Problem(str(n), str(n)) for n in range(count)]\n"
        "    def score(self, problems, responses):\n        return Scores([0.0] * len(responses), [False] * len(responses), {})\n"
        "    def describe(self):\n        return 'mine'\n"
    )
    write(tmp_path / "b", mine=task)
    run = up.train(
        "grpo", f"{tmp_path / 'b' / 'mine.py'}:Mine", reward=f"{tmp_path / 'a' / 'mine.py'}:score", **SMALL, out=tmp_path / "run"
    )
    assert len(list((run.path / "code").iterdir())) == 2
    (run.path / "summary.json").unlink()
    forget()
    assert len(up.resume(run.path).metrics) == 2


def test_different_neighbours_under_one_name_are_refused(data, tmp_path):
    write(
        tmp_path / "a",
        reward="import helper\n\ndef score(prompts, responses, answers):\n    return [0.0] * len(responses)\n",
        helper="A = 1\n",
    )
    part = """
from dataclasses import dataclass
import helper
from upslope.methods import find
from upslope.objective.base import Weight

@dataclass(frozen=True)
class Half(Weight):
    def __call__(self, batch):
        return batch.sampled * helper.B

half = find("grpo").derive(name="half", weight=Half())
"""
    write(tmp_path / "b", method=part, helper="B = 0.5\n")
    with pytest.raises(UserError, match=r"different modules 'helper'.*Rename"):
        up.train(
            str(tmp_path / "b" / "method.py"), data, reward=f"{tmp_path / 'a' / 'reward.py'}:score", **SMALL, out=tmp_path / "run"
        )
    assert not (tmp_path / "run").exists()


def test_a_neighbour_that_changed_is_loaded_anew(tmp_path):
    folder = write(tmp_path, main="from helper import X\n", helper="X = 1\n")
    assert load_file(folder / "main.py").X == 1
    (folder / "helper.py").write_text("X = 2\n")
    assert load_file(folder / "main.py").X == 2


def test_a_neighbour_does_not_hide_what_python_itself_has(tmp_path):
    folder = write(tmp_path, main="import random, torch\nX = random.random()\nT = torch.ones(1)\n", random="1 / 0\n")
    assert 0 <= load_file(folder / "main.py").X < 1


def test_a_file_that_exits_is_told_and_does_not_end_us(tmp_path):
    write(tmp_path, leaves="import sys\nsys.exit(0)\n")
    with pytest.raises(UserError, match="SystemExit"):
        load_file(tmp_path / "leaves.py")


# -- looking runs nothing ----------------------------------------------------------------------------------------------------


@pytest.fixture
def strangers(data, tmp_path, monkeypatch) -> Path:
    """A run that came from elsewhere, whose code leaves a trace when it runs."""
    trace = f"open({str(tmp_path / 'ran')!r}, 'w').close()\n"
    write(tmp_path / "theirs", reward=trace + "def score(prompts, responses, answers):\n    return [0.5] * len(responses)\n")
    reward = f"{tmp_path / 'theirs' / 'reward.py'}:score"
    run = up.train("grpo", data, reward=reward, **SMALL, out=tmp_path / "run")
    (tmp_path / "ran").unlink()
    shutil.rmtree(tmp_path / "state")  # this machine knows nothing of it
    forget()
    return run.path


def ran(run: Path) -> bool:
    return (run.parent / "ran").exists()


def unfinished(run: Path) -> Path:
    (run / "summary.json").unlink()
    shutil.rmtree(run / "checkpoints" / "step-000002")
    return run


def test_looking_at_a_run_runs_nothing_of_it(strangers, capsys):
    run = up.load(strangers)
    assert len(run.metrics) == 2 and run.evaluations and run.summary["steps"] == 2 and run.table["method"]["name"] == "grpo"
    assert up.resume(strangers).summary["steps"] == 2  # finished: there is nothing to run
    assert main(["resume", str(strangers)]) == 0
    assert gather(expand([strangers])).contenders
    assert main(["check", str(strangers)]) == 0
    assert not ran(strangers)


@pytest.mark.parametrize("words", [["eval"], ["try"], ["eval", "--k", "1"]], ids=" ".join)
def test_what_would_run_it_stops_and_names_it(words, strangers, capsys):
    assert main([words[0], str(strangers), *words[1:]]) == 2
    said = capsys.readouterr().err
    assert "reward.py" in said and "--trust" in said and not ran(strangers)


def test_trust_is_remembered_for_exactly_this_code(strangers, capsys):
    unfinished(strangers)
    assert main(["resume", str(strangers), "--quiet"]) == 2 and not ran(strangers)
    with pytest.raises(Untrusted):
        _ = up.load(strangers).plan
    assert main(["resume", str(strangers), "--quiet", "--trust"]) == 0 and ran(strangers)
    forget()
    (strangers.parent / "ran").unlink()
    assert up.load(strangers).plan.reward[0].endswith("reward.py:score")
    _ = up.load(strangers).policy
    assert ran(strangers)


def test_every_file_that_would_run_is_named(neighbours, data, tmp_path, monkeypatch):
    run = up.train("grpo", data, reward=f"{neighbours / 'reward.py'}:score", **SMALL, out=tmp_path / "run")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "elsewhere"))
    with pytest.raises(Untrusted) as asked:
        _ = up.load(run.path).plan
    assert all(name in str(asked.value) for name in ("reward.py", "helper.py", "late.py", "tools/letters.py"))


def test_trust_that_cannot_be_written_down_is_said(strangers, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    with pytest.warns(Remark, match="not remembered"):
        assert up.load(strangers, trust=True).plan is not None


def test_data_that_is_not_where_the_run_looks_for_it_is_told_with_the_place(data, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = up.train("grpo", "data.jsonl", reward="exact", **SMALL, out=tmp_path / "run")
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    with pytest.raises(UserError, match=r"looked for .*other/data\.jsonl.*where the run was started"):
        _ = up.load(run.path).plan


def test_code_that_this_machine_wrote_itself_needs_no_trust(data, tmp_path):
    write(tmp_path, reward="def score(prompts, responses, answers):\n    return [0.5] * len(responses)\n")
    run = up.train("grpo", data, reward=f"{tmp_path / 'reward.py'}:score", **SMALL, out=tmp_path / "run")
    forget()
    assert up.load(run.path).policy is not None
    assert len(trust.trusted()) == 1


@pytest.mark.parametrize("trusting", [False, True], ids=["", "trusting"])
@pytest.mark.parametrize("where", ["absolute", "above", "no digest", "other digest", "link"])
def test_only_the_runs_own_code_by_its_digest(where, trusting, strangers):
    unfinished(strangers)
    evil = strangers.parent / "evil.py"
    evil.write_text((strangers.parent / "theirs" / "reward.py").read_text())
    toml = strangers / "run.toml"
    (kept,) = (strangers / "code").iterdir()
    table = tomllib.loads(toml.read_text())
    digest = table["reward"][0].rpartition("@")[2]
    new = {
        "absolute": f"{evil}:score@{digest}", "above": f"../../evil.py:score@{digest}", "no digest": f"{kept.name}/reward.py:score",
        "other digest": f"{kept.name}/reward.py:score@{'0' * 16}", "link": f"{kept.name}/reward.py:score@{digest}",
    }  # fmt: skip
    toml.write_text(tomli_w.dumps(table | {"reward": [new[where]]}))
    if where == "link":
        (kept / "reward.py").unlink()
        (kept / "reward.py").symlink_to(evil)
    with pytest.raises(UserError, match=r"not run|not the code"):
        up.resume(strangers, trust=trusting)
    assert not ran(strangers)


def test_a_stranger_beside_trusted_code_is_not_run_with_it(data, tmp_path):
    """The reward would import a neighbour if there were one: adding it makes it other code."""
    optional = "try:\n    import extra\nexcept ImportError:\n    pass\n"
    reward = f"{optional}\ndef score(prompts, responses, answers):\n    return [0.5] * len(responses)\n"
    write(tmp_path, reward=reward)
    run = up.train("grpo", data, reward=f"{tmp_path / 'reward.py'}:score", **SMALL, out=tmp_path / "run")
    (kept,) = (run.path / "code").iterdir()
    (kept / "extra.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()\n")
    forget()
    with pytest.raises(UserError, match="not the code"):
        _ = up.load(run.path).plan
    # In a folder from before there were bundles the digest was of the one file alone.
    flat = run.path / "code" / "reward.py"
    shutil.move(kept / "reward.py", flat)
    shutil.move(kept / "extra.py", run.path / "code" / "extra.py")
    toml = run.path / "run.toml"
    toml.write_text(toml.read_text().replace(f"{kept.name}/reward.py", "reward.py"))
    with pytest.raises(Untrusted, match=r"reward\.py"):
        _ = up.load(run.path).plan
    assert not (tmp_path / "ran").exists()


def test_a_compiled_copy_beside_trusted_code_is_never_used(neighbours, data, tmp_path):
    import os
    import py_compile

    run = up.train("grpo", data, reward=f"{neighbours / 'reward.py'}:score", **SMALL, out=tmp_path / "run")
    (kept,) = (run.path / "code").iterdir()
    source, evil = kept / "late.py", tmp_path / "evil.py"
    evil.write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close(); EXTRA = 0.0\n")
    shutil.copy(source, tmp_path / "kept.py")
    evil_time = source.stat()
    shutil.copy(evil, source)
    os.utime(source, ns=(evil_time.st_atime_ns, evil_time.st_mtime_ns))
    py_compile.compile(str(source), invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)
    shutil.copy(tmp_path / "kept.py", source)
    forget("helper", "late", "tools")
    _ = up.load(run.path).policy
    import late  # found for the run by its own finder

    assert late.EXTRA == 0.0 and not (tmp_path / "ran").exists()


def test_an_environments_module_counts_as_code(tmp_path):
    pytest.importorskip("gymnasium")
    table = {"task": "gym:evil_module:Evil-v0:size=3", "reward": "", "method": {}}
    assert [what for what in trust.code_of(table, tmp_path).values() if "'evil_module'" in what]
    with pytest.raises(Untrusted, match="evil_module"):
        trust.check(table, tmp_path / "code", False)
    assert trust.code_of({"task": "gym:CartPole-v1", "method": {}}, tmp_path) == {}


def test_what_changes_on_the_disk_after_the_check_is_not_what_runs(tmp_path):
    folder = write(tmp_path, main="def late():\n    import helper\n    return helper.X\n", helper="X = 1\n")
    module = load_file(folder / "main.py")
    (folder / "helper.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close(); X = 2\n")
    assert module.late() == 1 and not (tmp_path / "ran").exists()


@pytest.mark.parametrize("source", ["-" * 300_000 + "1", "(" * 5000, "\x00"], ids=["minus", "open", "null"])
def test_a_file_that_python_cannot_read_is_told_in_a_line(source, tmp_path):
    (tmp_path / "odd.py").write_text(source)
    with pytest.raises(UserError, match="cannot be loaded"):
        load_file(tmp_path / "odd.py")


def test_a_plan_nested_without_end_is_refused_at_once(strangers):
    (strangers / "run.toml").write_text("a." * 50_000 + "b = 1\n")
    with pytest.raises(UserError, match="nested too deep"):
        _ = up.load(strangers).table
