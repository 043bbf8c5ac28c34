"""What a policy sees of a MiniGrid: its cells as numbers, or a small picture. Imported when the first of them is made."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from minigrid.core.constants import COLOR_TO_IDX, OBJECT_TO_IDX, STATE_TO_IDX
from minigrid.minigrid_env import MiniGridEnv
from minigrid.wrappers import RGBImgPartialObsWrapper

from upslope.errors import TaskError, did_you_mean
from upslope.fields import shown
from upslope.plain_data import JsonDict
from upslope.tasks.gym_make import make_env

VIEWS = {
    "flat": "each cell it sees one-hot by kind, colour and state, and its direction: numbers",
    "image": "the cells it sees drawn, 8 pixels each: an image",
}
"""What ``view=`` may be; the first one is meant where it is left out."""


class OneHotCells(gymnasium.ObservationWrapper):
    """The cells in view one-hot, as minigrid's own ``OneHotPartialObsWrapper`` has them, without its loop over cells."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        sizes = (len(OBJECT_TO_IDX), len(COLOR_TO_IDX), len(STATE_TO_IDX))
        self._rows = [np.eye(size, dtype=np.float32) for size in sizes]
        inside: Any = env.observation_space
        cells = spaces.Box(0.0, 1.0, (*inside["image"].shape[:2], sum(sizes)), np.float32)
        self.observation_space = spaces.Dict({**inside.spaces, "image": cells})

    def observation(self, observation: Any) -> Any:
        cells = observation["image"]
        image = np.concatenate([rows[cells[..., number]] for number, rows in enumerate(self._rows)], axis=-1)
        return {**observation, "image": image}


def make_grid(env_id: str, options: JsonDict, name: str) -> Any:
    """A MiniGrid as the option ``view`` asks for it. Its mission stays in the observation; being text it is left out later."""
    rest = dict(options)
    view = rest.pop("view", next(iter(VIEWS)))
    if view not in VIEWS:
        told = " or ".join(f"{key} ({about})" for key, about in VIEWS.items())
        near = did_you_mean(view, VIEWS) if isinstance(view, str) else ""
        raise TaskError(f"{name}: view is {shown(view)}; it must be {told}.{near}")
    env = make_env(env_id, rest, name)
    if view == "flat":
        return OneHotCells(env)
    return gymnasium.wrappers.FilterObservation(RGBImgPartialObsWrapper(env), ["image", "mission"])


def step_limit(env: Any) -> int | None:
    """Steps after which a MiniGrid cuts an episode by itself."""
    return env.unwrapped.max_steps if isinstance(env.unwrapped, MiniGridEnv) else None
