"""A dataset as a run is given it: by name, or as a Python object that the run's folder keeps."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from upslope.errors import UserError
from upslope.experience.dataset import HOME, Dataset, load_dataset
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


def environment_of(spec: str, given: GivenDataset | None) -> str:
    """The task that a dataset names."""
    card = (given.dataset if given is not None else load_dataset(spec)).card
    if not card.env:
        raise UserError(f"the dataset {spec} does not say which environment it is of. Name it: --task gym:ID.")
    return card.env
