"""What visitors may take: connections that ask nothing, answers that nobody reads, tokens of megabytes. All of it is bounded."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from board_folders import client, write_rollout, write_run

from upslope.board import large_answers, recordings
from upslope.board.connections import BoundedConnection, Limits, make_server
from upslope.board.large_answers import LargeAnswers

pytestmark = pytest.mark.slow

SMALL = 100
LARGE = 40 * 2**20
"""More than the buffers of the system take."""


class Answering:
    """An application that answers with as many bytes as the path says, and counts."""

    def __init__(self) -> None:
        self.asked = 0
        self.hold: threading.Event | None = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.asked += 1
        if self.hold is not None and scope["path"] in large_answers.AT_ONCE:
            await asyncio.to_thread(self.hold.wait)
        if scope["method"] == "POST":
            while (await receive()).get("more_body"):
                pass
        size = int(scope["query_string"] or SMALL)
        headers = [(b"content-length", str(size).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"x" * size})


@contextmanager
def serving(limits: Limits, app: Answering | None = None) -> Iterator[tuple[int, LargeAnswers, Any]]:
    """A real server with these limits: its port, what it has on its way, and its state."""
    outlet = LargeAnswers(app or Answering(), limits)
    server = make_server(outlet, limits)
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(128)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            yield listening.getsockname()[1], outlet, server.server_state
        finally:
            server.should_exit = True
            thread.join(20)


def wait_for(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < until, "it did not come about"
        time.sleep(0.01)


def opened(port: int, said: bytes = b"") -> socket.socket:
    made = socket.create_connection(("127.0.0.1", port), timeout=30)
    made.sendall(said)
    return made


def is_closed(connection: socket.socket) -> bool:
    """Waits for the other side to close."""
    try:
        while connection.recv(65536):
            pass
    except ConnectionResetError:
        pass
    return True


def ask(port: int, path: str = "/api/runs") -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


HALF = b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n"


# -- connections -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "said",
    [b"", b"G", HALF, b"POST /x HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 10\r\n\r\nabc"],
    ids=["nothing", "a letter", "half a head", "half a body"],
)
def test_who_does_not_finish_a_request_is_closed(said: bytes):
    with serving(Limits(request_seconds=0.2)) as (port, _, state), opened(port, said) as connection:
        assert is_closed(connection)
        wait_for(lambda: not state.connections)
        assert ask(port)[0] == 200


def test_a_second_request_has_no_longer_than_the_first():
    with serving(Limits(request_seconds=0.3, keep_alive_seconds=600)) as (port, _, state), opened(port) as connection:
        connection.sendall(HALF + b"\r\n")
        assert b"200" in connection.recv(65536)
        connection.sendall(HALF)
        assert is_closed(connection)
        wait_for(lambda: not state.connections)


def test_who_drips_a_letter_at_a_time_is_closed_too():
    with serving(Limits(request_seconds=0.3)) as (port, _, _), opened(port, b"GET /") as connection, pytest.raises(OSError):
        for _ in range(3000):
            connection.sendall(b"x")
            time.sleep(0.01)


def test_of_too_many_connections_those_that_ask_nothing_go_first():
    app = Answering()
    app.hold = threading.Event()
    with serving(Limits(connections=4), app) as (port, _, state), ExitStack() as stack:
        working = stack.enter_context(opened(port, b"GET /api/curves HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"))
        wait_for(lambda: app.asked == 1)
        idle = [stack.enter_context(opened(port, HALF)) for _ in range(12)]
        wait_for(lambda: len(state.connections) == 4)
        assert ask(port)[0] == 200, "who comes last is answered"
        assert all(is_closed(each) for each in idle[:8])
        app.hold.set()
        assert working.recv(65536).startswith(b"HTTP/1.1 200"), "and who was being answered is not sent away"


def test_where_all_are_being_answered_no_more_are_let_in():
    app = Answering()
    app.hold = threading.Event()
    request = b"GET /api/curves HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"
    with serving(Limits(connections=2), app) as (port, _, state), ExitStack() as stack:
        busy = [stack.enter_context(opened(port, request)) for _ in range(2)]
        wait_for(lambda: app.asked == 2)
        late = stack.enter_context(opened(port))
        assert is_closed(late) and len(state.connections) == 2
        app.hold.set()
        assert all(each.recv(12) == b"HTTP/1.1 200" for each in busy)


def test_a_head_without_end_is_refused():
    with serving(Limits(request_bytes=2000)) as (port, _, _), opened(port, HALF + b"X: " + b"y" * 5000) as connection:
        assert connection.recv(65536).startswith(b"HTTP/1.1 400")


# -- answers that nobody reads ---------------------------------------------------------------------------------------------


def large_request(size: int = LARGE) -> bytes:
    return f"GET /api/rollout?{size} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode()


def buffered(state: Any) -> list[int]:
    return [each.transport.get_write_buffer_size() for each in state.connections]


def test_who_reads_nothing_is_cut_off_and_costs_a_piece_at_the_most(capfd: pytest.CaptureFixture[str]):
    with serving(Limits(stall_seconds=0.3)) as (port, outlet, state), opened(port, large_request()) as _:
        wait_for(lambda: outlet.unread == LARGE)
        wait_for(lambda: any(buffered(state)))
        assert max(buffered(state)) <= 4 * large_answers.PIECE
        wait_for(lambda: not state.connections and outlet.unread == 0)
        assert ask(port)[0] == 200
    assert "Traceback" not in capfd.readouterr().err


def test_a_small_answer_that_is_not_read_does_not_hold_its_connection():
    app = Answering()
    with serving(Limits(keep_alive_seconds=1, stall_seconds=600), app) as (port, _, state), socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(("127.0.0.1", port))
        number = 0
        while not any(buffered(state)):  # one after the other, until the system takes no more
            number += 1
            connection.sendall(large_request(60_000))
            wait_for(lambda: app.asked == number and all(each.is_waiting for each in state.connections))  # noqa: B023
        assert not any(each.flow.write_paused for each in state.connections), "too little for the other clock"
        wait_for(lambda: not state.connections)


def test_who_reads_too_slowly_is_cut_off():
    limits = Limits(stall_seconds=0.5, slowest=LARGE)
    with serving(limits) as (port, outlet, state), opened(port, large_request()) as connection:
        with pytest.raises((ConnectionError, AssertionError)):
            for _ in range(3000):
                assert connection.recv(20_000)
                time.sleep(0.01)
        wait_for(lambda: not state.connections and outlet.unread == 0)


def test_large_answers_on_their_way_are_bounded_and_small_ones_still_come():
    with serving(Limits(unread=2 * LARGE, stall_seconds=600)) as (port, outlet, _), ExitStack() as stack:
        for number in range(1, 3):
            stack.enter_context(opened(port, large_request()))
            wait_for(lambda number=number: outlet.unread == number * LARGE)
        app: Any = outlet.app
        before = app.asked
        status, said = ask(port, f"/api/rollout?{LARGE}")
        assert status == 503 and "Try again" in json.loads(said)["error"]
        assert app.asked == before, "it is not even worked out"
        assert ask(port, f"/?{LARGE}")[0] == 503 and outlet.unread == 2 * LARGE
        assert ask(port, "/api/runs")[0] == 200


def test_one_answer_is_always_allowed_and_comes_whole():
    with serving(Limits(unread=1000)) as (port, outlet, _):
        status, body = ask(port, f"/api/rollout?{LARGE}")
        assert status == 200 and len(body) == LARGE
        wait_for(lambda: outlet.unread == 0)


def test_long_work_waits_for_its_turn_without_a_thread():
    app = Answering()
    app.hold = threading.Event()
    with serving(Limits(), app) as (port, _, _), ExitStack() as stack:
        waiting = [stack.enter_context(opened(port, large_request(10))) for _ in range(5)]
        wait_for(lambda: app.asked == 1)
        assert ask(port)[0] == 200
        assert app.asked == 2, "of the others none has begun"
        app.hold.set()
        assert all(each.recv(12) == b"HTTP/1.1 200" for each in waiting)


def test_an_error_of_the_board_is_still_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def broken(*_: Any) -> Any:
        raise ZeroDivisionError

    write_run(tmp_path / "a")
    monkeypatch.setattr(recordings, "rollout", broken)
    answer = client(tmp_path).get("/api/rollout?run=a&step=1")
    assert answer.status_code == 500 and "ZeroDivisionError" in answer.json()["error"]


def test_the_command_serves_with_these_limits():
    server = make_server(Answering(), Limits())
    server.config.load()
    assert server.config.http_protocol_class.func is BoundedConnection  # type: ignore[union-attr]


# -- texts without end -----------------------------------------------------------------------------------------------------


def test_tokens_and_texts_are_passed_on_only_so_far(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(recordings, "MOST_TOKENS", 3)
    sample = {"row": 0, "pieces": ["short", "x" * 10**7, "c", "d"], "ids": [1, 2, 3, 4], "logp": None, "response": "y" * 10**6}
    group = {"group": 0, "prompt": "z" * 30_000, "samples": [sample, {"row": 1, "pieces": []}, {"row": 2}]}
    write_rollout(write_run(tmp_path / "a"), 1, {"step": 1, "groups": [group, {"group": 1}]})
    answer = client(tmp_path).get("/api/rollout?run=a&step=1")
    assert answer.status_code == 200 and len(answer.content) < 50_000
    found = answer.json()["groups"][0]
    assert found["samples"][0]["pieces"] == ["short", "x" * 200 + "… (10,000,000 characters)", "c"]
    assert found["samples"][0]["ids"] == [1, 2, 3] and found["samples"][0]["tokens_left_out"] == 1
    assert found["prompt"] == "z" * 20_000 + "… (30,000 characters)"


@pytest.mark.parametrize(
    "groups", [3, [3], [{"samples": 3}], [{"samples": [3]}], [{"samples": [{"pieces": 3}]}], [{"samples": [{"pieces": [3]}]}]]
)
def test_a_record_of_another_shape_is_refused_in_words(tmp_path: Path, groups: Any):
    write_rollout(write_run(tmp_path / "a"), 1, {"step": 1, "groups": groups})
    answer = client(tmp_path).get("/api/rollout?run=a&step=1")
    assert answer.status_code == 422 and "step-000001" in answer.json()["error"]
