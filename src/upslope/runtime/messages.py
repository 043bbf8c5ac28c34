"""Messages between a run and its workers, over a socket or as bytes: plain data, tensors and open files, without pickle."""

from __future__ import annotations

import io
import json
import socket
import struct
from dataclasses import dataclass, field

from torch import Tensor

from upslope.plain_data import JsonDict
from upslope.runtime.nested_tensors import put_together, taken_apart
from upslope.runtime.tensor_files import read_tensors, write_tensors

LENGTHS = struct.Struct("<QQ")
"""What stands before each message: the bytes of its plain data, and of its tensors."""
MOST_FILES = 4


class Closed(ConnectionError):
    """The other side is gone."""


@dataclass
class Message:
    """What one process tells another.

    Fields:
        kind: What it is about.
        data: Nested dicts and lists of tensors and plain data.
        files: Open files that come with it; whoever receives them closes them.
    """

    kind: str
    data: JsonDict = field(default_factory=dict)
    files: tuple[int, ...] = ()


def send(channel: socket.socket, message: Message) -> None:
    """Writes a message whole.

    Raises:
        OSError: where the other side is gone.
    """
    head, text, body = _pieces(message)
    sent = socket.send_fds(channel, [head], list(message.files)) if message.files else channel.send(head)
    channel.sendall(head[sent:] + text)
    if body:  # an empty write would fail where the other side has heard all and left
        channel.sendall(body)


def receive(channel: socket.socket) -> Message:
    """The next message.

    Raises:
        Closed: where the other side is gone.
        TimeoutError: where it said nothing for as long as the channel waits.
    """
    head, files, _, _ = socket.recv_fds(channel, LENGTHS.size, MOST_FILES)
    if not head:
        raise Closed("the other side has closed the channel")
    head += _exactly(channel, LENGTHS.size - len(head))
    text_size, body_size = LENGTHS.unpack(head)
    return _read(_exactly(channel, text_size), _exactly(channel, body_size), tuple(files))


def encoded(message: Message) -> bytes:
    """The bytes of a message without files, for whoever carries them another way."""
    assert not message.files
    return b"".join(_pieces(message))


def decoded(content: bytes) -> Message:
    """What `encoded` gave.

    Raises:
        ValueError: if it is no whole message.
    """
    if len(content) < LENGTHS.size:
        raise ValueError("it is too short for a message")
    text_size, body_size = LENGTHS.unpack_from(content)
    if len(content) != LENGTHS.size + text_size + body_size:
        raise ValueError("it is no whole message")
    middle = LENGTHS.size + text_size
    return _read(content[LENGTHS.size : middle], content[middle:])


def _pieces(message: Message) -> tuple[bytes, bytes, memoryview]:
    """Lengths, plain data, tensors."""
    tensors: dict[str, Tensor] = {}
    text = json.dumps({"kind": message.kind, "data": taken_apart(message.data, "", tensors)}, separators=(",", ":")).encode()
    body = io.BytesIO()
    if tensors:
        write_tensors(body.write, tensors)
    return LENGTHS.pack(len(text), body.getbuffer().nbytes), text, body.getbuffer()


def _read(text: bytes, body: bytes, files: tuple[int, ...] = ()) -> Message:
    told = json.loads(text)
    tensors = read_tensors(io.BytesIO(body), lambda seen: None) if body else {}
    return Message(told["kind"], put_together(told["data"], tensors), files)


def _exactly(channel: socket.socket, size: int) -> bytes:
    found = bytearray(size)
    view, filled = memoryview(found), 0
    while filled < size:
        count = channel.recv_into(view[filled:])
        if not count:
            raise Closed("the other side has closed the channel in the middle of a message")
        filled += count
    return bytes(found)
