"""Environments in processes of their own, for simulators that take longer than a message.

A worker is a fresh Python that is told over its standard input what to do with its share of the environments, and answers on what
was its standard output. It needs no guard in the user's script, inherits no threads, and ends when its input does: with its
parent, however that ends. An interrupt from the keyboard is the parent's to handle.
"""

from __future__ import annotations

import os
import pickle
import signal
import struct
import subprocess
import sys
import traceback
import weakref
from collections.abc import Sequence
from contextlib import suppress
from itertools import pairwise
from typing import Any, BinaryIO

import numpy as np

from upslope.errors import TaskError, UserError
from upslope.plain_data import JsonDict
from upslope.tasks.gym import Environments, GymTask, Stepped
from upslope.tasks.levels import Level

HEADER = struct.Struct("<Q")
PATIENCE = 5.0
"""Seconds a worker has to end by itself."""


class SpreadEnvironments:
    """The environments of a task dealt to several processes, this one among them; used like `Environments`, with its results.

    Args:
        count: Environments in all; each process has a run of neighbours.
        processes: How many step them, this one included.
    """

    def __init__(self, task: GymTask, count: int, processes: int) -> None:
        self.task = task
        bounds = [count * place // processes for place in range(processes + 1)]
        self._bounds = list(pairwise(bounds))
        self._workers = [_Worker(task, end - begin) for begin, end in self._bounds[1:]]
        try:
            self._own = Environments(task, self._bounds[0][1])
            for worker in self._workers:
                worker.answer()
        except BaseException:
            self.close()
            raise

    def __len__(self) -> int:
        return self._bounds[-1][1]

    def reset(self, which: int, seed: int | None = None, level: Level | None = None) -> np.ndarray:
        """As `Environments.reset`."""
        return self._ask_one("reset", which, seed, level)

    def states(self) -> list[JsonDict] | None:
        """As `Environments.states`."""
        for worker in self._workers:
            worker.ask("states")
        shares = [self._own.states(), *(worker.answer() for worker in self._workers)]
        return None if None in shares else [state for share in shares for state in share]

    def restore(self, which: int, state: JsonDict) -> None:
        """As `Environments.restore`."""
        self._ask_one("restore", which, state)

    def _ask_one(self, action: str, which: int, *arguments: Any) -> Any:
        """What the process of an environment says."""
        place = next(place for place, (begin, end) in enumerate(self._bounds) if begin <= which < end)
        if place == 0:
            return getattr(self._own, action)(which, *arguments)
        self._workers[place - 1].ask(action, which - self._bounds[place][0], *arguments)
        return self._workers[place - 1].answer()

    def step(self, actions: np.ndarray, which: Sequence[int]) -> Stepped:
        """As `Environments.step`; ``which`` ascends."""
        numbers = np.asarray(which)
        cuts = np.searchsorted(numbers, [begin for begin, _ in self._bounds] + [len(self)])
        busy = []
        for worker, (begin, _), low, high in zip(self._workers, self._bounds[1:], cuts[1:], cuts[2:], strict=False):
            if low < high:
                worker.ask("step", actions[low:high], (numbers[low:high] - begin).tolist())
                busy.append(worker)
        found = [self._own.step(actions[: cuts[1]], numbers[: cuts[1]].tolist())] if cuts[1] else []
        found += [worker.answer() for worker in busy]
        return Stepped(*(np.concatenate(columns) for columns in zip(*found, strict=True)))

    def close(self) -> None:
        for worker in self._workers:
            worker.close()
        if hasattr(self, "_own"):
            self._own.close()


class _Worker:
    """This side of a worker process."""

    def __init__(self, task: GymTask, count: int) -> None:
        self.task = task
        surroundings = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        command = [sys.executable, "-c", "from upslope.tasks.env_workers import serve; serve()"]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=surroundings)
        self._finalizer = weakref.finalize(self, _end, self.process)
        self.ask(*sys.path)  # before anything whose module must be found
        self.ask(task.source, task.options, count)

    def ask(self, *message: Any) -> None:
        try:
            packed = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise TaskError(f"{self.task.name} cannot be told to another process ({error}). Define it at the top of a module "
                            "of its own, or use --env-workers 1.") from error  # fmt: skip
        try:
            _send(self.process.stdin, packed)  # type: ignore[arg-type]
        except OSError:
            raise self._gone() from None

    def answer(self) -> Any:
        """What came of the last question."""
        try:
            fine, found = pickle.loads(_receive(self.process.stdout))  # type: ignore[arg-type]
        except EOFError:
            raise self._gone() from None
        if not fine:
            raise TaskError(f"{self.task.name} failed in a process of its own: {found.removeprefix(f'{self.task.name} ')}")
        return found

    def close(self) -> None:
        self._finalizer()

    def _gone(self) -> TaskError:
        try:
            code = self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:  # it lives, and yet has closed its pipe
            self.process.kill()
            code = self.process.wait()
        why = {-signal.SIGKILL: " (killed, as when memory runs out)", -signal.SIGSEGV: " (a fault in the simulator's own code)"}
        return TaskError(f"a process that stepped {self.task.name} has ended by itself, with code {code}{why.get(code, '')}. "
                         "With --env-workers 1 the environment runs in this process and may say why.")  # fmt: skip


def _end(process: subprocess.Popen[bytes]) -> None:
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with suppress(OSError):  # it had ended before it read all
                pipe.close()
    try:
        process.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def serve() -> None:
    """The worker's side: makes environments and does what it is told until its input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    told, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what an environment prints must not get among the answers
    envs: Environments | None = None
    with suppress(EOFError, BrokenPipeError):
        sys.path[:] = pickle.loads(_receive(told))
        while True:
            message = _receive(told)
            try:
                if envs is None:
                    source, options, count = pickle.loads(message)
                    envs, found = Environments(GymTask(source, **options), count), None
                else:
                    action, *arguments = pickle.loads(message)
                    found = getattr(envs, action)(*arguments)
                answer = (True, tuple(found) if isinstance(found, Stepped) else found)
            except UserError as error:
                answer = (False, str(error))
            except Exception:  # not the environment's: those are told in words
                answer = (False, f"\n{traceback.format_exc()}")
            _send(answers, pickle.dumps(answer, pickle.HIGHEST_PROTOCOL))


def _send(pipe: BinaryIO, packed: bytes) -> None:
    pipe.write(HEADER.pack(len(packed)) + packed)
    pipe.flush()


def _receive(pipe: BinaryIO) -> bytes:
    header = pipe.read(HEADER.size)
    if len(header) < HEADER.size:
        raise EOFError
    (size,) = HEADER.unpack(header)
    packed = pipe.read(size)
    if len(packed) < size:
        raise EOFError
    return packed
