"""Environments of the user's own: in a file, registered by a module beside the user, or as Python objects."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import gymnasium
import numpy as np
import pytest

import upslope as up
from upslope.errors import TaskError, UserError
from upslope.plan import Plan
from upslope.runtime import trust
from upslope.tasks import load_task, task_domain
from upslope.tasks.env_sources import ById, FromFactory, FromInstance, name_in_run, source_of
from upslope.tasks.gym import GymTask

SMALL = dict(steps=1, envs=2, horizon=8, passes=1, eval_problems=2, record="none", threads=1)
FILE = """
import gymnasium
import numpy as np
from track_helper import LENGTH


class Track(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-10, 10, (2,), np.float64)
    action_space = gymnasium.spaces.Discrete(3, start=-1)

    def __init__(self, render_mode=None, length=LENGTH):
        self.length, self.render_mode = length, render_mode

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.at, self.time = self.np_random.normal(size=2), 0
        return self.at, {}

    def step(self, action):
        assert action in (-1, 0, 1)
        self.time += 1
        self.at = np.clip(self.at + action * 0.1, -10, 10)
        return self.at, -float(abs(self.at).sum()), False, self.time >= self.length, {}


def limited():
    return gymnasium.wrappers.TimeLimit(Track(length=1000), 5)


def wrong():
    return 3


gymnasium.register("Track-v0", entry_point="my_env:Track", max_episode_steps=7)
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of the user's with an environment in it."""
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "my_env.py").write_text(FILE)
    (folder / "track_helper.py").write_text("LENGTH = 6\n")
    monkeypatch.chdir(folder)
    for name in ("my_env", "track_helper"):  # another folder's, if a test before this one has imported one
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield folder
    gymnasium.registry.pop("Track-v0", None)


# -- in a file -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "name", "limit"),
    [
        ("my_env.py:Track", "my_env.py:Track", None),
        ("my_env.py:limited", "my_env.py:limited", None),
        ("my_env.py:Track-v0", "my_env.py:Track-v0", 7),
        ("gym:my_env:Track-v0", "my_env.py:Track-v0", 7),
    ],
)
def test_it_is_found_beside_the_user(here: Path, spec: str, name: str, limit: int | None):
    task = load_task(spec)
    assert task.domain == "control" and task.name == name and task.max_episode_steps == limit
    assert (task.observation_size, task.action_size, task.continuous) == (2, 3, False)
    assert Plan(up.method("ppo"), spec).domain == "control"


@pytest.mark.parametrize("spec", ["my_env.py:Track", "gym:my_env:Track-v0"])
def test_a_run_keeps_it_and_works_from_any_folder(here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spec: str):
    run = up.train("ppo", spec, **SMALL, out=tmp_path / "run")
    assert run.table["domain"] == "control" and run.table["task"].startswith("my_env-")
    assert {file.name for file in (run.path / "code").rglob("*.py")} == {"my_env.py", "track_helper.py"}
    (here / "my_env.py").write_text("raise SystemExit('this is not the code of the run')")
    (here / "track_helper.py").unlink()
    monkeypatch.chdir("/")
    again = up.load(run.path)
    assert again.plan.domain == "control"
    assert len(again.policy.sizes.hidden) == 2 and again.components.task.name == run.components.task.name
    (run.path / "summary.json").unlink()
    up.resume(run.path)


def test_code_from_elsewhere_asks_for_trust(here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    run = up.train("ppo", "my_env.py:Track", **SMALL, out=tmp_path / "run")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another machine"))
    with pytest.raises(trust.Untrusted, match=r"my_env\.py.*track_helper"):
        up.load(run.path).plan  # noqa: B018
    assert up.load(run.path).table["domain"] == "control", "looking runs nothing"
    assert up.load(run.path, trust=True).plan.domain == "control"


def test_a_file_that_claims_another_domain_is_refused(here: Path, tmp_path: Path):
    run = up.train("ppo", "my_env.py:Track", **SMALL, out=tmp_path / "run")
    text = (run.path / "run.toml").read_text()
    (run.path / "run.toml").write_text(text.replace('domain = "control"', 'domain = "text"'))
    with pytest.raises(UserError, match="its domain is 'text'"):
        up.load(run.path).plan  # noqa: B018


@pytest.mark.parametrize("spec", ["my_env.py:Track", "my_env.py:limited", "gym:my_env:Track-v0"])
def test_other_processes_find_it(here: Path, spec: str):
    task = load_task(spec)
    spread, plain = task.make(2, 2), task.make(2)
    try:
        for env in range(2):
            assert (spread.reset(env, env) == plain.reset(env, env)).all()
        actions = np.array([2, 0])
        assert (spread.step(actions, [0, 1]).observation == plain.step(actions, [0, 1]).observation).all()
    finally:
        spread.close()
        plain.close()


@pytest.mark.slow
def test_the_command_line_does_all_of_it(here: Path, tmp_path: Path):
    words = ["--steps", "1", "--envs", "2", "--horizon", "8", "--eval-problems", "2", "--env-workers", "2", "--quiet"]

    def upslope(*given: str, cwd: Path) -> str:
        code = "import sys; sys.path.remove(''); from upslope.cli import main; sys.exit(main(sys.argv[1:]))"
        done = subprocess.run([sys.executable, "-c", code, *given], cwd=cwd, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    upslope("train", "ppo", "gym:my_env:Track-v0", *words, "--out", str(tmp_path / "run"), cwd=here)
    assert "mean return" in upslope("eval", str(tmp_path / "run"), "--problems", "3", cwd=Path("/"))


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("my_env.py:Trak", "Did you mean 'Track'"),
        ("my_env.py:wrong", "no gymnasium.Env"),
        ("gym:my_env:Track-v0:length=3", "def track"),
        ("my_env.py:LENGTH", "has no task 'LENGTH'"),
    ],
)
def test_what_is_no_environment_is_told(here: Path, spec: str, said: str):
    with pytest.raises(TaskError) as found:
        load_task(spec)
    assert said in str(found.value) and "\n" not in str(found.value)


def test_a_text_task_in_a_file_stays_text(here: Path):
    (here / "words.py").write_text("from upslope.tasks import TextTask\n\n\nclass Words(TextTask): ...\n")
    assert task_domain("words.py:Words") == "text" and task_domain("nowhere.py:Words") == "text"


def test_an_installed_module_is_not_looked_for_here(here: Path):
    (here / "json.py").write_text("raise SystemExit('not this one')")
    with pytest.raises(TaskError, match="json:Track-v9"):
        load_task("gym:json:Track-v9")


# -- Python objects --------------------------------------------------------------------------------------------------------


class Pole(gymnasium.Wrapper):
    """Not one that gymnasium could make again from what it says."""

    def __init__(self, env: gymnasium.Env, unused: object = None):
        super().__init__(env)


def make_pole():
    return gymnasium.make("CartPole-v1", max_episode_steps=11)


def test_what_each_object_is_taken_for():
    assert source_of(gymnasium.make("CartPole-v1", render_mode="rgb_array")) == ById("CartPole-v1")
    assert isinstance(source_of(make_pole()), FromInstance)
    assert isinstance(source_of(lambda: make_pole()), FromFactory)
    assert [source_of(value) for value in (3, None, [make_pole], dict)] == [None] * 4


def test_an_environment_is_made_again_as_it_is():
    task = GymTask(source_of(make_pole()))
    assert task.max_episode_steps == 11 and task.name == "CartPole-v1"
    bare = make_pole().unwrapped
    bare.spec, bare.force_mag = None, 3.0
    copies = GymTask(source_of(bare)).make(2)
    assert [env.force_mag for env in copies._envs] == [3.0, 3.0] and copies._envs[0] is not copies._envs[1]


def test_what_cannot_be_made_twice_says_what_to_give(monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(TaskError, match=r"cannot be made a second time.*task=lambda: CartPoleEnv"):
        GymTask(source_of(Pole(gymnasium.make("CartPole-v1"))))
    bare = make_pole().unwrapped
    bare.spec, bare.connection = None, (each for each in ())
    with pytest.raises(TaskError, match=r"cannot be copied.*task=lambda"):
        GymTask(source_of(bare))


def test_a_run_with_an_object_says_what_it_will_need(tmp_path: Path):
    with pytest.warns(UserWarning, match="task cannot be kept"):
        run = up.train("ppo", lambda: make_pole(), **SMALL, out=tmp_path / "run")
    assert run.table["unkept"] == ["task"] and run.table["domain"] == "control"
    with pytest.raises(UserError, match=r"task=\.\.\."):
        up.load(run.path).policy  # noqa: B018
    assert up.load(run.path, task=make_pole()).policy is not None
    (run.path / "summary.json").unlink()
    up.resume(run.path, task=make_pole)


@pytest.mark.parametrize("name", ["Track", "limited", "CartPole-v1"])
def test_a_run_keeps_what_has_a_name(here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str):
    monkeypatch.syspath_prepend(here)
    mine = importlib.import_module("my_env")
    given = getattr(mine, name, None) or gymnasium.make(name)
    assert name_in_run(source_of(given)) == (f"{here}/my_env.py:{name}" if hasattr(mine, name) else f"gym:{name}")
    run = up.train("ppo", given, **SMALL, out=tmp_path / "run")
    assert run.table["unkept"] == []
    for module in ("my_env", "track_helper"):
        sys.modules.pop(module, None)
    monkeypatch.chdir("/")
    assert up.load(run.path).policy is not None


@pytest.mark.parametrize("given", [3, ["a"], dict, object()])
def test_what_is_no_task_is_refused(given: object):
    with pytest.raises(UserError, match="task"):
        up.train("ppo", given, **SMALL)


def test_an_object_of_a_script_cannot_go_to_other_processes():
    code = (
        "import gymnasium\nfrom upslope.tasks.env_sources import source_of\nfrom upslope.tasks.gym import GymTask\n"
        "def mine(): return gymnasium.make('CartPole-v1')\nGymTask(source_of(mine)).make(2, 2)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "mine is defined in the script that runs" in done.stderr and "--env-workers 1" in done.stderr
