"""The routes of the board. Plain functions: the server runs each request in a thread, and what threads share has locks."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

from fastapi import FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from upslope import __version__
from upslope.board import contests, crashes, plan_view, problems, recordings, safe_files, workers
from upslope.board.access import Door, Guard
from upslope.board.answers import answer, asset, failure
from upslope.board.bands import bands
from upslope.board.catalogue import catalogue_data
from upslope.board.connections import Limits
from upslope.board.control import add_control
from upslope.board.curves import AXES, curve_record
from upslope.board.facts import Facts
from upslope.board.index import Gone, Runs
from upslope.board.large_answers import LargeAnswers
from upslope.board.logs import Budget, Logs
from upslope.board.sheets import Sheets
from upslope.errors import UserError, did_you_mean
from upslope.plain_data import JsonDict

MOST_RUNS = 500
"""Runs whose curves can be asked for at once."""
MOST_STEP = 10**12
QUICK = 2**20
"""Bytes of a log that are read to say which metrics it has; of a longer one some lines say it, until all of it is read."""
PATIENCE = 0.3
"""Seconds that logs are read for while somebody waits for the list."""
MOST_PLANS = 2000
"""Plans kept in memory."""

RunIds = Annotated[list[str], Query(alias="run")]
Points = Annotated[int, Query(ge=2, le=20_000)]
Step = Annotated[int, Query(ge=0, lt=MOST_STEP)]
PerhapsStep = Annotated[int | None, Query(ge=0, lt=MOST_STEP)]


class Refused(Exception):
    """A request that makes no sense."""

    def __init__(self, error: str, status: int = 400):
        super().__init__(error)
        self.status = status


class Board:
    """What the routes share."""

    def __init__(self, root: Path):
        self.runs = Runs(root)
        self.logs = Logs(self.runs)
        self.facts = Facts(self.runs)
        self.sheets = Sheets()
        self.shown_root = str(root)
        self._plans: dict[str, tuple[Any, JsonDict]] = {}

    def look_at_all(self) -> None:
        """Reads what the list and its names need, a little at a time."""
        while self.runs.listing(patience=PATIENCE)["reading"]:
            time.sleep(0.01)  # others want to know what there is so far
        self.facts.answer()

    def judged_in(self, run: str) -> str:
        """The environment that a run's recorded episodes were played in."""
        plan = self.plan(run)
        return str(plan["settings"].get("test_task") or plan.get("task", ""))

    def plan(self, run: str) -> JsonDict:
        """All of a run's ``run.toml``; read again only if it changed, since bands ask for hundreds."""
        glance = self.runs.find(run)
        stamp = glance.stamps.get("run.toml")
        known = self._plans.get(run)
        if known is not None and known[0] == stamp:
            return known[1]
        try:
            plan = plan_view.read_whole_plan(self.runs.root, glance.parts)
        except FileNotFoundError:
            raise Gone(run) from None
        except (OSError, ValueError, safe_files.TooLarge) as problem:
            raise Refused(f"run.toml of {run!r} cannot be read: {problem}.", 422) from None
        if len(self._plans) >= MOST_PLANS:
            self._plans.clear()
        self._plans[run] = (stamp, plan)
        return plan


def make_app(root: Path, door: Door, allow_control: bool = False, limits: Limits | None = None) -> Guard:
    """The board of a folder of runs, as an ASGI application."""
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None, title="upslope board")
    board = Board(root)
    # The first look takes the longest; it begins before anybody asks, and whoever asks meanwhile gets what it has seen.
    threading.Thread(target=board.look_at_all, name="upslope-board-look", daemon=True).start()
    _add_pages(app)
    _add_runs(app, board, allow_control)
    _add_curves(app, board)
    _add_recordings(app, board)
    _add_plans(app, board)
    add_control(app, board.runs, allow_control)
    _add_errors(app)
    return Guard(LargeAnswers(app, limits or Limits()), door)  # around everything, so that no answer leaves without its headers


def _add_pages(app: FastAPI) -> None:
    @app.get("/")
    def index(request: Request) -> Response:
        return asset(request, "index.html")

    @app.get("/page/{name:path}")
    def page(request: Request, name: str) -> Response:
        return asset(request, name)


def _add_runs(app: FastAPI, board: Board, allow_control: bool) -> None:
    @app.get("/api/runs")
    def runs(since: int | None = None) -> Response:
        about = {"root": board.shown_root, "allow_control": allow_control, "version": __version__}
        return answer(about | board.runs.listing(since, PATIENCE))

    @app.get("/api/facts")
    def facts() -> Response:
        return answer(board.facts.answer())

    @app.get("/api/crash")
    def crash(run: str) -> Response:
        return answer(crashes.crash(board.runs.root, board.runs.find(run)))

    @app.get("/api/keys")
    def keys(run: str) -> Response:
        known = board.runs.find(run).log
        with board.logs.table(run, Budget(QUICK)) as table:
            step, evaluation, behind = {*table.steps.names}, {*table.evaluations.names}, table.behind
            bad_lines = table.bad_lines
        if behind:  # of some lines, and what the list knows from both ends of the log
            step |= {*known.get("keys", ())} - {"kind", "step"}
            evaluation |= {"score"} if known.get("before") is not None else set()
        return answer({"step": sorted(step), "evaluation": sorted(evaluation), "bad_lines": bad_lines, "behind": behind})


def _add_curves(app: FastAPI, board: Board) -> None:
    @app.get("/api/curves")
    def curves(
        run: RunIds, key: str, x: str = "step", points: Points = 1000,
        begin: Annotated[float | None, Query(alias="from")] = None, end: Annotated[float | None, Query(alias="to")] = None,
    ) -> Response:  # fmt: skip
        check_axis(x)
        found, gone, budget = [], [], Budget()
        for each in distinct(run):
            try:
                with board.logs.table(each, budget) as table:
                    found.append(curve_record(each, table, key, x, points, (begin, end)))
            except Gone:
                gone.append(each)
        if not found:
            raise Gone(gone[0])
        return answer({"curves": found, "gone": gone})

    @app.get("/api/bands")
    def many(
        run: RunIds, key: str, x: str = "step", points: Points = 300,
        begin: Annotated[float | None, Query(alias="from")] = None, end: Annotated[float | None, Query(alias="to")] = None,
    ) -> Response:  # fmt: skip
        check_axis(x)
        plans, gone = {}, []
        for each in distinct(run):
            try:
                with as_a_run_writes_it(each):
                    plans[each] = board.plan(each)
                    plan_view.experiment(plans[each])
            except Gone:
                gone.append(each)
            except Refused:
                plans.pop(each, None)  # a broken run belongs to no group
        if len(gone) == len(set(run)):
            raise Gone(gone[0])
        return answer({"bands": bands(plans, board.logs, key, x, points, (begin, end)), "gone": gone})


@contextmanager
def as_a_run_writes_it(run: str) -> Iterator[None]:
    """Whatever goes wrong with a plan that can be read is the fault of what stands in it."""
    try:
        yield
    except (TypeError, ValueError, AttributeError, KeyError, IndexError, RecursionError):
        raise Refused(f"run.toml of {run!r} is not as a run writes it.", 422) from None


def distinct(runs: list[str]) -> list[str]:
    found = list(dict.fromkeys(runs))
    if len(found) > MOST_RUNS:
        raise Refused(f"{len(found)} runs at once; the most is {MOST_RUNS}.")
    return found


def check_axis(x: str) -> None:
    if x not in AXES:
        raise Refused(f"no axis {x!r}.{did_you_mean(x, AXES)} There are {', '.join(AXES)}.")


def _add_recordings(app: FastAPI, board: Board) -> None:
    def of(run: str, step: Any, read: Callable[[Path, tuple[str, ...], Any], JsonDict]) -> JsonDict:
        glance = board.runs.find(run)
        try:
            return read(board.runs.root, glance.parts, step)
        except OSError:
            board.runs.record(run)  # says so if the whole run is gone
            raise Refused(f"nothing was recorded at step {step} of {run!r}.", 404) from None

    @app.get("/api/rollouts")
    def rollouts(run: str) -> Response:
        return answer(recordings.rollouts(board.runs.root, board.runs.find(run).parts))

    @app.get("/api/rollout")
    def rollout(run: str, step: Step) -> Response:
        return answer(of(run, step, recordings.rollout))

    @app.get("/api/contests")
    def of_contests(run: str, step: PerhapsStep = None) -> Response:
        return answer(of(run, step, contests.contests))

    @app.get("/api/problems")
    def of_problems(run: str, step: PerhapsStep = None) -> Response:
        return answer(problems.problems(board.runs.root, board.runs.find(run).parts, step))

    @app.get("/api/workers")
    def of_workers(run: str) -> Response:
        glance = board.runs.find(run)
        with board.logs.table(run) as table:
            busy = workers.busy(table)
        return answer(workers.workers(board.runs.root, glance.parts) | {"busy": busy})

    @app.get("/api/episodes")
    def episodes(run: str) -> Response:
        with board.logs.table(run) as table:
            found = curve_record(run, table, "episode_return", "step", 2000, (None, None))
        steps = recordings.episodes(board.runs.root, board.runs.find(run).parts)
        return answer({"steps": steps, "returns": {"step": found["x"], "y": found["y"]}})

    @app.get("/api/episode")
    def episode(run: str, step: Step) -> Response:
        found = of(run, step, recordings.episode)
        sheet = board.sheets.of(board.judged_in(run), found)
        return answer(found | {"frames": sheet.layout, "why": sheet.why})

    @app.get("/api/frames")
    def frames(run: str, step: Step) -> Response:
        sheet = board.sheets.of(board.judged_in(run), of(run, step, recordings.episode))
        if sheet.path is None or not sheet.path.is_file():
            raise Refused(f"there are no pictures of this episode: {sheet.why}", 404)
        return Response(sheet.path.read_bytes(), media_type="image/png")


def _add_plans(app: FastAPI, board: Board) -> None:
    from upslope.methods import catalogue, find
    from upslope.tasks import list_tasks

    @app.get("/api/method")
    def method(run: str | None = None, name: str | None = None) -> Response:
        if run is not None:
            with as_a_run_writes_it(run):
                return answer(plan_view.method_of_run(board.plan(run)))
        if name is None:
            raise Refused("say which method: ?run=ID or ?name=NAME.")
        return answer(plan_view.catalogued(find(name).name))

    @app.get("/api/settings")
    def settings(run: str) -> Response:
        with as_a_run_writes_it(run):
            return answer(plan_view.settings_view(board.plan(run), board.runs.root.joinpath(*board.runs.find(run).parts)))

    @app.get("/api/methods")
    def methods() -> Response:
        keys = ("name", "parent", "family", "differs")
        return answer([{key: getattr(each, key) for key in keys} for each in catalogue().values()])

    @app.get("/api/catalogue")
    def whole_catalogue() -> Response:
        return answer(catalogue_data())

    @app.get("/api/tasks")
    def tasks() -> Response:
        return answer([{"name": each.name, "domain": each.domain, "description": each.description} for each in list_tasks()])


def _add_errors(app: FastAPI) -> None:
    statuses: dict[type[Exception], int] = {Gone: 404, safe_files.TooLarge: 413, recordings.Unreadable: 422, UserError: 400}
    for kind, status in statuses.items():
        app.add_exception_handler(kind, lambda _, problem, status=status: failure(status, str(problem)))  # type: ignore[misc]

    @app.exception_handler(Refused)
    def refused(_: Request, problem: Refused) -> Response:
        return failure(problem.status, str(problem))

    @app.exception_handler(HTTPException)
    def known(request: Request, problem: HTTPException) -> Response:
        said = {404: f"nothing at {request.url.path!r}.", 405: f"{request.url.path!r} does not take {request.method}."}
        return failure(problem.status_code, said.get(problem.status_code, str(problem.detail)))

    @app.exception_handler(RequestValidationError)
    def asked_wrongly(_: Request, problem: RequestValidationError) -> Response:
        first = problem.errors()[0]
        return failure(400, f"{'.'.join(map(str, first['loc'][1:])) or 'the request'}: {first['msg']}.")

    @app.exception_handler(Exception)
    def failed(_: Request, problem: Exception) -> Response:
        return failure(500, f"the board failed: {type(problem).__name__}. Its own output says more.")
