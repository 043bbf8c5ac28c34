"""Grounding in text: find a named widget of a described screen and answer with its box.

There is no picture. A screen is a list of widgets with place and size, so that a character-level model can learn in minutes what a
vision model is asked for: which widget is meant, and where it begins and ends.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from upslope.errors import TaskError
from upslope.tasks.embedded import EmbeddedTask
from upslope.tasks.letters import LETTERS
from upslope.tasks.text import Problem, Scores

Box = tuple[int, int, int, int]
"""Left, top, right, bottom, with left < right and top < bottom."""


@dataclass(frozen=True)
class Grounding(EmbeddedTask):
    """Answer with the box of a widget: ``ga1243b0521?b=`` -> ``0526``.

    Each widget of the prompt is a letter, then left, top, width and height. The answer is left, top, right and bottom. It is
    *right* when the centre of the answered box lies in the target. What is paid is a sum of hit, overlap and closeness, each
    times its knob (GUI-G1); a text that is no box earns nothing.

    Fields:
        widgets: how many the screen has. More makes the right one harder to find.
        size: width and height of the screen, and the largest coordinate. Larger gives smaller targets, relatively.
        hit: pay for a centre in the target. Alone it says nothing about the size of the box.
        iou: pay for overlap, intersection over union.
        box: pay for closeness of the four coordinates, their harmonic mean; it ties the size down.
    """

    kind: ClassVar[str] = "grounding"
    about: ClassVar[str] = "Find a widget's box (left, top, right, bottom): ga1243b0521?b= -> 0526."
    grows_by: ClassVar[str] = "widgets"

    widgets: int = 2
    size: int = 9
    hit: float = 1.0
    iou: float = 0.25
    box: float = 0.125

    def __post_init__(self) -> None:
        self._within(widgets=(1, 26), size=(3, 9))
        for knob in ("hit", "iou", "box"):
            value = getattr(self, knob)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not value >= 0:
                raise TaskError(f"grounding: {knob}={value!r} must be a number of 0 or above.")

    def longest_answer(self) -> int:
        return 4

    def generate(self, count: int, rng: np.random.Generator) -> Iterator[Problem]:
        shape = (count, self.widgets, 2)
        start = rng.integers(0, self.size, shape)
        extent = 1 + (rng.random(shape) * (self.size - start)).astype(int)
        letters = rng.permuted(np.tile(np.arange(len(LETTERS)), (count, 1)), axis=1)[:, : self.widgets]
        wanted = rng.integers(0, self.widgets, count)
        for begins, extents, names, which in zip(start.tolist(), extent.tolist(), letters.tolist(), wanted.tolist(), strict=True):
            screen = "".join(
                f"{LETTERS[name]}{x}{y}{width}{height}"
                for name, (x, y), (width, height) in zip(names, begins, extents, strict=True)
            )
            (x, y), (width, height) = begins[which], extents[which]
            target = (x, y, x + width, y + height)
            prompt = f"g{screen}?{LETTERS[names[which]]}="
            yield self.problem(prompt, "".join(map(str, target)), self.widgets, target=list(target))

    def is_right(self, problem: Problem, answer: str) -> bool:
        found = read_box(answer)
        return found is not None and hits(found, tuple(problem.info["target"]))

    def score(self, problems: Sequence[Problem], responses: Sequence[str]) -> Scores:
        rows = [self._parts(problem, text.strip()) for problem, text in zip(problems, responses, strict=True)]
        columns = {name: [row[name] for row in rows] for name in ("hit", "iou", "box", "growth", "difficulty")}
        reward = [self.hit * row["hit"] + self.iou * row["iou"] + self.box * row["box"] for row in rows]
        return Scores(reward, [row["hit"] > 0 for row in rows], columns)

    def _parts(self, problem: Problem, answer: str) -> dict[str, float]:
        """What an answer is worth in each respect; ``growth`` is its area over the target's, ``difficulty`` the problem's own."""
        target: Box = tuple(problem.info["target"])
        difficulty = (self.size**2 / area(target)) ** 0.5
        found = read_box(answer)
        if found is None:
            return {"hit": 0.0, "iou": 0.0, "box": 0.0, "growth": 0.0, "difficulty": difficulty}
        return {
            "hit": float(hits(found, target)),
            "iou": overlap(found, target),
            "box": closeness(found, target, self.size),
            "growth": area(found) / area(target),
            "difficulty": difficulty,
        }


def read_box(answer: str) -> Box | None:
    """The box four digits stand for; ``None`` for anything else, and for a box without an area."""
    if not re.fullmatch(r"[0-9]{4}", answer):
        return None
    left, top, right, bottom = map(int, answer)
    return (left, top, right, bottom) if left < right and top < bottom else None


def area(box: Box) -> int:
    return (box[2] - box[0]) * (box[3] - box[1])


def hits(box: Box, target: Box) -> bool:
    """Whether the centre of the box lies in the target, its edge included."""
    across, down = (box[0] + box[2]) / 2, (box[1] + box[3]) / 2
    return target[0] <= across <= target[2] and target[1] <= down <= target[3]


def overlap(box: Box, target: Box) -> float:
    """Intersection over union."""
    width = min(box[2], target[2]) - max(box[0], target[0])
    height = min(box[3], target[3]) - max(box[1], target[1])
    shared = max(width, 0) * max(height, 0)
    return shared / (area(box) + area(target) - shared)


def closeness(box: Box, target: Box, size: int) -> float:
    """Harmonic mean of one minus each coordinate's error, in screens; 0 where a coordinate is off by a whole screen."""
    terms = [1 - abs(mine - theirs) / size for mine, theirs in zip(box, target, strict=True)]
    return 4 / sum(1 / term for term in terms) if min(terms) > 0 else 0.0
