"""Objects of the wrong type, in every argument of what `import upslope as up` gives: told in one line, never a TypeError."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

import upslope as up
from upslope.errors import UserError
from upslope.runtime.arguments import checked, text


def function(*anything):
    return anything


class Own:
    pass


WRONG = {
    "none": None, "number": 7, "float": 0.5, "nan": float("nan"), "bytes": b"grpo", "path": Path("nowhere/at-all"),
    "list": [1, None], "dict": {1: 2}, "function": function, "class": Own, "object": Own(), "set": {3}, "truth": True, "empty": "",
    "null": "\0", "surrogate": "\udc00", "tuple": (1, 2),
}  # fmt: skip
SMALL = {
    "method": "grpo", "task": "reverse:length=2", "model": "tiny:layers=1,width=16", "steps": 1, "tasks_per_step": 2,
    "samples_per_task": 2, "warm_start": 0.0, "eval_problems": 2, "max_tokens": 2, "warmup": 0,
}  # fmt: skip
LOG = {
    "observations": [[0.0], [1.0]], "actions": [0, 1], "rewards": [0.0, 0.0], "terminations": [False, True],
}  # fmt: skip
RIGHT = {
    "train": {
        "model": (), "method": (), "task": (), "out": ("none", "path"), "knobs": ("none",), "take": ("none",),
        "trackers": (), "callbacks": ("none",), "watcher": ("none",), "preset": ("empty",),
        "reward": ("none", "empty"), "test_data": ("none", "empty"), "data": ("none", "empty"),
    },
    "resume": {
        "path": (), "watcher": ("none",), "trust": ("truth",), "steps": ("none", "number"), "trackers": (), "callbacks": ("none",),
        "task": ("none",), "reward": ("none",), "model": ("none",),
    },
    "load": {"path": (), "trust": ("truth",), "checkpoint": (), "task": ("none",), "reward": ("none",), "model": ("none",)},
    "method": {"spec": (), "take": ("none",)},
    "compose": {"names": (), "take": ("none",)},
    "list_methods": {"family": ("empty",)},
    "make_data": {
        "name": ("path",), "task": ("empty",), "recipe": (), "steps": ("none", "number"), "seed": ("number",),
        "from_run": ("empty",), "out": ("none", "path", "empty"),
    },
    "load_data": {"data": (), "task": ("none",)},
    "describe": {"data": (), "reference": ("none",)},
    "compare": {
        "what": (), "task": (), "seeds": (), "model": (), "knobs": ("none",), "grid": ("none",), "take": ("none",), "out": (),
        "jobs": (), "k": (), "threshold": (), "references": (), "quiet": (), "reward": (), "test_data": (), "data": (),
        "figures": (),
    },
}  # fmt: skip
"""By function and argument, the values above that are none: those are not tried."""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return up.train(**SMALL, out=tmp_path_factory.mktemp("arguments") / "run").path


def call(name: str, argument: str, value: object, run: Path, place: Path) -> None:
    others = {
        "train": SMALL | {"out": place}, "resume": {"path": run}, "load": {"path": run}, "method": {"spec": "grpo"},
        "compose": {"names": ["grpo", "dapo"]}, "list_methods": {}, "compare": {"what": ["grpo", "dapo"], "out": place, "seeds": 1},
        "make_data": {"name": "mine", "task": "gym:CartPole-v1", "steps": 2}, "load_data": {"data": LOG}, "describe": {"data": LOG},
    }  # fmt: skip
    result = getattr(up, name)(**others[name] | {argument: value})
    if name == "load":
        result.plan  # noqa: B018 (a run is only looked at until it is asked for its plan)


@pytest.mark.parametrize(("name", "argument"), [(name, argument) for name, each in RIGHT.items() for argument in each])
def test_an_object_of_the_wrong_type_is_told_in_one_line(name: str, argument: str, run: Path, tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if name == "compare":  # what passes would train for minutes
        monkeypatch.setattr("upslope.report.compare.comparing.compare_methods", lambda *_: pytest.fail("it was not refused"))
    known = RIGHT[name][argument]
    for which, value in WRONG.items():
        if which in known or (name == "compare" and which in COMPARED.get(argument, ())):
            continue
        try:
            call(name, argument, value, run, tmp_path / "new")
        except UserError as told:
            assert "\n" not in str(told), (which, str(told))
            assert str(told).isprintable() or which in ("null", "surrogate"), (which, str(told))
        except BaseException as problem:
            pytest.fail(f"{name}({argument}={value!r}) raised {type(problem).__name__}: {problem}")
        else:
            pytest.fail(f"{name}({argument}={value!r}) was not refused")


WORDS = ("empty", "null", "surrogate", "path")
COMPARED = {
    "out": ("none", "path"), "seeds": ("number",), "jobs": ("none", "number"), "k": ("none", "number"), "references": ("none",),
    "threshold": ("none", "number", "float"), "quiet": ("truth",), "figures": ("truth",), "reward": ("none", "function", *WORDS),
    "test_data": WORDS, "data": WORDS, "task": WORDS, "model": WORDS, "what": WORDS,
}  # fmt: skip
"""Of a comparison: words are looked at where they are used."""


def test_every_argument_is_in_the_table():
    for name, arguments in RIGHT.items():
        of = inspect.signature(getattr(up, name)).parameters
        named = {each for each, parameter in of.items() if parameter.kind is not inspect.Parameter.VAR_KEYWORD}
        assert named == set(arguments), name


def test_paths_work_wherever_text_does(run: Path, tmp_path: Path):
    (tmp_path / "mine.py").write_text("from upslope.methods import grpo\nmine = grpo.derive(name='mine', differs='nothing')\n")
    assert up.method(tmp_path / "mine.py").name == "mine"
    made = up.train(**SMALL | {"method": tmp_path / "mine.py", "model": run}, out=tmp_path / "run")
    assert up.load(str(made.path)).summary == up.load(made.path).summary


def test_a_check_keeps_the_function_as_it_is():
    @checked(first=text("text"))
    def told(first: str = "a", *, second: int = 2) -> tuple:
        """Says it."""
        return first, second

    assert told(Path("b"), second=3) == ("b", 3) and told() == ("a", 2)
    assert (told.__name__, told.__doc__) == ("told", "Says it.")
    with pytest.raises(UserError, match=r"first is 7 \(int\); it must be text"):
        told(7)
