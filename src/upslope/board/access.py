"""Who may see the board, and what a browser may do with it: checked before any route, said on every answer.

A page from elsewhere can make a browser send requests to this machine. It cannot choose the ``Host`` they carry (a name of its own
that leads here gives itself away), cannot hide its ``Origin``, and cannot have our cookie.
"""

from __future__ import annotations

import hashlib
import hmac
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qs

from upslope.runtime.access import bearer, host_of, is_address, is_loopback, same_key

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; font-src 'self'; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
ANYWHERE = ("0.0.0.0", "::", "")
"""Addresses that stand for all of this machine's."""


@dataclass(frozen=True)
class Door:
    """Who is let in."""

    host: str = "127.0.0.1"
    port: int = 8420
    token: str = ""

    @property
    def cookie(self) -> str:
        """Its name; cookies do not know ports, so boards on one machine need names of their own."""
        return f"upslope_board_{self.port}"

    @property
    def pass_word(self) -> str:
        """What the cookie holds: proof of the token, not the token, since other servers on this machine get to see it."""
        return hmac.new(self.token.encode(), b"the board's cookie", hashlib.sha256).hexdigest()

    def refusal(self, method: str, path: str, headers: dict[str, str]) -> tuple[int, str] | None:
        """Why a request is not answered, as status and sentence; None if it is."""
        host = headers.get("host", "")
        if not self._knows(host_of(host)):
            return 421, f"no host {host!r} here. Open the board at the address it printed."
        origin = headers.get("origin")
        if origin is not None and origin not in (f"http://{host}", f"https://{host}"):
            return 403, f"requests from {origin!r} are not answered."
        if path.startswith("/api/") and headers.get("sec-fetch-site", "none") not in ("same-origin", "none"):
            return 403, "requests from other pages are not answered."
        if self.token and not self._has_key(headers):
            return 401, "a token is needed: open the board as /?token=TOKEN, or send 'Authorization: Bearer TOKEN'."
        return None

    def _knows(self, host: str) -> bool:
        if is_loopback(host) or (host and host == self.host.lower()):
            return True
        # Listening everywhere, it has every address of the machine and its name; a stranger's name for it is not among them.
        return self.host in ANYWHERE and (is_address(host) or host == socket.gethostname().lower())

    def _has_key(self, headers: dict[str, str]) -> bool:
        if same_key(bearer(headers.get("authorization", "")), self.token):
            return True
        try:
            cookies = SimpleCookie(headers.get("cookie", ""))
        except CookieError:
            return False
        return self.cookie in cookies and same_key(cookies[self.cookie].value, self.pass_word)

    def entry(self, query: str) -> str | None:
        """The cookie for whoever comes with the right token in the address; None for everybody else."""
        given = parse_qs(query).get("token", [""])[0]
        if not self.token or not same_key(given, self.token):
            return None
        return f"{self.cookie}={self.pass_word}; Path=/; HttpOnly; SameSite=Strict"


class Guard:
    """ASGI middleware: the door before all routes, the headers on all answers."""

    def __init__(self, app: Any, door: Door):
        self.app, self.door = app, door

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return  # there is no other way to talk to it

        async def sealed(message: Any) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", []), *_missing(message.get("headers", []))]
            await send(message)

        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        if len(headers) < len(scope["headers"]) and _repeated(scope["headers"], (b"host", b"origin")):
            await _answer(sealed, 400, "Host and Origin may be given once.")
            return
        path, query = scope["path"], scope.get("query_string", b"").decode("latin-1")
        refusal = self.door.refusal(scope["method"], path, headers)
        if path == "/" and scope["method"] == "GET" and refusal and refusal[0] == 401 and (cookie := self.door.entry(query)):
            await _answer(sealed, 303, "", [(b"location", b"/"), (b"set-cookie", cookie.encode())])
        elif refusal:
            await _answer(sealed, *refusal)
        elif path == "/" and "token=" in query:  # in already; the token has no business in the address
            await _answer(sealed, 303, "", [(b"location", b"/")])
        else:
            await self.app(scope, receive, sealed)


def _missing(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    there = {name.lower() for name, _ in headers}
    always = [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]
    return always if b"cache-control" in there else [*always, (b"cache-control", b"no-store")]


def _repeated(headers: Iterable[tuple[bytes, bytes]], names: tuple[bytes, ...]) -> bool:
    given = [name.lower() for name, _ in headers]
    return any(given.count(name) > 1 for name in names)


async def _answer(send: Any, status: int, error: str, headers: list[tuple[bytes, bytes]] | None = None) -> None:
    import json

    body = json.dumps({"error": error}).encode() if error else b""
    kind = [(b"content-type", b"application/json")] if error else []
    length = [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": [*kind, *length, *(headers or [])]})
    await send({"type": "http.response.body", "body": body})
