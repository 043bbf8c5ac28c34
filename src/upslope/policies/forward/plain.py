"""Log-probabilities by `transformers` itself, for any model: rows padded to the longest, whole logits."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from upslope.policies.forward.decisions import Decisions
from upslope.policies.forward.logprobs import logp_and_entropy
from upslope.policies.forward.probes import probed
from upslope.types import ModelView, Probe


def padded_columns(
    model: Any,
    inputs: Any,
    decisions: Decisions,
    want_entropy: bool,
    heads: Mapping[str, nn.Module],
    view: ModelView | None,
    probes: tuple[Probe, ...],
    share: bool = True,
) -> dict[str, Tensor]:
    """Columns ``[N, T]`` of responses to the prompts in ``inputs`` (`TextInputs`); the rest as in `LanguageModel`.

    Args:
        share: compute equal prompts once, where that pays.
    """
    action = decisions.action
    positions = action.shape[1]
    mask = inputs.prompt_mask.long()
    width = max(int(extent_of(mask.flip(1) > 0).max()), 1)
    mask = mask[:, -width:]
    # Whatever stands behind the last sampled token is invisible to the tokens before it: the mask need not know it.
    seen = torch.cat([mask, torch.ones_like(action[:, :-1])], 1)
    ids = torch.cat([inputs.prompt[:, -width:], action[:, :-1]], 1)
    experts = None if view is None else inputs.experts
    if experts is not None:
        start = inputs.prompt.shape[1] - width
        experts = experts[:, start : start + ids.shape[1]]
    with contextlib.nullcontext() if view is None else view.applied(model, experts):
        logits, hidden = _forward(model, ids, seen, positions, bool(heads or probes), share and experts is None)
    columns = logp_and_entropy(logits, action, decisions.temperature, want_entropy)
    for name, head in heads.items():
        columns[name] = head(hidden.to(next(head.parameters()).dtype)).squeeze(-1).float()
    if probes:
        flat, seen_there = logits.flatten(0, 1), decisions.map(torch.Tensor.flatten)
        found = probed(probes, flat, lambda chunk: chunk, flat.shape[1], hidden.flatten(0, 1), seen_there)
        columns |= {name: column.view_as(action) for name, column in found.items()}
    return columns


def extent_of(kept: Tensor) -> Tensor:
    """Positions up to and including the last kept one ``[N]``, 0 where there is none."""
    place = torch.arange(1, kept.shape[1] + 1, device=kept.device)
    return (kept * place).amax(1) if kept.shape[1] else kept.sum(1)


def _forward(model: Any, ids: Tensor, mask: Tensor, positions: int, want_hidden: bool, share: bool) -> tuple[Tensor, Any]:
    """Logits of the last positions and, if wanted, what the head was given there; ``share`` computes equal prompts once."""
    given: list[Tensor] = []
    head = model.get_output_embeddings()
    # Models scale and cap their logits in their own ways after the head, so the whole model is called and only watched.
    watch = head.register_forward_pre_hook(lambda _, inputs: given.append(inputs[0])) if want_hidden else None
    try:
        places = (mask.cumsum(1) - 1).clamp_min(0)
        cache, shared = _shared_prompts(model, ids, mask, places, ids.shape[1] - positions) if share else (None, 0)
        output = model(
            input_ids=ids[:, shared:],
            attention_mask=mask,
            position_ids=places[:, shared:],
            past_key_values=cache,
            use_cache=cache is not None,
            logits_to_keep=positions,
        )
    finally:
        if watch is not None:
            watch.remove()
    return output.logits, given[-1] if given else None


def _shared_prompts(model: Any, ids: Tensor, mask: Tensor, places: Tensor, width: int) -> tuple[Any, int]:
    """Keys and values of the first ``width`` tokens, computed once per distinct prompt and handed to each of its rows.

    A group's answers share their prompt, so most of the work on prompts is the same work. Gradients flow through. Gives
    ``None`` and 0 where it would not pay or the model's layers do not all attend to everything.
    """
    if width < 1 or not attends_fully(model):
        return None, 0
    distinct, which = torch.unique(torch.cat([ids[:, :width], mask[:, :width]], 1), dim=0, return_inverse=True)
    if 2 * len(distinct) > len(ids):
        return None, 0
    from transformers import DynamicCache

    first = torch.zeros(len(distinct), dtype=which.dtype, device=which.device)
    first[which] = torch.arange(len(ids), device=which.device)  # any row of each prompt will do
    cache = DynamicCache()
    model(
        input_ids=ids[first, :width],
        attention_mask=mask[first, :width],
        position_ids=places[first, :width],
        past_key_values=cache,
        use_cache=True,
        logits_to_keep=1,
    )
    cache.batch_select_indices(which)
    return cache, width


def attends_fully(model: Any) -> bool:
    """Whether every layer looks at the whole text, so that prompts can be computed apart."""
    config = model.config.get_text_config()
    kinds = getattr(config, "layer_types", None)
    windowless = all(kind == "full_attention" for kind in kinds) if kinds else not getattr(config, "sliding_window", None)
    return windowless and not getattr(model, "is_gradient_checkpointing", False)
