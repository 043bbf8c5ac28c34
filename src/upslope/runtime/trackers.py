"""Metrics to TensorBoard or Weights & Biases, for those who keep their curves there. Both are optional."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from upslope.errors import MissingExtra, Remark, UserError, did_you_mean, install_extra
from upslope.plain_data import JsonDict

TRACKERS = {"tensorboard": "trackers", "wandb": "wandb"}
"""The package of each tracker has its name; here is the extra that brings it."""


class Tracker(Protocol):
    """Takes the numbers of a step."""

    def log(self, step: int, metrics: JsonDict) -> None: ...
    def close(self) -> None: ...


class TensorBoard:
    """Event files in the run's ``tensorboard`` folder."""

    def __init__(self, folder: Path, name: str, config: JsonDict):
        from torch.utils.tensorboard import SummaryWriter

        self.writer = SummaryWriter(str(folder / "tensorboard"))  # type: ignore[no-untyped-call]

    def log(self, step: int, metrics: JsonDict) -> None:
        for key, value in metrics.items():
            if isinstance(value, (int, float)):
                self.writer.add_scalar(key, value, step)  # type: ignore[no-untyped-call]

    def close(self) -> None:
        self.writer.close()  # type: ignore[no-untyped-call]


class WandB:
    """A run at Weights & Biases, under the run folder's name."""

    def __init__(self, folder: Path, name: str, config: JsonDict):
        import wandb

        self.run = wandb.init(project="upslope", name=name, config=config, dir=str(folder), resume="allow", id=name)

    def log(self, step: int, metrics: JsonDict) -> None:
        self.run.log({key: value for key, value in metrics.items() if isinstance(value, (int, float))}, step=step)

    def close(self) -> None:
        self.run.finish()


def check_trackers(names: tuple[str, ...]) -> None:
    """Refuses names that are no tracker, and trackers that are not installed."""
    for name in names:
        if name not in TRACKERS:
            raise UserError(f"no tracker named {name!r}.{did_you_mean(name, TRACKERS)} There are {' and '.join(TRACKERS)}.")
        if importlib.util.find_spec(name) is None:
            raise MissingExtra(f"{name} is", install_extra(TRACKERS[name]))


class Forgiving:
    """A tracker whose failure is told once and ends nothing: a run is worth more than a copy of its metrics."""

    def __init__(self, name: str, make: Callable[[], Tracker]):
        self.name = name
        self.tracker: Tracker | None = None
        self._try(lambda: setattr(self, "tracker", make()))

    def log(self, step: int, metrics: JsonDict) -> None:
        if self.tracker is not None:
            self._try(lambda: self.tracker.log(step, metrics))  # type: ignore[union-attr]

    def close(self) -> None:
        if self.tracker is not None:
            self._try(lambda: self.tracker.close())  # type: ignore[union-attr]

    def _try(self, action: Callable[[], Any]) -> None:
        try:
            action()
        except Exception as error:
            self.tracker = None
            why = " ".join(f"{type(error).__name__}: {error}".split())
            remark = f"{self.name} failed and is left out from here on ({why}). The run goes on; metrics.jsonl has every step."
            warnings.warn(Remark(remark), stacklevel=2)


def make_trackers(names: tuple[str, ...], folder: Path, config: JsonDict) -> list[Tracker]:
    """The trackers of these names, ready to log."""
    check_trackers(names)
    kinds: dict[str, Callable[..., Tracker]] = {"tensorboard": TensorBoard, "wandb": WandB}
    return [Forgiving(name, partial(kinds[name], folder, folder.name, config)) for name in names]
