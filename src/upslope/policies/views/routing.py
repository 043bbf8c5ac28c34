"""Routing replay for mixtures of experts: which experts a pass took for each token, recorded and replayed.

A small change of the weights can change which experts are chosen, and with them the log-probability by a jump that no trust region
foresees. Replaying keeps the choice of an earlier pass, while the weight of each chosen expert is the current router's.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from upslope.objective.base import ModelView
from upslope.types import Trajectories


@dataclass(frozen=True)
class RoutingReplay(ModelView):
    r"""Learns with the experts that the policy chose before the step's first update (routing replay R2).

    .. math::  g_i = \frac{I_i\,e^{s_i}}{\sum_j I_j\,e^{s_j}}

    with s the current router's logits, which carry the gradient, and I the recorded choice: the same at every token, those of the
    prompt included. Costs a forward pass a step. A model without experts has nothing to replay and learns as it would without.
    """

    def annotate(self, policy: Any, rows: Trajectories) -> Trajectories:
        """The rows with the experts that the policy chooses now."""
        if not routers(policy.model):
            return rows
        assert rows.action is not None
        inputs, written = rows.inputs, rows.action[:, :-1].clamp_min(0)
        ids = torch.cat([inputs.prompt, written], 1)
        mask = torch.cat([inputs.prompt_mask.long(), torch.ones_like(written)], 1)
        size = max(1, policy.token_budget() // ids.shape[1])
        pieces = [_chosen(policy.model, *pair) for pair in zip(ids.split(size), mask.split(size), strict=True)]
        return rows.replace(inputs=replace(inputs, experts=torch.cat(pieces)))

    @contextlib.contextmanager
    def applied(self, model: object, experts: Tensor | None = None) -> Iterator[None]:
        """While this lasts, ``model`` takes these experts ``[B, S, layers, k]``; none were noted: its own."""
        if experts is None:
            yield
            return
        hooks = [
            router.register_forward_hook(_replaying(experts[:, :, layer].flatten(0, 1).long()))
            for layer, router in enumerate(routers(model))
        ]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()


def routers(model: Any) -> list[nn.Module]:
    """The modules of a model that choose experts, in the order of layers."""
    return [module for module in model.modules() if type(module).__name__.endswith("TopKRouter")]


def _chosen(model: Any, ids: Tensor, mask: Tensor) -> Tensor:
    """The experts ``[B, S, layers, k]`` of each token, in a pass without gradient."""
    found: list[Tensor] = []
    hooks = [router.register_forward_hook(lambda _, __, output: found.append(output[2])) for router in routers(model)]
    try:
        with torch.no_grad():
            places = (mask.cumsum(1) - 1).clamp_min(0)
            model(input_ids=ids, attention_mask=mask, position_ids=places, use_cache=False, logits_to_keep=1)
    finally:
        for hook in hooks:
            hook.remove()
    return torch.stack(found, 1).view(*ids.shape, len(found), -1).to(torch.int16)


def _replaying(experts: Tensor) -> Any:
    """A hook that puts recorded experts ``[B * S, k]`` in place of the router's choice."""

    def hook(router: object, _: object, output: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        logits, scores, _indices = output
        kept = logits.float().softmax(-1).gather(1, experts)
        if getattr(router, "norm_topk_prob", True):
            kept = kept / kept.sum(-1, keepdim=True)
        return logits, kept.to(scores.dtype), experts

    return hook
