"""Several rewards as one: their weighted sum, with each of them a component of its own."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from upslope.tasks.text import FULL_MARKS, SECONDS, Reward, RewardRows, short_name

TAKEN = ("reward", "task")
"""Components that mean something else: the sum, and what the task pays."""


@dataclass(frozen=True)
class RewardPart:
    """One of several rewards."""

    reward: Reward
    weight: float = 1.0
    label: str = ""
    """What its component is called; empty: after the reward."""

    @property
    def needs_answer(self) -> bool:
        return bool(getattr(self.reward, "needs_answer", False))

    @property
    def reads_answer(self) -> bool:
        """Whether the reward's parameters say that it is given the expected answer."""
        return bool(getattr(self.reward, "reads_answer", False))


@dataclass(frozen=True)
class WeightedRewards:
    """The sum of rewards times their weights. One that does not apply to a response is left out of that response's sum.

    Components are each reward by its label, before its weight, and each reward's own components as ``<label>_<name>``. ``correct``
    is the first of theirs of that name; without one, full marks of the reward that judges (`judge`); without such a one there is
    none, and a response counts as right where the sum is 1 or more.
    """

    parts: tuple[RewardPart, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "parts", tuple(distinct(self.parts)))

    @property
    def name(self) -> str:
        return " + ".join(part.label if part.weight == 1 else f"{part.weight:g} {part.label}" for part in self.parts)

    @property
    def needs_answer(self) -> bool:
        return any(part.needs_answer for part in self.parts)

    @property
    def tells_seconds(self) -> bool:
        return any(getattr(part.reward, "tells_seconds", False) for part in self.parts)

    def check_row(self, info: Mapping[str, Any]) -> str:
        """What is wrong with a row for one of them, in words; nothing if all can score it."""
        checks = [getattr(part.reward, "check_row", None) for part in self.parts]
        return next((wrong for check in checks if check is not None and (wrong := check(info))), "")

    @property
    def judge(self) -> RewardPart | None:
        """The reward that says what is right: the first that compares with the answer, else the first function that asks for it by
        name (``solution``, ``ground_truth``), else the only one that is no built-in."""
        functions = [part for part in self.parts if hasattr(part.reward, "function")]
        found = [part for part in self.parts if part.needs_answer] or [part for part in self.parts if part.reads_answer]
        return next(iter(found or (functions if len(functions) == 1 else [])), None)

    def __call__(
        self,
        prompts: Sequence[str],
        responses: Sequence[str],
        answers: Sequence[str],
        infos: Sequence[Mapping[str, Any]] | None = None,
        messages: Sequence[Any] | None = None,
        task_name: str = "",
    ) -> dict[str, list[float]]:
        rows = RewardRows(
            list(prompts),
            list(responses),
            list(answers),
            list(infos or [{}] * len(responses)),
            list(messages or [None] * len(responses)),
            task_name,
        )
        paid = [(part, *rows.pay(part.reward)) for part in self.parts]
        total = [
            sum(part.weight * values[row] for part, values, _ in paid if not math.isnan(values[row]))
            for row in range(len(responses))
        ]
        columns = {part.label: values for part, values, _ in paid}
        times = [components.pop(SECONDS) for _, _, components in paid if SECONDS in components]
        for part, _, components in paid:
            for name, column in components.items():
                columns.setdefault("correct" if name == "correct" else f"{part.label}_{name}", column)
        if "correct" not in columns and (judge := self.judge) is not None:
            columns["correct"] = [float(value >= FULL_MARKS) for value in columns[judge.label]]
        if times:
            columns[SECONDS] = [sum(row) for row in zip(*times, strict=True)]
        return {"reward": total, **columns}


def distinct(parts: Iterable[RewardPart]) -> list[RewardPart]:
    """The parts with a label each, no two of them the same: a second ``length`` is ``length_2``."""
    used, found = set(TAKEN), []
    for part in parts:
        wanted = part.label or label_of(part.reward)
        label, number = wanted, 2
        while label in used:
            label, number = f"{wanted}_{number}", number + 1
        used.add(label)
        found.append(RewardPart(part.reward, part.weight, label))
    return found


def label_of(reward: Reward) -> str:
    """What a reward is called where nobody said."""
    function = getattr(reward, "function", reward)
    while isinstance(function, functools.partial):
        function = function.func
    return re.sub(r"[^\w.-]+", "", short_name(function)) or "reward"
