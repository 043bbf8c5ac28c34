"""The worker's end of the channel to its run."""

from __future__ import annotations

import os
import socket
import threading
import time

from upslope.runtime.messages import Message, receive, send

ALIVE_SECONDS = 1.0


class WorkerChannel:
    """Hears what the run asks, answers, and says in between that this process is alive, so that the run knows long work from a hung
    process. Where the run is gone, so is this process, whatever it waits for.

    Args:
        number: Of the open socket that the run has passed on.
    """

    def __init__(self, number: int):
        self._socket, self._sending = socket.socket(fileno=number), threading.Lock()

    def say_alive(self) -> None:
        """From now on."""
        threading.Thread(target=self._say_alive, daemon=True).start()

    def hear(self) -> Message:
        return receive(self._socket)

    def tell(self, message: Message) -> None:
        with self._sending:
            send(self._socket, message)

    def _say_alive(self) -> None:
        while True:
            time.sleep(ALIVE_SECONDS)
            try:
                self.tell(Message("alive"))
            except OSError:
                os._exit(0)
