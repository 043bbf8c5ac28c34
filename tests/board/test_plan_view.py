"""What the page says of a run's plan."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
import tomli_w

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
