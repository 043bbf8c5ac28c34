"""What a run is given in Python as objects rather than by name, and what of it its folder can hold."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from upslope.errors import UserError

IN_RUN = "{run}"
"""How a path in ``run.toml`` begins that is below the run's own folder, wherever that is."""
MODEL_FOLDER = "model"
"""Where a run keeps a model that was given as an object, below its own folder."""


@dataclass(frozen=True)
class PythonObjects:
    """A task, reward, model, test data or dataset as an object; ``None`` where it was given by name or is not given at all.

    An object that can be kept has a method ``keep(folder)``: it writes itself below the run's folder, whole or not at all, and
    returns the name that ``run.toml`` gets for it (``{run}/data/problems.jsonl``). What has none is not in the folder: to go on
    with the run, or to evaluate it, the object must be given again.
    """

    task: Any = None
    reward: Any = None
    model: Any = None
    test_data: Any = None
    dataset: Any = None

    def unkept(self) -> list[str]:
        """Arguments whose objects no folder can hold."""
        return [name for name, value in self._given() if not hasattr(value, "keep")]

    def keep(self, folder: Path) -> dict[str, str]:
        """Writes what can be kept; by argument, what ``run.toml`` calls it."""
        return {name: value.keep(folder) for name, value in self._given() if hasattr(value, "keep")}

    def check(self, unkept: Iterable[str], path: Path) -> None:
        """Refuses to go on with a run whose unkept objects are not here, or with objects that it was given by name."""
        wanted, here = set(unkept), {name for name, _ in self._given()}
        again = ", ".join(f"{name}=..." for name in sorted(wanted))
        if missing := sorted(wanted - here):
            what = " and ".join(missing)
            raise UserError(
                f"{path} was given its {what} as a Python object, which a folder cannot hold. Give it again: "
                f"up.resume({str(path)!r}, {again}), or up.load with the same."
            )
        if further := sorted(here - wanted):
            raise UserError(f"{path} holds its own {further[0]}; leave {further[0]}= out.")

    def _given(self) -> list[tuple[str, Any]]:
        found = ((f.name, getattr(self, f.name)) for f in dataclasses.fields(self))
        return [(name, value) for name, value in found if value is not None]


def located(name: str, folder: Path) -> str:
    """A name in ``run.toml`` with the run's folder in the place of ``{run}``."""
    return str(folder / name.removeprefix(f"{IN_RUN}/")) if name.startswith(f"{IN_RUN}/") else name
