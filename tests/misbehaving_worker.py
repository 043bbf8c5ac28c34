"""A worker that answers as it is told in a file: well, or not at all, or with other weights. Started by `test_workers.py`."""

from __future__ import annotations

import sys
from pathlib import Path

if (Path(sys.argv[1]) / "never-ready").exists():  # before anything that takes long to load
    sys.exit("no such model")

import os
import signal
import socket
import time

from misbehaving_rows import rows_of

from upslope.rollout.under_way import packed
from upslope.runtime.messages import Message, receive, send
from upslope.runtime.shared_weights import ReadWeights, checksum
from upslope.types import Assignment


def main(folder: Path, number: int) -> None:
    channel = socket.socket(fileno=number)
    send(channel, Message("ready"))
    if (folder / "refuse-at-once").exists():
        send(channel, Message("refused", {"why": "this cannot be answered"}))
        return
    proof, published = 0, ReadWeights()
    while (message := receive(channel)).kind != "quit":
        assignment = Assignment.from_table(message.data["assignment"])
        if message.files:
            proof = checksum(published.of(message.files[0], message.data["weights"]))
        for todo in sorted(folder.glob("do-*")):
            todo.unlink()  # each once
            if todo.name == "do-die":
                os.kill(os.getpid(), signal.SIGKILL)
            elif todo.name == "do-hang":
                time.sleep(1000)
            elif todo.name == "do-cut":
                channel.send(b"\x01\x02\x03")
                os._exit(1)
            elif todo.name == "do-old-weights":
                proof += 1
            elif todo.name == "do-refuse":
                send(channel, Message("refused", {"why": "this cannot be answered"}))
                return
        (folder / f"did-{assignment.step}-{assignment.share}-{os.getpid()}-{time.monotonic_ns()}").touch()
        answer = {"rows": packed(rows_of(assignment)), "told": {}, "version": assignment.version, "checksum": proof}
        send(channel, Message("fulfilled", answer))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
