"""Connections to the board: bounded in number, in the time they may take to ask, and in the time they may leave an answer unread.

A connection that asks nothing, or a word at a time, costs its owner nothing and would keep others out. Of too many, the one that
has been waiting longest without a request goes. What was not read stays in memory; who reads nothing for a while is cut off.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from upslope.plain_data import JsonDict

MIB = 2**20


@dataclass(frozen=True)
class Limits:
    """What visitors may take.

    Fields:
        connections: open at once. A page needs six.
        request_seconds: from the first byte of a request, or from the moment it could have come, to its last.
        stall_seconds: for which a reader may take nothing of an answer that is waiting for it.
        keep_alive_seconds: for which a connection stays open between two requests.
        request_bytes: of a request's line and headers; the names of 500 runs fit.
        slowest: bytes in a second at which a large answer must be taken, on average.
        unread: bytes of large answers on their way at once; one is always allowed.
        large: bytes from which on an answer counts as large.
    """

    connections: int = 256
    request_seconds: float = 10.0
    stall_seconds: float = 15.0
    keep_alive_seconds: int = 5
    request_bytes: int = 128 * 1024
    slowest: int = 32 * 1024
    unread: int = 128 * MIB
    large: int = 256 * 1024


_turns = itertools.count()
"""Counted, not read off a clock: that of some loops stands still while many connect at once, and the last would be sent away."""


class _Clock:
    """Runs from its first start to its next stop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, seconds: float):
        self.loop, self.seconds = loop, seconds
        self._running: asyncio.TimerHandle | None = None

    def start(self, then: Callable[[], None]) -> None:
        if self._running is None:
            self._running = self.loop.call_later(self.seconds, then)

    def stop(self) -> None:
        if self._running is not None:
            self._running.cancel()
            self._running = None


class BoundedConnection(H11Protocol):
    """One connection, with its clocks."""

    def __init__(self, *arguments: Any, limits: Limits, **named: Any):
        super().__init__(*arguments, **named)
        self.limits = limits
        self.since = next(_turns)
        """Its place in the order in which connections came to have nothing to do."""
        self._request_clock = _Clock(self.loop, limits.request_seconds)
        self._read_clock = _Clock(self.loop, limits.stall_seconds)

    @property
    def is_waiting(self) -> bool:
        """Whether no request of it is being answered."""
        return self.cycle is None or self.cycle.response_complete

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._request_clock.start(transport.abort)
        if len(self.connections) > self.limits.connections:
            others = [each for each in self.connections if isinstance(each, BoundedConnection) and each.is_waiting]
            min(others, key=lambda each: each.since, default=self)._give_up()

    def handle_events(self) -> None:
        super().handle_events()
        if self.scope is not None:
            self.scope["upslope.cut_off"] = self.transport.abort  # type: ignore[typeddict-unknown-key]
        # A request is under way on their side until its last byte is here.
        incomplete = self.conn.their_state in (h11.IDLE, h11.SEND_BODY)
        if incomplete:
            self._request_clock.start(self.transport.abort)
        else:
            self._request_clock.stop()

    def on_response_complete(self) -> None:
        self.since = next(_turns)
        super().on_response_complete()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._read_clock.start(self.transport.abort)

    def resume_writing(self) -> None:
        self._read_clock.stop()
        super().resume_writing()

    def timeout_keep_alive_handler(self) -> None:
        # To close is to wait until all is read; whoever has not read by now may never.
        if self.transport.get_write_buffer_size():
            self.transport.abort()
        else:
            super().timeout_keep_alive_handler()

    def connection_lost(self, exc: Exception | None) -> None:
        self._request_clock.stop()
        self._read_clock.stop()
        super().connection_lost(exc)
        self._unset_keepalive_if_required()

    def _give_up(self) -> None:
        self.connections.discard(self)  # at once: the next one counts them before the loop has come round
        self.transport.abort()


def make_server(app: Any, limits: Limits) -> uvicorn.Server:
    """A server of an application. Requests are not written down: addresses may hold the token."""
    quiet: JsonDict = {"log_level": "error", "access_log": False, "server_header": False}
    settings = uvicorn.Config(
        app,
        http=partial(BoundedConnection, limits=limits),  # type: ignore[arg-type]
        ws="none",
        lifespan="off",
        timeout_graceful_shutdown=1,  # a request under way has a second to end
        timeout_keep_alive=limits.keep_alive_seconds,
        h11_max_incomplete_event_size=limits.request_bytes,
        **quiet,
    )
    return uvicorn.Server(settings)
