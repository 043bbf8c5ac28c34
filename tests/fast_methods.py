"""The methods on which the fast tests train something; the whole suite does so on all."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

FAST = ("grpo", "dhpo", "ppo")


def few_fast(names: Iterable[str]) -> list[Any]:
    """The names as parameters of a test, slow but for `FAST`."""
    return [name if name in FAST else pytest.param(name, marks=pytest.mark.slow) for name in names]
