"""The HTTP server: routes, keys and limits. The standard library's server, a thread per connection; one engine behind it."""

from __future__ import annotations

import json
import os
import queue
import select
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import torch
from torch import Tensor

from upslope.errors import UserError
from upslope.policies.language_model import LanguageModel
from upslope.rollout.sampling import Engine
from upslope.rollout.server_engine import OURS
from upslope.runtime.access import bearer, check_reach, host_of, is_loopback, same_key
from upslope.runtime.http_client import KEY_VARIABLE
from upslope.runtime.settings import Device
from upslope.runtime.threads import use_threads
from upslope.serving.batcher import Batcher, Job
from upslope.serving.requests import BadRequest, positions, read_chat, read_completion
from upslope.serving.responses import Writer, error_body
from upslope.setting_up import pick_device

MOST_BODY = 64 * 2**20
"""Bytes of a request, weights aside."""
WEIGHTS_PATH = "/v1/upslope/weights"


class Server(ThreadingHTTPServer):
    """Serves one policy. Use it in a ``with`` block, or call `close`.

    Args:
        policy: What answers. Weights that are sent to the server are loaded into it.
        engine: What samples with it; the torch engine if left out.
        host: The address to listen at. Anything but loopback needs a token.
        port: 0 takes a free one; `url` says which.
        token: What a client must send as its key; empty is none.
        name: What the model is called.

    Example:
        >>> from upslope.policies import load_language_model
        >>> from upslope.serving.server import Server
        >>> with Server(load_language_model("tiny:layers=1,width=32", 0), port=0) as server:
        ...     server.url.startswith("http://127.0.0.1:")
        True
    """

    daemon_threads = True
    allow_reuse_address = True

    def __init__(
        self, policy: LanguageModel, engine: Engine | None = None, *, host: str = "127.0.0.1", port: int = 8000, token: str = "",
        name: str = "",
    ):  # fmt: skip
        from upslope.rollout.engine import TorchEngine

        check_reach(host, token, KEY_VARIABLE)
        self.policy, self.token, self.name = policy, token, name or policy.name
        self.version, self.began = 0, int(time.time())
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            super().__init__((host, port), Handler)
        except OSError as problem:
            raise UserError(f"cannot listen at {host}, port {port}: {problem.strerror}. Take another --port, 0 for any.") from None
        self.batcher = Batcher(engine or TorchEngine(policy), policy)
        self._thread: threading.Thread | None = None

    @property
    def url(self) -> str:
        """Where it listens."""
        host, port = self.server_address[:2]
        return f"http://[{host!s}]:{port}" if ":" in str(host) else f"http://{host!s}:{port}"

    def __enter__(self) -> Server:
        self._thread = threading.Thread(target=self.serve_forever, name="upslope-server", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *problem: object) -> None:
        self.shutdown()
        self.close()

    def close(self) -> None:
        """Stops listening and sampling."""
        self.server_close()
        self.batcher.close()

    def take(self, weights: dict[str, Tensor]) -> None:
        """Other weights for the policy, between two calls of the engine."""
        if self.policy.adapted:  # what is sent has them folded in, and there is no way back
            raise BadRequest("the model that is served has adapters, so it takes no weights. Serve the model they were added to.")
        own = dict(self.policy.model.named_parameters())
        if wrong := sorted(set(own) ^ set(weights)):
            whose = "the model has" if wrong[0] in own else "the weights have"
            raise BadRequest(f"these are another model's weights: only {whose} {wrong[0]!r}.")
        for name, value in weights.items():
            if value.shape != own[name].shape:
                raise BadRequest(f"{name!r} has shape {list(value.shape)}; the model's is {list(own[name].shape)}.")

        def load() -> None:
            with torch.no_grad():
                for name, value in weights.items():
                    own[name].copy_(value)
            self.batcher.engine.sync(self.policy)
            self.version += 1

        self.batcher.change(load)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is no error; anything else is told where the server was started."""
        if not isinstance(sys.exc_info()[1], (ConnectionError, TimeoutError)):
            traceback.print_exc(file=sys.stderr)


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    server: Server
    protocol_version = "HTTP/1.1"
    server_version = "upslope"
    sys_version = ""
    timeout = 60
    """Seconds a connection may be silent while the server reads or writes."""

    def do_GET(self) -> None:
        self._answered(self._get)

    def do_POST(self) -> None:
        self._answered(self._post)

    def do_PUT(self) -> None:
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
                raise BadRequest(f"no model {path.removeprefix('/v1/models/')!r}; this server has {server.name!r}.", "model", 404)
            self._json(entry)
        else:
            raise _unknown(path)

    def _post(self, path: str) -> None:
        chat = path == "/v1/chat/completions"
        if path not in ("/v1/completions", "/v1/chat/completions"):
            raise _unknown(path)
        if self.headers.get_content_type() != "application/json":
            # A web page can make a browser send text without asking; it cannot make it send JSON.
            raise BadRequest(f"Content-Type is {self.headers.get('Content-Type')!r}; it must be application/json.", status=415)
        try:
            body = json.loads(self._body(MOST_BODY))
        except (ValueError, RecursionError) as wrong:
            raise BadRequest(f"the body is not JSON: {wrong}") from None
        asked = (read_chat if chat else read_completion)(body, self.server.policy, self.server.name)
        version = self.server.version
        job = self.server.batcher.submit(asked)
        writer = Writer(asked, self.server.policy, self.server.name, version, chat)
        try:
            if asked.stream:
                self._stream(writer, job)
            else:
                self._wait(job)
                self._json(writer.whole(job))
        except BaseException:
            job.dropped = True
            raise

    def _put(self, path: str) -> None:
        if path != WEIGHTS_PATH:
            raise _unknown(path)
        if not self.server.token and not is_loopback(self.client_address[0]):
            raise BadRequest("weights are taken from this machine only, or with a token.", status=403)
        from safetensors import SafetensorError
        from safetensors.torch import load

        own = sum(value.numel() * value.element_size() for value in self.server.policy.model.parameters())
        try:
            weights = load(self._body(2 * own + 2**20))  # the sender may compute in twice the precision
        except (SafetensorError, ValueError, KeyError) as wrong:
            raise BadRequest(f"the body is not in the safetensors format: {wrong}") from None
        self.server.take(weights)
        self._json({"object": "weights", "weights_version": self.server.version})

    # -- a request ---------------------------------------------------------------------------------------------------------

    def _answered(self, route: Callable[[str], None]) -> None:
        """Runs a route; whatever goes wrong becomes an error in OpenAI's shape, and never ends the server."""
        self._unread = True
        self._began = False
        try:
            path = urlsplit(self.path).path.rstrip("/")
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
            raise BadRequest(f"no host {self.headers.get('Host')!r} here; without a token only loopback is served.", status=403)

    def _body(self, most: int) -> bytes:
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal():
            raise BadRequest("the request needs a Content-Length.", status=411)
        if int(length) > most:
            raise BadRequest(f"the request has {int(length):,} bytes; the most is {most:,}.", status=413)
        found = self.rfile.read(int(length))
        self._unread = False
        if len(found) < int(length):
            raise ConnectionAbortedError("the client went away in the middle of its request")
        return found

    def _wait(self, job: Job) -> None:
        """Until the job is done; a client that has gone away is not waited for."""
        while True:
            try:
                told = job.told.get(timeout=1.0)
            except queue.Empty:
                if self._gone():
                    raise ConnectionAbortedError("the client went away") from None
                continue
            if isinstance(told, Exception):
                raise told
            if not told.going:
                return

    def _gone(self) -> bool:
        readable, _, _ = select.select([self.connection], [], [], 0)
        return bool(readable) and self.connection.recv(1, socket.MSG_PEEK) == b""

    # -- an answer -----------------------------------------------------------------------------------------------------------

    def _fail(self, wrong: BadRequest) -> None:
        if self._unread and self.command in ("POST", "PUT"):
            self.close_connection = True  # what was not read would pass for the next request
        if self._began:  # a stream under way can only say so in its own words
            self._chunk(f"data: {json.dumps(error_body(wrong))}\n\n")
            self._chunk("")
            return
        self._json(error_body(wrong), wrong.status)

    def _json(self, body: Any, status: int = 200) -> None:
        text = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        if status == 429:
            self.send_header("Retry-After", "1")
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(text)

    def _stream(self, writer: Writer, job: Job) -> None:
        pieces = writer.pieces(job)
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
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))


def _unknown(path: str) -> BadRequest:
    known = f"/health, /v1/models, /v1/completions, /v1/chat/completions, {WEIGHTS_PATH}"
    return BadRequest(f"nothing at {path!r}. There are {known}.", status=404)


SMALL = 10_000_000
"""Parameters up to which one thread is the fastest."""


def load_served(spec: str, device: Device = "auto", threads: int | None = None) -> LanguageModel:
    """The policy of a run's last checkpoint, or a model as ``--model`` names it, ready to sample."""
    policy = _found(spec)
    small = policy.parameter_count() < SMALL
    use_threads(threads or (1 if small else os.cpu_count() or 1))
    return policy.to(pick_device(device, "tiny" if small else spec))


def _found(spec: str) -> LanguageModel:
    from upslope.rollout.probe import load_checked
    from upslope.runtime.run_folder import RunFolder

    if not (Path(spec) / "run.toml").is_file():
        return load_checked(spec, 0)
    folder = RunFolder.open(spec)
    latest = folder.latest()
    if not (latest / "config.json").is_file():
        raise UserError(f"{spec} trained a controller, not a language model; only language models can be served.")
    policy = load_checked(str(latest), 0)
    policy.name = folder.path.resolve().name
    return policy
