"""Random nonsense wherever people or other programs write: an answer in words, never a traceback, nothing else touched.

``make fuzz`` tries for ten minutes; the tests here are its short form. ``UPSLOPE_FUZZ`` is the number of tries of each kind.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import upslope as up
from upslope.cli import main
from upslope.errors import UserError
from upslope.methods import catalogue
from upslope.report.compare.gathering import read_run
from upslope.report.page import page
from upslope.rewards import load_reward
from upslope.runtime.run_folder import FORMAT
from upslope.runtime.settings import Settings
from upslope.runtime.settings_flags import given_settings
from upslope.tasks import load_task

pytestmark = pytest.mark.slow

TRIES = int(os.environ.get("UPSLOPE_FUZZ", "20"))
fuzz = settings(
    max_examples=TRIES, deadline=None, suppress_health_check=list(HealthCheck), derandomize="UPSLOPE_FUZZ" not in os.environ
)

ODD_NUMBERS = [0, 1, -1, 2, 3, 0.5, -0.5, 1e-30, 1e30, 1e308, 10**9, 10**30, -(10**30), math.nan, math.inf, -math.inf, 2**63, 2**31]
ODD_TEXTS = [
    "",
    " ",
    "x",
    "10",
    "nan",
    "true",
    "None",
    "\x00",
    "\ud800",
    "é",
    "a" * 5000,
    "../..",
    "/",
    "-1",
    "--out",
    "{}",
    "=",
    ":",
]
ODD = [*ODD_NUMBERS, *ODD_TEXTS, None, True, False, [], [1], {}, {"a": 1}, ["a", "b"]]
odd = st.sampled_from(ODD) | st.floats() | st.integers() | st.text(max_size=20)
json_values = st.recursive(
    odd, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3), max_leaves=5
)

TINY = {
    "task": "reverse:length=2", "model": "tiny:layers=1,width=16", "steps": 2, "tasks_per_step": 2, "samples_per_task": 2,
    "warm_start": 0.0, "eval_problems": 2, "checkpoint_every": 1, "max_tokens": 3, "keep_checkpoints": 3,
}  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """A run that stopped after its first step: two checkpoints."""
    path = up.train("dhpo", **TINY, out=tmp_path_factory.mktemp("fuzz") / "run").path
    (path / "summary.json").unlink()
    shutil.rmtree(path / "checkpoints" / "step-000002")
    return path


@contextmanager
def untouched(folder: Path) -> Iterator[Path]:
    """A place to work in, and around it files that must stay as they are."""
    with tempfile.TemporaryDirectory() as around:
        precious = Path(around, "precious.txt")
        precious.write_text("mine")
        work = Path(around, "work")
        shutil.copytree(folder, work) if folder.is_dir() else work.mkdir()
        yield work
        assert sorted(path.name for path in Path(around).iterdir()) == ["precious.txt", "work"] and precious.read_text() == "mine"


def answered(words: list[str]) -> int:
    """The exit code of a command: done or refused, never broken."""
    code = main([*words, "--debug"])
    assert code in (0, 2), f"{words} ended with {code}"
    return code


# -- settings and knobs ------------------------------------------------------------------------------------------------------


@fuzz
@given(name=st.sampled_from([f.name for f in dataclasses.fields(Settings)]), value=odd)
def test_settings_from_python(name: str, value: Any):
    try:
        made = Settings(**{name: value})
    except UserError as problem:
        assert str(problem)
        return
    kept = getattr(made, name)
    assert not (isinstance(kept, float) and math.isnan(kept)), f"{name} took {value!r}"
    json.dumps(dataclasses.asdict(made))
    made.resolved("text", "tiny", max_tokens=3)


SETTINGS = [f.name for f in dataclasses.fields(Settings) if f.name not in ("steps", "engine", "device")]


@fuzz
@given(name=st.sampled_from(SETTINGS), value=st.sampled_from([str(each) for each in (*ODD_NUMBERS, *ODD_TEXTS)]))
def test_settings_from_the_command_line(name: str, value: str):
    with untouched(Path("nowhere")) as work:
        sizes = [("--model", "tiny:layers=1,width=16"), ("--eval-problems", "2"), ("--max-tokens", "3"), ("--warm-start", "0")]
        sizes += [("--tasks-per-step", "2"), ("--samples-per-task", "2"), ("--steps", "0"), ("--task", "reverse:length=2")]
        flag = f"--{name.replace('_', '-')}"
        words = [word for key, size in sizes if key != flag for word in (key, size)]
        answered(["train", "grpo", *words, f"{flag}={value}", "--out", str(work / "run"), "--quiet"])


METHODS = sorted(catalogue())


@st.composite
def knobs(draw) -> tuple[str, str]:
    method = draw(st.sampled_from(METHODS))
    paths = []
    for path, part in catalogue()[method].parts():
        paths += [f"{path}.{f.name}" for f in dataclasses.fields(part)]
    return method, draw(st.sampled_from(paths) | st.text(max_size=12) | st.sampled_from(["", ".", "surrogate", "a.b.c"]))


@fuzz
@given(where=knobs(), value=odd)
def test_knobs(where: tuple[str, str], value: Any):
    method, path = where
    try:
        made = catalogue()[method].with_knobs({path: value})
    except UserError as problem:
        assert str(problem)
        return
    for name, part in made.parts():
        for field in dataclasses.fields(part):
            kept = getattr(part, field.name)
            assert not (isinstance(kept, float) and math.isnan(kept)), f"{name}.{field.name} is {kept}"


@fuzz
@given(
    word=st.sampled_from(ODD_TEXTS) | st.text(max_size=30),
    flag=st.sampled_from(["METHOD", "--task", "--model", "--reward", "--set", "--take", "--out", "--test-data", "--tracker"]),
)
def test_words_of_the_command_line(word: str, flag: str):
    with untouched(Path("nowhere")) as work, pytest.MonkeyPatch.context() as patch:
        patch.chdir(work)
        words = [
            "train",
            word if flag == "METHOD" else "grpo",
            "--steps",
            "0",
            "--warm-start",
            "0",
            "--eval-problems",
            "2",
            "--quiet",
        ]
        words += ["--model", "tiny:layers=1,width=16"] if flag != "--model" else []
        answered([*words, *([] if flag == "METHOD" else [f"{flag}={word}"])])


# -- data --------------------------------------------------------------------------------------------------------------------

LINE = {"prompt": "1+1=", "answer": "2"}


@st.composite
def jsonl(draw) -> bytes:
    lines = [json.dumps(LINE | {"prompt": f"{number}+1="}).encode() for number in range(draw(st.integers(0, 3)))]
    made = st.dictionaries(st.sampled_from(["prompt", "answer", "split", "other"]), json_values, max_size=4)
    text = (
        made.map(lambda each: json.dumps(each).encode())
        | st.binary(max_size=40)
        | json_values.map(lambda each: json.dumps(each).encode())
    )
    return b"\n".join([*lines, *draw(st.lists(text, max_size=3))])


@fuzz
@given(data=jsonl())
def test_problems_of_ones_own(data: bytes):
    with untouched(Path("nowhere")) as work:
        (work / "data.jsonl").write_bytes(data)
        try:
            task = load_task(str(work / "data.jsonl"), reward=load_reward("exact"))
        except UserError as problem:
            assert str(problem)
            return
        import numpy as np

        problems = task.sample(4, "train", np.random.default_rng(0))
        assert len(task.score(problems, ["2"] * 4).reward) == 4
        for problem in problems:
            problem.prompt.encode(), problem.answer.encode()  # no lone surrogate came through


# -- a run's folder ----------------------------------------------------------------------------------------------------------


@st.composite
def harm(draw, text: bytes) -> bytes:
    """A file with something done to it."""
    kind = draw(st.sampled_from(["flip", "cut", "insert", "line", "double", "replace"]))
    place = draw(st.integers(0, max(len(text) - 1, 0)))
    if kind == "flip":
        return text[:place] + bytes([text[place] ^ draw(st.integers(1, 255))]) + text[place + 1 :]
    if kind == "cut":
        return text[:place]
    if kind == "insert":
        return text[:place] + draw(st.binary(max_size=12)) + text[place:]
    if kind == "replace":
        return draw(
            st.binary(max_size=60) | st.just(b"a = " + b"[" * 5000) | st.just(b"[" * 100_000) | st.just(b"a.b." * 3000 + b"c = 1")
        )
    lines = text.split(b"\n")
    at = draw(st.integers(0, len(lines) - 1))
    lines[at : at + 1] = [] if kind == "line" else [lines[at], lines[at]]
    return b"\n".join(lines)


@st.composite
def other_value(draw, text: bytes) -> bytes:
    """``run.toml`` that is TOML still, with another value somewhere."""
    lines = text.decode().split("\n")
    at = draw(st.sampled_from([number for number, line in enumerate(lines) if " = " in line]))
    value = draw(
        st.sampled_from(
            ["1", "-1", "nan", "inf", "true", '""', '"x"', '"../../evil.py:score@0"', "[]", "[1]", "{}", "1979-05-27", "9" * 40]
        )
    )
    lines[at] = f"{lines[at].partition(' = ')[0]} = {value}"
    return "\n".join(lines).encode()


def look_at(work: Path) -> None:
    """All that reads a run; each answers, or refuses in words."""
    looked = up.load(work)
    for look in (
        lambda: looked.metrics,
        lambda: looked.evaluations,
        lambda: looked.summary,
        lambda: looked.table,
        lambda: page(looked),
    ):
        try:
            look()
        except UserError as problem:
            assert str(problem)
    (work / "summary.json").write_text('{"score": "accuracy", "score_before": 0.1, "score_after": 0.2}')  # as if it were finished
    read_run(work)
    (work / "summary.json").unlink()
    answered(["check", str(work)])


@fuzz
@given(data=st.data())
def test_the_plan_of_a_run(data, run: Path):
    text = (run / "run.toml").read_bytes()
    changed = data.draw(harm(text) | other_value(text))
    with untouched(run) as work:
        (work / "run.toml").write_bytes(changed)
        look_at(work)
        if answered(["resume", str(work), "--quiet"]) == 0:
            assert (work / "summary.json").is_file()


@fuzz
@given(data=st.data(), log=st.sampled_from(["metrics.jsonl", "samples.jsonl", "rollouts.jsonl", "process.json", "run.lock"]))
def test_the_logs_of_a_run(data, log: str, run: Path):
    changed = data.draw(harm((run / log).read_bytes() or b"\n"))
    with untouched(run) as work:
        (work / log).write_bytes(changed)
        look_at(work)
        assert answered(["resume", str(work), "--quiet"]) == 0


CHECKPOINT = (
    "model.safetensors",
    "learner.safetensors",
    "learner.json",
    "run.json",
    "digests.json",
    "config.json",
    "tokenizer.json",
)


@fuzz
@given(data=st.data(), verified=st.booleans())
def test_the_checkpoints_of_a_run(data, verified: bool, run: Path):
    newest = sorted((run / "checkpoints").glob("step-*"))[-1]
    name = data.draw(st.sampled_from([each for each in CHECKPOINT if (newest / each).exists()]))
    changed = data.draw(harm((newest / name).read_bytes()))
    with untouched(run) as work:
        if not verified:  # as before there were digests
            (work / "run.toml").write_text((work / "run.toml").read_text().replace(f"format = {FORMAT}\n", ""))
            for file in work.glob("checkpoints/*/digests.json"):
                file.unlink()
        file = work / newest.relative_to(run) / name
        same = file.exists() and file.read_bytes() == changed
        file.write_bytes(changed)
        code = answered(["resume", str(work), "--quiet"])
        assert code == 0 or not verified or same


def test_the_flags_are_those_of_the_settings():
    """The fuzz above names flags by fields; this holds that they are flags."""
    from upslope.cli.parsers import parsers

    parser, _ = parsers()
    flags = parser.parse_args(["train", "grpo", *(f"--{name.replace('_', '-')}=1" for name in ("seed", "lr"))])
    assert given_settings(flags) == {"seed": 1, "lr": 1.0}
