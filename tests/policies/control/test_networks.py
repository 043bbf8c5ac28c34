"""The network of a control policy as a part of a method."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
import tomli_w

import upslope as up
from upslope.errors import MethodError, UserError
from upslope.methods import find
from upslope.policies.control.networks import MLP
from upslope.report.describe import show_text
from upslope.runtime.method_file import method_from_table, method_table
from upslope.runtime.settings import Settings
from upslope.setting_up import set_up

QUICK = dict(steps=1, envs=2, horizon=8, eval_problems=2, record="none", threads=1)


def components(method="ppo", task="gym:Pendulum-v1", **knobs):
    chosen = find(method) if isinstance(method, str) else method
    return set_up(chosen, task, "tiny", Settings(**QUICK), knobs=knobs)


def test_fields_are_what_the_network_has():
    made = components(**{"policy.hidden": "32,16,8", "policy.activation": "relu", "policy.log_std": "-1.5"})
    assert made.policy.sizes.hidden == (32, 16, 8) and made.policy.sizes.activation == "relu"
    assert made.policy.log_std.tolist() == [-1.5]
    assert [layer.weight.shape[0] for layer in made.policy.critic] == [32, 16, 8, 1]
    assert made.method.policy == MLP((32, 16, 8), "relu", -1.5)


def test_without_a_word_it_is_as_it_was():
    made = components()
    assert components(**{"policy": "none"}).method.policy == MLP()
    assert made.method.policy == MLP() == MLP(hidden=(64, 64), activation="tanh", log_std=0.0)
    assert made.policy.log_std.tolist() == [0.0] and made.policy.sizes.hidden == (64, 64)


def test_a_derived_method_keeps_its_own_network():
    mine = find("ppo").derive(name="wide", policy=MLP(hidden=[128]))
    assert components(mine).policy.sizes.hidden == (128,)
    assert components(mine, **{"policy.activation": "silu"}).method.policy == MLP((128,), "silu")


def test_it_goes_through_a_file_and_a_run(tmp_path: Path):
    method = find("ppo").derive(policy=MLP((8, 4), "silu", -0.5))
    assert method_from_table(tomllib.loads(tomli_w.dumps(method_table(method)))) == method
    run = up.train("ppo", "gym:CartPole-v1", knobs={"policy.hidden": (8, 4)}, out=tmp_path / "run", **QUICK)
    policy = run.table["method"]["policy"]
    assert policy.pop("encoder") == {"part": "encoder.DefaultEncoder"}
    assert policy == {"part": "policy.MLP", "hidden": [8, 4], "activation": "tanh", "log_std": 0.0}
    assert up.load(run.path).policy.sizes.hidden == (8, 4)


def test_a_run_from_before_there_was_the_part_loads(tmp_path: Path):
    run = up.train("ppo", "gym:CartPole-v1", out=tmp_path / "run", **QUICK)
    table = tomllib.loads((run.path / "run.toml").read_text())
    del table["method"]["policy"]
    (run.path / "run.toml").write_text(tomli_w.dumps(table))
    assert up.load(run.path).policy.sizes.hidden == (64, 64)


@pytest.mark.parametrize(
    ("knob", "value", "said"),
    [
        ("policy.hidden", "0,64", "at least 1"),
        ("policy.hidden", "()", "a list with commas"),
        ("policy.hidden", "64.5", "each of it a whole number"),
        ("policy.hidden", (), "width of each hidden layer"),
        ("policy.activation", "gelu", "'tanh', 'relu', 'silu'"),
        ("policy.log_std", "nan", "NaN"),
        ("policy.width", "64", "hidden, activation, log_std"),
    ],
)
def test_what_no_network_can_have_is_refused(knob: str, value: str, said: str):
    with pytest.raises(MethodError, match=knob.replace(".", r"\.")) as found:
        components(**{knob: value})
    assert said in str(found.value)


def test_text_has_no_such_network_and_control_no_view():
    with pytest.raises(UserError, match="network for control"):
        set_up(find("grpo").derive(name="mine", policy=MLP()), "reverse", "tiny", Settings(steps=1))
    with pytest.raises(UserError, match="environment"):
        components(**{"policy": "Layer(layer=1)"})
    with pytest.raises(MethodError, match="policy"):
        find("ppo").derive(policy=find("ppo").surrogate)


def test_show_says_what_acts():
    assert "policy = MLP(hidden=(64, 64), activation='tanh', log_std=0, encoder=DefaultEncoder())" in show_text(find("ppo"))
    assert "MLP" not in show_text(find("grpo"))
