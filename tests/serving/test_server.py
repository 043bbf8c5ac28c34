"""``upslope serve``: OpenAI's own client against it, and everything a stranger may send."""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import openai
import pytest
import torch
from safetensors.torch import save
from serving_client import loud, raw, wait_until

from upslope.errors import UserError
from upslope.rollout.engines.continuation import Continuation
from upslope.rollout.engines.server_engine import weight_bytes
from upslope.rollout.engines.torch_engine import TorchEngine
from upslope.runtime.seeding import uniforms
from upslope.serving import batcher, requests
from upslope.serving.server import WEIGHTS_PATH, Server
from upslope.types import Sampling

torch.set_num_threads(1)


@pytest.fixture
def server() -> Iterator[Server]:
    with Server(loud(), port=0) as found:
        yield found


@pytest.fixture
def client(server: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


# -- the official client -----------------------------------------------------------------------------------------------------


def test_models(client: openai.OpenAI) -> None:
    (model,) = client.models.list().data
    assert (model.id, model.owned_by) == ("tiny", "upslope") and client.models.retrieve("tiny").id == "tiny"
    with pytest.raises(openai.NotFoundError, match="no model 'gpt'"):
        client.completions.create(model="gpt", prompt="a")


def test_completions_are_what_the_engine_samples(client: openai.OpenAI, server: Server) -> None:
    policy = loud()
    texts = ("abc", "hello")
    prompts = [policy.tokenizer(text).input_ids for text in texts]
    asked = {"model": "tiny", "prompt": list(texts), "n": 3, "max_tokens": 12, "logprobs": 1, "seed": 5, "temperature": 0.9}
    answer = client.completions.create(**asked, extra_body={"top_k": 30, "min_p": 0.001, "return_token_ids": True})
    sampling = Sampling(12, 0.9, top_k=30, min_p=0.001)
    done = TorchEngine(policy).generate(prompts, 3, sampling, uniforms((6, 12), 5, "serve"))
    assert [choice.index for choice in answer.choices] == list(range(6))
    for row, choice in enumerate(answer.choices):
        length = int(done.sampled[row].sum())
        tokens = done.tokens[row, :length].tolist()
        assert choice.token_ids == tokens and choice.text == policy.decode(tokens)  # type: ignore[attr-defined]
        assert choice.prompt_token_ids == prompts[row // 3]  # type: ignore[attr-defined]
        torch.testing.assert_close(torch.tensor(choice.logprobs.token_logprobs), done.logp[row, :length], atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(torch.tensor(choice.entropy), done.entropy[row, :length], atol=1e-5, rtol=1e-5)  # type: ignore[attr-defined]
        assert choice.finish_reason == done.finish[row]
        assert choice.logprobs.text_offset[0] == 0 and len(choice.logprobs.text_offset) == length
    assert answer.usage.completion_tokens == int(done.sampled.sum())
    assert answer.usage.prompt_tokens == sum(map(len, prompts))


def test_token_ids_and_text_are_the_same_prompt_and_the_seed_decides(client: openai.OpenAI) -> None:
    ids = loud().tokenizer("abc").input_ids
    said = [client.completions.create(model="tiny", prompt=prompt, max_tokens=20, seed=seed).choices[0].text
            for prompt, seed in (("abc", 1), (ids, 1), ("abc", 2))]  # fmt: skip
    assert said[0] == said[1] != said[2]
    unseeded = {client.completions.create(model="tiny", prompt="abc", max_tokens=20).choices[0].text for _ in range(3)}
    assert len(unseeded) > 1


def test_chat_goes_through_the_template(client: openai.OpenAI) -> None:
    messages: Any = [{"role": "system", "content": "be"}, {"role": "user", "content": [{"type": "text", "text": "hi"}]}]
    answer = client.chat.completions.create(model="tiny", messages=messages, max_completion_tokens=9, seed=4, logprobs=True)
    plain = client.completions.create(
        model="tiny", prompt="system: be\nuser: hi\nassistant: ", max_tokens=9, seed=4, logprobs=0,
        extra_body={"return_token_ids": True},
    )  # fmt: skip
    # The tokenizer of text writes its start token, a template writes its own, so the two prompts differ by one token.
    (choice,) = answer.choices
    assert choice.message.role == "assistant" and len(choice.logprobs.content) == answer.usage.completion_tokens
    assert answer.usage.prompt_tokens == plain.usage.prompt_tokens - 1
    ids = loud().tokenizer("system: be\nuser: hi\nassistant: ", add_special_tokens=False).input_ids
    exact = TorchEngine(loud()).generate([ids], 1, Sampling(9), uniforms((1, 9), 4, "serve"))
    length = int(exact.sampled.sum())
    assert choice.message.content == loud().decode(exact.tokens[0, :length])
    assert [entry.logprob for entry in choice.logprobs.content] == pytest.approx(exact.logp[0, :length].tolist(), abs=1e-5)


@pytest.mark.parametrize("chat", [False, True])
def test_a_stream_says_the_same_in_pieces(client: openai.OpenAI, chat: bool) -> None:
    create: Any = client.chat.completions.create if chat else client.completions.create
    what: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}]} if chat else {"prompt": "abc"}
    asked = {"model": "tiny", "n": 2, "max_tokens": 60, "seed": 11, **what}
    whole = create(**asked, extra_body={"return_token_ids": True})
    pieces = list(create(**asked, stream=True, stream_options={"include_usage": True}, extra_body={"return_token_ids": True}))
    assert pieces[-1].usage.completion_tokens == whole.usage.completion_tokens and not pieces[-1].choices
    for row, choice in enumerate(whole.choices):
        mine = [piece.choices[0] for piece in pieces if piece.choices and piece.choices[0].index == row]
        words = [(each.delta.content if chat else each.text) or "" for each in mine]
        ids = [token for each in mine for token in getattr(each, "token_ids", None) or []]
        assert "".join(words) == (choice.message.content if chat else choice.text) and ids == choice.token_ids
        assert [each.finish_reason for each in mine if each.finish_reason] == [choice.finish_reason]
    assert len(pieces) > 4, "a long answer comes in more than one piece"


@pytest.mark.parametrize("stream", [False, True])
def test_stop_texts_and_stop_ids_end_an_answer(client: openai.OpenAI, stream: bool) -> None:
    def said(**more: Any) -> tuple[str, str | None, list[int]]:
        asked: Any = {
            "model": "tiny",
            "prompt": "abc",
            "max_tokens": 60,
            "seed": 11,
            "extra_body": {"return_token_ids": True, **more},
        }
        if not stream:
            (choice,) = client.completions.create(**asked).choices
            return choice.text, choice.finish_reason, choice.token_ids
        pieces = [piece.choices[0] for piece in client.completions.create(**asked, stream=True)]
        return "".join(p.text for p in pieces), pieces[-1].finish_reason, [t for p in pieces for t in p.token_ids]

    text, _, tokens = said()
    assert len(text) > 30
    middle = text[25:28]
    first = text.find(middle)
    cut, finish, left = said(stop=["never said so", middle])
    fewest = next(count for count in range(len(tokens)) if middle in loud().decode(tokens[:count]))
    assert (cut, finish) == (text[:first], "stop") and left == tokens[:fewest]
    token = tokens[20]
    _, finish, left = said(stop_token_ids=[token])
    assert finish == "stop" and left == tokens[: tokens.index(token) + 1]


def test_greedy_is_greedy(client: openai.OpenAI) -> None:
    one, two = (client.completions.create(model="tiny", prompt="abc", max_tokens=20, temperature=0, seed=seed) for seed in (1, 2))
    assert one.choices[0].text == two.choices[0].text


# -- many at once --------------------------------------------------------------------------------------------------------------


def test_requests_that_wait_share_a_call_and_change_nothing(
    server: Server, client: openai.OpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ask(seed: int) -> str:
        asked: Any = {"prompt": "abc" * (seed % 3 + 1), "max_tokens": 10 + seed, "temperature": 1.0 if seed % 2 else 0.7}
        return client.completions.create(model="tiny", seed=seed, **asked).choices[0].text

    alone = [ask(seed) for seed in range(12)]
    before = server.batcher.calls
    free, sample = threading.Event(), server.batcher.engine.begin  # type: ignore[attr-defined]

    def held(*arguments: Any) -> Any:
        free.wait(20)
        return sample(*arguments)

    monkeypatch.setattr(server.batcher.engine, "begin", held)
    together: dict[int, str] = {}
    threads = [threading.Thread(target=lambda seed=seed: together.update({seed: ask(seed)})) for seed in range(12)]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + 20
    while server.batcher._waiting.qsize() < 8 and time.monotonic() < deadline:
        time.sleep(0.01)
    free.set()
    for thread in threads:
        thread.join()
    assert [together[seed] for seed in range(12)] == alone
    # The first found the engine free; what came meanwhile went in one call for each of the two temperatures.
    assert server.batcher.calls - before <= 5


def test_too_many_waiting_are_told_to_come_back(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batcher, "MOST_WAITING", 0)
    status, answer = raw(server, "POST", "/v1/completions", b'{"prompt": "a"}')
    assert status == 429 and answer["error"]["code"] == "busy"


def test_a_client_that_leaves_frees_the_engine(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    body = json.dumps({"prompt": "abc", "max_tokens": 500, "stream": True, "seed": 1, "temperature": 2.0}).encode()
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    steps, step = [0], Continuation.advance

    def slower(self: Continuation) -> bool:
        steps[0] += 1
        time.sleep(0.01)
        return step(self)

    monkeypatch.setattr(Continuation, "advance", slower)
    with socket.create_connection(("127.0.0.1", server.server_address[1])) as connection:
        connection.sendall(head.encode() + body)
        connection.recv(200)
    wait_until(lambda: not server.batcher._calls and not server.batcher._jobs)
    assert 0 < steps[0] < 500, "nobody reads it, so it must not be written on"
    assert raw(server, "GET", "/health")[0] == 200


# -- what must not be let in -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({}, "prompt is empty"),
        ({"prompt": []}, "prompt is a list"),
        ({"prompt": [[]]}, "has no tokens"),
        ({"prompt": [1, 10_000]}, "token id 10000 is none of the model's"),
        ({"prompt": [1, -1]}, "token id -1"),
        ({"prompt": [[1], ["x"]]}, "must be a list of token ids"),
        ({"prompt": "a", "n": 0}, "n is 0"),
        ({"prompt": "a", "n": True}, "n is True"),
        ({"prompt": "a", "n": 100_000}, "the most is 8192"),
        ({"prompt": "a", "max_tokens": "5"}, "max_tokens is '5'"),
        ({"prompt": "a", "max_tokens": 5_000}, "more than the model's 512 positions"),
        ({"prompt": "a", "temperature": -1}, "temperature=-1"),
        ({"prompt": "a", "temperature": float("nan")}, "temperature=nan"),
        ({"prompt": "a", "temperature": "hot"}, "must be a number"),
        ({"prompt": "a", "top_p": 0}, "top_p=0"),
        ({"prompt": "a", "top_k": -2}, "top_k is -2"),
        ({"prompt": "a", "logprobs": 5}, "give 0 or 1"),
        ({"prompt": "a", "stop": [""]}, "stop is"),
        ({"prompt": "a", "stream": "yes"}, "true or false"),
        ({"prompt": "a", "frequency_penalty": 1}, "frequency_penalty=1 is not supported"),
        ({"prompt": "a", "temprature": 1}, "Did you mean 'temperature'"),
        ({"prompt": "a", "uniforms": [[0.5]]}, "uniforms of shape"),
        ({"prompt": "a", "uniforms": "x"}, "list of lists"),
        ({"prompt": "a", "max_tokens": 1, "uniforms": [[1.0]]}, "all in"),
        ([], "must be a JSON object"),
    ],
)  # fmt: skip
def test_bad_requests_are_told_what_is_wrong(server: Server, body: Any, said: str) -> None:
    status, answer = raw(server, "POST", "/v1/completions", json.dumps(body).encode())
    assert status == 400 and said in answer["error"]["message"]
    assert answer["error"]["type"] == "invalid_request_error" and set(answer["error"]) == {"message", "type", "param", "code"}
    assert raw(server, "POST", "/v1/completions", b'{"prompt": "a"}')[0] == 200, "and the next one is served"


@pytest.mark.parametrize(
    ("messages", "said"),
    [(None, "messages is empty"), ([{"content": "x"}], "needs a role"), ([{"role": "user", "content": 3}], "must be text"),
     ([{"role": "user", "content": [{"type": "image_url"}]}], "must be text")],
)  # fmt: skip
def test_bad_messages_are_told_what_is_wrong(server: Server, messages: Any, said: str) -> None:
    status, answer = raw(server, "POST", "/v1/chat/completions", json.dumps({"messages": messages}).encode())
    assert status == 400 and said in answer["error"]["message"]


def test_a_template_that_refuses_and_a_model_without_one(server: Server) -> None:
    body = json.dumps({"messages": [{"role": "user", "content": "x"}]}).encode()
    server.policy.tokenizer.chat_template = "{{ raise_exception('roles must alternate') }}"
    status, answer = raw(server, "POST", "/v1/chat/completions", body)
    assert status == 400 and "roles must alternate" in answer["error"]["message"]
    server.policy.tokenizer.chat_template = None
    status, answer = raw(server, "POST", "/v1/chat/completions", body)
    assert status == 400 and "no chat template; ask /v1/completions" in answer["error"]["message"]


def test_what_is_no_request_at_all(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    assert raw(server, "POST", "/v1/completions", b"{nonsense")[0] == 400
    assert raw(server, "POST", "/v1/completions", b"[" * 100_000)[0] == 400
    assert raw(server, "POST", "/v1/completions", b"\xff\xfe")[0] == 400
    assert raw(server, "POST", "/v1/completions", b'{"prompt": "a"}', Content_Type="text/plain")[0] == 415
    assert raw(server, "GET", "/v1/nothing")[0] == 404 and raw(server, "POST", "/v1/embeddings", b"{}")[0] == 404
    assert raw(server, "DELETE", "/v1/models")[0] == 501
    for verb, path, allowed in (("GET", "/v1/completions", "POST"), ("GET", "/v1/chat/completions/", "POST"),
                                ("POST", "/v1/models", "GET"), ("GET", WEIGHTS_PATH, "PUT")):  # fmt: skip
        status, answer = raw(server, verb, path, b"{}" if verb == "POST" else b"")
        assert status == 405 and f"is asked with {allowed}, not with {verb}" in answer["error"]["message"]
    monkeypatch.setattr("upslope.serving.handler.MOST_BODY", 10)
    assert raw(server, "POST", "/v1/completions", b'{"prompt": "a"}')[0] == 413
    with socket.create_connection(("127.0.0.1", server.server_address[1])) as connection:
        connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\r\n")
        assert connection.recv(1000).startswith(b"HTTP/1.1 411")
    with socket.create_connection(("127.0.0.1", server.server_address[1])) as connection:
        connection.sendall(b"\x16\x03\x01 not http\r\n\r\n")
        assert b"Bad request" in connection.recv(1000)
    assert raw(server, "GET", "/health") == (200, {"status": "ok", "model": "tiny"})


def test_an_engine_that_fails_fails_only_its_request(server: Server, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    with monkeypatch.context() as broken:
        broken.setattr(server.batcher.engine, "begin", lambda *_: 1 / 0)
        status, answer = raw(server, "POST", "/v1/completions", b'{"prompt": "a"}')
        assert status == 500 and "ZeroDivisionError" in answer["error"]["message"] and answer["error"]["type"] == "server_error"
    assert raw(server, "POST", "/v1/completions", b'{"prompt": "a"}')[0] == 200
    assert "ZeroDivisionError" in capsys.readouterr().err


def test_several_requests_on_one_connection(server: Server) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=30)
    for body, status in (
        (b'{"prompt": "a"}', 200),
        (b'{"n": 1}', 400),
        (b'{"prompt": "b", "stream": true}', 200),
        (b'{"prompt": "c"}', 200),
    ):
        connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        assert answer.status == status and answer.read()
    connection.close()


# -- keys and weights ------------------------------------------------------------------------------------------------------------


def test_who_may_ask() -> None:
    with pytest.raises(UserError, match=r"0\.0\.0\.0 can be reached from other machines, and there is no key"):
        Server(loud(), host="0.0.0.0", port=0)
    with Server(loud(), host="0.0.0.0", port=0, token="right") as server:
        for given in ("", "Bearer wrong", "right "[:-2]):
            status, answer = raw(server, "GET", "/v1/models", Authorization=given)
            assert status == 401 and answer["error"]["code"] == "invalid_api_key"
        assert raw(server, "GET", "/v1/models", Authorization="Bearer right")[0] == 200
        assert raw(server, "GET", "/health")[0] == 200
        assert raw(server, "PUT", WEIGHTS_PATH, b"", Authorization="")[0] == 401
    with Server(loud(), port=0) as server:
        assert raw(server, "GET", "/v1/models", Host="evil.example")[0] == 403
        assert raw(server, "GET", "/v1/models", Host="localhost:1")[0] == 200


def test_a_port_that_is_taken(server: Server) -> None:
    with pytest.raises(UserError, match="cannot listen at"):
        Server(loud(), port=server.server_address[1])


def test_weights_are_taken_whole_or_not_at_all(server: Server) -> None:
    other = loud(1)
    before = {name: value.clone() for name, value in server.policy.model.named_parameters()}
    good = dict(other.model.named_parameters())
    some = next(iter(good))
    wrong = {
        "not in the safetensors format": b"nonsense",
        "only the model has": save({name: value.detach() for name, value in good.items() if name != some}),
        "only the weights have 'more'": save({name: value.detach() for name, value in good.items()} | {"more": torch.ones(1)}),
        "has shape": save({name: value.detach() for name, value in good.items()} | {some: torch.ones(2)}),
    }
    for said, body in wrong.items():
        status, answer = raw(server, "PUT", WEIGHTS_PATH, body)
        assert status == 400 and said in answer["error"]["message"]
    assert all(torch.equal(value, before[name]) for name, value in server.policy.model.named_parameters())
    assert raw(server, "PUT", WEIGHTS_PATH, b"", Content_Length=str(10**9))[0] == 413
    assert raw(server, "PUT", WEIGHTS_PATH, weight_bytes(other)) == (200, {"object": "weights", "weights_version": 1})
    assert all(torch.equal(value, good[name]) for name, value in server.policy.model.named_parameters())


def test_defaults_are_documented_numbers() -> None:
    policy = loud()
    assert requests.read_completion({"prompt": "a"}, policy, "tiny").sampling == Sampling(16)
    chat = requests.read_chat({"messages": [{"role": "user", "content": "a"}]}, policy, "tiny")
    assert chat.sampling.max_tokens == requests.positions(policy) - len(chat.prompts[0])


def test_a_model_with_adapters_takes_no_weights_and_sends_them_folded() -> None:
    pytest.importorskip("peft", reason="LoRA needs the extra upslope[lora]")
    adapted, plain = loud(0), loud(0)
    adapted.add_lora(2, seed=0)
    with Server(adapted, port=0) as server:
        status, answer = raw(server, "PUT", WEIGHTS_PATH, weight_bytes(plain))
        assert status == 400 and "adapters" in answer["error"]["message"]
    with Server(plain, port=0) as server:
        assert raw(server, "PUT", WEIGHTS_PATH, weight_bytes(adapted))[0] == 200
