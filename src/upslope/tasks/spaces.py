"""Spaces of gymnasium as flat numbers: how large they are, and what a policy gives as an environment takes it."""

from __future__ import annotations

from typing import Any

import numpy as np

from upslope.errors import TaskError


def observation_size(name: str, space: object) -> int:
    """Numbers in an observation: a Box flattened, a Discrete one-hot; every other space is refused."""
    from gymnasium import spaces

    if isinstance(space, spaces.Discrete):
        return int(space.n)
    if not isinstance(space, spaces.Box):
        raise TaskError(f"{name} has observations {space}; only Box and Discrete can be used. "
                        "Register it with gymnasium's FlattenObservation wrapper around it.")  # fmt: skip
    if len(space.shape) >= 2 and space.dtype == np.uint8:
        raise TaskError(f"{name} has images as observations, {space}; a policy for vectors cannot use them. "
                        "Use an environment that reports its state as numbers.")  # fmt: skip
    return int(np.prod(space.shape))


def action_size(name: str, space: object) -> tuple[bool, int]:
    """Whether actions are vectors rather than choices, and how many numbers or choices there are."""
    from gymnasium import spaces

    if isinstance(space, spaces.Discrete):
        return False, int(space.n)
    if isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating):
        return True, int(np.prod(space.shape))
    raise TaskError(f"{name} has actions {space}; only Discrete and a Box of floats can be used.")


def actions_taken(space: Any, actions: np.ndarray) -> np.ndarray:
    """Actions as a policy gives them, ids ``[B]`` or vectors ``[B, D]``, as the environment takes them: clipped, from its start."""
    if hasattr(space, "n"):
        return actions + int(space.start)
    return np.clip(actions.reshape(-1, *space.shape), space.low, space.high).astype(space.dtype, copy=False)
