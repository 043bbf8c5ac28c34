"""A policy's greedy action as layers and one last step, for whoever computes it elsewhere: ONNX, TorchScript."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from torch import Tensor

from upslope.objective.networks.layers import MLPStack


class DenseLayer(NamedTuple):
    """A product, and in hidden layers the normalisation behind it."""

    weight: Tensor
    """``[outputs, inputs]``."""
    bias: Tensor
    scale: Tensor | None = None
    """Of the layer normalisation; none without one."""
    shift: Tensor | None = None


@dataclass(frozen=True, eq=False)
class GreedyNetwork:
    """What stands between an observation, as the policy sees it, and the action it takes when nothing is drawn."""

    members: tuple[tuple[DenseLayer, ...], ...]
    """The layers of each network. Where there are several, their outputs are averaged."""
    activation: str
    last: Literal["best", "clipped", "tanh"]
    """From outputs to actions: the id of the largest, in each component; the means clipped to the box; tanh of the means, stretched
    to the box."""
    actions: int
    """Outputs that are logits, values of choices or means."""
    std: Literal["none", "shared", "state"] = "none"
    """Where the logarithm of the spread stands: nowhere, in one vector for all states, or in further outputs behind the means."""
    log_std: Tensor | None = None
    """The shared vector."""
    log_std_bounds: tuple[float, float] = (-float("inf"), float("inf"))
    components: tuple[int, ...] = ()
    """Choices of each component of an action that consists of several; they add up to ``actions``."""


def dense_layers(stack: MLPStack) -> tuple[tuple[DenseLayer, ...], ...]:
    """The layers of each member of a stack."""
    pieces = {name: piece.detach().float().cpu() for name, piece in stack.frozen.items()}
    return tuple(
        tuple(_dense_layer(pieces, layer, member) for layer in range(len(stack.widths) - 1)) for member in range(stack.members)
    )


def _dense_layer(pieces: dict[str, Tensor], layer: int, member: int) -> DenseLayer:
    def row(name: str) -> Tensor | None:
        piece = pieces.get(f"{layer}.{name}")
        return None if piece is None else piece[member, 0].clone()

    bias, weight = row("bias"), pieces[f"{layer}.weight"][member]
    assert bias is not None
    return DenseLayer(weight.t().contiguous(), bias, row("scale"), row("shift"))
