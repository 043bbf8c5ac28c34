"""Starting, stopping and resuming runs from the page, where the board was told to allow it.

A run is a process of its own, started from a list of words and never through a shell, in a session of its own: it goes on when the
board ends. Only methods of the catalogue and tasks by name can be started; files of code are for the command line.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from upslope.board import inside
from upslope.board.answers import answer, failure
from upslope.board.glance import read_object
from upslope.board.index import Runs
from upslope.errors import UserError, did_you_mean
from upslope.runtime import alive

MOST_BODY = 64 * 1024
PATIENCE = 60.0
"""Seconds in which a run should have made its folder, or said why not."""
LOG = "output.log"
"""What a run started from the page prints, in its folder."""
TASK = "reverse"
FIELDS = {"method": str, "task": str, "steps": int, "seed": int, "set": dict, "settings": dict}


def add_control(app: FastAPI, runs: Runs, allowed: bool) -> None:
    """The routes; without leave they say so."""
    starter = Starter(runs)

    def route(path: str, act: Any) -> None:
        async def answered(request: Request) -> Response:
            if not allowed:
                return failure(403, "this board only looks. Start it with --allow-control to start, stop and resume runs.")
            body = await _body(request)
            return body if isinstance(body, Response) else await run_in_threadpool(lambda: answer(act(body)))

        app.add_api_route(path, answered, methods=["POST"])

    route("/api/start", starter.start)
    route("/api/stop", starter.stop)
    route("/api/resume", starter.resume)


async def _body(request: Request) -> dict[str, Any] | Response:
    """What was asked, as an object. A form on somebody's page can send neither the header nor JSON."""
    if request.headers.get("x-upslope") != "board":
        return failure(403, "the header 'X-Upslope: board' is missing.")
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        return failure(415, "the request must be application/json.")
    data = b""
    async for chunk in request.stream():
        data += chunk
        if len(data) > MOST_BODY:
            return failure(413, f"the request has more than {MOST_BODY:,} bytes.")
    try:
        found = json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError):
        return failure(400, "the request is not JSON.")
    return found if isinstance(found, dict) else failure(400, "the request must be a JSON object.")


class Starter:
    """Starts and ends the processes of runs."""

    def __init__(self, runs: Runs, patience: float = PATIENCE):
        self.runs, self.patience = runs, patience
        self._lock = threading.Lock()
        self._starting: set[str] = set()
        self._children: list[subprocess.Popen[bytes]] = []

    def start(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Checks what was asked, starts it, and answers when the run has its folder or has said why it cannot."""
        words = train_words(asked)
        folder = self._new_folder(f"{asked['method']}-{asked.get('task', TASK).removeprefix('gym:')}-{asked.get('seed', 0)}")
        try:
            self._launch([*words, "--out", str(folder), "--quiet"], folder, lambda: (folder / "run.toml").exists())
        except UserError:
            _remove_if_empty(folder)
            raise
        return {"id": folder.relative_to(self.runs.root).as_posix()}

    def resume(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Goes on with a run that was stopped; answers when it is under way."""
        run = _run_of(asked)
        with self._lock:
            status = self.runs.record(run)["status"]
            if status != "stopped" or run in self._starting:
                raise UserError(f"{run!r} is {'being resumed' if status == 'stopped' else status}; it cannot be resumed.")
            self._starting.add(run)
        try:
            folder = self.runs.root.joinpath(*self.runs.find(run).parts)
            under_way = lambda: self._worker(run) is not None or (folder / "summary.json").exists()  # noqa: E731
            self._launch(["resume", str(folder), "--quiet"], folder, under_way)
        finally:
            self._starting.discard(run)
        return {"id": run}

    def stop(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Asks a run to stop after its step, as Ctrl-C does; asked again, it ends at once."""
        run = _run_of(asked)
        pid = self._worker(run)
        if pid is None:
            raise UserError(f"{run!r} is not under way on this machine, so there is nothing to stop.")
        try:
            os.kill(pid, signal.SIGINT)
        except OSError as problem:
            raise UserError(f"{run!r} cannot be stopped: {problem.strerror}.") from None
        return {"id": run}

    def _worker(self, run: str) -> int | None:
        """The process that works on a run, by what its folder says this moment."""
        glance = self.runs.find(run)
        try:
            with inside.folder(self.runs.root, *glance.parts) as at:
                return alive.worker(read_object(inside.read(at, alive.FILE, 4096)))
        except (OSError, ValueError, RecursionError, inside.TooLarge):
            return None

    def _new_folder(self, name: str) -> Path:
        name = re.sub(r"[^\w.+-]+", "-", name.replace("=", ""), flags=re.ASCII).strip(".-")[:100]
        for number in itertools.count(1):
            folder = self.runs.root / (name if number == 1 else f"{name}-{number}")
            try:
                folder.mkdir(parents=True)
                break
            except FileExistsError:
                continue
            except OSError as problem:
                raise UserError(f"{folder} cannot be made: {problem.strerror}.") from None
        return folder

    def _launch(self, words: list[str], folder: Path, under_way: Callable[[], bool]) -> None:
        """Starts a process and waits until it is under way; one that ends before that is quoted."""
        with self._lock:
            self._children = [child for child in self._children if child.poll() is None]  # buries those that ended
        log = os.open(folder / LOG, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        try:
            child = subprocess.Popen(
                [sys.executable, "-m", "upslope", *words], stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        finally:
            os.close(log)
        with self._lock:
            self._children.append(child)
        until = time.monotonic() + self.patience
        while not under_way() and time.monotonic() < until:
            if child.poll() is not None and not under_way():
                raise UserError(last_words(folder) or f"the run ended with code {child.returncode} and without a word.")
            time.sleep(0.05)


def train_words(asked: dict[str, Any]) -> list[str]:
    """What was asked as words of the command line, after the library's own checks."""
    from upslope.methods import compose, find
    from upslope.runtime.settings import Settings

    for name, value in asked.items():
        if name not in FIELDS:
            raise UserError(f"no field {name!r}.{did_you_mean(name, FIELDS)} There are {', '.join(FIELDS)}.")
        if not isinstance(value, FIELDS[name]) or isinstance(value, bool):
            raise UserError(f"{name} is {value!r}; it must be {_KIND_WORDS[FIELDS[name]]}.")
    spec, task = asked.get("method", ""), asked.get("task", TASK)
    method = find(spec) if "+" not in spec else compose(spec.split("+"))
    _check_task(task)
    settings = {name: asked[name] for name in ("steps", "seed") if name in asked} | asked.get("settings", {})
    known = Settings.__dataclass_fields__
    for name in settings:
        if name not in known or name == "engine":
            raise UserError(f"no setting named {name!r} to be set here.{did_you_mean(name, known)}")
    knobs = asked.get("set", {})
    for name, value in (settings | knobs).items():
        if not isinstance(value, (bool, int, float, str)):
            raise UserError(f"{name} is {value!r}; it must be a number, a word, true or false.")
    Settings(**settings)
    method.for_domain("control" if task.startswith("gym:") else "text").with_knobs(knobs)
    words = ["train", spec, "--task", task]
    for path, value in knobs.items():
        words += ["--set", f"{path}={value}"]
    for name, value in settings.items():
        flag = name.replace("_", "-")
        words.append(f"--{'' if value else 'no-'}{flag}" if isinstance(value, bool) else f"--{flag}={value}")
    return words


_KIND_WORDS = {str: "text", int: "a whole number", dict: "an object"}


def _check_task(task: str) -> None:
    from upslope.tasks import load_task, parse_spec

    # gym:MODULE:ENV would import the module.
    if ".py" in task or task.endswith(".jsonl") or task.startswith("-") or parse_spec(task)[0].count(":") > 1:
        raise UserError(f"{task!r} cannot be started from the page; give files and modules to 'upslope train --task'.")
    load_task(task)


def _run_of(asked: dict[str, Any]) -> str:
    run = asked.get("run")
    if not isinstance(run, str):
        raise UserError('say which run: {"run": ID}.')
    return run


def last_words(folder: Path) -> str:
    """What a run that ended said last, without the name in front."""
    try:
        said = (folder / LOG).read_bytes()[-4000:].decode("utf-8", "replace").strip()
    except OSError:
        return ""
    return said.rpartition("upslope: ")[2] if "upslope: " in said else said.splitlines()[-1] if said else ""


def _remove_if_empty(folder: Path) -> None:
    (folder / LOG).unlink(missing_ok=True)
    with suppress(OSError):
        folder.rmdir()
