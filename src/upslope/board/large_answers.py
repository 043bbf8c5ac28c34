"""Large answers, a piece at a time and not too many at once: an answer that nobody reads must not stay in memory.

Work that takes long waits for its turn before it takes one of the server's threads, so that the list of runs, which takes none, is
always answered.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

from upslope.board.connections import Limits

PIECE = 64 * 1024
AT_ONCE = {"/api/rollout": 1, "/api/episode": 2, "/api/frames": 2, "/api/curves": 8, "/api/bands": 4, "/api/episodes": 4}
"""By path: answers that are worked out at a time. The server has 40 threads for all."""
BUSY = "the board is sending as many large answers as it can hold. Try again in a few seconds."


class LargeAnswers:
    """ASGI middleware around the routes."""

    def __init__(self, app: Any, limits: Limits):
        self.app, self.limits = app, limits
        self.unread = 0
        """Bytes of large answers on their way."""
        self._largest: dict[str, int] = {}
        """By path: bytes of the largest of them."""
        self._turns: dict[str, asyncio.Semaphore] = {}

    def is_full(self, path: str) -> bool:
        """Whether another one like those on their way would be too much; to work it out would be for nothing."""
        return self.unread > 0 and self.unread + self._largest.get(path, 0) > self.limits.unread

    def reserve(self, path: str, size: int) -> bool:
        if self.unread and self.unread + size > self.limits.unread:
            return False
        self._largest[path] = max(self._largest.get(path, 0), size)
        self.unread += size
        return True

    def release(self, size: int) -> None:
        self.unread -= size
        if not self.unread:
            self._largest.clear()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        answer = _Answer(self, scope, send)
        try:
            path = scope["path"]
            if path not in AT_ONCE:
                await self.app(scope, receive, answer.send)
                return
            try:
                async with self._turns.setdefault(path, asyncio.Semaphore(AT_ONCE[path])):
                    if self.is_full(path):  # known only now: those before it may have taken what was left
                        await answer.refuse()
                        return
                    await self.app(scope, receive, answer.keep)
            finally:  # an answer that says what went wrong comes with its error
                await answer.send_kept()
        finally:
            answer.release()


class _Answer:
    """One answer on its way."""

    def __init__(self, outlet: LargeAnswers, scope: Any, send: Any):
        self.outlet, self.scope, self.out = outlet, scope, send
        self.start: Any = None
        self.kept: list[Any] = []
        self.counted = 0

    async def keep(self, message: Any) -> None:
        """Takes a message; it is sent when the next one has its turn."""
        self.kept.append(message)

    async def send_kept(self) -> None:
        while self.kept:
            await self.send(self.kept.pop(0))

    async def send(self, message: Any) -> None:
        """Holds the head back until the size is known, then sends, a large body in pieces."""
        if message["type"] == "http.response.start":
            self.start = message
            return
        body = message.get("body", b"")
        if len(body) > self.outlet.limits.large:
            if not self.outlet.reserve(self.scope["path"], len(body)):
                await self.refuse()
                return
            self.counted += len(body)
        if self.start is not None:
            start, self.start = self.start, None
            await self.out(start)
        if len(body) <= PIECE:
            await self.out(message)
        else:
            await self._send_in_pieces(body, message.get("more_body", False))

    async def _send_in_pieces(self, body: bytes, more: bool) -> None:
        now = asyncio.get_running_loop().time
        until = now() + self.outlet.limits.stall_seconds + len(body) / self.outlet.limits.slowest
        for begin in range(0, len(body), PIECE):
            last = begin + PIECE >= len(body)
            await self.out({"type": "http.response.body", "body": body[begin : begin + PIECE], "more_body": more or not last})
            if now() > until and "upslope.cut_off" in self.scope:
                self.scope["upslope.cut_off"]()
                await asyncio.sleep(0)  # from here on the server knows
                return

    def release(self) -> None:
        self.outlet.release(self.counted)
        self.counted = 0

    async def refuse(self) -> None:
        body = json.dumps({"error": BUSY}).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode()), (b"retry-after", b"5")]
        self.start = None
        await self.out({"type": "http.response.start", "status": 503, "headers": headers})
        await self.out({"type": "http.response.body", "body": body})
