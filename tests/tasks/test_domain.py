"""A run says whether it is text or control: the task's name is read for it in one place, and everybody else is told."""

import ast
import dataclasses
import tomllib

import pytest
import tomli_w
from board_folders import client, plan, write_run
from fake_runs import fake_run
from places import SOURCE

import upslope as up
from upslope.board.plan_file import parse_plan
from upslope.errors import UserError
from upslope.plan import Plan, checked_table
from upslope.report.checkup import is_control
from upslope.runtime.run_folder import RunFolder
from upslope.runtime.settings import ONLY_FOR, Settings
from upslope.tasks import domain_of, list_tasks, load_task

SMALL = {"steps": 1, "eval_problems": 2, "record": "none", "watch_kl": False}
TEXT = SMALL | {"model": "tiny:layers=1,width=16", "tasks_per_step": 2, "samples_per_task": 2, "warm_start": 0.0}
CONTROL = SMALL | {"envs": 1, "horizon": 8, "passes": 1}


@pytest.mark.parametrize(
    ("spec", "domain"),
    [
        ("reverse", "text"), ("sort:length=6", "text"), ("reasoning-gym:chain_sum", "text"), ("problems.jsonl", "text"),
        ("gym:CartPole-v1", "control"), ("gym:CartPole-v1:max_episode_steps=9", "control"), ("gym:some.module:Env-v0", "control"),
        ("gym:odd.jsonl", "text"), ("gym.py:Task", "text"), ("gym", "text"), ("gymnastics:x", "text"), ("", "text"),
    ],
)  # fmt: skip
def test_a_tasks_name_says_its_domain(spec, domain):
    assert domain_of(spec) == domain


@pytest.mark.parametrize("spec", ["reverse", "sort:length=6", "gym:CartPole-v1"])
def test_a_task_has_the_domain_that_its_name_says(spec):
    assert load_task(spec).domain == domain_of(spec)


def test_the_list_of_tasks_says_the_domain_of_each():
    said = {each.name: each.domain for each in list_tasks()}
    assert {each.startswith("gym:") for each, domain in said.items() if domain == "control"} == {True}
    assert "gym:ID" in said and {said["reverse"], said["FILE.jsonl"]} == {"text"}
    assert {domain for each, domain in said.items() if not each.startswith("gym:")} == {"text"}


@pytest.mark.parametrize(
    ("method", "task", "settings", "domain"),
    [("grpo", "reverse:length=2", TEXT, "text"), ("ppo", "gym:CartPole-v1", CONTROL, "control")],
)
def test_a_run_writes_its_domain_and_a_file_without_one_is_read(tmp_path, method, task, settings, domain):
    run = up.train(method, task, **settings, out=tmp_path / "run")
    file = run.path / "run.toml"
    table = tomllib.loads(file.read_text())
    assert table["domain"] == run.plan.domain == domain
    del table["domain"]
    file.write_text(tomli_w.dumps(table))
    old = up.load(run.path)
    assert old.table["domain"] == old.plan.domain == domain and is_control(old) == (domain == "control")
    (run.path / "summary.json").unlink()
    assert up.resume(run.path).summary["steps"] == 1


def test_the_board_shows_the_domain_of_new_files_and_of_old_ones(tmp_path):
    write_run(tmp_path / "new", method="ppo", task="gym:CartPole-v1")
    fake_run(tmp_path, "ppo", 0, 100.0, task="gym:Acrobot-v1")
    fake_run(tmp_path, "grpo", 0, 1.0)
    shown = {run["task"]: run["domain"] for run in client(tmp_path).get("/api/runs").json()["runs"]}
    assert shown == {"gym:CartPole-v1": "control", "gym:Acrobot-v1": "control", "reverse": "text"}


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ("control", "its domain is 'control', and 'reverse' is text"),
        ("video", "its domain is 'video', which is not text or control"),
        (3, "its domain is '3', which is not"),
    ],
)
def test_a_file_whose_domain_is_not_its_tasks_is_refused(tmp_path, said, why):
    path = fake_run(tmp_path, "grpo", 0, 1.0)
    text = f"domain = {said!r}\n" + (path / "run.toml").read_text()
    (path / "run.toml").write_text(text)
    with pytest.raises(UserError, match="is not as a run writes it: ") as told:
        checked_table(RunFolder.open(path))
    assert why in str(told.value)


def test_the_board_refuses_what_is_no_domain(tmp_path):
    text = (fake_run(tmp_path, "grpo", 0, 1.0) / "run.toml").read_text()
    with pytest.raises(ValueError, match="its domain is 'video', which is not text or control"):
        parse_plan(f"domain = 'video'\n{text}")


def test_a_plan_follows_its_task():
    first = Plan(up.method("ppo"), "gym:CartPole-v1")
    assert first.domain == "control" and dataclasses.replace(first, task="reverse").domain == "text"


def test_settings_say_their_domain_themselves():
    said = {f.name: f.metadata["domain"] for f in dataclasses.fields(Settings) if "domain" in f.metadata}
    assert {name: domain for domain, names in ONLY_FOR.items() for name in names} == said
    assert said["envs"] == "control" and said["max_tokens"] == "text" and "samples_per_task" not in said


@pytest.mark.parametrize("file", sorted(SOURCE.rglob("*.py")), ids=lambda file: str(file.relative_to(SOURCE)))
def test_nobody_else_guesses_it_from_the_name(file):
    calls = [node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Call)]
    guesses = [
        call for call in calls
        if isinstance(call.func, ast.Attribute) and call.func.attr == "startswith"
        and any(isinstance(word, ast.Constant) and word.value == "gym:" for word in ast.walk(call))
    ]  # fmt: skip
    assert not guesses, f"{file.name}, line {guesses[0].lineno}: ask upslope.tasks.domain_of"


def test_a_plans_table_is_what_the_boards_helper_writes():
    assert plan("ppo", "gym:CartPole-v1")["domain"] == Plan(up.method("ppo"), "gym:CartPole-v1").table()["domain"] == "control"
