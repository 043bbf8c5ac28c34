"""Three fixed steps that methods and parts are called on, and what a learner would do for them: see `part_values.py`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from functools import cache
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import torch
from batches import map_positions, random_batch
from torch import Tensor

from upslope.learners.data_context import LearnerContext
from upslope.plain_data import Prompt
from upslope.policies.text_inputs import TextInputs
from upslope.rollout.text_rows import join_text
from upslope.tasks import load_task
from upslope.tasks.text import Problem
from upslope.tasks.turns import FURTHER, NEW, Turn
from upslope.types import Metrics, Source, Trajectories, View


@cache
def steps() -> tuple[tuple[Trajectories, Metrics], ...]:
    """A usual step; a far one with a group without signal, an empty row and a group in which all is known; one with older rows."""
    usual = _text(random_batch(seed=1, groups=3, samples=4))
    far = _text(random_batch(seed=2, groups=4, samples=5, empty_rows=1, drift=1.0))
    reward = far.reward.clone()
    reward[5:10] = 0.5
    far = far.replace(
        reward=reward,
        components={"task": reward, "format": (torch.arange(far.rows) % 3 == 0).double()},
        label={**far.label, "items": torch.arange(far.rows) % 3 + 1},
        progress=0.3,
        draw=1,
    )
    clean = random_batch(seed=3, groups=5, samples=2, drift=0.6)
    old = map_positions(clean, lambda column: torch.where(clean.sampled > 0, column, _garbage(column))).replace(
        sampled=clean.sampled
    )
    old = _text(old)
    source = torch.where(torch.arange(old.rows) < 6, int(Source.FRESH), int(Source.REPLAYED))
    paid = torch.tensor([0.0, 1.0, 0.25, 0.75, 1.0, 1.0, 0.5, 0.0, -1.0, 2.0], dtype=torch.float64)
    components = {"task": paid, "format": 1 - paid / 2}
    old = old.replace(reward=paid, components=components, label={**old.label, "source": source}, progress=0.8, draw=2)
    metrics = [{"reward": 0.2, "kl_start": 0.05, "kl_proximal": 0.01}, {"reward": 0.6, "kl_start": 0.112, "kl_proximal": 0.03}]
    return (usual, metrics[0]), (far, metrics[1]), (old, {**metrics[1], "reward": 0.55, "kl_start": 0.5})


def _garbage(column: Tensor) -> Tensor:
    """What may stand where nobody decided: it belongs to nobody."""
    return torch.full_like(column, torch.nan) if column.is_floating_point() else column


def _text(batch: Any) -> Trajectories:
    """The batch as answers to prompts of one to six tokens."""
    place, length = torch.arange(6), 1 + torch.arange(batch.rows).unsqueeze(1) % 6
    prompt = (torch.arange(batch.rows * 6).reshape(-1, 6) * 7) % 40 + 1
    rows = Trajectories(**{f.name: getattr(batch, f.name) for f in fields(batch)})
    said = torch.sin(torch.arange(batch.rows * 5, dtype=torch.float64).reshape(-1, 5) * 1.3)
    rows = rows.replace(behavior=View(batch.behavior.logp, batch.proximal.entropy * 0.9))
    rows = rows.replace(embedding=torch.nn.functional.normalize(said, dim=1))
    return rows.replace(inputs=TextInputs(prompt, (place >= 6 - length).long()), info=[{"row": row} for row in range(batch.rows)])


class Context:
    """What a learner does for data parts, for a policy that has moved by a known amount.

    Problems are those of an embedded task; an answer to a further turn is a row that was there already, right every third time.
    """

    task = load_task("reverse:hardest=6")
    seed, judge = 0, None

    def __init__(self, rows: Trajectories):
        self.rows, self.asked = rows, 0
        self.known = self.task.sample(7, "train", np.random.default_rng(0))

    def problems(self, rows: Trajectories) -> list[Problem]:
        return [self.known[task % len(self.known)] for task in rows.task.tolist()]

    def fits(self, prompts: Sequence[Prompt]) -> list[bool]:
        return [True] * len(prompts)

    def rng(self) -> np.random.Generator:
        return np.random.default_rng(1)

    def sample(self, turns: Sequence[Turn]) -> Trajectories:
        each = [turn for turn in turns for _ in range(turn.samples)]
        place = (torch.arange(len(each)) + self.asked) % self.rows.rows
        taken, paid = self.rows.take_rows(place), ((torch.arange(len(each)) + self.asked) % 3 == 0).to(self.rows.reward.dtype)
        self.asked += len(each)
        named = [FURTHER + self.asked + number if turn.group == NEW else turn.group for number, turn in enumerate(each)]
        return taken.replace(
            reward=paid,
            components={**taken.components, "task": paid},
            group=torch.tensor(named),
            key=None if taken.key is None else taken.key + 7 * self.asked,
            label={**taken.label, "source": torch.full_like(taken.group, int(Source.FURTHER))},
            info=[{"response": f"r{turn.problem.answer}="} for turn in each],
        )

    def evaluate(self, rows: Trajectories, columns: frozenset[str]) -> View:
        return View(rows.behavior.logp - 0.01 * (1 + torch.arange(rows.sampled.shape[1])))

    def teacher(self, rows: Trajectories) -> Trajectories:
        """The first row of each group as if nobody had sampled it."""
        first = torch.tensor([int((rows.group == name).nonzero()[0]) for name in rows.group.unique()])
        taught, nobody = rows.take_rows(first), torch.full_like(rows.sampled[first], torch.nan)
        source = torch.full_like(taught.group, int(Source.DEMONSTRATED))
        return taught.replace(reward=taught.reward * 0 + 1, behavior=View(nobody, nobody), label={**taught.label, "source": source})

    def join(self, batches: list[Trajectories]) -> Trajectories:
        joining = LearnerContext.__new__(LearnerContext)
        joining.rollout = cast(Any, SimpleNamespace(join=join_text))
        return joining.join(batches)
