"""The HTTP server: one policy, one engine behind many connections."""

from __future__ import annotations

import os
import socket
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor

from upslope.errors import Remark, UserError
from upslope.policies.language_model import LanguageModel
from upslope.runtime.access import check_reach
from upslope.runtime.checkpoint_files import CheckpointReader
from upslope.runtime.http_client import KEY_VARIABLE
from upslope.runtime.settings import Device
from upslope.runtime.threads import use_threads
from upslope.serving.batcher import Batcher
from upslope.serving.body import BadRequest
from upslope.serving.connections import BoundedServer
from upslope.serving.handler import MOST_BODIES, WEIGHTS_PATH, Handler
from upslope.setting_up import pick_device
from upslope.types import Engine

__all__ = ["WEIGHTS_PATH", "Server", "check_listening", "load_served"]

FAREWELL = 3.0
"""Seconds in which clients that still wait at the end are told so."""


class Server(BoundedServer):
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

    def __init__(
        self, policy: LanguageModel, engine: Engine | None = None, *, host: str = "127.0.0.1", port: int = 8000, token: str = "",
        name: str = "",
    ):  # fmt: skip
        from upslope.rollout.engines.torch_engine import TorchEngine

        check_listening(host, port, token, name)
        self.policy, self.token, self.name = policy, token, name or policy.name
        self.version, self.began = 0, int(time.time())
        self.bodies, self.taking = Bodies(), threading.Lock()
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            super().__init__((host, port), Handler)
        except (socket.gaierror, ValueError) as problem:  # ValueError: what cannot even be asked for
            raise UserError(
                f"--host {host!r} is no address to listen at ({problem}). Take 127.0.0.1, or one of this machine."
            ) from None
        except OSError as problem:
            raise UserError(f"cannot listen at {host}, port {port}: {problem.strerror}. Take another --port, 0 for any.") from None
        self.batcher = Batcher(engine or TorchEngine(policy, speculate="auto"), policy)
        self._thread: threading.Thread | None = None

    @property
    def url(self) -> str:
        """Where it listens."""
        host, port = self.server_address[:2]
        return f"http://[{host!s}]:{port}" if ":" in str(host) else f"http://{host!s}:{port}"

    def __enter__(self) -> Server:
        self._thread = threading.Thread(target=self.serve_forever, args=(0.05,), name="upslope-server", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *problem: object) -> None:
        self.shutdown()
        self.close()

    def close(self) -> None:
        """Stops listening and sampling; who still waits is told so."""
        self.server_close()
        self.batcher.close()
        self.part(FAREWELL)

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


class Bodies:
    """How many bytes of requests are being read, by all threads together."""

    def __init__(self) -> None:
        self._lock, self._taken = threading.Lock(), 0

    @contextmanager
    def room(self, length: int) -> Iterator[None]:
        """Room for so many bytes, if there is."""
        with self._lock:
            if self._taken and self._taken + length > MOST_BODIES:
                raise BadRequest("too many large requests are being read; try again later.", status=429, code="busy")
            self._taken += length
        try:
            yield
        finally:
            with self._lock:
                self._taken -= length


def check_listening(host: str, port: int, token: str, name: str = "") -> None:
    """Refuses what no server can listen at or be called."""
    check_reach(host, token, KEY_VARIABLE)
    if not 0 <= port <= 65535:
        raise UserError(f"--port {port} is no port: they go from 0 (any free one) to 65535.")
    if wrong := [letter for letter in token if not "!" <= letter <= "~"]:
        where = f"--token, or the variable {KEY_VARIABLE},"
        raise UserError(f"{where} holds {wrong[0]!r}, which a header cannot carry. Take letters, digits and signs of ASCII.")
    if not name.isprintable() or (name and not name.strip()):
        raise UserError(f"--name {name!r} is no name that clients could write. Take one in letters, or leave it out.")


def check_threads(count: int | None) -> None:
    """Refuses more threads than a machine could be asked for: torch would end the process without a word."""
    cores = os.cpu_count() or 1
    if count is not None and count > 4 * max(cores, 16):
        raise UserError(f"--threads {count} is far more than this machine's {cores} cores. Leave it out, or give at most {cores}.")


SMALL = 10_000_000
"""Parameters up to which one thread is the fastest."""


def load_served(spec: str, device: Device = "auto", threads: int | None = None) -> LanguageModel:
    """The policy of a run's last checkpoint, or a model as ``--model`` names it, ready to sample.

    Torch has ``threads`` from here on, in the whole process; `upslope.runtime.threads.restored_threads` around it ends that.
    """
    check_threads(threads)
    policy = _found(spec)
    small = policy.parameter_count() < SMALL
    use_threads(threads or (1 if small else os.cpu_count() or 1))
    return policy.to(pick_device(device, "tiny" if small else spec))


def _found(spec: str) -> LanguageModel:
    from upslope.policies.reward_runs import refuse_reward_model
    from upslope.rollout.parity_check import load_checked
    from upslope.runtime.run_folder import RunFolder

    if not (Path(spec) / "run.toml").is_file():
        return load_checked(spec, 0)
    refuse_reward_model(spec, f"upslope serve {spec}")
    folder = RunFolder.open(spec)
    if (folder.latest() / "policy.json").is_file():
        raise UserError(f"{spec} trained a controller, not a language model; only language models can be served.")

    def load(files: CheckpointReader) -> LanguageModel:
        for name in files.names():
            files.check(name)  # before anything is made of it
        return load_checked(str(files.folder), 0)

    policy, _, remarks = folder.last_whole(load)
    for remark in remarks:
        warnings.warn(Remark(remark), stacklevel=2)
    policy.name = folder.path.resolve().name
    return policy
