"""Small environments of the claims about control: each has the one property that a method is said to cope with."""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium
import numpy as np

from upslope import reset_free


class NoisyChoices(gymnasium.Env[np.ndarray, int]):
    """Eight choices that all pay nothing on average, with noise; whatever is done, every value is 0 and any other is an error."""

    noise = 1.0

    def __init__(self) -> None:
        self.observation_space = gymnasium.spaces.Box(-1.0, 1.0, (3,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(8)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return self._seen(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        return self._seen(), float(self.np_random.normal(0.0, self.noise)), False, self.steps >= 20, {}

    def _seen(self) -> np.ndarray:
        return self.np_random.uniform(-1, 1, 3).astype(np.float32)


def paid_by_size(action: np.ndarray) -> np.ndarray:
    """What `OneShot` pays for an action."""
    return np.minimum(np.abs(action), 1 - np.abs(action))


class OneShot(gymnasium.Env[np.ndarray, np.ndarray]):
    """One action in [-1, 1] pays its size up to a half and beyond that ever less, and that is all: its value is its reward."""

    def __init__(self) -> None:
        self.observation_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        return self._seen(), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        return self._seen(), float(paid_by_size(action[0])), True, False, {}

    def _seen(self) -> np.ndarray:
        return self.np_random.uniform(-1, 1, 1).astype(np.float32)


class _Point(gymnasium.Env[np.ndarray, np.ndarray]):
    """A point in a square of side 2 that is pushed about; it loses a part of its speed at every step."""

    length = 50
    drag, push = 0.5, 0.06
    goal: ClassVar = np.array([0.7, 0.7])

    def __init__(self) -> None:
        self.observation_space = gymnasium.spaces.Box(-1.0, 1.0, (4,), np.float32)
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)

    def start(self) -> np.ndarray:
        """Where an episode begins."""
        raise NotImplementedError

    def paid(self) -> tuple[float, bool]:
        """The reward at the present place, and whether that is the end."""
        raise NotImplementedError

    def blocked(self, before: np.ndarray, after: np.ndarray) -> bool:
        """Whether a wall is in the way."""
        return False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.place, self.speed, self.steps = self.start(), np.zeros(2), 0
        return self._seen(), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.speed = self.drag * self.speed + self.push * np.clip(action, -1, 1)
        after = np.clip(self.place + self.speed, -1, 1)
        if self.blocked(self.place, after):
            self.speed = np.zeros(2)
        else:
            self.place = after
        self.steps += 1
        reward, over = self.paid()
        return self._seen(), reward, over, not over and self.steps >= self.length, {}

    def _seen(self) -> np.ndarray:
        return np.concatenate([self.place, 5 * self.speed]).astype(np.float32)


class SparseReach(_Point):
    """From the lower left corner to a small disc in the upper right: 1 for being there, which ends the episode, else nothing."""

    def start(self) -> np.ndarray:
        return self.np_random.uniform(-0.9, -0.5, 2)

    def paid(self) -> tuple[float, bool]:
        there = bool(np.linalg.norm(self.place - self.goal) < 0.15)
        return float(there), there


class ReachAndReturn(SparseReach):
    """The same, which says where it is and can be put there: a robot that is not reset (`reach_and_return`)."""

    home: ClassVar = np.array([-0.7, -0.7])

    def get_state(self) -> np.ndarray:
        return np.concatenate([self.place, self.speed, [self.steps]])

    def set_state(self, numbers: np.ndarray) -> None:
        self.place, self.speed, self.steps = numbers[:2].copy(), numbers[2:4].copy(), int(numbers[4])


def is_home(observation: np.ndarray) -> bool:
    """Whether the point is in the square where episodes begin."""
    return bool(np.abs(observation[:2] - ReachAndReturn.home).max() <= 0.2)


def reach_and_return() -> gymnasium.Env[np.ndarray, np.ndarray]:
    """To the disc and back to the corner in turns, without a reset."""
    return reset_free(ReachAndReturn(), is_home, _Point.length)


def reach_alone() -> gymnasium.Env[np.ndarray, np.ndarray]:
    """To the disc alone, from the corner each time, seen as in the pair: where its policy is judged."""
    return reset_free(ReachAndReturn(), is_home, _Point.length, forward_only=True)


class WalledPoint(_Point):
    """A wall with a gap at its left end lies between the lower half and the goal; every step costs the way that is left."""

    goal: ClassVar = np.array([0.6, 0.6])
    gap: ClassVar = np.array([-0.75, 0.0])
    wide = 0.25

    def start(self) -> np.ndarray:
        return self.np_random.uniform([-0.2, -0.9], [0.9, -0.3])

    def blocked(self, before: np.ndarray, after: np.ndarray) -> bool:
        if before[1] * after[1] > 0:
            return False
        crossing = before[0] + (after[0] - before[0]) * abs(before[1]) / max(abs(before[1]) + abs(after[1]), 1e-9)
        return bool(crossing > self.gap[0] + self.wide)

    def paid(self) -> tuple[float, bool]:
        return -float(self.way_left()), False

    def way_left(self) -> float:
        """The shortest way to the goal, through the gap where that is needed."""
        straight = float(np.linalg.norm(self.place - self.goal))
        if self.place[1] > 0:
            return straight
        return float(np.linalg.norm(self.place - self.gap) + np.linalg.norm(self.gap - self.goal))


class CubeReach(gymnasium.Env[Any, np.ndarray]):
    """OGBench's robot arm and cube: 1 for bringing the gripper to the cube, which ends the episode, else nothing."""

    name, near, length = "cube-single-singletask-v0", 0.03, 100
    spare: ClassVar[dict[str, list[Any]]] = {}
    """Robots whose environments were closed, by name: to build one takes a second, and every evaluation asks for ten."""

    def __init__(self) -> None:
        from upslope.tasks.env_packages import register

        register(self.name)
        found = self.spare.setdefault(self.name, [])
        self.robot: Any = found.pop() if found else gymnasium.make(self.name).unwrapped  # no limit of time, no reward of its own
        self.observation_space, self.action_space = self.robot.observation_space, self.robot.action_space

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return self.shown(*self.robot.reset(seed=seed)), {}

    def close(self) -> None:
        if self.robot is not None:
            self.spare[self.name].append(self.robot)
            self.robot = None

    def shown(self, seen: np.ndarray, told: dict[str, Any]) -> Any:
        """What a policy is shown of what the robot shows and tells."""
        return seen

    def step(self, action: np.ndarray) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        seen, _, _, _, told = self.robot.step(action)
        self.steps += 1
        there = bool(np.linalg.norm(told["proprio/effector_pos"] - told["privileged/block_0_pos"]) < self.near)
        return self.shown(seen, told), float(there), there, not there and self.steps >= self.length, {}


class CubeReachPixels(CubeReach):
    """The same reach seen by a camera, in pictures of 64 x 64, with what the gripper knows of itself."""

    name = "visual-cube-single-singletask-v0"
    gripper = ("proprio/effector_pos", "proprio/effector_yaw", "proprio/gripper_opening", "proprio/gripper_contact")

    def __init__(self) -> None:
        from upslope.tasks.rendering import use_no_display

        use_no_display()
        super().__init__()
        gripper = gymnasium.spaces.Box(-np.inf, np.inf, (6,), np.float32)
        self.observation_space = gymnasium.spaces.Dict(camera=self.robot.observation_space, gripper=gripper)

    def shown(self, seen: np.ndarray, told: dict[str, Any]) -> Any:
        return {"camera": seen, "gripper": np.concatenate([told[name] for name in self.gripper]).astype(np.float32)}


class ToCube:
    """OGBench's own scripted manipulator, which goes to the cube first."""

    def __init__(self) -> None:
        from upslope.datasets.oracle import CubeOracle

        self.oracle = CubeOracle("plan")

    def begin(self, simulator: Any, observation: np.ndarray, rng: np.random.Generator) -> None:
        self.oracle.begin(simulator.robot, observation, rng)

    def act(self, observation: np.ndarray) -> np.ndarray:
        return self.oracle.act(observation)


class Towards:
    """Pushes a point to its goal, through the gap where there is one, and of a pair back home in turn."""

    def begin(self, simulator: Any, observation: np.ndarray, rng: np.random.Generator) -> None:
        self.simulator = simulator

    def act(self, observation: np.ndarray) -> np.ndarray:
        place, goal = self.simulator.place, self.simulator.goal
        if len(observation) > 4 and observation[-1] > 0:  # of a pair, on the way back
            goal = self.simulator.home
        gap, beyond = getattr(self.simulator, "gap", None), np.array([0.0, 0.15])
        if gap is not None and place[1] <= 0.05:
            goal = gap + beyond if abs(place[0] - gap[0]) < 0.15 else gap - beyond
        return np.clip(8 * (goal - place) - 4 * self.simulator.speed, -1, 1)


CONTROLLERS = {
    "WalledPoint": ("WalledPoint", Towards),
    "SparseReach": ("SparseReach", Towards),
    "CubeReach": ("CubeReach", ToCube),
    "CubeReachPixels": ("CubeReachPixels", ToCube),
}


class Detour(_Point):
    """A disc lies between the point and its goal, and both ways around it are equally long; every step costs the way that is left.

    Who shows the way goes above the disc, and steers back to it wherever noise has carried the point.
    """

    noise = 0.02
    goal: ClassVar = np.array([0.7, 0.0])
    radius = 0.35
    either = False
    """Whether a coin decides between above and below, once an episode."""

    def start(self) -> np.ndarray:
        self.side = float(self.np_random.choice([-1.0, 1.0])) if self.either else 1.0
        return self.np_random.uniform([-0.8, -0.1], [-0.6, 0.1])

    def blocked(self, before: np.ndarray, after: np.ndarray) -> bool:
        return bool(np.linalg.norm(after) < self.radius)

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.speed = self.speed + self.noise * self.np_random.standard_normal(2)
        return super().step(action)

    def paid(self) -> tuple[float, bool]:
        left = float(np.linalg.norm(self.place - self.goal))
        return -left, left < 0.1

    def best_action(self, observation: np.ndarray) -> np.ndarray:
        """Towards a place beside the disc, and behind it towards the goal."""
        target = np.array([0.0, 0.55 * self.side]) if self.place[0] < 0 else self.goal
        return np.clip(8 * (target - self.place) - 4 * self.speed, -1, 1)


class CalmDetour(Detour):
    noise = 0.0


class EitherDetour(CalmDetour):
    either = True


class ShakyDetour(Detour):
    noise = 0.05


class WildDetour(Detour):
    noise = 0.3
