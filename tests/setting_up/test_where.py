"""Where a run samples: what does not go together is refused before anything is started."""

from __future__ import annotations

import importlib.util
import socket
import time

import pytest

import upslope as up
from upslope.errors import UserError
from upslope.rollout import ray_cluster
from upslope.runtime.settings import Settings
from upslope.setting_up.where import check_where


@pytest.mark.parametrize("where", ["cluster", "http://10.0.0.1:10001", "ray://10.0.0.1", "ray://:10001", "ray://host:0", ""])
def test_a_place_that_is_none_is_refused_with_those_that_are(where):
    with pytest.raises(UserError, match=r"it must be local, ray, or .*ray://10\.0\.0\.1:10001"):
        check_where(up.method("grpo"), Settings(where=where, workers=1))


@pytest.mark.parametrize("where", ["ray", "ray://10.0.0.1:10001"])
def test_a_cluster_without_workers_is_refused_with_the_cure(where):
    with pytest.raises(UserError, match="Give --workers 1, or leave it out"):
        check_where(up.method("grpo"), Settings(where=where))
    check_where(up.method("grpo"), Settings(where=where, workers=1, shares=1))


def test_environments_go_on_here():
    with pytest.raises(UserError, match="--where ray goes with text"):
        up.train("ppo", "gym:CartPole-v1", where="ray")


def test_without_ray_it_is_said_how_to_install_it(monkeypatch, tmp_path):
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "ray" else found(name, *rest))
    with pytest.raises(UserError, match=r"pip install upslope\[ray\]"):
        up.train("grpo", "reverse", model="tiny:layers=1,width=16", workers=1, where="ray", out=tmp_path / "run")
    assert not (tmp_path / "run").exists(), "it is refused before there is a run"


@pytest.mark.parametrize("by", ["setting", "environment"])
def test_an_address_where_nobody_answers_is_refused_soon_and_named(monkeypatch, by):
    pytest.importorskip("ray")
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # nobody listens there
        address = f"127.0.0.1:{closed.getsockname()[1]}"
        monkeypatch.setenv("RAY_ADDRESS", address)
        began = time.monotonic()
        with pytest.raises(UserError, match=rf"nobody answers at (ray://)?{address}.*ray start --head"):
            ray_cluster.connect("ray" if by == "environment" else f"ray://{address}")
    assert time.monotonic() - began < 3 * ray_cluster.CONNECTING_SECONDS
