"""The command line: what it prints, where, and how it fails."""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from upslope.cli import main
from upslope.errors import install_extra
from upslope.methods import catalogue, measures
from upslope.runtime.settings import Settings
from upslope.runtime.settings_flags import field_docs

torch.set_num_threads(1)

SMALL = ["--model", "tiny:layers=1,width=32", "--steps", "3", "--tasks-per-step", "2", "--samples-per-task", "4",
         "--warm-start", "0", "--eval-problems", "10", "--checkpoint-every", "1"]  # fmt: skip
REVERSE = ["train", "grpo", "reverse:length=2", *SMALL]

PendingMetrics = tuple[int, str, str]
Upslope = Callable[..., PendingMetrics]


@pytest.fixture
def upslope(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Upslope:
    """Runs a command in an empty folder; its exit code, standard output and standard error."""
    monkeypatch.chdir(tmp_path)

    def call(*words: str) -> PendingMetrics:
        capsys.readouterr()
        code = main(list(words))
        told = capsys.readouterr()
        return code, told.out, told.err

    return call


def refusal(told: PendingMetrics) -> str:
    """The message of a command that failed as it should: one message, no traceback, nothing on standard output."""
    code, out, err = told
    assert code == 2 and out == "" and err.startswith("upslope: ") and "Traceback" not in err
    return err


# -- help ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", [["--help"], ["train", "--help"], ["tasks"], ["nonsense"]])
def test_help_is_fast_and_imports_nothing_heavy(words: list[str]) -> None:
    program = f"""
import sys
from upslope.cli import main
main({words!r})
print("heavy:", [name for name in ("torch", "transformers", "gymnasium", "rich") if name in sys.modules])
"""
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "heavy: []"
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before < 3  # of the processor: others may keep it busy


def test_help_names_every_command_and_every_setting(upslope: Upslope) -> None:
    commands = ("train", "eval", "try", "serve", "resume", "check", "compare", "board", "methods", "show", "tasks")
    _, out, _ = upslope("--help")
    assert all(re.search(rf"^    {command} ", out, re.M) for command in commands)
    assert upslope()[1] == out
    _, out, _ = upslope("train", "--help")
    flags = [f"--{name.replace('_', '-')}" for name in Settings.__dataclass_fields__]
    assert [
        flag for flag in [*flags, "--task", "--model", "--out", "--set", "--take", "--reward", "--test-data"] if flag not in out
    ] == []
    assert "`" not in out


def test_every_setting_says_what_it_does() -> None:
    docs = field_docs(Settings)
    assert set(docs) == set(Settings.__dataclass_fields__)
    assert docs["seed"].startswith("Repeats the run")


def test_python_dash_m_is_the_same_program() -> None:
    done = subprocess.run([sys.executable, "-m", "upslope", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("upslope 0.")


# -- wrong words -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["trian"], "no command named 'trian'. Did you mean 'train'"),
        (["train"], "train: it needs METHOD."),
        (["train", "dhpo", "--stepz", "3"], "train: no flag '--stepz'. Did you mean '--steps'"),
        (["train", "dhpo", "--steps=x"], "--steps: 'x' is not a whole number."),
        (["train", "dhpo", "--lr", "nan"], "--lr: 'nan' is not a number."),
        (["train", "dhpo", "--lr", "-1"], "--lr is -1.0; it must be above 0."),
        (["train", "dhpo", "--schedule", "liner"], "'liner' is none of constant, linear, cosine. Did you mean 'linear'"),
        (["train", "dhpo", "sort", "more"], "'more' is one word too many."),
        (["train", "dhpo", "sort", "--task", "sum"], "two tasks: 'sort' behind the method and --task 'sum'."),
        (["train", "dhpo", "--set", "surrogate"], "--set 'surrogate' is not of the form PATH=VALUE"),
        (["train", "dhpo", "--set", "ratio.x=1", "--set", "ratio.x=2"], "--set gives 'ratio.x' twice: '1' and '2'."),
        (["train", "dhpo", "--take", "ratio"], "--take 'ratio' is not of the form SLOT=METHOD"),
        (["train", "dhpoo"], "no method named 'dhpoo'. Did you mean 'dhpo'"),
        (["show", "gsp"], "no method named 'gsp'. Did you mean 'gspo'"),
        (["show", "dhpo+dapo"], "Say which: --take surrogate=dhpo or --take surrogate=dapo."),
        (["train", "dhpo", "revers"], "no task named 'revers'. Did you mean 'reverse'"),
        (["train", "dhpo", "sort:lenght=3"], "sort has no knob 'lenght'. Did you mean 'length'"),
        (["train", "dhpo", "--set", "surogate.form=x"], "no slot named 'surogate'"),
        (["train", "grpo", "--set", "surrogate.hihg=0.3"], "PessimisticClip has no knob 'hihg'. Did you mean 'high'"),
        (["train", "grpo", "--set", "surrogate.high=wide"], "that knob is a float (now 0.2)"),
        (["train", "grpo", "--model", "tinny"], "no model 'tinny'"),
        (["train", "grpo", "--tracker", "tensorbord"], "no tracker named 'tensorbord'. Did you mean 'tensorboard'"),
        (["train", "nowhere.py"], "no file 'nowhere.py'"),
        (["train", "grpo", "none.jsonl", "--reward", "exact"], "no file 'none.jsonl'"),
        (["train", "grpo", "sort", "--reward", "exakt"], "no reward named 'exakt'. Did you mean 'exact'"),
        (["methods", "--family", "rlrv"], "no family named 'rlrv'. Did you mean 'rlvr'"),
        (["resume", "nowhere"], "nowhere is not a run"),
        (["eval", "nowhere"], "nowhere is not a run"),
        (["eval", "run", "--k", "0"], "--k: 0 is below 1."),
    ],
)  # fmt: skip
def test_wrong_words_are_quoted_with_the_nearest_right_ones(upslope: Upslope, words: list[str], said: str) -> None:
    assert said in refusal(upslope(*words))
    assert not Path("runs").exists()


def test_an_unreadable_jsonl_is_named_with_its_line(upslope: Upslope) -> None:
    Path("bad.jsonl").write_text('{"prompt": "1+1=", "answer": "2"}\n{"prompt": "1+2=", \n')
    assert "bad.jsonl, line 2: not JSON" in refusal(upslope("train", "grpo", "bad.jsonl", "--reward", "exact", *SMALL))


@pytest.mark.parametrize(
    ("module", "words", "install"),
    [
        ("gymnasium", ["train", "ppo", "gym:CartPole-v1"], install_extra("control")),
        ("reasoning_gym", ["train", "grpo", "reasoning-gym:chain_sum"], install_extra("text")),
    ],
)
def test_a_missing_extra_gives_the_exact_command(
    upslope: Upslope, monkeypatch: pytest.MonkeyPatch, module: str, words: list[str], install: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    assert install in refusal(upslope(*words))


# -- training --------------------------------------------------------------------------------------------------------------


def test_train_prints_the_folder_last_and_leaves_a_whole_run(upslope: Upslope) -> None:
    code, out, err = upslope(*REVERSE, "--seed", "4", "--set", "surrogate.high=0.3")
    folder = Path(out.splitlines()[-1])
    assert code == 0 and folder == Path("runs/grpo-reverse-length2-4")
    assert {"run.toml", "metrics.jsonl", "samples.jsonl", "summary.json", "report.html", "checkpoints"} <= set(os.listdir(folder))
    assert "seed 4" in err and "high = 0.3" in (folder / "run.toml").read_text()
    summary = json.loads((folder / "summary.json").read_text())
    assert (summary["method"], summary["seed"], summary["steps"]) == ("grpo", 4, 3)


def test_quiet_prints_the_folder_and_nothing_else(upslope: Upslope) -> None:
    assert upslope(*REVERSE, "--out", "here", "--quiet") == (0, "here\n", "")


def test_a_method_of_ones_own_file(upslope: Upslope) -> None:
    Path("mine.py").write_text(
        "from upslope.methods.rlvr.grpo import grpo\nfrom upslope.objective.aggregate import TokenMean\n"
        "mine = grpo.derive(name='mine', differs='mean over tokens', aggregate=TokenMean())\n"
    )
    code, out, _ = upslope("show", "mine.py")
    assert code == 0 and re.search(r"^aggregate +SequenceMeanTokenMean\(\) +->  TokenMean\(\)$", out, re.M)
    code, out, _ = upslope("train", "mine.py:mine", "reverse:length=2", *SMALL, "--quiet")
    assert (code, out) == (0, "runs/mine-reverse-length2-0\n")


def test_a_finished_run_says_so(upslope: Upslope) -> None:
    upslope(*REVERSE, "--out", "run", "--quiet")
    code, out, _ = upslope("resume", "run")
    assert code == 0 and out.startswith("finished already: 3 steps, accuracy 0") and out.splitlines()[-1] == "run"
    assert "already holds a finished run" in refusal(upslope(*REVERSE, "--out", "run"))


FLAKY = """
from pathlib import Path

def score(prompts, responses, answers):
    right = [float(response.strip() == answer) for response, answer in zip(responses, answers)]
    if len(responses) != {evaluated} and Path({switch!r}).exists():
        {trouble}
    return right
"""


@pytest.mark.parametrize(
    ("trouble", "said"),
    [
        ("raise KeyError('no judge')", r"raised KeyError: 'no judge' \(line \d+\) on row 0:\n  prompt: "),
        ("right[5] = float('nan')", r"returned nan, which is no finite number, for row 5:\n  prompt: "),
        ("right.pop()", r"returned 7 rewards for 8 responses"),
    ],
)
def test_a_reward_that_fails_stops_the_run_with_its_checkpoint_intact(
    upslope: Upslope, tmp_path: Path, trouble: str, said: str
) -> None:
    switch = tmp_path / "broken"
    Path("mine.py").write_text(FLAKY.format(evaluated=10, switch=str(switch), trouble=trouble))
    words = [*REVERSE, "--reward", "mine.py:score", "--audit", "off", "--quiet"]
    assert upslope(*words, "--out", "whole")[0] == 0
    switch.touch()
    message = refusal(upslope(*words, "--out", "run"))
    assert re.search(said, message)
    assert "'upslope resume run' goes on from its checkpoint step-000000." in message
    assert re.search(said, refusal(upslope("resume", "run", "--quiet")))  # still broken
    switch.unlink()
    Path("mine.py").unlink()  # the run goes on with its own copy
    assert upslope("resume", "run", "--quiet") == (0, "run\n", "")
    assert _without_clock("run") == _without_clock("whole")


def test_ctrl_c_stops_with_a_checkpoint_and_a_report(upslope: Upslope, monkeypatch: pytest.MonkeyPatch) -> None:
    from upslope.report.live import LiveTable

    stepped = LiveTable.stepped

    def interrupt(self: LiveTable, step: int, metrics: dict[str, float]) -> None:
        stepped(self, step, metrics)
        if step == 2:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(LiveTable, "stepped", interrupt)
    code, out, err = upslope(*REVERSE, "--out", "run", "--quiet")
    assert (code, out) == (130, "run\n")
    assert err == "upslope: stopped after step 2; 'upslope resume run' goes on from step-000002.\n"
    assert "not finished: 2 of 3 steps" in Path("run/report.html").read_text()
    monkeypatch.undo()


def test_an_interrupt_before_the_first_checkpoint_says_how_to_begin_again(
    upslope: Upslope, monkeypatch: pytest.MonkeyPatch
) -> None:
    from upslope.report.live import LiveTable

    def interrupt(self: LiveTable, done: int, of: int = 0) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(LiveTable, "evaluating", interrupt)
    code, out, err = upslope(*REVERSE, "--out", "run", "--quiet")
    assert (code, out) == (130, "run\n")
    assert err == "upslope: interrupted. 'upslope resume run' begins it again: it had no checkpoint yet.\n"


def _without_clock(folder: str) -> list[dict[str, object]]:
    lines = [json.loads(line) for line in Path(folder, "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if "second" not in key and key != "memory"} for line in lines]


# -- looking at a run ------------------------------------------------------------------------------------------------------


def test_eval_gives_greedy_accuracy_and_pass_at_k(upslope: Upslope) -> None:
    upslope(*REVERSE, "--out", "run", "--quiet")
    code, out, _ = upslope("eval", "run", "--k", "6", "--samples", "8", "--json")
    found = json.loads(out)
    assert code == 0 and (found["problems"], found["samples"], found["temperature"]) == (10, 8, 1.0)
    scores = [found[f"pass@{k}"] for k in (1, 2, 4, 6)]
    assert [each["score"] for each in scores] == sorted(each["score"] for each in scores)
    assert all(each["low"] <= each["score"] <= each["high"] for each in [found["greedy"], *scores])
    _, out, _ = upslope("eval", "run", "--k", "2", "--problems", "4")
    assert re.findall(r"^(\S+) +0\.\d{3} +\[", out, re.M) == ["greedy", "pass@1", "pass@2"]
    assert "4 held-out problems" in out
    assert "pass@8 needs at least 8" in refusal(upslope("eval", "run", "--k", "8", "--samples", "4"))
    assert "--temperature 0 gives 16 times the same" in refusal(upslope("eval", "run", "--temperature", "0"))


def test_try_shows_held_out_problems_and_answers_ones_own(upslope: Upslope, monkeypatch: pytest.MonkeyPatch) -> None:
    import io

    upslope(*REVERSE, "--out", "run", "--quiet")
    code, out, _ = upslope("try", "run", "--problems", "3")
    assert code == 0 and len(re.findall(r"^r[a-z]{2}=  ->  '.*'  (right|wrong; '[a-z]{2}' is right)$", out, re.M)) == 3
    assert re.search(r"^\d of 3 right", out, re.M)
    once = upslope("try", "run", "--prompt", "rab=")
    assert once[0] == 0 and once == upslope("try", "run", "--prompt", "rab=")
    monkeypatch.setattr(sys, "stdin", io.StringIO("rab=\nrcd=\n"))
    code, out, _ = upslope("try", "run", "--prompt", "-")
    assert out.startswith(once[1])
    assert "--render goes with environments" in refusal(upslope("try", "run", "--render"))


def test_try_and_eval_of_a_controller(upslope: Upslope) -> None:
    words = ["train", "ppo", "gym:CartPole-v1", "--steps", "1", "--envs", "2", "--horizon", "32", "--passes", "1"]
    code, out, err = upslope(*words, "--eval-problems", "3", "--out", "run")
    assert code == 0 and out.startswith("mean return") and "3 episodes" in err
    code, out, _ = upslope("eval", "run", "--problems", "4")
    assert code == 0 and "over 4 episodes" in out and re.search(r"^mean return  \d+\.\d  \[", out, re.M)
    code, out, _ = upslope("try", "run")
    assert code == 0 and re.match(r"return \d+\.0 in \d+ steps; the episode ended\nreward  ▁+", out)
    assert upslope("try", "run", "--seed", "1")[1] != "" and upslope("try", "run")[1] == out
    page = Path("run/report.html").read_text()
    assert "Episode length" in page and re.search(r"\d+ episodes? ended; returns", page)
    assert "--k goes with text" in refusal(upslope("eval", "run", "--k", "4"))
    assert "--prompt goes with text" in refusal(upslope("try", "run", "--prompt", "x"))


# -- the catalogue ---------------------------------------------------------------------------------------------------------


def test_methods_as_a_table_and_as_json(upslope: Upslope) -> None:
    _, out, _ = upslope("methods")
    lines = out.splitlines()
    assert lines[0].split() == ["name", "year", "parent", "checks", "claim", "differs"]
    assert [line.split()[0] for line in lines[1:-1]] == list(catalogue())
    assert lines[-1].startswith("measures of data") and lines[-1].endswith(", ".join(measures()))
    _, out, _ = upslope("methods", "--family", "rlvr", "--json")
    found = {record["name"]: record for record in json.loads(out)}
    assert set(found) == {name for name, method in catalogue().items() if method.family == "rlvr"}
    dapo = found["dapo"]
    own = {"name", "family", "learner", "offline", "paper", "parent", "differs", "slots", "checks", "claim", "source", "tests"}
    assert set(dapo) == own and dapo["learner"] == "policy-gradient"
    assert dapo["source"] == "upslope/methods/rlvr/grpo.py" and "tests/methods/rlvr/test_grpo.py" in dapo["tests"]
    assert dapo["paper"] == {"title": catalogue()["dapo"].paper.title, "year": 2025, "arxiv": "2503.14476"}
    assert dapo["parent"] == "grpo" and dapo["slots"]["aggregate"] == "TokenMean()" and "regularize" not in dapo["slots"]


def test_show_takes_compositions(upslope: Upslope) -> None:
    _, out, _ = upslope("show", "dhpo+high-entropy")
    assert re.search(r"^weight +none +->  TopEntropy\(", out, re.M)
    code, out, _ = upslope("show", "dhpo+dapo", "--take", "surrogate=dhpo", "--json")
    assert code == 0 and json.loads(out)["changes"]["filter"]["from"] == "none"


def test_tasks_as_a_table_and_as_json(upslope: Upslope) -> None:
    _, out, _ = upslope("tasks", "--json")
    names = [record["name"] for record in json.loads(out)]
    gives = {record["name"]: record["gives"] for record in json.loads(out)}
    assert (
        gives["reverse"] == ["answers", "solutions", "hints", "categories", "levels", "pairs", "labels", "revisions", "variants"]
        and gives["FILE.jsonl"] is None
    )
    _, out, _ = upslope("tasks")
    assert "edcba. (hints, categories, levels, pairs, labels, revisions, variants)" in out
    assert [line.split()[0] for line in out.splitlines()] == names and {"sort", "reverse", "gym:ID"} <= set(names)


def test_a_reader_that_leaves_early_gets_no_complaint() -> None:
    program = "import sys; from upslope.cli import main; sys.exit(main(['tasks']))"
    child = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert child.stdout is not None and child.stderr is not None
    child.stdout.close()
    assert child.stderr.read() == b"" and child.wait() == 141


def test_leaving_waits_for_threads_and_whatever_is_registered_for_the_end():
    program = """if True:
        import atexit, sys, threading, time
        import upslope.cli
        def late():
            time.sleep(0.2)
            print("a thread had work", flush=True)
        def run(words):
            threading.Thread(target=late).start()
            print("the command", end=" ")  # waits in a buffer
            return 5
        atexit.register(lambda: print("the end"))
        upslope.cli._run = run
        upslope.cli.main()
        print("taken apart")
    """
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 5 and done.stdout == "the command a thread had work\nthe end\n" and not done.stderr
