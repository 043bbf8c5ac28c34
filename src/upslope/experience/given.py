"""A dataset as a run is given it: by name, or as a Python object that the run's folder keeps."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from upslope.errors import UserError
from upslope.experience.dataset import HOME, Dataset, load_dataset
from upslope.plain_data import JsonDict
from upslope.runtime.python_objects import IN_RUN

FOLDER = "dataset"
"""Where a run keeps a dataset that was given as an object."""


@dataclass(frozen=True, eq=False)
class GivenDataset:
    """A dataset in memory; a run keeps a copy."""

    dataset: Dataset

    def keep(self, folder: Path) -> str:
        """Writes it below the run's folder; what ``run.toml`` calls it."""
        self.dataset.save(folder / FOLDER)
        return f"{IN_RUN}/{FOLDER}"


def data_argument(data: Any) -> tuple[str, GivenDataset | None]:
    """The text of a dataset, found from anywhere, and the dataset itself where it is an object."""
    if data is None or (isinstance(data, str) and not data):
        return "", None
    if isinstance(data, (str, Path)):
        return _absolute(str(data)), None
    found = load_dataset(data)
    return found.card.name, GivenDataset(found)


def _absolute(spec: str) -> str:
    if spec.startswith("minari:"):
        return spec
    for path in (Path(spec), Path(HOME) / spec):
        if path.exists():
            return str(path.absolute())
    return spec


def dataset_again(spec: str, digest: str = "") -> Dataset:
    """The dataset of a run; another one under its name than when the run began is refused."""
    found = load_dataset(spec)
    if digest and found.digest != digest:
        raise UserError(f"the dataset {spec} has changed since the run began; put the old one back to go on.")
    return found


def card_in_run(dataset: Dataset) -> JsonDict:
    """What ``run.toml`` says of the dataset, which may be gone later: where it comes from, how large it is, what it returned."""
    card = dataset.card
    returns = dataset.episodes.returns[:-1] if card.unfinished and card.episodes > 1 else dataset.episodes.returns
    known: JsonDict = {"name": card.name, "env": card.env, "recipe": card.recipe, "origin": card.origin}
    known |= {"episodes": card.episodes, "decisions": card.decisions}
    known |= {name: value for name in ("random", "expert") if math.isfinite(value := getattr(card, name))}
    return known | {"returns": [float(each) for each in np.quantile(returns, (0.0, 0.25, 0.5, 0.75, 1.0))]}


def environment_of(spec: str, given: GivenDataset | None) -> str:
    """The task that a dataset names."""
    card = (given.dataset if given is not None else load_dataset(spec)).card
    if not card.env:
        raise UserError(f"the dataset {spec} does not say which environment it is of. Name it: --task gym:ID.")
    return card.env
