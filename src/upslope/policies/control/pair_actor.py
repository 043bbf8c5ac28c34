"""Two actors for two tasks, one of which is to be done at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from upslope.objective.networks.pair import Pair
from upslope.types import Drawn


class PairActor(Pair):
    """Two actors of one kind, each acting where its task is to be done. With the same noise both draw, and one is taken."""

    first: Any
    second: Any

    @property
    def certain(self) -> bool:
        """Whether nothing is drawn."""
        return self.first.certain

    def sample(self, observation: Tensor, noise: Tensor, frozen: bool) -> Drawn:
        own, second = observation[..., :-1], observation[..., -1] > 0
        one, other = (actor.sample(own, noise, frozen) for actor in (self.second, self.first))
        wide = second[..., None, None] if one.action.dim() == 4 else second[..., None]
        return Drawn(torch.where(wide, one.action, other.action), torch.where(second[..., None], one.logp, other.logp))

    def logp(self, observation: Tensor, action: Tensor, frozen: bool) -> Tensor:
        """``[N, T, J]``."""
        return self.chosen(observation, lambda actor, own: actor.logp(own, action, frozen), trailing=1)

    def log_probabilities(self, observation: Tensor, frozen: bool) -> Tensor:
        """``[N, T, A]``."""
        return self.chosen(observation, lambda actor, own: actor.log_probabilities(own, frozen), trailing=1)

    def choose(self, output: np.ndarray, noise: np.ndarray, greedy: bool) -> np.ndarray:
        """Actions for outputs ``[B, O + 1]``, behind which the number of the task stands."""
        own, second = output[:, :-1], output[:, -1] > 0
        actions = [actor.choose(own, noise, greedy) for actor in (self.second, self.first)]
        return np.where(second.reshape(-1, *[1] * (actions[0].ndim - 1)), *actions)
