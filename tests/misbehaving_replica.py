"""A replica that answers as it is told in a file: well, or with other weights, or in its own words. Actors of `test_places.py` make
it."""

from __future__ import annotations

import os
import time
import tomllib
from pathlib import Path
from typing import Any

import torch
from misbehaving_rows import rows_of

from upslope.errors import UserError
from upslope.rollout.pool import Fulfilled
from upslope.types import Assignment


class Policy:
    def __init__(self) -> None:
        self.held: dict[str, torch.Tensor] = {}
        self.other = 0.0

    def load_weights(self, weights: dict[str, torch.Tensor]) -> None:
        self.held = {name: tensor.clone() for name, tensor in weights.items()}

    def weights(self) -> dict[str, torch.Tensor]:
        return {name: tensor + self.other for name, tensor in self.held.items()}


class Rollout:
    """Waits while there is a file ``wait``, and says who it is in a file."""

    interrupt_every = 0

    def __init__(self, policy: Policy, folder: Path):
        self.policy, self.folder = policy, folder

    def sync(self) -> None:
        """Nothing is copied."""

    def fulfilled(self, assignment: Assignment) -> Fulfilled:
        if (self.folder / "do-refuse").exists():
            raise UserError("this cannot be answered")
        (self.folder / f"began-{assignment.step}-{os.getpid()}").touch()
        while (self.folder / "wait").exists():
            time.sleep(0.05)
        return Fulfilled(rows_of(assignment), {"pid": os.getpid()}, assignment.version)


def made(folder: Path, trusted: bool) -> tuple[Any, dict[str, Any]]:
    """By the folder that the travelled ``run.toml`` names: it is not where that was unpacked."""
    home = Path(tomllib.loads((folder / "run.toml").read_text())["home"])
    assert home != folder and trusted and not (folder / "logs").exists()
    policy = Policy()
    if (home / "do-old-weights").exists():
        (home / "do-old-weights").unlink()  # once
        policy.other = 1.0
    (home / "unpacked").write_text(str(folder))
    return policy, {"": Rollout(policy, home)}
