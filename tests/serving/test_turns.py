"""How requests to ``upslope serve`` share the engine: small ones beside large ones, calls that are cut, work that is given up."""

from __future__ import annotations

import gc
import queue
import socket
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from serving_client import HEAD, loud, raw, wait_until

from upslope.rollout.engines.torch_engine import TorchEngine
from upslope.serving import batcher, calls, jobs
from upslope.serving.batcher import Batcher
from upslope.serving.body import BadRequest
from upslope.serving.calls import Call
from upslope.serving.jobs import News, RequestJob, RequestRow, Written
from upslope.serving.requests import read_completion
from upslope.serving.server import Server
from upslope.types import Completions, Sampling

torch.set_num_threads(1)


@pytest.fixture
def at_work() -> Iterator[Batcher]:
    policy = loud()
    found = Batcher(TorchEngine(policy), policy)
    yield found
    found.close()


def test_rows_that_are_read_along_never_begin_again(at_work):
    assert at_work.engine.paged is False, "pages take them from rows, which say another thing to rounding then"


def submit(at_work: Batcher, **body: Any) -> RequestJob:
    return at_work.submit(read_completion({"prompt": "abc", **body}, at_work.policy, "tiny"))


def answer(at_work: Batcher, job: RequestJob) -> list[tuple[list[int], list[float], str, str | None]]:
    """What was written, once it is."""
    going = True
    while going:
        told = job.told.get(timeout=60)
        if isinstance(told, Exception):
            raise told
        going = told.going
    at_work.end(job)
    return [(row.tokens, row.logp, row.text, row.finish) for row in job.rows]


def unfinished(job: RequestJob) -> int:
    return sum(row.finish is None for row in job.rows)


def test_a_small_request_does_not_wait_for_a_large_one(at_work: Batcher) -> None:
    large = [submit(at_work, n=200, max_tokens=400, temperature=temperature) for temperature in (1.0, 0.9)]
    wait_until(lambda: bool(at_work._calls))
    for _ in range(3):
        answer(at_work, submit(at_work, max_tokens=4))
        assert all(map(unfinished, large)), "the small one was answered while the large ones were being written"
    for job in large:
        at_work.end(job)


def test_a_chat_does_not_wait_for_another_to_end(at_work: Batcher, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request joins a call of its kind that is under way."""
    monkeypatch.setattr(calls, "GATHER", 0.0)
    chat = submit(at_work, n=64, max_tokens=400)
    wait_until(lambda: bool(at_work._calls))
    answer(at_work, submit(at_work, max_tokens=2))
    assert unfinished(chat)
    assert len(answer(at_work, chat)) == 64, "and it goes on afterwards"


def test_large_requests_are_not_left_out(at_work: Batcher) -> None:
    large = submit(at_work, n=65, max_tokens=40)
    for _ in range(5000):
        if not unfinished(large):
            break
        answer(at_work, submit(at_work, max_tokens=2))
    assert not unfinished(large), "it must be finished although small ones never cease to come"


MIXED: list[dict[str, Any]] = [
    {"n": 3, "max_tokens": 30, "seed": 1},
    {"n": 5, "max_tokens": 20, "seed": 2, "prompt": ["abc", "hello"]},
    {"n": 2, "max_tokens": 30, "seed": 3, "stream": True},
    {"max_tokens": 30, "seed": 4, "temperature": 0.8, "top_k": 20},
    {"max_tokens": 40, "seed": 5, "stop": ["ab", "e"]},
    {"n": 9, "max_tokens": 20, "seed": 6, "stop_token_ids": [40, 41, 42]},
    {"max_tokens": 20, "seed": 7, "temperature": 0},
]  # fmt: skip


def test_how_work_is_cut_changes_nothing(at_work: Batcher, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = [answer(at_work, submit(at_work, **body)) for body in MIXED]
    rested = []
    rest = Call.rest
    monkeypatch.setattr(Call, "rest", lambda self: rested.append(self.steps) or rest(self))
    monkeypatch.setattr(calls, "SLICE", 0.0)  # a token at a time,
    monkeypatch.setattr(Call, "may_rest", property(lambda self: self.steps > 4))  # read again whenever something comes,
    monkeypatch.setattr(batcher, "CALL_ROWS", 7)  # in small pieces, one kind of small requests at a time
    monkeypatch.setattr(jobs, "SMALL_ROWS", 4)
    monkeypatch.setattr(batcher, "SMALL_CALLS", 1)
    with Held(at_work) as free:
        together = [submit(at_work, **body) for body in MIXED]
        free()
    for expected, job in zip(alone, together, strict=True):
        for (tokens, logp, text, finish), mine in zip(expected, answer(at_work, job), strict=True):
            assert (tokens, text, finish) == (mine[0], mine[2], mine[3])
            torch.testing.assert_close(torch.tensor(logp), torch.tensor(mine[1]), atol=1e-5, rtol=1e-5)
    assert rested, "or nothing was tested"


def test_work_that_is_given_up_frees_its_memory(at_work: Batcher) -> None:
    job = submit(at_work, n=200, max_tokens=400)
    wait_until(lambda: bool(at_work._calls))
    wait_until(lambda: bool(at_work.engine._steppers))  # type: ignore[attr-defined]
    cache = weakref.ref(next(iter(at_work.engine._steppers.values())).cache)  # type: ignore[attr-defined]
    at_work.end(job)
    wait_until(lambda: not at_work._calls and not at_work._jobs)
    wait_until(lambda: cache() is None)
    assert at_work._load == [0, 0, 0]


def test_one_of_two_that_share_a_call_is_given_up(at_work: Batcher) -> None:
    with Held(at_work) as free:
        one, two = (submit(at_work, n=40, max_tokens=400, seed=seed) for seed in (1, 2))
        free()
    wait_until(lambda: any(len(call.jobs) == 2 for call in list(at_work._calls)))
    at_work.end(one)
    assert len(answer(at_work, two)) == 40 and unfinished(one)


class Held:
    """Holds the engine so that what is submitted meanwhile goes into one call."""

    def __init__(self, at_work: Batcher):
        self.at_work = at_work

    def __enter__(self) -> Any:
        gate, entered = threading.Event(), threading.Event()

        def wait() -> None:
            entered.set()
            gate.wait(60)

        threading.Thread(target=self.at_work.change, args=(wait,), daemon=True).start()
        entered.wait(60)
        return gate.set

    def __exit__(self, *_: object) -> None: ...


def test_a_closed_batcher_tells_everybody(at_work: Batcher) -> None:
    large = submit(at_work, n=200, max_tokens=400)
    wait_until(lambda: bool(at_work._calls))
    at_work.close()
    with pytest.raises(BadRequest, match="closing"):
        answer(at_work, large)
    with pytest.raises(BadRequest, match="closing"):
        submit(at_work)


def test_an_engine_that_cannot_be_interrupted_serves_too() -> None:
    policy = loud()
    inner = TorchEngine(policy)

    class Plain:
        def generate(self, prompts: Any, n: int, sampling: Sampling, uniforms: Any, limits: Any = None) -> Completions:
            return inner.generate(prompts, n, sampling, uniforms, limits)

    body = {"n": 5, "max_tokens": 20, "seed": 3}
    ours, other = Batcher(inner, policy), Batcher(Plain(), policy)  # type: ignore[arg-type]
    assert answer(ours, submit(ours, **body)) == answer(other, submit(other, **body))
    ours.close()
    other.close()


def test_only_the_latest_news_is_kept() -> None:
    news = News()
    with pytest.raises(queue.Empty):
        news.get(timeout=0.0)
    for number in range(3):
        news.put(Written([], number < 2))
    assert news.get() == Written([], False)
    with pytest.raises(queue.Empty):
        news.get(timeout=0.0)


@pytest.mark.slow
def test_requests_leave_nothing_behind() -> None:
    """Of 160 requests, some streamed, some wrong, some left in the middle, no object stays."""

    def left() -> list[object]:
        gc.collect()
        return [each for each in gc.get_objects() if isinstance(each, (RequestJob, RequestRow, Call, News))]

    with Server(loud(), port=0) as server:
        before, threads = len(left()), threading.active_count()
        for number in range(40):
            for body in (b'{"prompt": "a", "n": 2}', b'{"prompt": "a", "n": 0}', b'{"prompt": "a", "stop": "b"}'):
                assert raw(server, "POST", "/v1/completions", body)[0] in (200, 400)
            body = b'{"prompt": "a", "max_tokens": 400, "stream": true}'
            with socket.create_connection(("127.0.0.1", server.server_address[1])) as connection:
                connection.sendall(HEAD % len(body) + body)
                if number % 2:
                    connection.recv(10)
        wait_until(lambda: server.batcher._load == [0, 0, 0] and not server.batcher._calls and not server._links)
        wait_until(lambda: threading.active_count() <= threads)
        wait_until(lambda: len(left()) <= before)


def test_a_call_that_is_nearly_done_is_not_interrupted() -> None:
    """By its tokens: a step may be several of a row."""
    policy = loud()
    policy.stop_ids = frozenset()
    job = RequestJob.of(read_completion({"prompt": "abc", "max_tokens": 60}, policy, "tiny"))
    call = Call(TorchEngine(policy), policy, [(job, 0)], 0)
    assert not call.may_rest, "it has not begun"
    while int(call.under.written().sampled.sum()) < 50:
        call.under.advance()
    call.steps, call.ran_seconds = 5, 10.0
    assert call.may_rest, "two seconds to go"
    call.ran_seconds = 0.45
    assert not call.may_rest, "0.09 seconds to go"
    call.close(free=True)
