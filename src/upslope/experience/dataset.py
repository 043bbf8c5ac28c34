"""Datasets: episodes with a card. As folders, written whole or not at all, and read from whatever else people have."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from upslope.errors import UserError, did_you_mean
from upslope.experience.card import Card
from upslope.experience.episodes import Episode, Episodes
from upslope.experience.flat_log import from_flat, stops_short
from upslope.experience.log import MASK
from upslope.experience.shapes import check_columns, check_episodes
from upslope.fields import shown
from upslope.runtime.checkpoint_files import CheckpointReader, Damaged
from upslope.runtime.files import whole_folder

CARD, COLUMNS = "dataset.json", "columns.safetensors"
HOME = "data"
"""The folder, below the current one, in which a bare name is looked for."""
FIELDS = ("observation", "action", "reward", "ended")
PROPENSITY = "propensity"
"""A column that not every dataset has."""
WAYS = "the name of a folder in data/, a folder, FILE.npz, FILE.hdf5 or minari:ID"


@dataclass(frozen=True, eq=False)
class Dataset:
    """Episodes and what is known of them."""

    episodes: Episodes
    card: Card

    @classmethod
    def of(cls, episodes: Episodes, name: str = "data", **known: Any) -> Dataset:
        """With a card that says what can be seen, and what else is known (fields of `Card`)."""
        return cls(episodes, Card.of(name, episodes, digest_of(episodes), **known))

    @property
    def digest(self) -> str:
        """SHA-256 of the columns."""
        return self.card.digest

    def normalised(self, score: float) -> float:
        """A return as a score: 0 for random actions, 100 for the expert; NaN where those are not known."""
        return self.card.normalised(score)

    def save(self, folder: str | Path) -> Path:
        """Writes the folder, which is not there before all of it is. What was there under its name goes."""
        path = Path(folder)
        columns = {name: torch.from_numpy(np.ascontiguousarray(column)) for name, column in self.episodes.by_name.items()}
        with whole_folder(path) as files:
            files.write_json(CARD, self.card.record())
            files.write_tensors(COLUMNS, columns)
        return path

    def __len__(self) -> int:
        """Episodes."""
        return len(self.episodes)

    def __repr__(self) -> str:
        return f"Dataset({self.card.name!r}, {self.card.episodes:,} episodes, {self.card.decisions:,} decisions)"


def digest_of(episodes: Episodes) -> str:
    """SHA-256 of the columns with their types and shapes, whatever file they came from."""
    digest = hashlib.sha256()
    for name, column in episodes.by_name.items():
        if name == PROPENSITY:
            continue
        # What stands beside the last observation of an episode is nobody's action or reward, and other files do not have it.
        column = np.ascontiguousarray(column[episodes.decisions] if name in ("action", "reward") else column)
        digest.update(f"{name} {column.dtype.str} {column.shape}\n".encode())
        digest.update(column.reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def load_dataset(spec: object) -> Dataset:
    """The dataset that a text stands for, or made of what is given.

    Args:
        spec: A folder that `Dataset.save` wrote, or its bare name where it lies in ``data/``; ``FILE.npz`` or ``FILE.hdf5`` with
            flat columns (``observations, actions, rewards, terminations, truncations[, next_observations]``); ``minari:ID``; a
            dict of such columns; `Episodes`, or a list of `Episode`; or a `Dataset`, which is returned.

    Raises:
        UserError: if there is none, or it cannot be read as one.
    """
    if isinstance(spec, Dataset):
        return spec
    if isinstance(spec, Episodes):
        check_columns(spec, "the episodes")
        return Dataset.of(spec)
    if isinstance(spec, Mapping):
        return Dataset.of(from_flat(spec, "the dict of columns"), unfinished=stops_short(spec))
    if isinstance(spec, (str, Path)):
        return _from_text(str(spec))
    if isinstance(spec, Iterable) and (given := list(spec)) and all(isinstance(each, Episode) for each in given):
        return Dataset.of(Episodes.of(check_episodes(given, "the list of episodes")))
    raise UserError(f"{shown(spec)} is no dataset. Give {WAYS}; a dict of columns, or a list of Episode.")


def _from_text(spec: str) -> Dataset:
    if not spec.strip():
        raise UserError(f"the name of the dataset is empty. Give {WAYS}.")
    from upslope.experience import minari_files
    from upslope.experience.formats import READERS

    if spec.startswith(minari_files.MINARI):
        return minari_files.read_minari(spec)
    path = Path(spec).expanduser()
    if reader := READERS.get(path.suffix):
        if not path.is_file():
            raise UserError(f"{spec!r} is not there. Give {WAYS}.")
        return reader(path)
    for folder in (path, *([Path(HOME) / spec] if path.name == spec else [])):
        if (folder / CARD).is_file():
            return _from_folder(folder)
    raise UserError(_missing(spec, path))


def _missing(spec: str, path: Path) -> str:
    if path.is_file():
        return f"{spec!r} is no kind of file that data are read from: .npz or .hdf5."
    if path.is_dir():
        return f"{spec!r} is a folder without {CARD}: no dataset. 'upslope data list' lists those in {HOME}/."
    known = [folder.name for folder in dataset_folders()]
    listed = f" There are {', '.join(known[:10])}." if known else f" {HOME}/ has none yet: 'upslope data make' makes one."
    return f"no dataset {spec!r}.{did_you_mean(path.name, known)}{listed} Give {WAYS}."


def dataset_folders(home: str | Path = HOME) -> list[Path]:
    """The folders of datasets in ``data/``, by name."""
    return sorted(card.parent for card in Path(home).glob(f"*/{CARD}") if not card.parent.name.startswith("."))


def read_card(folder: Path) -> Card:
    """The card of a dataset's folder."""
    return Card.from_record(CheckpointReader(folder, demand=True).read_json(CARD), str(folder / CARD))


def _from_folder(folder: Path) -> Dataset:
    files = CheckpointReader(folder, demand=True)
    card = Card.from_record(files.read_json(CARD), str(folder / CARD))
    tensors = files.read_tensors(COLUMNS)
    if missing := [name for name in FIELDS if name not in tensors]:
        raise Damaged(f"{folder / COLUMNS} is damaged: it has no column {missing[0]!r}.")
    columns = {name: tensors[name].numpy() for name in (*FIELDS, PROPENSITY, MASK) if name in tensors}
    episodes = Episodes(**columns, pieces=card.observation.pieces)
    if (found := digest_of(episodes)) != card.digest:
        raise Damaged(f"{folder / COLUMNS} has the digest {found[:12]}, and {CARD} says {card.digest[:12]}: one was replaced.")
    return Dataset(episodes, card)


def renamed(dataset: Dataset, name: str) -> Dataset:
    """The same under another name."""
    return dataclasses.replace(dataset, card=dataclasses.replace(dataset.card, name=name))
