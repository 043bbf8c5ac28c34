"""What a client may ask of ``upslope serve``, and what becomes of requests that ask too much or nonsense: a 4xx that says why."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from serving_client import ended, loud, raw

from upslope.serving import batcher, handler, requests
from upslope.serving.body import BadRequest, quoted
from upslope.serving.jobs import RequestJob
from upslope.serving.server import Server

torch.set_num_threads(1)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server(loud(), port=0) as found:
        yield found


def refused(server: Server, body: bytes, path: str = "/v1/completions") -> tuple[int, str]:
    status, answer = raw(server, "POST", path, body)
    assert set(answer["error"]) == {"message", "type", "param", "code"}
    return status, answer["error"]["message"]


HALF = r'"\ud800"'
HUGE = "1" + "0" * 400


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (f'{{"prompt": {HALF}}}', r"'prompt' holds \ud800, half of a surrogate pair"),
        (f'{{"prompt": ["a", {HALF}]}}', "half of a surrogate pair"),
        (r'{"prompt": "\ud83d\ude00 \uDE00"}', r"holds \ude00"),
        (f'{{"prompt": "a", "stop": {HALF}}}', "'stop' holds"),
        (f'{{"prompt": "a", "model": {HALF}}}', "'model' holds"),
        (f'{{"prompt": "a", {HALF}: 1}}', "half of a surrogate pair"),
        (f'{{"prompt": "a", "metadata": {{"deep": [{HALF}]}}}}', "'metadata' holds"),
        ('{"prompt": "a", "temperature": NaN}', "temperature=nan"),
        ('{"prompt": "a", "temperature": Infinity}', "temperature=inf"),
        ('{"prompt": "a", "temperature": 1e400}', "temperature=inf"),
        (f'{{"prompt": "a", "temperature": {HUGE}}}', "temperature=inf"),
        (f'{{"prompt": "a", "temperature": -{HUGE}}}', "temperature=-inf"),
        ('{"prompt": "a", "temperature": 1e-320}', "too small to divide by"),
        ('{"prompt": "a", "top_p": NaN}', "top_p=nan"),
        ('{"prompt": "a", "min_p": 1e400}', "min_p=inf"),
        (f'{{"prompt": "a", "n": {HUGE}}}', "the most is 8192"),
        (f'{{"prompt": "a", "max_tokens": {HUGE}}}', "the most of one request is"),
        (f'{{"prompt": [1, {HUGE}]}}', "is none of the model's"),
        (f'{{"prompt": "a", "max_tokens": 1, "uniforms": [[{HUGE}]]}}', "list of lists of numbers"),
        ('{"prompt": "a", "max_tokens": 1, "uniforms": [[NaN]]}', "all in [0, 1)"),
        ('{"prompt": "a", "max_tokens": 2, "uniforms": [[0.5], [0.5, 0.5]]}', "uniforms of shape"),
        ('{"prompt": "a", "uniforms": ' + "[" * 900 + "0.5" + "]" * 900 + "}", "uniforms of shape"),
        ('{"prompt": "a", "tools": ' + "[" * 900 + "]" * 900 + "}", "is not supported here"),
        ('{"prompt": "a", "seed": %s}' % ("9" * 5000), "not JSON"),
        ('{"prompt": "a", "x": ' + "[" * 50_000 + "]" * 50_000 + "}", "nested too deeply"),
        ('{"prompt": "a", "%s": 1}' % ("k" * 300_000), "no field 'kkk"),
        ('{"prompt": "a", "n": "%s"}' % ("k" * 300_000), "n is 'kkk"),
        ('{"prompt": "a", "stop": [%s"x"]}' % ('"x", ' * 64), "stop has 65 texts; the most is 64"),
        ('{"prompt": "%s"}' % ("a" * 40_000), "a prompt of 40000 characters"),
        ('{"prompt": "%s"}' % ("a" * 2_000), "tokens; the most is 512"),
        ('{"prompt": [%s"x"]}' % ('"x", ' * 9000), "9001 prompts with n=1 are 9001 completions; the most is 8192"),
        ('{"prompt": "a", "n": 8192, "max_tokens": 513}', "are 4202496 tokens; the most of one request is 4194304"),
    ],
)  # fmt: skip
def test_a_request_that_cannot_be_served_is_told_why(server: Server, body: str, said: str, capsys: Any) -> None:
    status, message = refused(server, body.encode())
    assert status == 400 and said in message and len(message) < 500
    assert not capsys.readouterr().err, "nothing for the server's owner to mend"


@pytest.mark.parametrize("role", [HALF, '"user"'])
def test_half_a_surrogate_pair_in_a_conversation(server: Server, role: str) -> None:
    body = f'{{"messages": [{{"role": {role}, "content": {HALF}}}]}}'
    status, message = refused(server, body.encode(), "/v1/chat/completions")
    assert status == 400 and "'messages' holds" in message


def test_bytes_that_are_no_text(server: Server) -> None:
    assert refused(server, b'{"prompt": "\xed\xa0\x80"}') == (400, "the body is not UTF-8: its byte 12 is 0xed.")
    assert raw(server, "POST", "/v1/completions", rb'{"prompt": "\ud83d\ude00", "max_tokens": 1}')[0] == 200, "a whole pair"


def test_a_large_seed_and_a_large_top_k_are_only_numbers(server: Server) -> None:
    body = f'{{"prompt": "a", "seed": {HUGE}, "top_k": {HUGE}, "max_tokens": 2}}'.encode()
    assert raw(server, "POST", "/v1/completions", body)[0] == 200


def test_heads_that_cannot_be_read(server: Server) -> None:
    assert raw(server, "POST", "/v1/completions", b"", Content_Length="9" * 5000)[0] == 413
    with socket.create_connection(("127.0.0.1", server.server_address[1]), timeout=30) as connection:
        connection.sendall(b"GET http://[/v1/models HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        assert b"is no address: Invalid IPv6 URL" in ended(connection)
    assert raw(server, "GET", "/v1/" + "x" * 10_000)[0] == 404


def test_a_client_reads_why_its_large_body_is_refused(server: Server) -> None:
    """The answer comes while the client still sends; closing at once would reset the connection before it is read."""
    size = handler.MOST_BODY + 1
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=30)
    connection.putrequest("POST", "/v1/completions")
    connection.putheader("Content-Type", "application/json")
    connection.putheader("Content-Length", str(size))
    connection.endheaders()
    connection.send(b" " * 2**20)
    answer = connection.getresponse()
    assert answer.status == 413 and str(size) in json.loads(answer.read())["error"]["message"]
    connection.close()


@pytest.mark.parametrize("limit", ["MOST_WAITING", "MOST_WAITING_ROWS", "MOST_WAITING_TOKENS"])
def test_a_full_queue_says_when_to_come_back(server: Server, monkeypatch: pytest.MonkeyPatch, limit: str) -> None:
    monkeypatch.setattr(batcher, limit, 0)
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=30)
    connection.request("POST", "/v1/completions", b'{"prompt": "a"}', {"Content-Type": "application/json"})
    answer = connection.getresponse()
    assert answer.status == 429 and answer.headers["Retry-After"] == "1"
    assert json.loads(answer.read())["error"]["code"] == "busy"
    connection.close()


def test_bodies_that_are_read_at_once_are_bounded(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    body = b'{"prompt": "a", "max_tokens": 1}'
    monkeypatch.setattr("upslope.serving.server.MOST_BODIES", 100)
    with server.bodies.room(90):
        assert raw(server, "POST", "/v1/completions", body)[0] == 429
    assert raw(server, "POST", "/v1/completions", body)[0] == 200
    with server.taking:
        assert raw(server, "PUT", handler.WEIGHTS_PATH, b"x")[0] == 429


def test_limits_where_the_model_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = loud()
    monkeypatch.setattr(requests, "positions", lambda _: 0)
    monkeypatch.setattr(requests, "LONGEST_PROMPT", 8)
    with pytest.raises(BadRequest, match="a prompt of 9 tokens; the most is 8"):
        requests.read_completion({"prompt": [1] * 9}, policy, "tiny")
    monkeypatch.setattr(requests, "MOST_PROMPT_TOKENS", 15)
    with pytest.raises(BadRequest, match="more than 15 tokens together"):
        requests.read_completion({"prompt": [[1] * 8, [1] * 8]}, policy, "tiny")
    assert requests.read_completion({"prompt": [1] * 8}, policy, "tiny").prompts == [[1] * 8]


def test_nothing_is_drawn_before_it_is_needed() -> None:
    asked = requests.read_completion({"prompt": "a", "n": 8192, "max_tokens": 500, "seed": 3}, loud(), "tiny")
    job = RequestJob.of(asked)
    assert all(row.numbers is None for row in job.rows)
    some = job.numbers_of(2)
    expected = torch.rand((3, 500), generator=requests.generator(3, "serve"))
    assert torch.equal(some, expected[2]) and sum(row.numbers is not None for row in job.rows) == 3


def test_values_are_quoted_in_part() -> None:
    assert quoted("abc") == "'abc'" and len(quoted("x" * 1000)) == 100
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    assert quoted(deep) == "a list too large to quote" and quoted(10**5000) == "a int too large to quote"
    while deep:  # else freeing it recurses
        deep = deep.pop()


def test_a_garbled_line_does_not_hold_the_next(server: Server) -> None:
    with socket.create_connection(("127.0.0.1", server.server_address[1]), timeout=30) as connection:
        connection.sendall(b"GET /health\x00\xff\r\n\r\n")
        ended(connection)
    assert raw(server, "GET", "/health")[0] == 200
