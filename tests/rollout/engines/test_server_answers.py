"""Evaluation through servers: ours, ones that speak only chat, and ``transformers serve`` itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from fake_servers import FakeServer, strict_text

import upslope as up
from upslope.cli import main
from upslope.errors import UserError
from upslope.rollout.engines.server_answers import ServerAnswers
from upslope.run import Run
from upslope.runtime import http_client
from upslope.runtime.seeding import uniforms
from upslope.serving.server import Server, load_served
from upslope.types import Sampling

torch.set_num_threads(1)

SMALL: dict[str, Any] = {"model": "tiny:layers=1,width=64", "steps": 1, "tasks_per_step": 2, "samples_per_task": 2}


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_client, "LONGEST_PAUSE", 0.01)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return up.train("grpo", "reverse:length=2", eval_problems=20, warm_start=0.4, out=tmp_path_factory.mktemp("a") / "run", **SMALL)


def evaluated(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[dict[str, Any], str]:
    capsys.readouterr()
    assert main(["eval", *words, "--json"]) == 0
    told = capsys.readouterr()
    return json.loads(told.out), told.err


@pytest.mark.slow
def test_a_served_run_scores_as_the_run_itself(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    local, _ = evaluated(capsys, str(run.path), "--k", "4")
    with Server(load_served(str(run.path)), port=0) as server:
        served, warned = evaluated(capsys, str(run.path), "--k", "4", "--engine", server.url)
        assert served["engine"] == server.url and served["greedy"] == local["greedy"] and local["greedy"]["score"] > 0
        assert served["pass@4"]["score"] > 0 and served["problems"] == local["problems"] and not warned
        assert main(["eval", str(run.path), "--k", "1", "--problems", "4", "--engine", f"{server.url}/v1#run"]) == 0
        assert f"{server.url}/v1#run in place of {run.path}" in capsys.readouterr().out
        with pytest.raises(UserError, match="has no model 'other'; it has run"):
            ServerAnswers(f"{server.url}#other", chat=False)


def test_only_what_every_server_takes_is_sent(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    with FakeServer(strict_text) as server:
        found, warned = evaluated(capsys, str(run.path), "--k", "2", "--problems", "5", "--engine", server.url)
        asked = [body for path, body in server.asked if path == "/v1/completions"]
    assert found["greedy"]["score"] == 1.0, "the stand-in writes words backwards"
    assert all(set(body) <= {"prompt", "max_tokens", "temperature", "seed", "top_p"} for body in asked)
    assert len(asked) == 5 + 10 and len({body["seed"] for body in asked if "seed" in body}) == 10
    assert "gave the same answer 2 times to every problem. Does it heed the temperature?" in warned


def test_a_server_with_chat_alone_is_asked_so() -> None:
    def chat(path: str, body: dict[str, Any]) -> tuple[int, Any]:
        if path == "/v1/models":
            return 200, {"data": [{"id": "one"}]}
        if path != "/v1/chat/completions":
            return 404, {"error": {"message": "Not Found"}}
        said = body["messages"][0]["content"]
        return 200, {"choices": [{"message": {"content": None if said == "b" else said.upper()}}]}

    with FakeServer(chat) as server:
        answer = ServerAnswers(server.url, chat=False)
        assert answer(["a", "b"], 2, Sampling(4), uniforms((4, 4), 0)) == (["A", "A", "", ""], 0)
        assert [path for path, _ in server.asked] == ["/v1/models", "/v1/completions", *["/v1/chat/completions"] * 4]
        assert all(body["model"] == "one" for path, body in server.asked[1:])


def test_what_cannot_be_evaluated(run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    several = {"data": [{"id": "one"}, {"id": "two"}]}
    with FakeServer(lambda path, body: (200, several)) as server:
        assert main(["eval", str(run.path), "--engine", server.url]) == 2
        assert "has 2 models (one, two); say which behind the address" in capsys.readouterr().err
    with FakeServer(lambda path, body: (200, {})) as server:
        assert main(["eval", str(run.path), "--engine", server.url]) == 2
        assert "gave no 'choices' with an answer" in capsys.readouterr().err
    control = up.train("ppo", "gym:CartPole-v1", steps=1, envs=2, horizon=8, passes=1, eval_problems=1, out=tmp_path / "control")
    assert main(["eval", str(control.path), "--engine", "http://127.0.0.1:9"]) == 2
    assert "--engine goes with text" in capsys.readouterr().err


# -- transformers serve --------------------------------------------------------------------------------------------------------


@pytest.fixture
def transformers_serve(run: Run, tmp_path: Path) -> Iterator[str]:
    """The real one, on the run's last checkpoint."""
    import socket

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [str(Path(sys.executable).parent / "transformers"), "serve", str(run.folder.latest())]
    home = {"HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    with (tmp_path / "log").open("w") as log:
        words = [*command, "--host", "127.0.0.1", "--port", str(port), "--device", "cpu"]
        started = subprocess.Popen(words, stdout=log, stderr=subprocess.STDOUT, env=os.environ | home)
    try:
        deadline = time.monotonic() + 180
        while True:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5).close()
                break
            except OSError:
                assert started.poll() is None and time.monotonic() < deadline, (tmp_path / "log").read_text()
                time.sleep(0.5)
        yield f"http://127.0.0.1:{port}"
    finally:
        started.terminate()
        started.wait(30)


@pytest.mark.slow
def test_transformers_serve_is_refused_for_training_and_serves_evaluation(
    run: Run, transformers_serve: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UserError, match="cannot be trained from: its completions lack token_ids and logprobs of sampled tokens"):
        up.train("grpo", "reverse:length=2", engine=transformers_serve, out=tmp_path / "refused", **SMALL)
    local, _ = evaluated(capsys, str(run.path), "--k", "1", "--problems", "12")
    served, _ = evaluated(capsys, str(run.path), "--k", "1", "--problems", "12", "--engine", transformers_serve)
    assert served["greedy"] == local["greedy"]
