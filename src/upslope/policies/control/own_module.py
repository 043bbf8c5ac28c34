"""A user's own module as what a control policy looks through: from observations to features; the heads are ours."""

from __future__ import annotations

import copy
import dataclasses
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from upslope.errors import UserError
from upslope.objective.networks.encoders import Encoder
from upslope.objective.networks.pieces import tensors_of
from upslope.packed import Piece

PartT = TypeVar("PartT")

CHANGES_BY_MODE = (nn.modules.batchnorm._NormBase, nn.modules.dropout._DropoutNd)
"""Layers that compute something else while they learn: the policy that is learned would not be the one that acted."""


class FeatureModule(nn.Module):
    """A module whose output is known to be ``features`` numbers."""

    def __init__(self, module: nn.Module, features: int) -> None:
        super().__init__()
        self.module, self.features = module, features

    def forward(self, observation: Tensor) -> Tensor:
        return self.module(observation)


@dataclass(frozen=True, eq=False)
class _ModuleEncoder(Encoder):
    """A module in the place of an encoder while networks are built; no method is written down with it."""

    module: nn.Module

    def build(self, shape: tuple[int, ...], channel_axis: int | None, seed: int) -> nn.Module:
        return copy.deepcopy(self.module)

    def build_combined(self, pieces: tuple[Piece, ...], seed: int) -> nn.Module:
        return DictModule(copy.deepcopy(self.module), pieces)


class DictModule(nn.Module):
    """A module that is given the pieces of packed observations as a dict: images in bytes ``[M, *shape]``, numbers in float32."""

    def __init__(self, module: nn.Module, pieces: tuple[Piece, ...]) -> None:
        super().__init__()
        self.module, self.pieces = module, pieces

    def forward(self, packed: Tensor) -> Tensor:
        return self.module(tensors_of(packed, self.pieces))


class OwnModule:
    """A module given as ``model``, of which copies are trained; what no folder can hold, so it is asked for again."""

    def __init__(self, module: nn.Module) -> None:
        self.module, self.name = module, type(module).__name__

    def put_into(self, part: PartT, task: Any) -> PartT:
        """A network, or a model with one, that looks through the module if it looks through an encoder at all.

        Raises:
            UserError: as in `checked`.
        """
        names = {f.name for f in dataclasses.fields(part)} if dataclasses.is_dataclass(part) else set()
        if "encoder" in names:
            return dataclasses.replace(part, encoder=_ModuleEncoder(self.checked(task)))  # type: ignore[type-var]
        inner = getattr(part, "network", None) if "network" in names else None
        return dataclasses.replace(part, network=self.put_into(inner, task)) if inner is not None else part  # type: ignore[type-var]

    def checked(self, task: Any) -> nn.Module:
        """A copy for a task, in float32, asked once to see what it gives.

        Raises:
            UserError: if it cannot be copied, its output is not a row of features for each observation, or it cannot be learned as
                it acts.
        """
        self._check_layers()
        try:
            module = copy.deepcopy(self.module).to("cpu", torch.float32).requires_grad_(True)
        except Exception as problem:
            raise UserError(f"model={self.name}: the run trains copies, and it cannot be copied: {_line(problem)}.") from problem
        for given, copied in zip(self.module.parameters(), module.parameters(), strict=True):
            copied.requires_grad_(given.requires_grad)  # what the user froze stays frozen
        pieces = task.layout.pieces
        with_features(DictModule(module, pieces) if pieces else module, task, f"model={self.name}")
        return module

    def refuse_text(self) -> None:
        """Says what answers text instead."""
        from upslope.policies.given import given_model

        given_model(self.module)

    def _check_layers(self) -> None:
        for name, layer in self.module.named_modules():
            if isinstance(layer, CHANGES_BY_MODE) and getattr(layer, "track_running_stats", True):
                raise UserError(f"model={self.name} has {type(layer).__name__} ({name or 'itself'}), which computes something else "
                                "while it learns than while it acts. Take LayerNorm or GroupNorm, and no dropout.")  # fmt: skip
        places: dict[int, str] = {}
        for name, tensor in self.module.state_dict().items():
            if tensor.numel() and (other := places.setdefault(tensor.data_ptr(), name)) != name:
                raise UserError(f"model={self.name} has the same weights as {other} and as {name}; give each of them its own.")


def with_features(module: nn.Module, task: Any, name: str) -> FeatureModule:
    """The module with the number of its features, found by asking it once.

    Args:
        name: What it is called in messages.
    """
    shape, layout = (2, *task.observation_shape), task.layout
    what = f"a dict of {layout}," if layout.pieces else f"{'bytes' if layout.is_image else 'numbers'} {shape},"
    told = f"{name}: two observations of {task.name}, {what}"
    try:
        with torch.no_grad():
            found = module(torch.zeros(shape, dtype=torch.uint8 if layout.has_images else torch.float32))
    except Exception as problem:
        cure = " It is given bytes: begin with observation.float() / 255." if layout.is_image else ""
        raise UserError(f"{told} make it raise {_line(problem)}.{cure}") from problem
    if not isinstance(found, Tensor) or found.dim() != 2 or len(found) != 2 or not found.numel() or not found.is_floating_point():
        what = f"{found.dtype} {tuple(found.shape)}" if isinstance(found, Tensor) else type(found).__name__
        raise UserError(f"{told} give {what}; it must be features, a row of floats for each: (2, F). Heads are added behind it.")
    if not bool(found.isfinite().all()):
        raise UserError(f"{told} give features that are not finite. Look at its weights.")
    return FeatureModule(module, int(found.shape[1]))


def _line(problem: Exception) -> str:
    """An error of the user's code, in one line."""
    return " ".join(f"{type(problem).__name__}: {problem}".split())[:200].rstrip(".:")
