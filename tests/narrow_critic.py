"""td3 and td3-bc with critics ``q = b + w a`` whose targets are themselves: how they go astray can be worked out by hand."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import nn

from upslope.methods import find
from upslope.objective.base import ActionSpace
from upslope.objective.networks.layers import MLPStack
from upslope.objective.networks.mlp import MLPEnsemble, MLPModel
from upslope.types import Method

TRUTH, SLOPE = 1.0, 0.1


@dataclass(frozen=True)
class LinearCritics(MLPEnsemble):
    """They begin with b = `TRUTH` and w = `SLOPE`."""

    def build(self, space: ActionSpace, takes_action: bool, seed: int) -> nn.Module:
        stack = MLPStack(self.members, (space.observation[0] + space.actions, 1), self.activation, False, seed)
        with torch.no_grad():
            for piece in stack.parameters():
                piece.zero_()
            stack.pieces(False)["0.weight"][:, -1] = SLOPE
            stack.pieces(False)["0.bias"][:] = TRUTH
        return MLPModel(stack, "action")


def _narrow(name: str) -> Method:
    method = find(name).with_knobs({"policy.hidden": (8,), "policy.lag": 1.0, "models.q.lag": 1.0})
    critic = replace(dict(method.models)["q"], network=LinearCritics())  # type: ignore[call-arg]
    return method.derive(name=f"narrow-{name}", differs="critics are linear", models={"q": critic})


narrow_td3 = _narrow("td3")
narrow_td3_bc = _narrow("td3-bc")
