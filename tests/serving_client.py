"""A model with much to say, and a client of the server that may send anything: for tests of ``upslope serve``."""

from __future__ import annotations

import http.client
import json
import socket
import time
from collections.abc import Callable
from typing import Any

import torch

from upslope.policies import LanguageModel, load_language_model
from upslope.serving.server import Server

TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"
HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
LOUD = 4.0
"""Random weights this much larger have much to say: distributions far from uniform, few early ends."""


def loud(seed: int = 0) -> LanguageModel:
    policy = load_language_model("tiny:layers=1,width=32", seed)
    with torch.no_grad():
        policy.model.get_input_embeddings().weight.mul_(LOUD)
    policy.tokenizer.chat_template = TEMPLATE
    return policy


def raw(server: Server, verb: str, path: str, body: bytes = b"", **headers: str) -> tuple[int, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=30)
    connection.request(
        verb, path, body, {"Content-Type": "application/json"} | {k.replace("_", "-"): v for k, v in headers.items()}
    )
    answer = connection.getresponse()
    found = answer.status, json.loads(answer.read())
    connection.close()
    return found


def wait_until(happened: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.01)


def ended(connection: socket.socket) -> bytes:
    """What comes until the server closes the connection."""
    found = b""
    while more := connection.recv(4096):
        found += more
    return found
