"""Servers for tests that answer as others do: each with what it leaves out."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from upslope.policies import LanguageModel
from upslope.rollout.engines.torch_engine import TorchEngine
from upslope.runtime.seeding import uniforms
from upslope.types import Sampling

Answer = Callable[[str, dict[str, Any]], tuple[int, Any]]
"""From a path and a body to a status and a body."""


class FakeServer(ThreadingHTTPServer):
    """Answers whatever ``answer`` says, and keeps what it was asked."""

    daemon_threads = True

    def __init__(self, answer: Answer):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answer, self.asked = answer, []
        self.headers: list[dict[str, str]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def __enter__(self) -> FakeServer:
        threading.Thread(target=self.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()


class _Handler(BaseHTTPRequestHandler):
    server: FakeServer

    def do_GET(self) -> None:
        self._reply({})

    def do_POST(self) -> None:
        self._reply(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

    def log_message(self, *_: Any) -> None:
        """Quiet."""

    def _reply(self, body: dict[str, Any]) -> None:
        self.server.asked.append((self.path, body))
        self.server.headers.append(dict(self.headers))
        status, answer = self.server.answer(self.path, body)
        text = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)


def like_vllm(
    policy: LanguageModel,
    *,
    ids: str = "token_ids",
    logprobs: bool = True,
    takes_n: bool = True,
    stop_token: bool = True,
    ignores: tuple[str, ...] = (),
) -> Answer:
    """A server with weights of its own.

    Args:
        ids: Where the sampled ids stand: in ``token_ids``, ``spelled`` as ``token_id:7`` (older versions), or nowhere: ``""``.
        stop_token: Whether the token that ended a completion is among them.
        ignores: Settings of sampling it does not heed.
    """

    def answer(path: str, body: dict[str, Any]) -> tuple[int, Any]:
        if path == "/v1/models":
            return 200, {"object": "list", "data": [{"id": "theirs", "owned_by": "vllm"}]}
        if path != "/v1/completions":
            return 404, {"error": {"message": "Not Found"}}
        drawn = {name: body[name] for name in ("temperature", "top_p", "top_k", "min_p") if name not in ignores}
        drawn["top_k"] = max(drawn.get("top_k", 0), 0)
        n, limit = body["n"] if takes_n else 1, body["max_tokens"]
        done = TorchEngine(policy).generate([body["prompt"]], n, Sampling(limit, **drawn), uniforms((n, limit), body["seed"]))
        return 200, {"choices": [choice(done, row) for row in reversed(range(n))]}

    def choice(done: Any, row: int) -> dict[str, Any]:
        length = int(done.sampled[row].sum())
        length -= int(not stop_token and done.finish[row] == "stop")
        tokens, logp = done.tokens[row, :length].tolist(), done.logp[row, :length].tolist()
        record = {"tokens": [f"token_id:{t}" if ids == "spelled" else "x" for t in tokens], "token_logprobs": logp}
        found = {"index": row, "text": "x", "finish_reason": done.finish[row], "logprobs": record if logprobs else None}
        return found | ({"token_ids": tokens} if ids == "token_ids" else {})

    return answer


def strict_text(path: str, body: dict[str, Any]) -> tuple[int, Any]:
    """As ``transformers serve`` 5.22 answers: text only, ``n`` and ``logprobs`` passed over, what it does not know refused."""
    if path == "/v1/models":
        return 500, "Internal Server Error"
    unknown = set(body) - {"prompt", "model", "max_tokens", "temperature", "top_p", "seed", "n", "logprobs", "stream", "stop"}
    if unknown:
        return 422, {"detail": f"Unexpected fields in the request: {unknown}"}
    if path != "/v1/completions" or not isinstance(body["prompt"], str):
        return 400, {"detail": "prompt must be a string."}
    word = body["prompt"][1:-1]  # the task's problems read "rabc="
    return 200, {"choices": [{"index": 0, "text": word[::-1], "finish_reason": "stop"}], "usage": {"completion_tokens": 3}}


def chosen(prompt: str) -> str:
    """The letter of the answer that comes first in the alphabet."""
    asked = re.search(r"Answer A:\n(.*)\n\nAnswer B:\n(.*)\n\nSay A", prompt, re.S)
    assert asked is not None, prompt
    first, second = asked.groups()
    return "A" if first < second else "B"


def judging(path: str, body: dict[str, Any]) -> tuple[int, Any]:
    """A judge that says what `chosen` does."""
    if path == "/v1/models":
        return 200, {"data": [{"id": "judge"}]}
    if path != "/v1/chat/completions":
        return 404, {"error": {"message": "Not Found"}}
    return 200, {"choices": [{"message": {"content": f"{chosen(body['messages'][-1]['content'])}."}}]}
