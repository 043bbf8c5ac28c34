"""Connections to ``upslope serve``: many at once, silent ones, slow ones."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import socket
import threading
import time
from typing import Any

import httpx
import openai
import pytest
import torch
from serving_client import HEAD, ended, loud, raw, wait_until

from upslope.serving import connections
from upslope.serving.connections import BoundedServer, most_files, readable
from upslope.serving.server import Server

pytestmark = pytest.mark.slow

torch.set_num_threads(1)

ASK = b'{"prompt": "a", "max_tokens": 2}'


def connect(server: Server) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.server_address[1]), timeout=30)


async def ask_all(url: str, count: int) -> list[Any]:
    """So many of OpenAI's clients at once, each on a connection of its own, without a second try."""
    http = httpx.AsyncClient(limits=httpx.Limits(max_connections=count), timeout=httpx.Timeout(300.0))
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, http_client=http) as client:
        asked = (client.completions.create(model="tiny", prompt="abc", max_tokens=4, seed=number) for number in range(count))
        return await asyncio.gather(*asked, return_exceptions=True)


@pytest.mark.slow
@pytest.mark.parametrize("count", [128, 1000])
def test_all_clients_that_come_at_once_are_answered(count: int) -> None:
    with Server(loud(), port=0) as server:
        found = asyncio.run(ask_all(server.url, count))
        assert [type(each).__name__ for each in found] == ["Completion"] * count


def test_clients_queue_before_the_server_gets_round_to_them() -> None:
    server = Server(loud(), port=0)  # listens, and accepts nobody yet
    waiting = [connect(server) for _ in range(100)]
    for each in waiting:
        each.sendall(HEAD % len(ASK) + ASK)
    with server:
        assert all(each.recv(4096).startswith(b"HTTP/1.1 200") for each in waiting)
    for each in waiting:
        each.close()


def test_the_silent_make_room_for_newcomers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "PATIENCE", 0.05)
    with Server(loud(), port=0) as server:
        server.most = 4
        nothing, half, body, kept = (connect(server) for _ in range(4))
        half.sendall(b"POST /v1/completions HTTP/1.1\r\nHo")
        body.sendall(HEAD % 100 + b'{"prompt": ')
        kept.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert kept.recv(1000).startswith(b"HTTP/1.1 200")
        wait_until(lambda: len(server._links) == 4)
        newcomers = [connect(server) for _ in range(4)]
        for each in newcomers:
            each.sendall(HEAD % len(ASK) + ASK)
            assert each.recv(1000).startswith(b"HTTP/1.1 200")
        assert [ended(each) for each in (nothing, half, body)] == [b""] * 3
        ended(kept)  # with what is left of its answer


def test_the_busy_keep_their_places_and_newcomers_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    with Server(loud(), port=0) as server:
        server.most = 2
        free, begin = threading.Event(), server.batcher.engine.begin  # type: ignore[attr-defined]

        def held(*arguments: Any) -> Any:
            free.wait(60)
            return begin(*arguments)

        monkeypatch.setattr(server.batcher.engine, "begin", held)
        three = [connect(server) for _ in range(3)]
        for each in three:
            each.sendall(HEAD % len(ASK) + ASK)
        wait_until(lambda: len(server._links) == 2 and all(link.busy for link in list(server._links)))
        monkeypatch.setattr(connections, "PATIENCE", 0.0)
        time.sleep(0.5)  # the third asks for a place meanwhile
        assert len(server._links) == 2
        monkeypatch.undo()
        free.set()
        assert all(each.recv(4096).startswith(b"HTTP/1.1 200") for each in three)


@pytest.mark.parametrize(
    ("limit", "sent"),
    [("KEPT_OPEN", b""), ("HEAD_SECONDS", b"GET /health HTTP/1.1\r\nX: "), ("BODY_SECONDS", HEAD % 10_000)],
)
def test_a_byte_now_and_then_wins_no_time(monkeypatch: pytest.MonkeyPatch, limit: str, sent: bytes) -> None:
    monkeypatch.setattr(connections, limit, 0.3)
    monkeypatch.setattr(connections, "SLOWEST", 10**9)
    with Server(loud(), port=0) as server, connect(server) as slow:
        slow.sendall(sent)
        deadline = time.monotonic() + 60
        try:
            while sent and not readable(slow) and time.monotonic() < deadline:
                slow.sendall(b"x")
                time.sleep(0.05)
        except ConnectionError:
            pass
        wait_until(lambda: not server._links)
        assert raw(server, "GET", "/health")[0] == 200


def test_no_thread_left_is_a_503(monkeypatch: pytest.MonkeyPatch) -> None:
    with Server(loud(), port=0) as server:
        with monkeypatch.context() as full:

            def refuse(*_: Any) -> None:
                raise RuntimeError("can't start new thread")

            full.setattr("socketserver.ThreadingMixIn.process_request", refuse)
            status, answer = raw(server, "GET", "/health")
            assert status == 503 and answer["error"]["code"] == "busy"
        wait_until(lambda: not server._links)
        assert raw(server, "GET", "/health")[0] == 200


def test_connections_beyond_the_first_thousand_files_are_looked_at() -> None:
    """``select`` refuses them."""
    most_files()
    left, right = socket.socketpair()
    high = socket.socket(fileno=fcntl.fcntl(left.fileno(), fcntl.F_DUPFD, 1500))
    with left, right, high:
        assert not readable(high)
        right.sendall(b"x")
        assert readable(high)


def test_places_are_as_many_as_files_may_be_open(monkeypatch: pytest.MonkeyPatch) -> None:
    import resource

    asked: list[Any] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, 1024))
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: asked.append(limits))
    assert most_files() == 1024 and asked == [(1024, 1024)]

    def refuse(*_: Any) -> None:
        raise ValueError("not allowed to raise maximum limit")

    monkeypatch.setattr(resource, "setrlimit", refuse)
    server = BoundedServer(("127.0.0.1", 0), connections.TimedHandler)
    assert server.most == 256 - connections.SPARE_FILES
    server.server_close()


def test_no_open_file_left_is_waited_for() -> None:
    with Server(loud(), port=0) as server:
        taken = []
        real, failed = server.socket.accept, threading.Event()

        class Full:
            """The listening socket of a process that has too many files open."""

            def __getattr__(self, name: str) -> Any:
                return getattr(taken[0], name)

            def accept(self) -> Any:
                if not failed.is_set():
                    failed.set()
                    raise OSError(24, os.strerror(24))
                return real()

        taken.append(server.socket)
        server.socket = Full()  # type: ignore[assignment]
        assert raw(server, "GET", "/health")[0] == 200 and failed.is_set()
        server.socket = taken[0]


def test_who_waits_at_the_end_is_told() -> None:
    server = Server(loud(), port=0)
    body = json.dumps({"prompt": "abc", "n": 200, "max_tokens": 400}).encode()
    with server:
        waiting, idle = connect(server), connect(server)
        waiting.sendall(HEAD % len(body) + body)
        wait_until(lambda: bool(server.batcher._calls) and len(server._links) == 2)
    answer = waiting.recv(4096)
    assert answer.startswith(b"HTTP/1.1 503") and b"the server is closing" in answer
    assert ended(idle) == b""
    waiting.close()
    idle.close()
