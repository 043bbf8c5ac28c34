"""Starting, stopping and resuming runs from the page, where the board was told to allow it.

A run is a process of its own, started from a list of words and never through a shell, in a session of its own: it goes on when the
board ends. Only methods of the catalogue and tasks by name can be started; files of code are for the command line. A run that is
resumed runs the code that it holds: what this machine did not write is shown first, and runs only if it was agreed to.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from upslope.board import notes, safe_files
from upslope.board.answers import answer, failure
from upslope.board.index import Runs
from upslope.board.launch import Launcher
from upslope.board.run_code import NeedsTrust, read_run_code
from upslope.board.run_summary import read_object
from upslope.errors import UserError, did_you_mean
from upslope.plain_data import JsonDict
from upslope.runtime import process_file, trust

MOST_BODY = 64 * 1024
PATIENCE = 60.0
"""Seconds in which a run should have made its folder, or said why not."""
TASK = "reverse"
RESUMABLE = ("stopped", "crashed")
FIELDS = {"method": str, "task": str, "steps": int, "seed": int, "set": dict, "settings": dict}


def add_control(app: FastAPI, runs: Runs, allowed: bool) -> None:
    """The routes; without leave they say so."""
    starter = Starter(runs)

    def route(path: str, act: Any) -> None:
        async def answered(request: Request) -> Response:
            if not allowed:
                return failure(
                    403, "this board only looks. Start it with --allow-control to start, stop and resume runs and to write notes."
                )
            body = await _body(request)
            if isinstance(body, Response):
                return body
            try:
                return answer(await run_in_threadpool(act, body))
            except NeedsTrust as needed:
                return answer({"error": str(needed), "code": needed.code}, 409)

        app.add_api_route(path, answered, methods=["POST"])

    route("/api/start", starter.start)
    route("/api/stop", starter.stop)
    route("/api/resume", starter.resume)
    route("/api/notes", lambda asked: notes.write_notes(runs.root, runs.find(_run_of(asked)).parts, asked))


async def _body(request: Request) -> JsonDict | Response:
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
        self.runs, self.launcher = runs, Launcher(patience)
        self._lock = threading.Lock()
        self._starting: set[str] = set()

    def start(self, asked: JsonDict) -> JsonDict:
        """Checks what was asked, starts it, and answers when the run has its folder or has said why it cannot."""
        words = train_words(asked)
        folder = self._new_folder(f"{asked['method']}-{asked.get('task', TASK).removeprefix('gym:')}-{asked.get('seed', 0)}")
        try:
            self.launcher.begin([*words, "--out", str(folder), "--quiet"], folder)
        except UserError:
            with suppress(OSError):
                folder.rmdir()
            raise
        return {"id": folder.relative_to(self.runs.root).as_posix()}

    def resume(self, asked: JsonDict) -> JsonDict:
        """Goes on with a run that was stopped; answers when it is under way.

        Raises:
            NeedsTrust: if it would run code that this machine did not write and that was not agreed to, digest by digest.
        """
        run, agreed = _run_of(asked), _digests_of(asked)
        with self._lock:
            status = self.runs.record(run)["status"]
            if status not in RESUMABLE or run in self._starting:
                raise UserError(f"{run!r} is {'being resumed' if status in RESUMABLE else status}; it cannot be resumed.")
            self._starting.add(run)
        try:
            parts = self.runs.find(run).parts
            self._check_code(parts, agreed)
            folder = self.runs.root.joinpath(*parts)
            under_way = lambda: self._worker(run) is not None or (folder / "summary.json").exists()  # noqa: E731
            self.launcher.go_on(["resume", str(folder), "--quiet"], self.runs.root, parts, under_way)
        finally:
            self._starting.discard(run)
        return {"id": run}

    def _check_code(self, parts: tuple[str, ...], agreed: set[str]) -> None:
        """What was agreed to is remembered, not passed on: a file that changes from here on is not what the process may run."""
        code = read_run_code(self.runs.root, parts)
        strange = code.untrusted()
        if strange and agreed != set(strange):
            changed = "The code is no longer what you were asked about. " if agreed else ""
            said = f"{changed}{'/'.join(parts)} holds code that this machine did not write, and resuming would run it."
            raise NeedsTrust(said, code.shown(strange))
        trust.remember(strange)
        if code.untrusted():
            raise UserError(f"{trust.store()} cannot be written, so your agreement cannot be kept. Use 'upslope resume --trust'.")

    def stop(self, asked: JsonDict) -> JsonDict:
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
            with safe_files.folder(self.runs.root, *glance.parts) as at:
                return process_file.worker(read_object(safe_files.read(at, process_file.FILE, 4096)))
        except (OSError, ValueError, RecursionError, safe_files.TooLarge):
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


def train_words(asked: JsonDict) -> list[str]:
    """What was asked as words of the command line, after the library's own checks."""
    from upslope.methods import compose, find
    from upslope.policies.control.networks import in_domains
    from upslope.runtime.settings import Settings, check_names
    from upslope.tasks import domain_of

    for name, value in asked.items():
        if name not in FIELDS:
            raise UserError(f"no field {name!r}.{did_you_mean(name, FIELDS)} There are {', '.join(FIELDS)}.")
        if not isinstance(value, FIELDS[name]) or isinstance(value, bool):
            raise UserError(f"{name} is {value!r}; it must be {_KIND_WORDS[FIELDS[name]]}.")
    spec, task = asked.get("method", ""), asked.get("task", TASK)
    method = find(spec) if "+" not in spec else compose(spec.split("+"))
    _check_task(task)
    settings = {name: asked[name] for name in ("steps", "seed") if name in asked} | asked.get("settings", {})
    check_names(settings, but=("engine",), where=" to be set here")
    knobs = asked.get("set", {})
    for name, value in (settings | knobs).items():
        if not isinstance(value, (bool, int, float, str)):
            raise UserError(f"{name} is {value!r}; it must be a number, a word, true or false.")
    Settings(**settings)
    in_domains(method, domain_of(task)).with_knobs(knobs)
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
    from upslope.tasks.kinds import kind_of, mixture_of

    # gym:MODULE:ENV would import the module.
    foreign = [each for each in mixture_of(task) if kind_of(each) == "data" or parse_spec(each)[0].count(":") > 1]
    if foreign or ".py" in task or task.startswith("-"):
        raise UserError(f"{task!r} cannot be started from the page; give files and modules to 'upslope train --task'.")
    load_task(task)


def _run_of(asked: JsonDict) -> str:
    run = asked.get("run")
    if not isinstance(run, str):
        raise UserError('say which run: {"run": ID}.')
    return run


def _digests_of(asked: JsonDict) -> set[str]:
    """The digests of the code that was agreed to."""
    digests = asked.get("trust", [])
    if not isinstance(digests, list) or not all(isinstance(each, str) for each in digests):
        raise UserError('say what you trust as a list of digests: {"run": ID, "trust": [DIGEST]}.')
    return set(digests)
