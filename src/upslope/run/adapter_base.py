"""The model that a run's adapters belong to: its files are known by digest, and one that is in no folder is kept in the run's."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from upslope.plain_data import JsonDict
from upslope.policies.adapter_files import Base, check_digests, model_files
from upslope.policies.trained import is_users_folder
from upslope.runtime.checkpoint_files import CheckpointReader, Damaged
from upslope.runtime.files import whole_folder
from upslope.runtime.python_objects import IN_RUN, MODEL_FOLDER
from upslope.runtime.run_folder import RunFolder

FROM_CHECKPOINTS = f"../../{MODEL_FOLDER}"
"""The run's own copy, from the folder of a checkpoint."""


def needs_copy(policy: Any, model: str) -> bool:
    """Whether a run must keep the model itself: one that was made on the spot, unpacked into a cache, or is another run's, which
    goes on and deletes its checkpoints. A folder of the user's stays where it is.

    Args:
        model: as the user named it.
    """
    return getattr(policy, "adapted", False) and (policy.source is None or not is_users_folder(model))


def keep_base(folder: RunFolder, policy: Any, model: str, known: Mapping[str, str] | None = None) -> JsonDict:
    """Tells a policy with adapters where its own weights are, which it writes into the run if they are nowhere else.

    Args:
        model: as the user named it.
        known: the digests of its files, if they were looked at already.

    Returns:
        What ``run.toml`` has under ``base``: digests by file. Nothing without adapters.
    """
    if not getattr(policy, "adapted", False):
        return {}
    own = folder.path / MODEL_FOLDER
    if not own.is_dir() and not needs_copy(policy, model):
        policy.base = Base(policy.source, known) if known else Base.at(policy.source)
        return {str(policy.base.folder / name): digest for name, digest in policy.base.digests.items()}
    if not own.is_dir():
        with whole_folder(own) as files:
            policy.save_base(files)
    policy.before_packing.clear()
    policy.source, policy.base = own, Base(own.absolute(), _digests_in(own), FROM_CHECKPOINTS)
    return {f"{IN_RUN}/{MODEL_FOLDER}/{name}": digest for name, digest in policy.base.digests.items()}


def check_base(folder: RunFolder, policy: Any) -> dict[str, str]:
    """Refuses a run with adapters whose model is not the one it began with; the digests that it has, by file."""
    if not getattr(policy, "adapted", False) or policy.source is None:
        return {}
    own = folder.path / MODEL_FOLDER
    # By name: all are in one folder, which older runs knew by a path relative to where they were started.
    known = {Path(file).name: str(digest) for file, digest in (folder.table().get("base") or {}).items()}
    if not known and policy.source == own:  # older runs have only the copy's own digests
        known = _digests_in(own)
    check_digests(known, {file.name: file for file in model_files(policy.source)}, f"the adapters of {folder.path}")
    return known


def _digests_in(own: Path) -> dict[str, str]:
    """Of the run's own copy, as they were taken when it was written."""
    written = CheckpointReader(own, demand=True).digests or {}
    names = [file.name for file in model_files(own)]
    if missing := [name for name in names if name not in written]:
        raise Damaged(f"{own / missing[0]} is not one of the files that were written there.")
    return {name: str(written[name]["sha256"])[:16] for name in names}
