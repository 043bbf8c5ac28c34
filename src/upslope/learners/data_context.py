"""What the policy-gradient learner does for data parts: columns of the policy, reference answers, further turns."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import torch

from upslope.learners.policy_views import PolicyViews
from upslope.objective import estimator
from upslope.plain_data import Prompt
from upslope.rollout.decode.mixed import MixedModels
from upslope.runtime.seeding import numpy_generator
from upslope.tasks.turns import POLICY, Mixture, TurnNumbers, speaker_label
from upslope.types import Method, Metrics, Source, TaskRollout, Trajectories, View


class LearnerContext:
    """The `upslope.types.DataContext` of a step; ``method`` is as the step's knobs have it."""

    def __init__(self, method: Method, views: PolicyViews, rollout: TaskRollout, step: int, seed: int):
        self.method, self.views, self.rollout, self.seed = method, views, rollout, seed
        self.numbers = TurnNumbers(step, "data")
        self.like: Trajectories | None = None
        """The rows the part was given, whose states hold for what it samples."""
        self.sampled: list[Trajectories] = []
        """All that was sampled in further turns, ..."""
        self.seconds = 0.0
        """... and how long that took."""

    def of_part(self, path: str, rows: Trajectories) -> LearnerContext:
        """As the part of this path sees it, given these rows: it draws numbers of its own."""
        self.numbers.path, self.numbers.calls, self.like = path, 0, rows
        return self

    @property
    def task(self) -> Any:
        return cast(Any, self.rollout).task

    @property
    def judge(self) -> Any:
        return cast(Any, self.rollout).judge

    def fits(self, prompts: Sequence[Prompt]) -> list[bool]:
        return cast(Any, self.rollout).fits(prompts)

    def rng(self) -> np.random.Generator:
        return numpy_generator(self.seed, "data", self.numbers.step, self.numbers.path)

    def evaluate(self, rows: Trajectories, columns: frozenset[str]) -> View:
        return self.views.columns(self.method, self.views.policy, rows, columns - {"logp"})

    def teacher(self, rows: Trajectories) -> Trajectories:
        return self._rewarded(self.rollout.teacher(rows), rows)

    def sample(self, turns: Sequence[Any]) -> Trajectories:
        assert self.like is not None
        began = time.perf_counter()
        others = [turn.by for turn in turns if turn.by != POLICY]
        spoken = {"by": self._speaker(others[0])} if others else {}
        rows = self._rewarded(self.rollout.sample(turns, self.numbers, **spoken), self.like)
        self.seconds += time.perf_counter() - began
        self.sampled.append(rows)
        return rows

    def _speaker(self, by: str | Mixture) -> Any:
        """The model that samples in the policy's place, as its reference is in this step."""
        if isinstance(by, Mixture) and by.share == 0:
            return self.views.policy
        name = by.reference if isinstance(by, Mixture) else by
        other = self.views.references.compared(self.method, name)
        if not isinstance(by, Mixture) or by.share == 1:
            return other
        return MixedModels(cast(Any, self.views.policy), cast(Any, other), by.share)

    def written(self, turns: Sequence[Any], texts: Sequence[str]) -> Trajectories:
        assert self.like is not None
        return self._rewarded(self.rollout.written(turns, texts, self.numbers), self.like)

    def problems(self, rows: Trajectories) -> list[Any]:
        return self.rollout.problems(rows)

    def join(self, batches: list[Trajectories]) -> Trajectories:
        """Batches without the label ``source`` were sampled in this step, those without ``speaker`` by the policy."""
        if any("source" in batch.label for batch in batches):
            batches = [_with_label(batch, "source", int(Source.FRESH)) for batch in batches]
        if any("speaker" in batch.label for batch in batches):
            batches = [_with_label(batch, "speaker", speaker_label(POLICY)) for batch in batches]
        names = dict.fromkeys(name for batch in batches for name in batch.signal)
        batches = [
            batch.replace(signal={name: batch.signal.get(name, torch.zeros_like(_like(name, batch, batches))) for name in names})
            for batch in batches
        ]
        return self.rollout.join(batches)

    def _rewarded(self, rows: Trajectories, like: Trajectories) -> Trajectories:
        """Scored as the step's first rows are: the method's own early rewards change these too."""
        return estimator.score(self.method, rows.replace(state=like.state, memory=like.memory, progress=like.progress), late=False)

    def metrics(self) -> Metrics:
        """How much was sampled in further turns, if anything was."""
        if not self.sampled:
            return {}
        return {
            "further_tokens": float(sum(float(rows.sampled.sum()) for rows in self.sampled)),
            "further_samples": float(sum(rows.rows for rows in self.sampled)),
            "seconds_further": self.seconds,
        }

    def with_unlearned(self, rows: Trajectories) -> Trajectories:
        """The rows, with those of further turns that nobody learns from put aside as ``further``."""
        if not self.sampled:
            return rows
        learned = torch.cat([batch.key[:, 0] for batch in (rows, *rows.aside.values()) if batch.key is not None])
        left = [batch.keep_rows(~torch.isin(cast(torch.Tensor, batch.key)[:, 0], learned)) for batch in self.sampled]
        left = [batch for batch in left if batch.rows]
        return rows.replace(aside={**rows.aside, "further": self.join(left)}) if left else rows


def _with_label(batch: Trajectories, name: str, usual: int) -> Trajectories:
    return batch.replace(label={name: torch.full_like(batch.group, usual), **batch.label})


def _like(name: str, batch: Trajectories, batches: Sequence[Trajectories]) -> torch.Tensor:
    """A column of the batch of the shape that this signal has: a value for each row, or for each decision."""
    shown = next(other.signal[name] for other in batches if name in other.signal)
    return batch.reward if shown.dim() == 1 else batch.sampled
