"""The command ``upslope serve``: what it can be given, and how it begins and ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import openai
import pytest
import torch

import upslope as up
from upslope.cli import main
from upslope.errors import UserError
from upslope.serving.server import load_served

torch.set_num_threads(1)


def test_runs_and_models_can_be_served(tmp_path: Path) -> None:
    run = up.train("grpo", "reverse:length=2", model="tiny:layers=1,width=32", steps=1, tasks_per_step=2, samples_per_task=2,
                   eval_problems=4, warm_start=0, out=tmp_path / "mine")  # fmt: skip
    policy = load_served(str(run.path))
    assert policy.name == "mine"
    for name, value in run.policy.model.state_dict().items():
        assert torch.equal(policy.model.state_dict()[name], value)
    control = up.train("ppo", "gym:CartPole-v1", steps=1, envs=2, horizon=8, passes=1, eval_problems=1, out=tmp_path / "control")
    with pytest.raises(UserError, match="trained a controller"):
        load_served(str(control.path))
    with pytest.raises(UserError, match="no model 'nothing'"):
        load_served("nothing")


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--port", "99999"], "--port 99999 is no port: they go from 0 (any free one) to 65535."),
        (["--threads", "100000"], "--threads 100000 is far more than this machine's"),
        (["--host", "no.such.host.invalid", "--token", "k"], "--host 'no.such.host.invalid' is no address to listen at"),
        (["--host", "x" * 300, "--token", "k"], "is no address to listen at"),
        (["--host", "1.2.3.4", "--token", "k"], "cannot listen at 1.2.3.4, port 8000"),
        (["--token", "ключ"], "holds 'к', which a header cannot carry"),
        (["--token", "two words"], "holds ' ', which a header cannot carry"),
        (["--name", ""], "--name '' is empty"),
        (["--name", "a\nb"], "--name 'a\\nb' is no name"),
    ],
)
def test_flags_that_cannot_be_served_with(flags: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    before = signal.getsignal(signal.SIGTERM)
    try:
        assert main(["serve", "tiny:layers=1,width=32", *flags]) == 2
    finally:
        signal.signal(signal.SIGTERM, before)
    told = capsys.readouterr().err
    assert told.startswith("upslope: ") and said in told and told.count("\n") == 1


@pytest.mark.slow
@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM])
def test_the_command_serves_until_interrupted(ending: signal.Signals) -> None:
    words = [sys.executable, "-m", "upslope.cli", "serve", "tiny:layers=1,width=32", "--port", "0", "--name", "mine"]
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"}
    ) as started:
        assert started.stdout is not None and started.stderr is not None
        url = started.stdout.readline().strip()
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
        assert client.completions.create(model="mine", prompt="abc", max_tokens=4).usage.completion_tokens >= 1
        started.send_signal(ending)
        assert started.wait(20) == 0 and "mine at http://127.0.0.1:" in started.stderr.read()
