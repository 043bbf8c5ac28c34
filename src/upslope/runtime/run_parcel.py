"""What of a run's folder a worker on another machine needs, as one piece of bytes; and what it needs that is not in there."""

from __future__ import annotations

import io
import re
import tarfile
from collections.abc import Mapping
from pathlib import Path

from upslope.plain_data import JsonDict
from upslope.runtime.data_files import FOLDER as DATA
from upslope.runtime.python_objects import IN_RUN, MODEL_FOLDER
from upslope.runtime.run_folder import RunFolder

TRAVELS = ("run.toml", "code", DATA, MODEL_FOLDER)
"""The plan, the user's own code, copied data, and a model that was given as an object. Weights as they are learned come by
version."""


def packed_run(folder: Path) -> bytes:
    """What a worker makes task, model and rollout from. Checkpoints and logs stay where they are."""
    found = io.BytesIO()
    with tarfile.open(fileobj=found, mode="w") as parcel:
        for name in TRAVELS:
            if (folder / name).exists():
                parcel.add(folder / name, arcname=name)
    return found.getvalue()


def unpack_run(content: bytes, folder: Path) -> None:
    """Puts that into an empty folder."""
    with tarfile.open(fileobj=io.BytesIO(content)) as parcel:
        parcel.extractall(folder, filter="data")


def outside(folder: Path) -> list[str]:
    """Files and folders that a run reads where they are: what its plan names by absolute path, and has not copied."""
    table = RunFolder.open(folder).table()
    model = "" if (folder / MODEL_FOLDER).is_dir() else str(table.get("model", ""))  # else the run's own copy is loaded
    named = [model, str(table.get("test_data", "")), *_data(table), *map(str, table.get("reward", ()))]
    paths = (re.search(r"(?:^|[:=])(/[^@*]+)", text) for text in named if IN_RUN not in text)
    return sorted({found[1].strip() for found in paths if found is not None})


def _data(table: JsonDict) -> list[str]:
    data = table.get("data", {})
    return list(data) if isinstance(data, Mapping) else []
