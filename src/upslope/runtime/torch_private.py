"""Names of torch that are not public, all of them: no other file of this package uses one.

Torch may drop or change them with any version (hence the upper bound in ``pyproject.toml``), so each is looked for when this module
is loaded, and where it is missing something public that computes the same stands in its place: slower, with another rounding in the
last digits. ``MISSING`` lists what was not found.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import torch
from torch import Tensor

MISSING: list[str] = []
"""Private names that this torch does not have."""


def _found(path: str) -> Any:
    """What ``torch.<path>`` is, or None."""
    try:
        return reduce(getattr, path.split("."), torch)
    except AttributeError:
        MISSING.append(path)
        return None


# -- many tensors in one call ----------------------------------------------------------------------------------------------------


def copy_each_(targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
    """Copies each source to its target, one after the other."""
    for target, source in zip(targets, sources, strict=True):
        target.copy_(source)


def norm_each(tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """The norm of each."""
    return tuple(torch.linalg.vector_norm(tensor) for tensor in tensors)


def add_each_(tensors: Sequence[Tensor], number: float) -> None:
    """Adds a number to each."""
    for tensor in tensors:
        tensor.add_(number)


def multiply_each_(tensors: Sequence[Tensor], factor: float) -> None:
    """Multiplies each by a number."""
    for tensor in tensors:
        tensor.mul_(factor)


foreach_copy_: Callable[[Sequence[Tensor], Sequence[Tensor]], Any] = _found("_foreach_copy_") or copy_each_
foreach_norm: Callable[[Sequence[Tensor]], Any] = _found("_foreach_norm") or norm_each
foreach_add_: Callable[[Sequence[Tensor], float], Any] = _found("_foreach_add_") or add_each_
foreach_mul_: Callable[[Sequence[Tensor], float], Any] = _found("_foreach_mul_") or multiply_each_


# -- the optimiser ---------------------------------------------------------------------------------------------------------------

_GROUP = ["self", "group", "params_with_grad", "grads", "exp_avgs", "exp_avg_sqs", "max_exp_avg_sqs", "state_steps"]


def _init_group() -> Any:
    """``AdamW._init_group``, which collects what a step needs of a group of parameters; None if it takes other arguments now."""
    found = _found("optim.AdamW._init_group")
    if found is not None and list(inspect.signature(found).parameters) != _GROUP:
        MISSING.append("optim.AdamW._init_group")
        return None
    return found


adamw_init_group: Any = _init_group()
fused_adamw_: Any = _found("_fused_adamw_")
"""The kernel behind ``AdamW(fused=True)``. Where it or what feeds it is None, `AdamW.step` does the same with more calls."""


# -- attention on a CPU ----------------------------------------------------------------------------------------------------------


def _scores(q: Tensor, k: Tensor, is_causal: bool, attn_mask: Tensor | None, scale: float | None) -> Tensor:
    """``[B, heads, T, keys]`` in float32, with minus infinity where a key is not seen."""
    keys = k.float().repeat_interleave(q.shape[1] // k.shape[1], 1)
    scores = q.float() @ keys.transpose(-2, -1) * (1 / math.sqrt(q.shape[-1]) if scale is None else scale)
    if attn_mask is not None:
        scores = scores + attn_mask
    if is_causal:
        unseen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
        scores = scores.masked_fill(unseen, -torch.inf)
    return scores


def plain_attention(
    query: Tensor, key: Tensor, value: Tensor, dropout_p: float = 0.0, is_causal: bool = False, *,
    attn_mask: Tensor | None = None, scale: float | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Attention and its log-sum-exp ``[B, heads, T]``. A query that sees no key gets zero for both, as from the kernel."""
    scores = _scores(query, key, is_causal, attn_mask, scale)
    total = scores.logsumexp(-1)
    total = total.masked_fill(total == -torch.inf, 0.0)
    values = value.float().repeat_interleave(query.shape[1] // value.shape[1], 1)
    return (torch.exp(scores - total.unsqueeze(-1)) @ values).to(query.dtype), total


def plain_attention_backward(
    grad_out: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, logsumexp: Tensor, dropout_p: float,
    is_causal: bool, *, attn_mask: Tensor | None = None, scale: float | None = None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of query, key and value. ``out`` and ``logsumexp`` may be those of a softmax over more keys than these."""
    grad, factor = grad_out.float(), 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    probability = torch.exp(_scores(query, key, is_causal, attn_mask, scale) - logsumexp.unsqueeze(-1))
    to_value = probability.transpose(-2, -1) @ grad
    to_scores = probability * (grad @ value.float().transpose(-2, -1) - (grad * out.float()).sum(-1, keepdim=True)) * factor
    to_query, to_key = to_scores @ key.float(), to_scores.transpose(-2, -1) @ query.float()
    return to_query.to(query.dtype), to_key.to(key.dtype), to_value.to(value.dtype)


flash_attention_for_cpu: Callable[..., Sequence[Tensor]] = _found("_scaled_dot_product_flash_attention_for_cpu") or plain_attention
flash_attention_for_cpu_backward: Callable[..., Sequence[Tensor]] = (
    _found("ops.aten._scaled_dot_product_flash_attention_for_cpu_backward") or plain_attention_backward
)


# -- operations as values -------------------------------------------------------------------------------------------------------


def tensors_in(value: Any) -> list[Tensor]:
    """The tensors among arguments or results of an operation, those in lists too."""
    if isinstance(value, Tensor):
        return [value]
    items = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    return [tensor for item in items for tensor in tensors_in(item)]


def mapped_tensors(value: Any, function: Callable[[Tensor], Tensor]) -> Any:
    """Arguments of an operation with a function of each tensor in its place."""
    if isinstance(value, Tensor):
        return function(value)
    if isinstance(value, dict):
        return {key: mapped_tensors(item, function) for key, item in value.items()}
    return type(value)(mapped_tensors(item, function) for item in value) if isinstance(value, (list, tuple)) else value


def arguments_of(operation: Any) -> list[Any]:
    """The schema of each argument of an operation: ``name``, ``type``, ``is_out``, ``alias_info``."""
    return list(operation._schema.arguments)


def quick_call(operation: Any) -> Callable[..., Any]:
    """The operation without the Python function around it."""
    return getattr(operation, "_op", operation)


# -- looking at torch at work ----------------------------------------------------------------------------------------------------


class NoDispatchMode:
    """Sees nothing: whoever wanted to watch has to do without."""

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *problem: Any) -> None:
        return None


def _dispatch_mode() -> Any:
    """Torch's way to watch operations below autograd; None where it has moved."""
    try:
        from torch.utils._python_dispatch import TorchDispatchMode
    except ImportError:
        MISSING.append("utils._python_dispatch.TorchDispatchMode")
        return None
    return TorchDispatchMode


DispatchMode: Any = _dispatch_mode() or NoDispatchMode


def no_version(tensor: Tensor) -> int:
    """Where writes cannot be counted, callers must tell changes by other means too."""
    return 0


def _version(tensor: Tensor) -> int:
    return tensor._version


version_of: Callable[[Tensor], int] = _version if hasattr(torch.empty(0), "_version") else no_version
"""How often a tensor was written to in place, as far as torch was told."""
if version_of is no_version:
    MISSING.append("Tensor._version")
