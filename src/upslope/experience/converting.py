"""Data in another form: folders, flat files and Minari's datasets, into one another."""

from __future__ import annotations

from pathlib import Path

from upslope.errors import UserError
from upslope.experience.dataset import HOME, load_dataset, renamed
from upslope.experience.formats import WRITERS
from upslope.experience.minari_files import MINARI, write_minari


def convert(source: object, target: str) -> str:
    """Writes data elsewhere and says where; the card goes with them, and the digest stays.

    Args:
        source: As for `load_dataset`.
        target: ``minari:ID``, ``FILE.npz``, ``FILE.hdf5``, a folder, or its bare name in ``data/``.

    Raises:
        UserError: if there is something already.
    """
    if not target.strip():
        raise UserError(f"the target is empty. Give a name in {HOME}/, a folder, FILE.npz, FILE.hdf5 or {MINARI}ID.")
    path = Path(target).expanduser()
    if not target.startswith(MINARI):
        path = path if path.suffix in WRITERS or path.name != target else Path(HOME) / target
        if path.exists():
            raise UserError(f"{path} is there already, and nothing is written over. Choose another name, or delete it.")
    dataset = load_dataset(source)
    if target.startswith(MINARI):
        write_minari(dataset, target)
        return target
    if writer := WRITERS.get(path.suffix):
        writer(dataset, path)
    else:
        renamed(dataset, path.name).save(path)
    return str(path)
