"""``--reward tests``: programs out of responses, tests out of rows, and what they pay."""

from __future__ import annotations

import json
import shutil
import warnings

import pytest
from hostile_programs import needs_sandbox

import upslope as up
from upslope.cli import main
from upslope.errors import Remark, TaskError, UserError
from upslope.rewards import CodeTests, RewardError, load_reward, programs
from upslope.rewards.programs import Suite, program_of, running_programs, same_output, settle_sandbox, suite_of
from upslope.runtime.sandbox import Limits
from upslope.runtime.sandbox.command import missing_tools
from upslope.tasks import load_task

ADD = {"tests": "import math\nassert add(1, 2) == 3\nassert add(-1, 1) == 0"}
SUM = {"tests": [{"stdin": "1 2\n", "stdout": "3\n"}, {"stdin": "5 6\n", "stdout": "11"}]}
SMALL = dict(
    model="tiny:layers=1,width=16", steps=1, tasks_per_step=2, samples_per_task=2, warm_start=0.0, eval_problems=2, max_tokens=4,
    audit="off",
)  # fmt: skip
no_weak = pytest.mark.skipif(bool(missing_tools(weak=True)), reason="apt-get install util-linux, and run the tests again")


def paid(responses, infos, text="tests:seconds=3"):
    count = len(responses)
    return load_reward(text)([""] * count, responses, [""] * count, infos)


# -- without a sandbox ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("response", "program"),
    [
        ("x = 1", "x = 1"),
        ("Sure:\n```python\nx = 1\n```\nThat is it.", "x = 1\n"),
        ("```\nx = 1\n```", "x = 1\n"),
        ("```py\nx = 1\n```\nor better\n```python3\nx = 2\n```\n", "x = 2\n"),
        ("```python\nx = 1\n```\nruns with\n```bash\npython x.py\n```", "x = 1\n"),
        ("```python\nx = 1\nif x:", "x = 1\nif x:"),
        ("1. do this\n   ```python\n   if 1:\n       x = 1\n   ```\n", "if 1:\n    x = 1\n"),
        ("<think>```python\nno\n```</think>\n```python\nx = 1\n```", "x = 1\n"),
        ("<think>forever ```python\nno\n```", ""),
        ("    x = 1", "    x = 1"),
    ],
)
def test_the_program_is_found_in_the_response(response, program):
    assert program_of(response) == program


@pytest.mark.parametrize(
    ("tests", "wanted"),
    [
        (ADD["tests"], Suite((("setup", "import math"), ("test", "assert add(1, 2) == 3"), ("test", "assert add(-1, 1) == 0")))),
        ("def check(f):\n    assert f(1)\ncheck(add)", Suite((("test", "def check(f):\n    assert f(1)\ncheck(add)"),))),
        (["assert a", "assert b"], Suite((("test", "assert a"), ("test", "assert b")))),
        (SUM["tests"], Suite(pairs=(("1 2\n", "3\n"), ("5 6\n", "11")))),
    ],
)
def test_tests_are_read(tests, wanted):
    assert suite_of({"tests": tests}) == wanted


@pytest.mark.parametrize(
    ("info", "told"),
    [
        ({}, 'no "tests": Python asserts as a text or a list of texts, or a list of {"stdin": ..., "stdout": ...}.'),
        ({"tests": ""}, '"tests" must be Python asserts'),
        ({"tests": []}, '"tests" must be Python asserts'),
        ({"tests": 3}, "but is 3"),
        ({"tests": ["assert a", {"stdin": "", "stdout": ""}]}, "\"tests\" has 'assert a' in it"),
        ({"tests": [{"stdin": "1"}]}, "in it; it must be Python asserts"),
        ({"tests": "assert ("}, "which is no Python"),
        ({"tests": ["assert True", "assert ("]}, "which is no Python"),
    ],
)
def test_tests_that_cannot_be_run_are_refused(info, told):
    with pytest.raises(RewardError) as caught:
        suite_of(info)
    assert told in str(caught.value)


@pytest.mark.parametrize(
    ("said", "wanted", "same"),
    [
        ("3", "3\n", True),
        ("3  \n4\n\n", "3\n4", True),
        ("3 4", "3\n4", False),
        (" 3", "3", False),
        ("", "3", False),
        ("", "\n", True),
    ],
)
def test_outputs_are_compared_without_blanks_at_their_ends(said, wanted, same):
    assert same_output(said, wanted) is same


def test_a_file_without_tests_is_refused_with_its_line(tmp_path):
    file = tmp_path / "programs.jsonl"
    file.write_text('{"prompt": "a", "tests": "assert 1"}\n{"prompt": "b", "answer": "1"}\n')
    for reward in ("tests", ["length:max=9*0.1", "tests"]):
        with pytest.raises(TaskError, match=r"programs.jsonl, line 2: no \"tests\": Python asserts"):
            load_task(str(file), reward=load_reward(reward), columns="answer=")


def test_limits_are_options():
    assert load_reward("tests:seconds=2.5,memory=128") == CodeTests(2.5, 128)
    assert CodeTests(2.5, 128).limits == Limits(seconds=2.5, cpu=2, memory=128)
    for text in ("tests:seconds=0", "tests:memory=8"):
        with pytest.raises(RewardError, match="seconds must be above 0, and memory at least 32 megabytes"):
            load_reward(text)


def test_without_bubblewrap_a_run_is_refused_before_it_begins(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(shutil, "which", lambda tool: None)
    monkeypatch.setattr(programs, "_sandboxes", {})
    file = tmp_path / "programs.jsonl"
    file.write_text('{"prompt": "a", "tests": "assert 1"}\n')
    code = main(["train", "grpo", "--task", str(file), "--reward", "tests", "--out", str(tmp_path / "run"), "--quiet"])
    assert code == 2 and "\n  apt-get install bubblewrap util-linux\n" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_weak_goes_with_programs_only():
    with pytest.raises(UserError, match="--sandbox weak goes with --reward tests, which runs programs"):
        up.train("grpo", "reverse", sandbox="weak", **SMALL)
    reward = load_reward(["tests", "length:max=9*0.1"])
    (found,) = running_programs(reward)
    assert found.sandbox == "full"
    with pytest.warns(Remark, match="weak sandbox"):
        settle_sandbox(reward, "weak", now=False)
    assert found.sandbox == "weak"


# -- in it -----------------------------------------------------------------------------------------------------------------------


@needs_sandbox
@pytest.mark.parametrize(
    ("response", "share"),
    [
        ("def add(a, b): return a + b", 1.0),
        ("```python\ndef add(a, b):\n    print('adding')\n    return 3\n```", 0.5),
        ("def add(a, b): return None", 0.0),
        ("this is no program", 0.0),
        ("", 0.0),
        ("import os\nos._exit(0)", 0.0),
        ("import sys\nsys.exit()", 0.0),
        ("def add(a, b):\n    if a < 0:\n        while True: pass\n    return a + b", 0.5),
        ("import sys\nprint('0\\n1\\n2')\nsys.stdin.read()\ndef add(a, b): raise SystemExit(0)", 0.0),
        ("1 / 0\ndef add(a, b): return a + b", 0.0),
    ],
)
def test_asserts_pay_by_their_share(response, share):
    found = paid([response], [ADD])
    (took,) = found.pop("seconds")
    assert found == {"reward": [share], "correct": [float(share == 1)]}
    assert (took > 0) == bool(response), "it is known how long a program ran, and nothing ran without one"


@needs_sandbox
@pytest.mark.parametrize(
    ("response", "share"),
    [
        ("print(sum(map(int, input().split())))", 1.0),
        ("print(3)", 0.5),
        ("print(sum(map(int, input().split())))\nraise SystemExit(1)", 0.0),
        ("", 0.0),
    ],
)
def test_pairs_pay_by_their_share(response, share):
    assert paid([response], [SUM])["reward"] == [share]


@needs_sandbox
def test_programs_that_are_alike_run_once(monkeypatch):
    submitted = []
    submit = programs.Sandbox.submit
    monkeypatch.setattr(programs.Sandbox, "submit", lambda self, *each: submitted.append(each) or submit(self, *each))
    right = "def add(a, b): return a + b"
    found = paid([right, f"```python\n{right}\n```", right], [ADD, ADD, {"tests": "assert add(1, 1) == 3"}])
    assert found["reward"] == [1.0, 1.0, 0.0] and len(submitted) == 3  # the second ends with a line end


@needs_sandbox
def test_the_secret_word_is_in_no_place_a_program_looks_first():
    cheat = "import __main__, sys\nfound = [n for n in vars(__main__) if n in ('given', 'word')]\nadd = lambda a, b: found"
    assert paid([cheat], [{"tests": "assert add(1, 2) == []"}])["reward"] == [1.0]
    looks = "import sys\nadd = lambda a, b: [sys.stdin.read(), sys.argv[1:]]"
    assert paid([looks], [{"tests": "assert add(1, 2) == ['', []]"}])["reward"] == [1.0]


@needs_sandbox
@pytest.mark.slow
def test_a_run_learns_from_tests(tmp_path):
    file = tmp_path / "programs.jsonl"
    file.write_text("".join(json.dumps({"prompt": f"p{n}", "tests": ["assert 1", "assert x"]}) + "\n" for n in range(12)))
    run = up.train("grpo", str(file), reward="tests", **SMALL, out=tmp_path / "run")
    (step,) = run.metrics
    assert 0 <= step["reward"] <= 1 and step["reward_correct"] == 0
    assert "sandbox" not in step and run.plan.settings.sandbox == "full"


@no_weak
@pytest.mark.slow
def test_every_line_of_a_weak_run_says_so(tmp_path, capsys):
    file = tmp_path / "programs.jsonl"
    file.write_text("".join(json.dumps({"prompt": f"p{n}", "tests": ["assert 1", "assert x"]}) + "\n" for n in range(12)))
    words = ["--model", "tiny:layers=1,width=16", "--steps", "2", "--tasks-per-step", "2", "--samples-per-task", "2"]
    words += ["--warm-start", "0", "--eval-problems", "2", "--max-tokens", "4", "--audit", "off"]
    out = tmp_path / "run"
    assert main(["train", "grpo", "--task", str(file), "--reward", "tests", "--sandbox", "weak", *words, "--out", str(out)]) == 0
    told = [line for line in capsys.readouterr().err.splitlines() if line]
    assert any(line.startswith("note: weak sandbox: programs that a model wrote are held by limits only") for line in told)
    begun = next(place for place, line in enumerate(told) if line.startswith("grpo on programs.jsonl"))
    assert len(told) > begun + 3 and all(line.endswith("[weak sandbox]") for line in told[begun:])
    for log in ("metrics.jsonl", "samples.jsonl"):
        lines = [json.loads(line) for line in (out / log).read_text().splitlines()]
        assert lines and {line["sandbox"] for line in lines} == {"weak"}


@needs_sandbox
def test_the_example_is_audited_clean():
    from places import ROOT

    from upslope.rewards.audit import audit

    task = load_task(str(ROOT / "examples" / "programs.jsonl"), reward=load_reward("tests"))
    with warnings.catch_warnings():
        warnings.simplefilter("error", Remark)
        found = audit(task)
    assert found.remarks("tests") == [] and all(row.correct for row in found.of("expected"))
