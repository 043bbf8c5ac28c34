"""Nested dicts and lists of tensors and plain data, taken apart into what JSON can say and tensors by name, and put together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

TENSOR = "__tensor__"


def taken_apart(value: Any, path: str, tensors: dict[str, Tensor]) -> Any:
    """A value with its tensors taken out into ``tensors``, each named by where it stood."""
    if isinstance(value, Tensor):
        tensors[path] = value.detach()
        return {TENSOR: path}
    if isinstance(value, dict):
        return {str(key): taken_apart(item, f"{path}/{key}", tensors) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [taken_apart(item, f"{path}/{place}", tensors) for place, item in enumerate(value)]
    return value


def put_together(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    """What `taken_apart` took apart.

    Raises:
        KeyError: if a tensor is missing.
    """
    if isinstance(value, dict):
        return tensors[value[TENSOR]] if TENSOR in value else {key: put_together(item, tensors) for key, item in value.items()}
    return [put_together(item, tensors) for item in value] if isinstance(value, list) else value
