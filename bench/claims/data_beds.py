"""Beds of claims about data: variants differ in what they learn from, and each result knows how its data are measured."""

from __future__ import annotations

import dataclasses
import fcntl
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from control_bed import ControlBed, data_folder
from harness import Cell, Result

REPLAY, RUN = "replay", "-run"
MEASURED = ("TQ", "SACo", "action variance", "transition noise", "state similarity")


@dataclass(frozen=True)
class DataBed(ControlBed):
    """As `ControlBed`; and a variant's settings may name fields of the bed, such as ``data`` or ``data_task``, for itself.

    Fields:
        explorer: the method whose experience `REPLAY` is, which is also what SACo is measured against; its knobs and settings.
        measure: report TQ, SACo and the measures of imitation beside every result.
    """

    explorer: str = "dqn"
    explorer_knobs: tuple[tuple[str, Any], ...] = ()
    explorer_settings: tuple[tuple[str, Any], ...] = ()
    measure: bool = True

    def train(self, cell: Cell) -> Result:
        own = {field.name for field in dataclasses.fields(self)}
        bed = dataclasses.replace(self, **{key: value for key, value in cell.settings.items() if key in own})
        plain = dataclasses.replace(cell, settings={key: value for key, value in cell.settings.items() if key not in own})
        result = super(DataBed, bed).train(plain)
        told = bed.measured(cell.seed) if bed.measure else {}
        return dataclasses.replace(result, cell=cell, extra={**result.extra, **told})

    def dataset(self, seed: int, folder: Path) -> Path:
        return self._explored(seed, folder) if self.data == REPLAY else super().dataset(seed, folder)

    def measured(self, seed: int) -> dict[str, float]:
        """What `upslope data describe` says of the seed's data."""
        from upslope.experience import load_dataset
        from upslope.experience.measures import describe

        with warnings.catch_warnings(), data_folder() as folder:
            warnings.simplefilter("ignore")
            reference = load_dataset(self._explored(seed, folder)) if self.explorer else None
            data = load_dataset(self.dataset(seed, folder))
            if self.data == REPLAY:  # a run's own end counts as its expert; here all data are measured by the world's
                card = load_dataset(dataclasses.replace(self, data="random").dataset(seed, folder)).card
                data = dataclasses.replace(data, card=dataclasses.replace(data.card, random=card.random, expert=card.expert))
            found = describe(data, reference)
        near = found.neighbourhoods
        numbers = (found.tq, found.coverage.saco, near.action_variance, near.transition_noise, near.state_similarity)
        return dict(zip(MEASURED, map(float, numbers), strict=True)) | {f"advice {found.advice.family}": 1.0}

    def _explored(self, seed: int, folder: Path) -> Path:
        """The experience of a whole online run, of as many steps as the data have; the run is beside it."""
        import upslope as up
        from upslope.datasets.making import make_data

        name = "".join(c if c.isalnum() else "-" for c in f"{self.task} explored {self.explorer} {self.data_steps} {seed}")
        settings = {"steps": 1, "horizon": self.data_steps, "eval_problems": 1, **dict(self.explorer_settings)}
        with open(folder / f"{name}.lock", "w") as lock:  # whoever comes second waits, and finds it
            fcntl.flock(lock, fcntl.LOCK_EX)
            if (folder / name).exists():
                return folder / name
            run = up.train(self.explorer, self.task, knobs=dict(self.explorer_knobs), seed=seed, out=folder / f"{name}{RUN}",
                           record="none", **settings)  # fmt: skip
            make_data(name, self.task, "replay", self.data_steps, seed, run.path, out=folder)
        return folder / name


@dataclass(frozen=True)
class TrainedExpertBed(DataBed):
    """As `DataBed`, for a world without a controller written by hand: the explorer's last policy is the expert of all recipes.

    Results have ``normalised``, the final return with random actions as 0 and the expert as 1.
    """

    def dataset(self, seed: int, folder: Path) -> Path:
        from upslope.datasets.making import make_data

        explored = self._explored(seed, folder)
        if self.data == REPLAY:
            return explored
        name = "".join(c if c.isalnum() else "-" for c in f"{self.task} {self.data} {self.data_steps} {seed}")
        with open(folder / f"{name}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            make_data(name, self.task, self.data, self.data_steps, seed, Path(f"{explored}{RUN}"), out=folder)
        return folder / name

    def train(self, cell: Cell) -> Result:
        from upslope.experience import load_dataset

        result = super().train(cell)
        with data_folder() as folder:
            card = load_dataset(dataclasses.replace(self, data="random").dataset(cell.seed, folder)).card
        return dataclasses.replace(result, extra={**result.extra, "normalised": card.normalised(result.after) / 100})


def advised(family: str) -> Any:
    """A measure: 1 where the data's description named this family of methods."""
    return lambda result: float(result.extra.get(f"advice {family}", 0.0))
