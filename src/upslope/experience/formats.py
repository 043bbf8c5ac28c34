"""Data in files of flat columns: numpy's ``.npz`` and D4RL's ``.hdf5``."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from upslope.errors import MissingExtra, UserError, install_extra
from upslope.experience.card import Card
from upslope.experience.dataset import Dataset, digest_of
from upslope.experience.flat_log import ENDS, MASKS, NEXT_MASKS, PROPENSITIES, from_flat, stops_short, to_flat

if TYPE_CHECKING:
    from upslope.plain_data import JsonDict

CARD_KEY = "upslope_card"
"""Under which name a file keeps the card, for whoever reads it with us."""
FLAT = ("observations", "actions", "rewards", *ENDS["terminations"], *ENDS["truncations"], "next_observations", PROPENSITIES,
        MASKS, NEXT_MASKS)  # fmt: skip
PIECES = ("observations.", "next_observations.")
"""How the names of columns begin that are a part of an observation each."""


def read_npz(path: Path) -> Dataset:
    """Flat columns that ``numpy.savez`` wrote."""
    try:
        with np.load(path, allow_pickle=False) as file:
            columns = {name: file[name] for name in file.files if name in (*FLAT, CARD_KEY) or name.startswith(PIECES)}
            others = [name for name in file.files if name not in columns]
    except (OSError, ValueError, zipfile.BadZipFile, EOFError) as problem:
        told = "it holds Python objects; save plain arrays of numbers" if "pickle" in str(problem).lower() else str(problem)
        raise UserError(f"{path} cannot be read as .npz: {told}.") from None
    return _from_columns(_nested(columns), path, others)


def write_npz(dataset: Dataset, path: Path) -> None:
    """Flat columns for ``numpy.load``, with the card."""
    columns: JsonDict = {**_dotted(to_flat(dataset.episodes)), CARD_KEY: np.array(json.dumps(dataset.card.record()))}
    with _replacing(path) as draft, draft.open("wb") as file:
        np.savez(file, **columns)  # to compress noise takes a minute for a gigabyte, and gains little


def read_hdf5(path: Path) -> Dataset:
    """Flat columns as D4RL has them."""
    h5py = _h5py()
    try:
        with h5py.File(path, "r") as file:
            columns = {name: _arrays(file[name]) for name in file if name in FLAT}
            others = [name for name in file if name not in columns]
            columns |= {CARD_KEY: file.attrs[CARD_KEY]} if CARD_KEY in file.attrs else {}
    except OSError as problem:
        raise UserError(f"{path} cannot be read as .hdf5: {problem}.") from None
    return _from_columns(columns, path, others)


def write_hdf5(dataset: Dataset, path: Path) -> None:
    """Flat columns under D4RL's names, with the card as an attribute."""
    h5py, columns = _h5py(), to_flat(dataset.episodes)
    ends = {names[1]: columns.pop(names[0]) for names in ENDS.values()}
    with _replacing(path) as draft, h5py.File(draft, "w") as file:
        for name, column in _dotted({**columns, **ends}).items():
            file.create_dataset(name.replace(".", "/"), data=column, compression="gzip")
        file.attrs[CARD_KEY] = json.dumps(dataset.card.record())


READERS: Mapping[str, Callable[[Path], Dataset]] = {".npz": read_npz, ".hdf5": read_hdf5, ".h5": read_hdf5}
WRITERS: Mapping[str, Callable[[Dataset, Path], None]] = {".npz": write_npz, ".hdf5": write_hdf5, ".h5": write_hdf5}


def _dotted(columns: JsonDict) -> JsonDict:
    """Columns with an array each: ``observations.camera`` of a dict of observations."""
    found: JsonDict = {}
    for name, column in columns.items():
        found |= {f"{name}.{key}": each for key, each in column.items()} if isinstance(column, dict) else {name: column}
    return found


def _nested(columns: JsonDict) -> JsonDict:
    """What `_dotted` made one array each, in dicts again."""
    found: JsonDict = {name: column for name, column in columns.items() if "." not in name}
    for name, column in columns.items():
        first, dot, key = name.partition(".")
        if dot and first not in columns:  # beside the column itself they are something else
            found.setdefault(first, {})[key] = column
    return found


def _arrays(node: Any) -> Any:
    """An array of a file of HDF5, or, of a group, the arrays in it by name."""
    return {name: _arrays(node[name]) for name in node} if hasattr(node, "keys") else node[()]


def _from_columns(columns: JsonDict, path: Path, others: list[str]) -> Dataset:
    told = columns.pop(CARD_KEY, None)
    if "observations" not in columns and others:
        columns |= dict.fromkeys(others)  # only their names, for the message
    episodes = from_flat(columns, str(path))
    if told is not None:
        card = Card.from_record(json.loads(str(told)), str(path))
        if card.digest == digest_of(episodes):
            return Dataset(episodes, card)
    return Dataset.of(episodes, path.stem, origin=str(path), unfinished=stops_short(columns))


def _h5py() -> Any:
    try:
        import h5py
    except ImportError:
        raise MissingExtra("h5py is", install_extra("offline")) from None
    return h5py


@contextlib.contextmanager
def _replacing(path: Path) -> Any:
    """A file to write that appears under its name when it is whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    os.close(handle)
    try:
        yield Path(name)
        Path(name).chmod(0o644)
        Path(name).replace(path)
    finally:
        Path(name).unlink(missing_ok=True)
