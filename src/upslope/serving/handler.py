"""The answers to requests: routes, keys and limits, in OpenAI's shapes."""

from __future__ import annotations

import json
import queue
import sys
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from upslope.errors import UserError
from upslope.rollout.engines.server_engine import OURS
from upslope.runtime.access import bearer, host_of, is_loopback, same_key
from upslope.serving.body import BadRequest, quoted, read_json
from upslope.serving.connections import TimedHandler
from upslope.serving.jobs import RequestJob, Written
from upslope.serving.requests import positions, read_chat, read_completion
from upslope.serving.responses import Writer, error_body

if TYPE_CHECKING:
    from upslope.serving.server import Server

MOST_BODY = 64 * 2**20
"""Bytes of a request, weights aside."""
MOST_BODIES = 128 * 2**20
"""Bytes of all requests that are being read."""
WEIGHTS_PATH = "/v1/upslope/weights"
ROUTES = {
    "/health": "GET",
    "/v1/models": "GET",
    "/v1/completions": "POST",
    "/v1/chat/completions": "POST",
    WEIGHTS_PATH: "PUT",
}
LOOK_ROUND = 0.5
"""Seconds after which it is looked whether a client that waits is still there."""


class Handler(TimedHandler):
    """One connection."""

    server: Server  # type: ignore[assignment]
    protocol_version = "HTTP/1.1"
    server_version = "upslope"
    sys_version = ""

    def do_GET(self) -> None:  # noqa: N802
        self._answered(self._get)

    def do_POST(self) -> None:  # noqa: N802
        self._answered(self._post)

    def do_PUT(self) -> None:  # noqa: N802
        self._answered(self._put)

    def log_message(self, *_: Any) -> None:
        """Requests are not written down: they are other people's texts."""

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """What the standard library finds wrong with a request, in the same shape as all else."""
        self.close_connection = True
        self._json(error_body(BadRequest(message or explain or "bad request", status=code)), code)

    # -- routes ----------------------------------------------------------------------------------------------------------

    def _get(self, path: str) -> None:
        server = self.server
        entry = {
            "id": server.name,
            "object": "model",
            "created": server.began,
            "owned_by": OURS,
            "max_model_len": positions(server.policy) or None,
            "weights_version": server.version,
        }
        if path == "/v1/models":
            self._json({"object": "list", "data": [entry]})
        elif path.startswith("/v1/models/"):
            if unquote(path.removeprefix("/v1/models/")) != server.name:
                raise BadRequest(
                    f"no model {quoted(path.removeprefix('/v1/models/'))}; this server has {server.name!r}.", "model", 404
                )
            self._json(entry)
        else:
            raise self._unknown(path)

    def _post(self, path: str) -> None:
        chat = path == "/v1/chat/completions"
        if path not in ("/v1/completions", "/v1/chat/completions"):
            raise self._unknown(path)
        if self.headers.get_content_type() != "application/json":
            # A web page can make a browser send text without asking; it cannot make it send JSON.
            raise BadRequest(
                f"Content-Type is {quoted(self.headers.get('Content-Type'))}; it must be application/json.", status=415
            )
        with self.server.bodies.room(length := self._length(MOST_BODY)):
            asked = (read_chat if chat else read_completion)(read_json(self._body(length)), self.server.policy, self.server.name)
        version = self.server.version
        job = self.server.batcher.submit(asked)
        writer = Writer(asked, self.server.policy, self.server.name, version, chat)
        try:
            if asked.stream:
                self._stream(writer, job)
            else:
                while self._latest(job).going:
                    pass
                self._json(writer.whole(job))
        finally:
            self.server.batcher.end(job)

    def _put(self, path: str) -> None:
        if path != WEIGHTS_PATH:
            raise self._unknown(path)
        if not self.server.token and not is_loopback(self.client_address[0]):
            raise BadRequest("weights are taken from this machine only, or with a token.", status=403)
        from safetensors import SafetensorError
        from safetensors.torch import load

        own = sum(value.numel() * value.element_size() for value in self.server.policy.model.parameters())
        length = self._length(2 * own + 2**20)  # the sender may compute in twice the precision
        if not self.server.taking.acquire(blocking=False):
            raise BadRequest("other weights are being taken; try again later.", status=429, code="busy")
        try:
            weights = load(self._body(length))
            self.server.take(weights)
        except (SafetensorError, ValueError, KeyError) as wrong:
            raise BadRequest(f"the body is not in the safetensors format: {wrong}") from None
        finally:
            self.server.taking.release()
        self._json({"object": "weights", "weights_version": self.server.version})

    # -- a request ---------------------------------------------------------------------------------------------------------

    def _answered(self, route: Callable[[str], None]) -> None:
        """Runs a route; whatever goes wrong becomes an error in OpenAI's shape, and never ends the server."""
        self._unread = True
        self._began = False
        try:
            self.link.turn(busy=self.command not in ("POST", "PUT"))  # they are, once their body is there
            path = _path(self.path)
            if path == "/health" and self.command == "GET":
                self._json({"status": "ok", "model": self.server.name})
                return
            self._admit()
            route(path)
        except (ConnectionError, TimeoutError):
            self.close_connection = True
        except BadRequest as wrong:
            self._fail(wrong)
        except UserError as wrong:
            self._fail(BadRequest(str(wrong)))
        except Exception as problem:
            traceback.print_exc(file=sys.stderr)
            self._fail(BadRequest(f"the server failed: {type(problem).__name__}. Its own output says more.", status=500))

    def _admit(self) -> None:
        if self.server.token:
            if not same_key(bearer(self.headers.get("Authorization", "")), self.server.token):
                raise BadRequest("a key is needed: send it as 'Authorization: Bearer KEY'.", status=401, code="invalid_api_key")
        elif not is_loopback(host_of(self.headers.get("Host", ""))):
            # Another name that leads here is a web page's trick to reach what listens on this machine.
            raise BadRequest(
                f"no host {quoted(self.headers.get('Host'))} here; without a token only loopback is served.", status=403
            )

    def _unknown(self, path: str) -> BadRequest:
        """The error for a path that is not served, or not in this way."""
        if verb := ROUTES.get(path, ""):
            return BadRequest(f"{path} is asked with {verb}, not with {self.command}.", status=405, code="method_not_allowed")
        return BadRequest(f"nothing at {quoted(path)}. There are {', '.join(ROUTES)}.", status=404)

    def _length(self, most: int) -> int:
        length = self.headers.get("Content-Length", "")
        if not (length.isascii() and length.isdecimal()):
            raise BadRequest("the request needs a Content-Length.", status=411)
        if len(length) > 18 or int(length) > most:
            raise BadRequest(f"the request has {length[:30]} bytes; the most is {most:,}.", status=413)
        return int(length)

    def _body(self, length: int) -> bytes:
        found = self.read_body(length)
        self._unread = False
        self.link.turn(busy=True)
        return found

    def _latest(self, job: RequestJob) -> Written:
        """How far the job is, once there is news of it; a client that has gone away is not waited for."""
        while True:
            try:
                told = job.told.get(timeout=LOOK_ROUND)
            except queue.Empty:
                if self.gone():
                    raise ConnectionAbortedError("the client went away") from None
                continue
            if isinstance(told, Exception):
                raise told
            return told

    # -- an answer -----------------------------------------------------------------------------------------------------------

    def _fail(self, wrong: BadRequest) -> None:
        unread = self._unread and self.command in ("POST", "PUT")
        if unread:
            self.close_connection = True  # what was not read would pass for the next request
        if self._began:  # a stream under way can only say so in its own words
            self._chunk(f"data: {json.dumps(error_body(wrong))}\n\n")
            self._chunk("")
            return
        self._json(error_body(wrong), wrong.status)
        if unread:
            self.take_leave()

    def _json(self, body: object, status: int = 200) -> None:
        text = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        if status in (429, 503):
            self.send_header("Retry-After", "1")
        if status == 405:
            self.send_header("Allow", ROUTES[_path(self.path)])
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.write(text)

    def _stream(self, writer: Writer, job: RequestJob) -> None:
        pieces = writer.pieces(job, lambda: self._latest(job))
        first = next(pieces)  # what cannot be sampled at all is still an ordinary error
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Cache-Control", "no-cache")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self._began = True
        self._chunk(f"data: {json.dumps(first)}\n\n")
        for piece in pieces:
            self._chunk(f"data: {json.dumps(piece)}\n\n")
        self._chunk("data: [DONE]\n\n")
        self._chunk("")

    def _chunk(self, text: str) -> None:
        data = text.encode()
        self.write(b"%x\r\n%s\r\n" % (len(data), data))


def _path(target: str) -> str:
    try:
        return urlsplit(target).path.rstrip("/")
    except ValueError as wrong:
        raise BadRequest(f"{quoted(target)} is no address: {wrong}.") from None
