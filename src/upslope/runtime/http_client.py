"""A small client for servers that speak OpenAI's protocol: JSON over HTTP with time limits, retries and plain errors.

Standard library only. No torch here: the settings read an address with it before anything heavy is loaded.
"""

from __future__ import annotations

import json
import os
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, replace
from http.client import HTTPException
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

from upslope.errors import UserError
from upslope.plain_data import JsonDict

KEY_VARIABLE = "UPSLOPE_API_KEY"
"""The environment variable that holds the key to a server: keys never stand in settings, which are written to ``run.toml``."""

PASSING = frozenset({429, 500, 502, 503, 504})
"""Answers that another try may mend."""
LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
LONGEST_PAUSE = 30.0
QUOTED = 300
"""Characters of a server's own words that an error repeats."""


class Address(NamedTuple):
    """Where a server is, and which of its models is meant (``""``: its only one)."""

    base: str
    model: str


def server_address(url: str) -> Address:
    """Reads ``http://host:port``, with or without ``/v1``; a model of several is named behind ``#``."""
    like = "Write it as http://127.0.0.1:8000, with the model behind # where the server has several."
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError as problem:
        raise UserError(f"{url!r} is no address of a server: {problem}. {like}") from None
    if parts.scheme not in ("http", "https") or not host or parts.query:
        raise UserError(f"{url!r} is no address of a server. {like}")
    if parts.username or parts.password:
        raise UserError(f"the address of {host!r} holds a name or password, and addresses are written down; use {KEY_VARIABLE}.")
    return Address(f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/') or '/v1'}", unquote(parts.fragment))


class ServerError(UserError):
    """A server that cannot be reached, or that refused.

    Attributes:
        status: the HTTP status, 0 where there was no answer.
        said: the server's own words.
    """

    def __init__(self, message: str, status: int = 0, said: str = ""):
        super().__init__(message)
        self.status, self.said = status, said


@dataclass(frozen=True)
class Client:
    """Asks one server.

    Fields:
        base: The address with its ``/v1``.
        key: Sent as a bearer token; empty sends none.
        timeout: Seconds an answer may take. Long, as a server may work on many completions at once.
        tries: How often a request that failed for a passing reason is sent in all.
        pause: Seconds before the second try; each further one waits twice as long.
    """

    base: str
    key: str = ""
    timeout: float = 600.0
    tries: int = 5
    pause: float = 0.5

    @classmethod
    def at(cls, base: str, key: str | None = None) -> Client:
        """With the key of the environment unless one is given."""
        return cls(base, os.environ.get(KEY_VARIABLE, "") if key is None else key)

    def get(self, path: str) -> Any:
        return self._send("GET", path, None, "")

    def post(self, path: str, body: object) -> Any:
        return self._send("POST", path, json.dumps(body).encode(), "application/json")

    def put(self, path: str, data: bytes) -> Any:
        return self._send("PUT", path, data, "application/octet-stream")

    def models(self) -> list[JsonDict]:
        """The server's list of models; empty where it keeps none, or cannot say (``transformers serve`` without a cache)."""
        try:
            listed = replace(self, tries=min(self.tries, 2)).get("/models")
        except ServerError as refusal:
            if refusal.status in (0, 401, 403):
                raise
            return []
        found = listed.get("data") if isinstance(listed, dict) else None
        return [entry for entry in found if isinstance(entry, dict)] if isinstance(found, list) else []

    def choose(self, wanted: str) -> str:
        """The model's name to ask with: the one wanted, the only one listed, or ``""`` where there is no list."""
        names = [str(entry.get("id")) for entry in self.models()]
        if wanted and names and wanted not in names:
            raise UserError(f"{self.base} has no model {wanted!r}; it has {', '.join(names)}.")
        if not wanted and len(names) > 1:
            raise UserError(
                f"{self.base} has {len(names)} models ({', '.join(names[:5])}); say which behind the address: {self.base}#NAME."
            )
        return wanted or (names[0] if names else "")

    def _send(self, verb: str, path: str, data: bytes | None, kind: str) -> Any:
        for number in range(1, self.tries + 1):
            try:
                return self._once(verb, path, data, kind)
            except _Passing as failure:
                if number == self.tries:
                    raise failure.error from None
                time.sleep(min(failure.wait or self.pause * 2 ** (number - 1), LONGEST_PAUSE))
        raise AssertionError("a client tries at least once")

    def _once(self, verb: str, path: str, data: bytes | None, kind: str) -> Any:
        headers = {"Accept": "application/json"}
        headers |= {"Content-Type": kind} if kind else {}
        headers |= {"Authorization": f"Bearer {self.key}"} if self.key else {}
        request = urllib.request.Request(self.base + path, data=data, headers=headers, method=verb)
        try:
            with self._opener().open(request, timeout=self.timeout) as answer:
                text = answer.read()
        except urllib.error.HTTPError as refusal:
            with refusal:
                raise self._refused(path, refusal) from None
        except (OSError, HTTPException) as problem:  # refused, reset, timed out, cut off in the middle
            reason = getattr(problem, "reason", problem)
            error = ServerError(f"no answer from {self.base}{path}: {reason}. Is the server running, and is this its address?")
            raise _Passing(error) from None
        try:
            return json.loads(text)
        except ValueError:
            error = ServerError(f"{self.base}{path} answered {text[:80]!r}, which is not JSON. Is it an OpenAI-compatible server?")
            raise error from None

    def _refused(self, path: str, refusal: urllib.error.HTTPError) -> Exception:
        said = _words(refusal.read())
        if refusal.code in (401, 403):
            message = f"{self.base}{path} wants another key ({refusal.code}: {said}). Put it into the variable {KEY_VARIABLE}."
        else:
            message = f"{self.base}{path} refused with {refusal.code}: {said}"
        error = ServerError(message, refusal.code, said)
        if refusal.code not in PASSING:
            return error
        wait = refusal.headers.get("Retry-After", "")
        return _Passing(error, float(wait) if wait.isdecimal() else 0.0)

    def _opener(self) -> urllib.request.OpenerDirector:
        # A redirect would take the key elsewhere; a proxy cannot reach this machine's own loopback.
        local = urlsplit(self.base).hostname in LOOPBACK
        return urllib.request.build_opener(_NoRedirects, *([urllib.request.ProxyHandler({})] if local else []))


class _Passing(Exception):
    """A failure that may be over in a moment."""

    def __init__(self, error: ServerError, wait: float = 0.0):
        self.error, self.wait = error, wait


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        return None


def _words(body: bytes) -> str:
    """What a server says of an error, out of the shapes servers have for it."""
    text = body.decode(errors="replace").strip()
    try:
        found = json.loads(text)
    except ValueError:
        return text[:QUOTED] or "no reason given"
    for key in ("error", "message", "detail"):
        if isinstance(found, dict) and key in found:
            found = found[key]
    return str(found)[:QUOTED]
