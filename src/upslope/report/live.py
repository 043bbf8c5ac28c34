"""What a run shows while it goes: a live table in a terminal, plain lines elsewhere, and at the end what came of it.

Progress goes to standard error, the result to standard output, so that either can be kept without the other.
"""

from __future__ import annotations

import shutil
import sys
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from shlex import quote
from typing import Any, NamedTuple

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from upslope.errors import Remark
from upslope.learners.nonfinite import IN_A_ROW
from upslope.learners.signal import FIRST_STEPS
from upslope.methods import catalogue
from upslope.plain_data import JsonDict
from upslope.report.curves import sparkline
from upslope.report.words import amount, clock, counted, measured, phase_name
from upslope.run import Run, Watcher
from upslope.setting_up import Components
from upslope.types import Metrics

PLAIN_LINES = 10
"""Lines a run without a terminal writes between its beginning and its end."""
SMOOTHED = 8
"""Steps of which a mean is shown: a reward of few samples jumps."""
FAULT = "fault_"
TOLD_AFTER = 3
"""Steps of this process after which it is said how long the others will take."""
SILENT = 5
"""Steps without any difference in reward after which it is said: by chance that is rare, and such a run learns nothing."""


class Shown(NamedTuple):
    """A metric in the view."""

    key: str
    name: str
    short: str
    write: Callable[[float], str]


def _two(value: float) -> str:
    return f"{value:.2f}"


SHOWN = (
    Shown("reward", "reward", "reward", _two),
    Shown("preferred", "preferred", "preferred", _two),
    Shown("margin", "margin", "margin", _two),
    Shown("logp_chosen", "log-likelihood of the chosen", "logp chosen", _two),
    Shown("logp_rejected", "log-likelihood of the rejected", "rejected", _two),
    Shown("episode_return", "return", "return", lambda value: f"{value:,.1f}"),
    Shown("q_value", "value", "value", lambda value: f"{value:,.1f}"),
    Shown("q_td_error", "TD error", "TD error", lambda value: f"{value:.3g}"),
    Shown("imitation", "imitation", "imitation", lambda value: f"{value:.3g}"),
    Shown("entropy", "entropy", "entropy", _two),
    Shown("kl_start", "KL to the start", "KL", lambda value: f"{value:.3f}"),
    Shown("clip_fraction", "clip fraction", "clip", lambda value: f"{value:.1%}"),
    Shown("age", "age in steps", "age", _two),
    Shown("engine_gap", "engine's log-probabilities from the policy's", "engine gap", lambda value: f"{value:.3f}"),
    Shown("worker_busy", "workers busy", "workers", lambda value: f"{value:.0%}"),
    Shown("scoring_busy", "scorers busy", "scorers", lambda value: f"{value:.0%}"),
    Shown("waited", "waited for rows, s", "waited", _two),
)


class LiveTable(Watcher):
    """Shows a run. Use it in a ``with`` block, which leaves the terminal in order however the run ends.

    Args:
        quiet: show nothing; `run` is still there for whoever asks after an error.
        terminal: whether to draw; left out, it is decided by what standard error is.
    """

    def __init__(self, quiet: bool = False, terminal: bool | None = None):
        self.quiet = quiet
        self.console = Console(stderr=True, highlight=False, force_terminal=terminal)
        self.drawing = not quiet and self.console.is_terminal and not self.console.is_dumb_terminal
        self.run: Run | None = None
        self.history: dict[str, list[float]] = defaultdict(list)
        self.step, self.steps = 0, 0
        self._live: Live | None = None
        self._stepping_since, self._first_step = 0.0, 0
        self._said = 0.0
        self._warmed: tuple[int, float, float] | None = None
        self._silent, self._skipped, self._explained = 0, False, False
        self._stage = 0.0
        self._faults: set[str] = set()

    def __enter__(self) -> LiveTable:
        self._heard = warnings.catch_warnings()
        self._heard.__enter__()
        warnings.simplefilter("always", Remark)
        shown = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
            if issubclass(category, Remark):
                self._line(f"note: {message}")
            else:
                shown(message, category, *where, **more)

        warnings.showwarning = show
        return self

    def __exit__(self, *problem: object) -> None:
        self._heard.__exit__(None, None, None)
        self._stop_drawing()

    # -- what the run tells ----------------------------------------------------------------------------------------------

    tells_remarks = True

    def began(self, run: Run, components: Components) -> None:
        self.run, self.steps = run, run.plan.settings.steps or 0
        self._line(headline(run, components))
        for line in run.estimate.lines() if run.estimate is not None else ():
            self._line(line)
        for remark in getattr(components.task, "remarks", ()):
            self._line(f"note: {remark}")

    def warming(self, step: int, accuracy: float, target: float) -> None:
        told = f"warm start  step {step:>4}  accuracy {accuracy:.2f}, until {target:.2f}"
        reached = accuracy >= target
        self._warmed = None if reached else (step, accuracy, target)
        self._draw(None if reached else _bar_line(told, accuracy, target))
        if reached or (not self.drawing and self._is_time()):
            self._line(told)

    def _say_if_cold(self) -> None:
        """A warm start that ended short of its target."""
        if self._warmed is not None:
            step, accuracy, target = self._warmed
            self._line(f"note: the warm start ended after {step} steps at accuracy {accuracy:.2f}; {target:.2f} was wanted.")
            self._warmed = None

    def _say_if_silent(self, step: int, metrics: Metrics) -> None:
        """Nothing learned for a while, and why: rewards that never differ within a group have no advantage. Of its first steps the
        run itself says so, with examples."""
        self._silent = self._silent + 1 if metrics.get("constant_groups") == 1 and metrics.get("learning") == 0 else 0
        if self._silent == SILENT and step != FIRST_STEPS:
            earned = self.history["reward"][-1]
            why = "is never earned" if earned == 0 else "is always earned" if earned == 1 else "never differs"
            cure = "Try easier problems, a better start (--warm-start, --model) or a reward for parts of an answer"
            harder = "Try harder problems, or a lower --warm-start"
            self._line(
                f"note: nothing was learned in the last {SILENT} steps: the reward {why}, so the answers of a group do not differ. "
                f"{harder if earned == 1 else cure}."
            )

    def _say_if_skipped(self, step: int, metrics: Metrics) -> None:
        """An update whose gradient was not finite: at the first of a series."""
        share, before, self._skipped = metrics.get("skipped_updates", 0.0), self._skipped, bool(metrics.get("skipped_updates"))
        if not share or before:
            return
        file = self.run.path / "nonfinite" / f"step-{step:06d}.safetensors" if self.run is not None else None
        kept = f" Its rows are in {file}." if file is not None and file.exists() else ""
        which = "the update" if share == 1 and metrics.get("updates") == 1 else f"{share:.0%} of the updates"
        self._line(
            f"warning: the gradient was not finite in step {step}; {which} was skipped and the weights stayed as they were.{kept} "
            f"After {IN_A_ROW} in a row the run ends."
        )

    def _say_faults(self, step: int, metrics: Metrics) -> None:
        """What went wrong with those who work for the run, each kind once: the summary counts them all."""
        for key in sorted(key for key in metrics if key.startswith(FAULT) and metrics[key] and key not in self._faults):
            self._faults.add(key)
            kind = key.removeprefix(FAULT).replace("_", " ")
            self._line(f"note: in step {step}: {kind}; the run goes on. Such faults are counted in summary.json and metrics.jsonl.")

    def _say_how_long(self, step: int) -> None:
        """After the third step what is left will take: the first one, which compiles and allocates, tells nothing."""
        taken, left = self.history.get("seconds", []), self.steps - step
        if step - self._first_step == TOLD_AFTER and left > 0 and len(taken) >= TOLD_AFTER:
            each = sum(taken[1 - TOLD_AFTER :]) / (TOLD_AFTER - 1)
            steps = f"{left:,} step{'' if left == 1 else 's'} of {each:.2g} s"
            self._line(f"about {clock(each * left)} to go: {steps}, evaluations not counted")

    def _say_if_next_stage(self, step: int, metrics: Metrics) -> None:
        """Which stage of the method begins with this step, or goes on."""
        before, self._stage = self._stage, metrics.get("stage", 0.0)
        if self._stage != before and self.run is not None:
            self._line(f"step {step}: {phase_name(self.run.plan.method, self._stage)}")

    def evaluating(self, done: int, of: int = 0) -> None:
        self._draw(_bar_line(f"evaluating  {done}{f' of {of}' if of else ''}", done, max(of, 1)))

    def evaluated(self, step: int, result: JsonDict) -> None:
        self._draw(None)
        self._say_if_cold()
        when = "at the start" if step == 0 else f"after step {step}"
        self._line(f"evaluation  {measured(result)}  {counted(result)}, {when}")

    def stepped(self, step: int, metrics: Metrics) -> None:
        if not self._stepping_since:  # the first step counts from its own beginning
            self._stepping_since, self._first_step = time.perf_counter() - metrics.get("seconds", 0.0), step - 1
            self._recall(step)
        self.step = step
        self._remember(metrics)
        self._draw(None)
        self._say_if_silent(step, metrics)
        self._say_if_skipped(step, metrics)
        self._say_if_next_stage(step, metrics)
        self._say_faults(step, metrics)
        self._say_how_long(step)
        if not self.drawing and (step == self.steps or step * PLAIN_LINES // self.steps > (step - 1) * PLAIN_LINES // self.steps):
            self._line(self._plain())

    def _recall(self, step: int) -> None:
        """A run that goes on shows the means and curves it would have shown had it not stopped."""
        if step > 1 and self.run is not None:
            earlier = {each["step"]: each for each in self.run.folder.read("metrics.jsonl") if each.get("kind") == "step"}
            for number in sorted(number for number in earlier if number < step):
                self._remember({key: value for key, value in earlier[number].items() if key != "step"})

    def _remember(self, metrics: Mapping[str, Any]) -> None:
        for key, value in metrics.items():
            if isinstance(value, (int, float)) and value == value:
                self.history[key].append(float(value))

    def ended(self, summary: JsonDict) -> None:
        self._stop_drawing()
        if not self.quiet and self.run is not None:
            print("\n".join(closing(self.run, summary)), flush=True)

    # -- how it looks ----------------------------------------------------------------------------------------------------

    def _view(self) -> RenderableType:
        left = "  ".join(filter(None, (self._left(), f"means of the last {SMOOTHED} steps")))
        head = _bar_line(f"step {self.step:>{len(str(self.steps))}} of {self.steps}", self.step, self.steps, left)
        grid = Table.grid(padding=(0, 2))
        for _ in range(3):
            grid.add_column()
        for shown in self._present():
            values = self.history[shown.key]
            grid.add_row(f"  {shown.name}", Text(shown.write(_recent(values)), justify="right"), Text(sparkline(values), "cyan"))
        if speed := self._speed("tokens/s"):
            grid.add_row(f"  {speed[1]}", Text(speed[0], justify="right"), "")
        return Group(head, grid)

    def _plain(self) -> str:
        words = [f"step {self.step:>{len(str(self.steps))}}/{self.steps}"]
        words += [f"{shown.short} {shown.write(_recent(self.history[shown.key]))}" for shown in self._present()]
        if speed := self._speed("tok/s"):
            words.append(" ".join(speed))
        told = f"(means of the last {SMOOTHED} steps)" if len(words) > 1 and not self._explained else ""
        self._explained |= bool(told)
        return "  ".join(filter(None, [*words, self._left(), told]))

    def _speed(self, tokens: str) -> tuple[str, str] | None:
        """How fast it goes, and in what: updates while nobody acts."""
        acts, speed = self.history.get("tokens_per_second"), self.history.get("updates_per_second")
        if speed and not (acts and any(acts[-SMOOTHED:])):
            return f"{_recent(speed):,.0f}", "updates/s"
        unit = "steps/s" if "env_steps" in self.history else tokens
        return (f"{_recent(acts):,.0f}", unit) if acts else None

    def _present(self) -> list[Shown]:
        return [shown for shown in SHOWN if self.history.get(shown.key)]

    def _left(self) -> str:
        done = self.step - self._first_step
        if done <= 0 or self.step >= self.steps:
            return ""
        return f"{clock((time.perf_counter() - self._stepping_since) / done * (self.steps - self.step))} left"

    def _is_time(self) -> bool:
        """Every five seconds, for what has no number of steps to divide."""
        if time.perf_counter() - self._said < 5:
            return False
        self._said = time.perf_counter()
        return True

    def _draw(self, below: RenderableType | None) -> None:
        """The table as it stands, and below it what goes on besides the steps."""
        if not self.drawing:
            return
        if self._live is None:
            self._live = Live(console=self.console, refresh_per_second=4, transient=False)
            self._live.start()
        self._live.update(Group(*([self._view()] if self.step else []), *([] if below is None else [below])))

    def _stop_drawing(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _line(self, text: str) -> None:
        """A line that stays. What is being drawn moves on below it."""
        if self.quiet:
            return
        if self.run is not None and self.run.plan.settings.sandbox == "weak":
            text = f"{text}  [weak sandbox]"
        if self.drawing:
            self.console.print(Text(text), soft_wrap=True)
            return
        try:
            print(text, file=sys.stderr, flush=True)
        except OSError:  # whoever was reading has left; that is no reason to lose the run
            self.quiet = True


@contextmanager
def passing_line() -> Iterator[Callable[[str], None]]:
    """Shows on a terminal what is being done at the moment, and leaves nothing behind."""
    console = Console(stderr=True, highlight=False)
    if not console.is_terminal:
        yield lambda text: None
        return
    with console.status("") as status:
        yield lambda text: status.update(Text(text))


# -- words -----------------------------------------------------------------------------------------------------------------


def headline(run: Run, components: Components) -> str:
    """What runs, on what: ``dhpo on reverse, tiny (0.9 M parameters), cpu, 1 thread, seed 3``."""
    plan, policy = run.plan, components.policy
    parameters = sum(parameter.numel() for group in policy.trainable().values() for parameter in group)
    model = plan.model if plan.domain == "text" else "a network"
    threads = plan.settings.threads or 1
    return (
        f"{plan.method.name} on {plan.task_name}, {model} ({amount(parameters)} parameters), {getattr(policy, 'device', 'cpu')}, "
        f"{threads} thread{'s' if threads != 1 else ''}, seed {plan.settings.seed}"
    )


def closing(run: Run, summary: Mapping[str, Any]) -> list[str]:
    """What came of a finished run, and what to try next."""
    evaluations = run.evaluations
    before, after = evaluations[0], evaluations[-1]
    verb = "never saw" if "problems" in after else "never learned from"
    path, upslope = quote(str(run.path)), program()
    kept = run.plan.settings.checkpoint_every != "none"
    shown = f"{upslope} show {run.plan.method.name}" if run.plan.method.name in catalogue() else ""
    board = f"{upslope} board{'' if run.path.parent == Path('runs') else f' {quote(str(run.path.parent))}'}"
    k = " --k 8" if "problems" in after else ""
    further = [f"{upslope} try {path}", f"{upslope} eval {path}{k}"] if kept else []
    lines = [
        f"{summary['score']} {measured(before)} -> {measured(after)} on {counted(after)} it {verb}, in {clock(summary['seconds'])}",
        *([f"ended early: {summary['ended_early']}"] if "ended_early" in summary else []),
        f"report  {run.path / 'report.html'}",
    ]
    return lines + [f"{'' if number else 'next':8}{each}" for number, each in enumerate([*further, *filter(None, [shown]), board])]


def program() -> str:
    """What to type for this command: its name, or the path it was called by where the name is not found."""
    called = Path(sys.argv[0])
    return str(called) if called.name == "upslope" and shutil.which("upslope") is None else "upslope"


def _recent(values: list[float]) -> float:
    last = values[-SMOOTHED:]
    return sum(last) / len(last)


def _bar_line(text: str, done: float, of: float, behind: str = "") -> RenderableType:
    grid = Table.grid(padding=(0, 2))
    bar = ProgressBar(total=of, completed=min(done, of), width=32, complete_style="cyan", finished_style="green")
    grid.add_row(Text(text), bar, Text(behind))
    return grid
