"""``echo`` with ``logprobs``: log-probabilities of given texts, as OpenAI's older API and vLLM give them."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import openai
import pytest
import torch
from serving_client import loud, raw
from small_models import policy_of

from upslope.policies import LanguageModel
from upslope.serving import scoring
from upslope.serving.scoring import score_texts
from upslope.serving.server import Server

torch.set_num_threads(1)


@pytest.fixture
def server() -> Iterator[Server]:
    with Server(loud(), port=0) as found:
        yield found


@pytest.fixture
def client(server: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


def expected(policy: LanguageModel, ids: list[int]) -> torch.Tensor:
    """Log-probabilities of all tokens at each place but the first, by `transformers`."""
    with torch.no_grad():
        return policy.model(torch.tensor([ids])).logits[0, :-1].float().log_softmax(-1)


@pytest.mark.parametrize("kind", ["llama", "qwen2", "gpt2"])
def test_scores_are_those_of_the_model_however_texts_are_taken_together(kind: str) -> None:
    policy = policy_of(kind)
    texts = [[1, 5, 9, 4], [1], [1, 4, 4, 8, 12, 20, 7], [3, 5], [1, 5, 9, 4]]
    for text, scores in zip(texts, score_texts(policy, texts, 3), strict=True):
        whole = expected(policy, text)
        assert len(scores) == len(text) - 1
        for token, score, row in zip(text[1:], scores, whole, strict=True):
            assert score.logp == pytest.approx(float(row[token]), abs=2e-5)
            values, places = row.topk(3)
            assert [each for each, _ in score.top] == places.tolist()
            assert [value for _, value in score.top] == pytest.approx(values.tolist(), abs=2e-5)


@pytest.mark.parametrize("as_ids", [False, True])
def test_echo_gives_the_prompts_own_log_probabilities(client: openai.OpenAI, as_ids: bool) -> None:
    policy = loud()
    texts = ["hello", "a", "the quick brown fox"]
    ids = [policy.tokenizer(text).input_ids for text in texts]
    answer = client.completions.create(model="tiny", prompt=ids if as_ids else texts, echo=True, logprobs=2, max_tokens=0)
    assert [choice.index for choice in answer.choices] == [0, 1, 2] and answer.usage.completion_tokens == 0
    for choice, text, own in zip(answer.choices, texts, ids, strict=True):
        found = choice.logprobs
        assert choice.text == text and choice.finish_reason == "length"
        assert found.tokens == ["<bos>", *text] and found.text_offset == [0, *range(len(text))]
        assert found.token_logprobs[0] is None and found.top_logprobs[0] is None
        whole = expected(policy, own)
        said = torch.tensor(found.token_logprobs[1:])
        torch.testing.assert_close(said, whole.gather(1, torch.tensor(own[1:]).unsqueeze(1)).squeeze(1), atol=1e-5, rtol=1e-5)
        for word, value, top, row in zip(found.tokens[1:], found.token_logprobs[1:], found.top_logprobs[1:], whole, strict=True):
            assert top[word] == value and max(top.values()) == pytest.approx(float(row.max()), abs=1e-5)
            assert len(top) in (2, 3)


def test_what_is_sampled_behind_an_echo_is_scored_too(client: openai.OpenAI) -> None:
    policy = loud()
    asked = {"model": "tiny", "prompt": "abc", "max_tokens": 6, "seed": 3, "n": 2, "temperature": 0.7}
    plain = client.completions.create(**asked)
    echoed = client.completions.create(**asked, echo=True, logprobs=1, extra_body={"return_token_ids": True})
    for without, choice in zip(plain.choices, echoed.choices, strict=True):
        assert choice.text == "abc" + without.text
        ids = choice.prompt_token_ids + choice.token_ids  # type: ignore[attr-defined]
        whole = expected(policy, ids)
        said = torch.tensor(choice.logprobs.token_logprobs[1:])
        torch.testing.assert_close(said, whole.gather(1, torch.tensor(ids[1:]).unsqueeze(1)).squeeze(1), atol=1e-5, rtol=1e-5)
    greedy = client.completions.create(model="tiny", prompt="abc", max_tokens=1, temperature=0, echo=True, logprobs=1)
    found = greedy.choices[0].logprobs
    assert len(found.tokens) == 5 and found.token_logprobs[-1] == max(found.top_logprobs[-1].values())


def test_echo_without_log_probabilities_only_repeats_the_prompt(client: openai.OpenAI) -> None:
    choice = client.completions.create(model="tiny", prompt="abc", max_tokens=2, echo=True, seed=1).choices[0]
    assert choice.text.startswith("abc") and choice.logprobs is None
    spelled = client.completions.create(
        model="tiny", prompt="a", max_tokens=0, echo=True, logprobs=0, extra_body={"return_tokens_as_token_ids": True}
    ).choices[0].logprobs  # fmt: skip
    ids = loud().tokenizer("a").input_ids
    assert spelled.tokens == [f"token_id:{token}" for token in ids] and set(spelled.top_logprobs[1]) == {spelled.tokens[1]}


def test_many_texts_are_scored_in_pieces_beside_requests_that_write(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    together: list[int] = []

    def seen(policy: LanguageModel, texts: Any, tops: int) -> Any:
        together.append(sum(map(len, texts)))
        return score_texts(policy, texts, tops)

    monkeypatch.setattr(scoring, "score_texts", seen)
    monkeypatch.setattr(LanguageModel, "token_budget", lambda self: 400)
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
    texts = ["ab" * (1 + number % 50) for number in range(100)]
    wrote: list[str] = []
    writer = threading.Thread(
        target=lambda: wrote.append(client.completions.create(model="tiny", prompt="x", max_tokens=50).choices[0].text)
    )
    writer.start()
    answer = client.completions.create(model="tiny", prompt=texts, echo=True, logprobs=1, max_tokens=1, seed=0)
    writer.join()
    assert wrote and [choice.text[: len(text)] for choice, text in zip(answer.choices, texts, strict=True)] == texts
    assert all(len(choice.logprobs.tokens) == len(choice.logprobs.token_logprobs) for choice in answer.choices)
    assert len(together) > 10 and max(together) <= 400


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"prompt": "a", "echo": True, "logprobs": 21}, "give 0 to 20"),
        ({"prompt": "a", "echo": True, "stream": True}, "stream with echo"),
        ({"prompt": "a", "echo": "yes"}, "echo is 'yes'"),
        ({"prompt": "a", "max_tokens": 0}, "max_tokens is 0"),
        ({"prompt": "a" * 600, "echo": True, "max_tokens": 0}, "the most is 512"),
        ({"prompt": ["a" * 400] * 200, "echo": True, "logprobs": 20, "max_tokens": 0}, "asks for 1684200 log-probabilities"),
    ],
)
def test_what_cannot_be_echoed_is_refused(server: Server, body: Any, said: str) -> None:
    status, answer = raw(server, "POST", "/v1/completions", json.dumps(body).encode())
    assert status == 400 and said in answer["error"]["message"]


def test_a_failure_while_scoring_fails_only_its_request(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    body = b'{"prompt": "abc", "echo": true, "logprobs": 1, "max_tokens": 1}'
    with monkeypatch.context() as broken:
        broken.setattr(scoring, "score_texts", lambda *_: 1 / 0)
        assert raw(server, "POST", "/v1/completions", body)[0] == 500
    assert raw(server, "POST", "/v1/completions", body)[0] == 200
