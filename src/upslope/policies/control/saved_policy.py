"""Policies of torch modules in files: their weights by name, and a few words on what they are."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from upslope.errors import UserError
from upslope.plain_data import JsonDict
from upslope.runtime.checkpoint_files import CheckpointReader, CheckpointWriter, as_reader, saving


def take_weights(own: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> None:
    """Copies weights into views of the same names and shapes.

    Raises:
        UserError: if they are of another network.
    """
    differing = sorted(set(own) ^ set(given)) or [name for name in own if own[name].shape != given[name].shape]
    if differing:
        raise UserError(f"these weights are of another network: the two differ in {', '.join(differing[:4])}.")
    for name, view in own.items():
        view.copy_(given[name])


def write_policy(folder: Path | str | CheckpointWriter, described: JsonDict, weights: dict[str, Tensor]) -> None:
    """Write ``policy.safetensors`` and ``policy.json``, each whole or not at all."""
    with saving(folder) as files:
        files.write_tensors("policy.safetensors", weights)
        files.write("policy.json", (json.dumps(described, indent=2) + "\n").encode())


def read_weights(folder: Path | str | CheckpointReader, kind: str) -> dict[str, Tensor]:
    """The weights of a policy of this kind.

    Raises:
        Damaged: if the files are not what was written.
        UserError: if the policy is of another kind.
    """
    files = as_reader(folder)
    described = files.read_json("policy.json")
    if described.get("kind") != kind:
        raise UserError(f"the policy in {files.folder} is of another kind ({described.get('kind')!r}).")
    return files.read_tensors("policy.safetensors")
