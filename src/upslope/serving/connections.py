"""Connections: a thread each, so many and no more, and none that can hold the server by sending nothing or slowly."""

from __future__ import annotations

import io
import json
import select
import socket
import socketserver
import sys
import threading
import time
import traceback
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

MOST_CONNECTIONS = 2048
"""Connections at once. More wait in the system's queue until one is free."""
SPARE_FILES = 64
"""Open files that the process needs for other things."""
KEPT_OPEN = 60.0
"""Seconds a connection may be open without a request under way."""
HEAD_SECONDS = 20.0
"""Seconds in which a request's head must be there, once it has begun."""
BODY_SECONDS = 30.0
"""Seconds in which a body must be there, and an answer be taken, beside what its size needs at `SLOWEST`."""
SLOWEST = 50_000
"""Bytes a second."""
PATIENCE = 2.0
"""Seconds without a byte after which a connection that asks for nothing is closed, where others wait for its place."""
PARTING = 1.0
"""Seconds in which what a refused client still sends is taken and thrown away, so that it gets to read why."""


class Link:
    """One connection and whether a request of its is being worked on."""

    def __init__(self, connection: socket.socket):
        self.connection = connection
        self.busy = False
        self.since = time.monotonic()

    def turn(self, busy: bool) -> None:
        self.busy, self.since = busy, time.monotonic()

    def silent(self) -> bool:
        """Whether it asks for nothing, for a while already, and nothing has arrived that only was not read yet."""
        return not self.busy and time.monotonic() - self.since > PATIENCE and not readable(self.connection)


def readable(connection: socket.socket) -> bool:
    """Whether there is something to read, or the end, without waiting."""
    poll = select.poll()  # select itself knows only the first 1,024 open files
    poll.register(connection, select.POLLIN)
    return bool(poll.poll(0))


class BoundedServer(ThreadingHTTPServer):
    """A thread per connection, `most` of them at once.

    Threads that wait cost little memory, and a request that waits in one is seen by the engine, which then computes it together
    with the others. When all places are taken the connection that has been silent longest goes; if none is silent, newcomers
    wait, unaccepted, as long as they like.
    """

    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 4096
    """Connections that the system keeps until they are accepted. (The default, 5, resets clients that come together.)"""
    block_on_close = False

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]):
        self.most = min(MOST_CONNECTIONS, max(most_files() - SPARE_FILES, 16))
        self._links: set[Link] = set()
        self._freed = threading.Condition()
        self.ending = False
        super().__init__(address, handler)

    def server_bind(self) -> None:
        """As the parent's, without asking a name server for a name that nobody uses."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def get_request(self) -> Any:
        try:
            return super().get_request()
        except OSError:
            time.sleep(0.05)  # no open file is left for it: it stays in the queue, and asking again at once would only be busy
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        link = Link(request)
        with self._freed:
            while len(self._links) >= self.most and not self.ending:
                self._close_silent()
                self._freed.wait(0.2)
            self._links.add(link)
        try:
            super().process_request(request, client_address)
        except RuntimeError:  # the system has no thread left; those there are will end, and the client can come back
            self._refuse(request)
            self.shutdown_request(request)

    def link(self, connection: object) -> Link:
        with self._freed:
            return next(link for link in self._links if link.connection is connection)

    def shutdown_request(self, request: Any) -> None:
        super().shutdown_request(request)
        with self._freed:
            self._links = {link for link in self._links if link.connection is not request}
            self._freed.notify_all()

    def _close_silent(self) -> None:
        silent = [link for link in self._links if link.silent()]
        if silent:
            _shut(min(silent, key=lambda link: link.since).connection)

    @staticmethod
    def _refuse(request: socket.socket) -> None:
        wrong = {"message": "too many connections; try again later.", "type": "server_error", "param": None, "code": "busy"}
        text = json.dumps({"error": wrong}).encode()
        head = b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nRetry-After: 1\r\nConnection: close\r\n"
        with suppress(OSError):
            request.settimeout(1.0)
            request.sendall(head + b"Content-Length: %d\r\n\r\n%s" % (len(text), text))

    def shutdown(self) -> None:
        self.ending = True
        super().shutdown()

    def part(self, seconds: float) -> None:
        """Closes connections without a request, and gives the others so many seconds to hear their answer."""
        self.ending = True
        deadline = time.monotonic() + seconds
        with self._freed:
            for link in self._links:
                if not link.busy:
                    _shut(link.connection)
            while self._links and time.monotonic() < deadline:
                self._freed.wait(max(deadline - time.monotonic(), 0.0))

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that went away is no error; anything else is told where the server was started."""
        if not isinstance(sys.exc_info()[1], (ConnectionError, TimeoutError)):
            traceback.print_exc(file=sys.stderr)


def most_files() -> int:
    """How many files the process may have open; the limit is raised as far as the system lets it."""
    try:
        import resource
    except ImportError:  # not on Windows
        return MOST_CONNECTIONS + SPARE_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_CONNECTIONS + SPARE_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
            soft = most
        except (ValueError, OSError):
            pass
    return wanted if soft == resource.RLIM_INFINITY else soft


def _shut(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)  # wakes the thread that reads from it


class TimedReader(io.RawIOBase):
    """Reads from a socket until a moment, however the bytes are spread: a byte now and then wins no time."""

    def __init__(self, connection: socket.socket):
        self.connection, self.deadline = connection, time.monotonic() + KEPT_OPEN

    def within(self, seconds: float) -> None:
        self.deadline = time.monotonic() + seconds

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("the client took too long")
        self.connection.settimeout(left)
        return self.connection.recv_into(buffer)


class TimedHandler(BaseHTTPRequestHandler):
    """One connection, with a time for everything."""

    server: BoundedServer
    rfile: io.BufferedReader
    disable_nagle_algorithm = True
    """Head and body are written one after the other; the second must not wait until the first was acknowledged."""

    def setup(self) -> None:
        super().setup()
        self.link = self.server.link(self.request)
        self.timed = TimedReader(self.connection)
        self.rfile.close()
        self.rfile = io.BufferedReader(self.timed)

    def handle_one_request(self) -> None:
        """Waits for a request, then reads and answers it."""
        self.link.turn(busy=False)
        self.timed.within(KEPT_OPEN)
        try:
            if not self.rfile.peek(1):
                self.close_connection = True
                return
            self.link.turn(busy=False)  # it has begun to ask: what was read of that does not show in the connection any more
            self.timed.within(HEAD_SECONDS)
            super().handle_one_request()
            self.close_connection |= self.server.ending
        except (ConnectionError, TimeoutError):
            self.close_connection = True

    def read_body(self, length: int) -> bytes:
        self.timed.within(BODY_SECONDS + length / SLOWEST)
        found = self.rfile.read(length)
        if len(found) < length:
            raise ConnectionAbortedError("the client went away in the middle of its request")
        return found

    def write(self, data: bytes) -> None:
        self.connection.settimeout(BODY_SECONDS + len(data) / SLOWEST)
        self.wfile.write(data)

    def gone(self) -> bool:
        """Whether the client has closed the connection."""
        return readable(self.connection) and self.connection.recv(1, socket.MSG_PEEK) == b""

    def take_leave(self) -> None:
        """Lets a client whose request was not read to its end read the answer: closing at once would reset the connection."""
        with suppress(OSError):
            self.connection.shutdown(socket.SHUT_WR)
            self.timed.within(PARTING)
            while self.timed.readinto(bytearray(2**16)):
                pass
