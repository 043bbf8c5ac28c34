"""A reward as text: ``NAME``, ``NAME*WEIGHT``, or ``NAME*WEIGHT as LABEL``, on the command line and in ``run.toml``.

Here and nowhere else a text is cut into these three, so that what is asked about trust and what is then loaded are the same name.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

MODEL_PREFIX = "rm:"
"""Begins the name of a reward model that a run trained."""

_WEIGHED = re.compile(
    r"(?P<name>.*)\*\s*(?P<weight>[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)(?:\s+as\s+(?P<label>[\w.-]+))?\s*", re.S
)


@dataclass(frozen=True)
class RewardText:
    """One reward of a run.

    Fields:
        name: what is loaded: ``exact``, ``length:max=200``, ``mine.py:style``.
        weight: its factor in the sum.
        label: what its metric is called; empty: after the name.
    """

    name: str
    weight: float = 1.0
    label: str = ""

    @classmethod
    def parse(cls, text: str) -> RewardText:
        """The weight is what follows the last ``*``, if that is a number; otherwise all of it is the name."""
        found = _WEIGHED.fullmatch(text)
        if found is None or not found["name"].strip() or not math.isfinite(float(found["weight"])):
            return cls(text.strip())
        return cls(found["name"].strip(), float(found["weight"]), found["label"] or "")

    @property
    def is_code(self) -> bool:
        """Whether the name is that of a function in a Python file. What stands behind the first colon does not decide it: a
        pattern may hold anything."""
        return self.name.partition(":")[0].endswith(".py") and ":" in self.name

    def named(self, name: str) -> RewardText:
        """The same under another name of what is loaded."""
        return replace(self, name=name)

    def __str__(self) -> str:
        if self.label:
            return f"{self.name}*{self.weight!r} as {self.label}"
        # A name that ends like a weight must not be read as one.
        plain = self.weight == 1 and RewardText.parse(self.name) == RewardText(self.name)
        return self.name if plain else f"{self.name}*{self.weight!r}"


def reward_texts(given: str | Sequence[str]) -> tuple[str, ...]:
    """The rewards of a plan. Runs of earlier versions have one text, which is empty where there was none."""
    return tuple(filter(None, [given] if isinstance(given, str) else given))
