"""An environment whose camera and joints must be looked at together: neither alone says which way is right."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

SIDE = 8


class CameraAndJoints(gymnasium.Env[Any, Any]):
    """The lit half of the camera's picture says left or right, ``body.sign`` whether that is to be turned round; three steps.

    A choice is 0 or 1; with ``continuous`` it is the sign of a number.
    """

    def __init__(self, continuous: bool = False, broken: str = "") -> None:
        camera = spaces.Box(0, 255, (SIDE, SIDE, 3), np.uint8)
        body = spaces.Dict({"sign": spaces.Box(-1.0, 1.0, (2,), np.float32), "step": spaces.Discrete(4, start=1)})
        self.observation_space = spaces.Dict({"camera": camera, "body": body})
        self.action_space = spaces.Box(-1.0, 1.0, (1,), np.float32) if continuous else spaces.Discrete(2)
        self.continuous, self.broken = continuous, broken

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return self._see(), {}

    def _see(self) -> Any:
        self.right, self.turned = (bool(self.np_random.integers(2)) for _ in range(2))
        picture = self.np_random.integers(0, 60, (SIDE, SIDE, 3), dtype=np.uint8)
        half = slice(SIDE // 2, None) if self.right else slice(0, SIDE // 2)
        picture[:, half] += np.uint8(150)
        sign = np.array([1.0 if self.turned else -1.0, 0.25], np.float32)
        if self.broken == "nan" and self.steps == 1:
            sign[1] = np.nan
        if self.broken == "float camera" and self.steps == 1:
            return {"camera": picture / 255, "body": {"sign": sign, "step": self.steps + 1}}
        return {"camera": picture, "body": {"sign": sign, "step": self.steps + 1}}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        chosen = bool(action[0] > 0) if self.continuous else bool(action)
        reward = float(chosen == (self.right != self.turned))
        self.steps += 1
        return self._see(), reward, self.steps == 3, False, {}


class TwoCameras(CameraAndJoints):
    """What the camera sees twice, and no number."""

    def __init__(self) -> None:
        super().__init__(continuous=True)
        camera = self.observation_space["camera"]
        self.observation_space = spaces.Tuple([camera, camera])

    def _see(self) -> Any:
        seen = super()._see()["camera"]
        return seen, seen


gymnasium.register("TwoCameras-v0", entry_point=TwoCameras, max_episode_steps=3)
gymnasium.register("CameraAndJoints-v0", entry_point=CameraAndJoints, max_episode_steps=3)
