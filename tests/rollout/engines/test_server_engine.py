"""Rollouts from servers: ours is the local engine to rounding; others are used for what they give, refused for what they lack."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from fake_servers import FakeServer, like_vllm, strict_text
from places import FIXTURES

import upslope as up
from upslope.cli import main
from upslope.errors import MethodError, UserError
from upslope.policies import LanguageModel, load_language_model
from upslope.rollout.engines.server_answers import ServerAnswers
from upslope.rollout.engines.server_engine import ServerEngine
from upslope.rollout.engines.torch_engine import TorchEngine
from upslope.runtime import http_client
from upslope.runtime.http_client import Client, ServerError, server_address
from upslope.runtime.seeding import uniforms
from upslope.serving.server import Server
from upslope.types import Sampling

torch.set_num_threads(1)

MODEL = "tiny:layers=1,width=64"
SMALL = {
    "model": MODEL,
    "steps": 3,
    "tasks_per_step": 4,
    "samples_per_task": 4,
    "eval_problems": 20,
    "updates_per_step": 2,
    "lr": 1e-3,
}


def policy(seed: int = 0) -> LanguageModel:
    return load_language_model(MODEL, seed)


def prompts(of: LanguageModel) -> list[list[int]]:
    return [of.encode(text) for text in ("abc", "", "hello world", "abc")]


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_client, "LONGEST_PAUSE", 0.01)
    monkeypatch.delenv(http_client.KEY_VARIABLE, raising=False)


# -- our own server --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "sampling", [Sampling(9), Sampling(9, 0.7, top_k=12), Sampling(9, 1.2, top_p=0.8, min_p=0.02), Sampling(9, 0)]
)
def test_our_server_samples_what_the_local_engine_samples(sampling: Sampling) -> None:
    mine = policy(0)
    numbers = uniforms((12, 9), 3)
    limits = [9, 4, 9, 6]
    local = TorchEngine(mine).generate(prompts(mine), 3, sampling, numbers, limits)
    with Server(policy(1), port=0) as server:
        engine = ServerEngine(server.url, mine)
        engine.check(sampling)
        remote = engine.generate(prompts(mine), 3, sampling, numbers, limits)
    assert torch.equal(remote.tokens, local.tokens[:, : remote.tokens.shape[1]]) and remote.finish == local.finish
    assert torch.equal(remote.sampled, local.sampled[:, : remote.tokens.shape[1]])
    torch.testing.assert_close(remote.logp, local.logp[:, : remote.tokens.shape[1]], atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(remote.entropy, local.entropy[:, : remote.tokens.shape[1]], atol=1e-6, rtol=1e-5)


def test_our_server_samples_groups_of_different_sizes() -> None:
    mine, numbers, each, limits = policy(0), uniforms((9, 7), 3), [3, 1, 3, 2], [7, 7, 4, 7]
    local = TorchEngine(mine).generate(prompts(mine), each, Sampling(7), numbers, limits)
    with Server(policy(1), port=0) as server:
        remote = ServerEngine(server.url, mine).generate(prompts(mine), each, Sampling(7), numbers, limits)
    width = remote.tokens.shape[1]
    assert torch.equal(remote.tokens, local.tokens[:, :width]) and remote.finish == local.finish
    torch.testing.assert_close(remote.logp, local.logp[:, :width], atol=1e-6, rtol=1e-5)


def test_after_a_sync_both_sides_give_the_same_log_probabilities() -> None:
    mine = policy(0)
    with Server(policy(1), port=0) as server:
        engine = ServerEngine(server.url, mine)
        assert engine.probe(prompts(mine), Sampling(8, 1.3)) > 0.01, "other weights must show"
        engine.sync(mine)
        assert engine.probe(prompts(mine), Sampling(8, 1.3)) < 1e-5
        with torch.no_grad():
            next(mine.model.parameters()).mul_(1.5)
        assert engine.probe(prompts(mine), Sampling(8, 1.3)) > 0.01
        engine.sync(mine)
        assert engine.probe(prompts(mine), Sampling(8, 1.3)) < 1e-5
        assert server.version == 2


def test_adapters_arrive_inside_the_matrices_they_adapt() -> None:
    from peft import LoraConfig, get_peft_model

    mine = policy(0)
    mine.model = get_peft_model(mine.model, LoraConfig(r=4, target_modules=["q_proj", "down_proj"], init_lora_weights=False))
    with Server(policy(0), port=0) as server:
        engine = ServerEngine(server.url, mine)
        assert engine.probe(prompts(mine), Sampling(8)) > 1e-3, "without its adapters it is another policy"
        engine.sync(mine)
        assert engine.probe(prompts(mine), Sampling(8)) < 1e-5


def test_weights_that_do_not_arrive_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    mine = policy(0)
    with Server(policy(1), port=0) as server:
        engine = ServerEngine(server.url, mine)
        monkeypatch.setattr(server, "take", lambda weights: None)
        with torch.no_grad():
            for parameter in mine.model.parameters():
                parameter.mul_(3)
        with pytest.raises(UserError, match="was sent the weights, and its log-probabilities are still"):
            engine.generate(prompts(mine), 4, Sampling(8), uniforms((16, 8), 0))


@pytest.mark.slow
@pytest.mark.parametrize("method", ["grpo", "t-ppo", "polychromic"])
def test_a_run_through_our_server_is_the_run_without_it(method: str, tmp_path: Path) -> None:
    """Plain groups, windows with limits of their own, and vines."""
    settings = SMALL | {"warm_start": 0.3 if method == "grpo" else 0.0}
    local = up.train(method, "reverse:length=2", out=tmp_path / "local", **settings)
    with Server(policy(7), port=0) as server:
        remote = up.train(method, "reverse:length=2", out=tmp_path / "remote", engine=server.url, **settings)
        served = server.batcher.policy
        assert server.version >= settings["steps"]
        for name, value in remote.policy.model.state_dict().items():
            torch.testing.assert_close(served.model.state_dict()[name], value, atol=0, rtol=0)
    for mine, theirs in zip(local.metrics, remote.metrics, strict=True):
        assert theirs["engine_gap_worst"] < 1e-4
        for name in ("reward", "entropy", "length", "tokens"):
            assert theirs[name] == pytest.approx(mine[name], abs=1e-5)
        assert theirs["grad_norm"] == pytest.approx(mine["grad_norm"], rel=1e-3, abs=1e-6)
    if method == "grpo":
        assert any(step["grad_norm"] > 0 for step in remote.metrics), "the case must learn something"
    assert remote.summary["score_after"] == local.summary["score_after"]
    # What is left of the run needs no server.
    assert main(["eval", str(remote.path), "--problems", "4", "--k", "1"]) == 0


# -- other servers -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ids", ["token_ids", "spelled"])
@pytest.mark.parametrize("takes_n", [True, False])
def test_ids_are_found_where_servers_put_them(ids: str, takes_n: bool, capsys: pytest.CaptureFixture[str]) -> None:
    mine = policy(0)
    with FakeServer(like_vllm(policy(0), ids=ids, takes_n=takes_n)) as server:
        engine = ServerEngine(server.url, mine)
        engine.check(Sampling(6, 0.8, top_k=20, top_p=0.9, min_p=0.01))
        done = engine.generate(prompts(mine), 3, Sampling(6, 0.8), uniforms((12, 6), 1))
        assert engine.served.takes_n == takes_n and not engine.follows
        assert engine.metrics()["engine_gap_worst"] < 1e-5, "the same weights, so the recorded ones are the policy's own"
        assert done.tokens.shape[0] == 12 and bool(done.entropy[done.sampled > 0].isnan().all())
        assert len({tuple(row) for row in done.tokens.tolist()}) > 6, "rows must not share a seed"
        unequal = engine.generate(prompts(mine), [1, 4, 2, 1], Sampling(6, 0.8), uniforms((8, 6), 1))
        assert unequal.tokens.shape[0] == 8 and engine.metrics()["engine_gap_worst"] < 1e-5
        engine.check(Sampling(6))
        engine.sync(mine)
    told = capsys.readouterr().err
    assert told.count("takes no weights") == 1


def test_everything_that_shapes_the_distribution_is_said() -> None:
    mine = policy(0)
    with FakeServer(like_vllm(mine)) as server:
        ServerEngine(f"{server.url}/v1/#theirs", mine, api_key="secret").generate([[1, 9]], 2, Sampling(6), uniforms((2, 6), 1))
        path, body = server.asked[-1]
        assert server.headers[-1]["Authorization"] == "Bearer secret"
    assert path == "/v1/completions"
    wanted = {"model": "theirs", "prompt": [1, 9], "n": 2, "max_tokens": 6, "temperature": 1.0, "top_p": 1.0, "top_k": -1}
    wanted |= {"min_p": 0.0, "repetition_penalty": 1.0, "return_token_ids": True, "logprobs": 1}
    assert {name: body[name] for name in wanted} == wanted
    assert body["stop_token_ids"] == sorted(mine.stop_ids) and "uniforms" not in body


@pytest.mark.parametrize("setting", ["temperature", "top_k", "top_p", "min_p"])
def test_a_setting_that_is_not_in_the_log_probabilities_is_noticed(setting: str) -> None:
    sampling = Sampling(6, **{"temperature": {"temperature": 0.5}, "top_k": {"top_k": 5}, "top_p": {"top_p": 0.9},
                              "min_p": {"min_p": 0.1}}[setting])  # fmt: skip
    with FakeServer(like_vllm(policy(0), ignores=(setting,))) as server:
        with pytest.raises(UserError, match=f"ignores {setting} or records log-probabilities without it"):
            ServerEngine(server.url, policy(0)).check(sampling)
        ServerEngine(server.url, policy(0)).check(Sampling(6))


def test_ids_that_are_kept_back_are_noticed() -> None:
    """The token that ended an answer is a decision; one left out in the middle would shift all that follow."""
    mine = policy(0)
    mine.stop_ids = frozenset({2, *range(20, 60)})
    ended = r"lack token_ids of sampled tokens\. The token that ended a completion"
    with FakeServer(like_vllm(mine, stop_token=False)) as server, pytest.raises(UserError, match=ended):
        ServerEngine(server.url, mine).check(Sampling(6))
    whole = like_vllm(policy(0))

    def forgetful(path: str, body: dict[str, Any]) -> tuple[int, Any]:
        status, answer = whole(path, body)
        for choice in answer.get("choices", []):
            del choice["token_ids"][3], choice["logprobs"]["token_logprobs"][3]
        return status, answer

    mine.stop_ids = frozenset({2})
    with FakeServer(forgetful) as server, pytest.raises(UserError, match="A completion of 32 tokens came with 31 of them"):
        ServerEngine(server.url, mine).check(Sampling(6))


def test_a_run_on_fixed_weights_tells_the_gap(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with FakeServer(like_vllm(policy(0))) as server:
        run = up.train("grpo", "reverse:length=2", out=tmp_path / "run", engine=server.url, **SMALL | {"warm_start": 0.1})
    assert all("entropy" not in step and step["engine_gap"] > 0.01 for step in run.metrics)
    assert "samples come from those it has" in capsys.readouterr().err


# -- refusals ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "lacking"),
    [
        (like_vllm(policy(0), ids=""), "token_ids"),
        (like_vllm(policy(0), logprobs=False), "logprobs"),
        (like_vllm(policy(0), ids="", logprobs=False), "token_ids and logprobs"),
        (strict_text, "token_ids and logprobs"),
    ],
    ids=["no-ids", "no-logprobs", "neither", "transformers-serve"],
)
def test_a_server_that_cannot_be_trained_from_is_refused_by_the_missing_field(answer, lacking: str, tmp_path: Path) -> None:
    with FakeServer(answer) as server:
        with pytest.raises(UserError, match=f"cannot be trained from: its completions lack {lacking} of sampled tokens") as refused:
            up.train("grpo", "reverse:length=2", engine=server.url, out=tmp_path / "run", **SMALL)
        assert f"It can still serve evaluation: upslope eval RUN --engine {server.url}" in str(refused.value)
    assert not (tmp_path / "run").exists(), "refused before anything is made"


def test_llama_cpp_is_refused_for_training_and_serves_evaluation() -> None:
    """What its server answered with SmolLM2, kept: it gives ids by the text they make, without half characters and stop tokens."""
    kept = json.loads((FIXTURES / "llama_cpp.json").read_text())["exchanges"]

    def replay(path: str, body: dict[str, Any]) -> tuple[int, Any]:
        found = [each for each in kept if each["path"] == path and set(each["body"] or {}) == set(body)]
        return (found[0]["status"], found[0]["answer"]) if found else (404, {"error": {"message": "not asked then"}})

    with FakeServer(replay) as server:
        with pytest.raises(UserError, match="its completions lack token_ids of sampled tokens"):
            ServerEngine(server.url, policy(0)).check(Sampling(6))
        said, _ = ServerAnswers(server.url, chat=True)(["What is 2+2?"], 1, Sampling(12, 0), uniforms((1, 12), 0))
        assert said == ["2 + 2 = 4"]
    asked = [each for each in kept if each["path"] == "/v1/completions" and each["body"]["max_tokens"] == 24]
    counts = [
        (choice["finish_reason"], len(choice["logprobs"]["content"])) for each in asked for choice in each["answer"]["choices"]
    ]
    assert ("length", 21) in counts and ("length", 20) in counts, "of 24 tokens these came back"


def test_methods_that_need_entropies_are_refused_where_there_are_none(tmp_path: Path) -> None:
    needing = next(m for m in up.list_methods() if "behavior.entropy" in m.needs() and m.family != "control")
    with (
        FakeServer(like_vllm(policy(0))) as server,
        pytest.raises(MethodError, match=r"needs 'behavior\.entropy'.*does not return"),
    ):
        up.train(needing.name, "reverse:length=2", engine=server.url, out=tmp_path / "run", **SMALL)


def test_addresses_and_names_are_checked_before_anything_runs() -> None:
    assert server_address("http://h:1") == ("http://h:1/v1", "") and server_address("https://h/api/v2/#a%2Fb") == (
        "https://h/api/v2",
        "a/b",
    )
    for wrong, said in [("torc", "Did you mean 'torch'"), ("ftp://h", "no address of a server"), ("http://h:x", "no address"),
                        ("http://me:key@h", "holds a name or password"), (3, "--engine is 3")]:  # fmt: skip
        with pytest.raises(UserError, match=said):
            up.train("grpo", engine=wrong)
    with pytest.raises(UserError, match=r"continues text; .*CartPole"):
        up.train("ppo", "gym:CartPole-v1", engine="http://127.0.0.1:9")


def test_a_server_that_is_not_there_says_so_soon(tmp_path: Path) -> None:
    began = time.monotonic()
    with pytest.raises(ServerError, match=r"no answer from http://127\.0\.0\.1:9/v1/models.*Is the server running"):
        up.train("grpo", "reverse:length=2", engine="http://127.0.0.1:9", out=tmp_path / "run", **SMALL)
    assert time.monotonic() - began < 20


# -- the client --------------------------------------------------------------------------------------------------------------


def test_passing_failures_are_tried_again_and_lasting_ones_are_not() -> None:
    answers = [(503, {"error": {"message": "loading"}}), (429, {}), (200, {"fine": True})]
    with FakeServer(lambda path, body: answers.pop(0)) as server:
        assert Client(f"{server.url}/v1").post("/x", {}) == {"fine": True} and len(server.asked) == 3
    with FakeServer(lambda path, body: (503, {"error": {"message": "loading"}})) as server:
        with pytest.raises(ServerError, match="refused with 503: loading") as refused:
            Client(f"{server.url}/v1").get("/x")
        assert refused.value.status == 503 and len(server.asked) == 5
    with FakeServer(lambda path, body: (400, {"detail": "no"})) as server:
        with pytest.raises(ServerError, match="refused with 400: no"):
            Client(f"{server.url}/v1").get("/x")
        assert len(server.asked) == 1


def test_keys_come_from_the_environment_and_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    with Server(policy(0), port=0, token="right") as server:
        with pytest.raises(ServerError, match=r"wants another key .*UPSLOPE_API_KEY"):
            ServerEngine(server.url, policy(0)).check(Sampling(4))
        monkeypatch.setenv(http_client.KEY_VARIABLE, "right")
        ServerEngine(server.url, policy(0)).generate([[1, 9]], 1, Sampling(4), uniforms((1, 4), 0))


def test_a_redirect_does_not_take_the_key_elsewhere() -> None:
    with FakeServer(lambda path, body: (302, {})) as server, pytest.raises(ServerError, match="refused with 302"):
        Client(f"{server.url}/v1", key="secret").get("/x")


def test_what_is_not_json_is_told() -> None:
    with FakeServer(lambda path, body: (200, "x")) as server:
        assert Client(f"{server.url}/v1").get("/x") == "x"
        with pytest.raises(UserError, match="gave no 'choices'"):
            ServerEngine(server.url, policy(0)).check(Sampling(4))
