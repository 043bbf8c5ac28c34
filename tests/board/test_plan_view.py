"""What the page says of a run's plan."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
import tomli_w
from board_folders import client
from board_runs import REWARD, SMALL

import upslope as up
from upslope.board.plan_view import changed_knobs, command, read_whole_plan, settings_view
from upslope.methods import find
from upslope.objective.stages import Stage
from upslope.plan import Plan
from upslope.policies.control.networks import MLP, in_domains
from upslope.runtime.settings import Settings
from upslope.types.part_text import as_text


@pytest.mark.parametrize(
    ("network", "changed"),
    [(MLP(), {}), (None, {}), (MLP(hidden=(8, 4)), {"policy.hidden": "8,4"})],
    ids=["usual", "from before it was a part", "another"],
)
def test_a_network_is_changed_only_where_it_is_another(tmp_path: Path, network: MLP | None, changed: dict):
    method = in_domains(find("ppo"), "control", "control-discrete").derive(policy=network, on={})
    plan = Plan(method, "gym:CartPole-v1", settings=Settings().resolved("control", "mlp"))
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.toml").write_text(tomli_w.dumps(plan.table()))
    assert changed_knobs(read_whole_plan(tmp_path, ("run",))) == changed


def test_a_dataset_is_described_as_the_run_kept_it(tmp_path: Path):
    settings = Settings().resolved("control", "mlp")
    plan = Plan(find("ppo"), "gym:Pendulum-v1", settings=settings, dataset="minari:me/arm-v0", dataset_digest="0123456789abcdef")
    card = {"name": "arm", "recipe": "", "episodes": 4, "returns": [-3.0, -2.0, -1.0]}
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.toml").write_text(tomli_w.dumps(plan.table() | {"dataset_card": card}))
    found = settings_view(read_whole_plan(tmp_path, ("run",)))
    assert found["dataset"] == {
        "source": "minari:me/arm-v0",
        "digest": "0123456789ab",
        "card": {"name": "arm", "episodes": 4, "returns": [-3.0, -2.0, -1.0]},
    }
    assert "--data minari:me/arm-v0" in found["command"]
    (tmp_path / "run" / "run.toml").write_text(tomli_w.dumps(plan.table()))
    assert settings_view(read_whole_plan(tmp_path, ("run",)))["dataset"]["card"] == {}


@pytest.mark.parametrize(
    ("knobs", "words"),
    [
        ({"stages.cpt.share": 0.3}, ["stages.share=0.3"]),
        ({"stages.cpt.rollout.mixture": "a=1,b=2"}, ["stages.rollout.mixture=a=1,b=2"]),
        ({"stages": "none"}, ["stages=none"]),
        ({"stages.sft": as_text(Stage.of_method(find("sft"), 0.2))}, None),
    ],
)
def test_stages_are_told_as_one_would_set_them(tmp_path: Path, knobs: dict, words: list[str] | None):
    method = find("cap-cpt").with_knobs(knobs)
    plan = Plan(method, "reverse", settings=Settings().resolved("text", "tiny"))
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.toml").write_text(tomli_w.dumps(plan.table()))
    told = shlex.split(command(read_whole_plan(tmp_path, ("run",))))
    given = [told[place + 1] for place, word in enumerate(told) if word == "--set"]
    assert words is None or given == words
    assert find("cap-cpt").with_knobs(dict(each.split("=", 1) for each in given)).stages == method.stages


OWN_METHOD = """
from dataclasses import dataclass

from upslope.methods import grpo
from upslope.parts import GroupBaseline


@dataclass(frozen=True)
class Firm(GroupBaseline):
    firmness: float = 2.0

    def __call__(self, batch):
        return self.firmness * super().__call__(batch)


mine = grpo.derive(name="mine", differs="firmer", advantage=Firm())
"""


@pytest.mark.slow
def test_the_command_of_a_run_with_a_method_a_reward_and_knobs_of_ones_own_repeats_it(tmp_path: Path):
    """Pasted when the files it was made of are long gone."""
    from upslope.cli import main

    (tmp_path / "method.py").write_text(OWN_METHOD)
    (tmp_path / "reward.py").write_text(REWARD)
    up.train(
        str(tmp_path / "method.py"), "reverse:length=2", out=tmp_path / "my runs" / "a+b", steps=2,
        reward=[f"{tmp_path / 'reward.py'}:score*0.5 as style", "length:max=4"],
        knobs={"advantage.firmness": 3.5, "regularize.weight": 0.01}, **SMALL,
    )  # fmt: skip
    (tmp_path / "method.py").unlink()
    (tmp_path / "reward.py").unlink()
    told = client(tmp_path / "my runs").get("/api/settings?run=a%2Bb").json()["command"]
    assert "run.toml' --task reverse:length=2" in told and "/code/reward-" in told
    assert main([*shlex.split(told)[1:], "--out", str(tmp_path / "again"), "--quiet"]) == 0
    assert (tmp_path / "again" / "run.toml").read_text() == (tmp_path / "my runs" / "a+b" / "run.toml").read_text()
    first, second = (_numbers(tmp_path / run / "metrics.jsonl") for run in ("my runs/a+b", "again"))
    assert first == second and len(first) >= 3


def _numbers(log: Path) -> list[dict]:
    """What was measured, without what the machine took for it."""
    clock = ("seconds", "memory", "tokens_per_second")
    records = [json.loads(line) for line in log.read_text().splitlines()]
    return [{name: value for name, value in record.items() if not name.startswith(clock)} for record in records]


def test_the_method_of_a_run_is_found_by_its_file_and_its_code_is_not_run_unasked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from upslope.runtime.trust import Untrusted

    (tmp_path / "method.py").write_text(OWN_METHOD)
    sizes = {**SMALL, "steps": 1, "eval_problems": 4}
    run = up.train(str(tmp_path / "method.py"), "reverse:length=2", out=tmp_path / "run", **sizes)
    assert up.method(str(tmp_path / "run" / "run.toml")).advantage == run.plan.method.advantage
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another user"))
    with pytest.raises(Untrusted, match="not known here to be yours"):
        up.method(str(tmp_path / "run" / "run.toml"))
    with pytest.raises(up.UserError, match="no run"):
        up.method(str(tmp_path / "nowhere" / "run.toml"))
