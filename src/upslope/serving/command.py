"""The command ``upslope serve``: its flags, and the server it starts. No torch here, so that ``--help`` stays fast."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress

from upslope.errors import UserError


def add_flags(serve: argparse.ArgumentParser) -> None:
    """The flags of the command."""
    from upslope.runtime.settings_flags import whole

    serve.add_argument("path", metavar="RUN|MODEL", help="the folder of a run; or tiny, smollm2, or a folder with a model")
    serve.add_argument("--host", default="127.0.0.1", help="address to listen at; any but loopback needs a token (127.0.0.1)")
    serve.add_argument("--port", type=whole(0), default=8000, metavar="N", help="0 takes a free one (8000)")
    serve.add_argument("--token", default="", metavar="KEY", help="the key clients must send (the variable UPSLOPE_API_KEY)")
    serve.add_argument("--name", help="what the model is called (the name of the run or model)")
    serve.add_argument("--threads", type=whole(1), metavar="N", help="torch threads (1 for tiny models, else all cores)")
    serve.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto", help="where it computes (auto)")


def run(flags: argparse.Namespace) -> int:
    """Serves until it is interrupted."""
    from upslope.runtime.http_client import KEY_VARIABLE
    from upslope.runtime.threads import restored_threads
    from upslope.serving.server import Server, check_listening, load_served

    if flags.name is not None and not flags.name.strip():
        raise UserError(f"--name {flags.name!r} is empty. Give the model a name, or leave the flag out.")
    token, name = flags.token or os.environ.get(KEY_VARIABLE, ""), flags.name or ""
    check_listening(flags.host, flags.port, token, name)
    with _scheduler_interrupts(), restored_threads():
        policy = load_served(flags.path, flags.device, flags.threads)
        server = Server(policy, host=flags.host, port=flags.port, token=token, name=name)
        print(f"{server.name} at {server.url}/v1, {'with' if token else 'without'} a key; Ctrl-C ends it", file=sys.stderr)
        print(server.url, flush=True)
        with closing(server), suppress(KeyboardInterrupt):  # the way to end it
            server.serve_forever()
    return 0


@contextmanager
def _scheduler_interrupts() -> Iterator[None]:
    """SIGTERM, a scheduler's way to end it, does what Ctrl-C does. Only the main thread can listen."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    old = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, old)
