"""Gates of a decoder layer in plain torch, forward and backward."""

from __future__ import annotations

import torch
from torch import Tensor

from upslope.policies.forward.triton import launch


def gated(both: Tensor, gate_act: Tensor | None, activation: str) -> Tensor:
    """``activation(gate) * up`` of ``both = [gate, up]`` and the gate's `layer_ops.gate_activation`."""
    if gate_act is None:
        return launch.gated(both, activation)
    gate, up = both.chunk(2, -1)
    return (gate * gate_act).mul_(up) if activation == "silu" else gate_act * up


def gated_back(both: Tensor, gate_act: Tensor, to_product: Tensor, activation: str) -> tuple[Tensor, Tensor]:
    """The gradient of ``both``, and the product once more."""
    gate, up = both.chunk(2, -1)
    active = gate * gate_act if activation == "silu" else gate_act
    to_both = torch.empty_like(both)
    to_gate, to_up = to_both.chunk(2, -1)
    torch.mul(to_product, active, out=to_up)
    to_product *= up
    if activation == "silu":  # its derivative is gate_act + active (1 - gate_act)
        torch.mul(to_product, torch.lerp(gate_act, gate_act.new_ones(()), active), out=to_gate)
    else:
        to_gate.copy_(torch.ops.aten.gelu_backward(to_product, gate, approximate=approximation(activation)))
    return to_both, active.mul_(up) if activation == "silu" else active * up


def approximation(activation: str) -> str:
    """What torch calls the GELU of this name."""
    return "tanh" if activation == "tanh" else "none"
