"""A trained controller ready for use: raw observations in, actions as the environment takes them out.

What it does in front of and behind the network is what the run did: the observation statistics as they stood at the checkpoint, and
actions clipped to their box, or counted from the first one of their space.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from upslope.errors import UserError
from upslope.policies.control.mlp import MLPPolicy
from upslope.policies.control.network_policy import NetworkPolicy
from upslope.policies.control.torch_policy import TorchPolicy
from upslope.rollout.normalise import ObservationNormaliser
from upslope.runtime.seeding import generator
from upslope.tasks.gym import GymTask
from upslope.tasks.spaces import actions_taken


class DeployedPolicy:
    """Picks actions as the run's policy does, by Stable-Baselines3's protocol.

    Args:
        observations: Shows the policy what it learned to see; ``None`` shows it what the environment gives.
        seed: Of actions that are drawn.
    """

    def __init__(
        self,
        task: GymTask,
        policy: MLPPolicy | NetworkPolicy | TorchPolicy,
        observations: ObservationNormaliser | None,
        seed: int = 0,
    ) -> None:
        self.task, self.policy, self.observations = task, policy, observations
        self.observation_space, self.action_space = task.observation_space, task.action_space
        self._actor, self._random = policy.acting(), generator(seed, "predict")

    def predict(
        self, observation: Any, state: Any = None, episode_start: Any = None, deterministic: bool = False
    ) -> tuple[np.ndarray, Any]:
        """Actions for one observation or a batch of them, and the state behind them.

        Args:
            observation: As the environment gives it, or several with one more axis in front.
            state: What the last call gave back, of policies that remember; ``None`` begins. Of others it is given back as it is.
            episode_start: Whether an episode begins with each of them: what was remembered is then forgotten.
            deterministic: The likeliest action; otherwise one is drawn, as in training.

        Raises:
            UserError: if it is not of the environment's shape, or not finite, or the state is of other episodes.
        """
        seen, single = self.seen(observation)
        output, behind = self._actor.step(seen, self._memory(state, episode_start, len(seen)))
        state = behind if self._actor.memory_size else state
        action = self._actor.choose(output, np.empty(0) if deterministic else self._noise(len(seen)), deterministic)
        taken = actions_taken(self.action_space, action)
        return (taken[0] if single and self.task.continuous else np.asarray(taken[0]) if single else taken), state

    def _memory(self, state: Any, episode_start: Any, rows: int) -> np.ndarray:
        """What is remembered of each episode ``[B, S]``; of a policy that remembers nothing, nothing."""
        empty = np.zeros((rows, self._actor.memory_size), np.float32)
        if state is None or not self._actor.memory_size:
            return empty
        if np.shape(state) != empty.shape:
            raise UserError(
                f"state has the shape {np.shape(state)}, and that of {rows} episodes is {empty.shape}. Give what the last predict "
                "gave back, or None where they begin."
            )
        begins = np.zeros(rows, bool) if episode_start is None else np.broadcast_to(np.asarray(episode_start, bool), (rows,))
        return np.where(begins[:, None], empty, np.asarray(state, np.float32))

    def parameters(self, observation: Any) -> np.ndarray:
        """Of the actions, ``[B, A]``: logits, values of the choices, or means before they are clipped or squashed."""
        return self._actor.output(self.seen(observation)[0])[:, : self.task.action_size]  # a value or spreads stand behind them

    def seen(self, observation: Any) -> tuple[np.ndarray, bool]:
        """Observations as the network sees them, ``[B, D]`` float32 or images in bytes, and whether it was a single one."""
        raw, single = self._flat(observation)
        return (raw if self.observations is None else self.observations(raw)), single

    def _flat(self, observation: Any) -> tuple[np.ndarray, bool]:
        space, layout = self.observation_space, self.task.layout
        if layout.is_tree or layout.is_image:
            return self._of_parts(observation)
        try:
            given = np.asarray(observation, dtype=np.float64)
        except (TypeError, ValueError):
            raise UserError(f"{type(observation).__name__} is no observation of {self.task.name}; give {self._wanted()}.") from None
        single = given.shape == space.shape
        if not single and given.shape[1:] != space.shape:
            raise UserError(f"an observation of {self.task.name} has the shape {space.shape}, and {given.shape} was given; "
                            f"give {self._wanted()}.")  # fmt: skip
        if not np.isfinite(given).all():
            raise UserError(f"an observation given to {self.task.name} holds a number that is not finite.")
        rows = given[None] if single else given
        if layout.parts[0].first is None:
            return rows.reshape(len(rows), -1).astype(np.float32), single
        places = rows.astype(np.int64) - int(space.start)
        if ((places < 0) | (places >= space.n) | (rows != rows.round())).any():
            raise UserError(f"{shown_ids(rows)} is not in {space}, the observations of {self.task.name}.")
        return np.eye(int(space.n), dtype=np.float32)[places], single

    def _of_parts(self, observation: Any) -> tuple[np.ndarray, bool]:
        """Of a Dict or Tuple, each part alone or with one more axis in front; or of an image."""
        layout, name = self.task.layout, self.task.name
        try:
            pieces = [np.asarray(part.of(observation)) for part in layout.parts]
            single = pieces[0].shape == layout.parts[0].space.shape
            count = 1 if single else len(pieces[0])
            for part, piece in zip(layout.parts, pieces, strict=True):
                if piece.shape != ((*part.space.shape,) if single else (count, *part.space.shape)):
                    raise ValueError(f"{part.told}has the shape {piece.shape}, not {part.space.shape}")
                if not np.isfinite(piece).all():
                    raise ValueError(f"{part.told}holds a number that is not finite")
            return layout.rows(observation, count), single
        except (TypeError, ValueError) as error:
            what = f"{type(observation).__name__} is no observation of {name}"
            raise UserError(f"{what}, {self.observation_space}: {error}.") from error

    def _wanted(self) -> str:
        return f"one of that shape, or several as {('N', *self.observation_space.shape)}".replace("'", "")

    def _noise(self, rows: int) -> np.ndarray:
        import torch

        if self.task.continuous:
            return torch.randn((rows, self.task.action_size), generator=self._random).numpy()
        return torch.rand(rows, generator=self._random).numpy()


def shown_ids(rows: np.ndarray) -> str:
    """Some numbers in a message."""
    return ", ".join(f"{value:g}" for value in rows.reshape(-1)[:3]) + (", ..." if rows.size > 3 else "")
