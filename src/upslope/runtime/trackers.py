"""Metrics, evaluations and samples to TensorBoard, Weights & Biases, trackio or MLflow, or to an object of the user's own.

A tracker is named with its options behind a colon, ``wandb:project=mine,group=sweep``. All are optional.
"""

from __future__ import annotations

import importlib.util
import json
import uuid
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from upslope.errors import MissingExtra, Remark, UserError, did_you_mean, install_extra
from upslope.fields import shown
from upslope.plain_data import JsonDict
from upslope.runtime.files import write_json
from upslope.runtime.tracker_kinds import MLflow, TensorBoard, Trackio, WandB

IDS = "trackers.json"
"""In the run's folder: under which id each tracker knows the run."""


class Tracker(Protocol):
    """Takes what a run measures. Only `log` must be there; the others are called where an object has them.

    ``begin(folder, config)`` comes first: the run's folder, and its settings, method and task as nested plain data.
    ``log_evaluation(step, result)``, ``log_samples(step, rows)`` with a few prompts, responses and rewards of a step, and
    ``log_summary(summary)`` follow what their names say, and ``close()`` comes last, however the run ends.
    """

    def log(self, step: int, metrics: JsonDict) -> None:
        """The metrics of a step."""


@dataclass(frozen=True)
class Kind:
    """A tracker that has a name.

    Fields:
        package: which must be installed, and the extra that brings it.
        options: that may stand behind its name.
    """

    package: str
    extra: str
    options: tuple[str, ...] = ()


KINDS = {
    "tensorboard": Kind("tensorboard", "trackers", ("dir",)),
    "wandb": Kind("wandb", "wandb", ("project", "entity", "group", "name", "tags")),
    "trackio": Kind("trackio", "trackio", ("project", "group", "name", "space")),
    "mlflow": Kind("mlflow", "mlflow", ("experiment", "name", "uri")),
}


def parse_tracker(spec: str) -> tuple[str, dict[str, str]]:
    """The name and the options of ``wandb:project=mine,group=sweep``.

    Raises:
        UserError: if there is no such tracker, or it has no such option.
    """
    name, _, rest = spec.partition(":")
    if name not in KINDS:
        raise UserError(f"no tracker named {name!r}.{did_you_mean(name, KINDS)} There are {', '.join(KINDS)}.")
    options: dict[str, str] = {}
    for pair in filter(None, rest.split(",")):
        option, equals, value = pair.partition("=")
        known = KINDS[name].options
        if option not in known:
            raise UserError(
                f"tracker {spec!r}: no option named {option!r}.{did_you_mean(option, known)} It has {', '.join(known)}."
            )
        if not equals or not value.strip():
            raise UserError(f"tracker {spec!r}: {option} has no value; write {option}=VALUE.")
        options[option] = value.strip()
    return name, options


def check_trackers(trackers: object) -> tuple[Any, ...]:
    """Refuses names that are no tracker, trackers that are not installed, and objects that take no metrics."""
    if isinstance(trackers, (str, bytes, Mapping)) or not isinstance(trackers, Iterable):
        what = f"trackers is {shown(trackers)} ({type(trackers).__name__})"
        raise UserError(f"{what}; it must be a list of names ({', '.join(KINDS)}) and objects with log(step, metrics).")
    found = tuple(trackers)
    for each in found:
        if isinstance(each, str):
            name, _ = parse_tracker(each)
            if importlib.util.find_spec(KINDS[name].package) is None:
                raise MissingExtra(f"{name} is", install_extra(KINDS[name].extra))
        elif isinstance(each, type):
            raise UserError(f"trackers: {each.__name__} is a class, not an object of it. Give {each.__name__}(...).")
        elif not callable(getattr(each, "log", None)):
            raise UserError(
                f"trackers: {shown(each)} ({type(each).__name__}) has no log(step, metrics). Names are {', '.join(KINDS)}."
            )
    return found


def tracker_name(tracker: object) -> str:
    """How messages call a tracker."""
    return tracker.partition(":")[0] if isinstance(tracker, str) else type(tracker).__name__


class Forgiving:
    """A tracker whose failure is told once and ends nothing: a run is worth more than a copy of its metrics."""

    def __init__(self, name: str, make: Callable[[], Any]):
        self.name = name
        self.tracker: Any = None
        self._try(lambda: setattr(self, "tracker", make()))

    def tell(self, method: str, *arguments: object) -> None:
        """Calls a method of the tracker, if it has it."""
        called = getattr(self.tracker, method, None)
        if called is not None:
            self._try(lambda: called(*arguments))

    def _try(self, action: Callable[[], Any]) -> None:
        try:
            action()
        except Exception as error:
            self.tracker = None
            why = " ".join(f"{type(error).__name__}: {error}".split())
            remark = f"{self.name} failed and is left out from here on ({why}). The run goes on; metrics.jsonl has every step."
            warnings.warn(Remark(remark), stacklevel=2)


def make_trackers(trackers: Sequence[object], folder: Path, config: JsonDict) -> list[Forgiving]:
    """The trackers of these names and objects, ready to log."""
    check_trackers(trackers)
    return [Forgiving(tracker_name(each), partial(_make, each, folder, config)) for each in trackers]


def _make(tracker: Any, folder: Path, config: JsonDict) -> Any:
    if not isinstance(tracker, str):
        if callable(getattr(tracker, "begin", None)):
            tracker.begin(folder, config)
        return tracker
    name, options = parse_tracker(tracker)
    made: dict[str, Callable[..., Any]] = {"tensorboard": TensorBoard, "wandb": WandB, "trackio": Trackio, "mlflow": MLflow}
    return made[name](folder, config, options, run_id(folder, name))


def run_id(folder: Path, name: str) -> str:
    """Under which a tracker knows this run, and no other, whenever it is resumed."""
    file = folder / IDS
    known = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    if name not in known:
        known[name] = uuid.uuid4().hex
        write_json(file, known)
    return str(known[name])
