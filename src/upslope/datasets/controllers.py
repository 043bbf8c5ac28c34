"""Controllers written by hand, for environments whose physics are known: an expert without any training.

Each reads the physics off the simulator, so that changed ones (``gym:Pendulum-v1:params.gravity=12``) have an expert too.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from upslope.datasets.behaviours import Behaviour
from upslope.errors import UserError
from upslope.tasks.gym import GymTask
from upslope.tasks.worlds.solving import best_of, optimal_values, regulator


class PendulumSwingUp:
    """Pumps energy in until there is enough to stand upright, and catches it there with a proportional-derivative controller."""

    def begin(self, simulator: Any, observation: np.ndarray, rng: np.random.Generator) -> None:
        self.simulator = simulator

    def act(self, observation: np.ndarray) -> np.ndarray:
        gravity, mass, length = self.simulator.g, self.simulator.m, self.simulator.l
        upright, sine, speed = (float(value) for value in observation)
        angle = math.atan2(sine, upright)
        pull = mass * gravity * length / 2
        # Of a rod about its end, with nothing left when it stands still upright.
        energy = mass * length**2 / 6 * speed**2 + pull * (upright - 1)
        if upright > 0.9 and abs(speed) < 3:
            torque = -(2 * pull * angle + 2 * mass * length**2 / 3 * math.sqrt(3 * gravity / (2 * length)) * speed)
        else:
            torque = -10 * energy * (speed if speed else 1e-3)
        return np.clip([torque], -self.simulator.max_torque, self.simulator.max_torque)


class CartPoleBalance:
    """Pushes to the side that the linear-quadratic regulator of the upright pole asks for."""

    def begin(self, simulator: Any, observation: np.ndarray, rng: np.random.Generator) -> None:
        self.gain = regulator(*_cart_pole(simulator), np.diag([1.0, 1.0, 10.0, 1.0]), np.array([[0.01]]))

    def act(self, observation: np.ndarray) -> int:
        return int(-(self.gain @ observation.astype(np.float64))[0] > 0)


def _cart_pole(simulator: Any) -> tuple[np.ndarray, np.ndarray]:
    """The next state as a matrix of (position, speed, angle, angular speed), and of the push; linear about upright."""
    total, mass, length, gravity = simulator.total_mass, simulator.masspole, simulator.length, simulator.gravity
    inertia = length * (4 / 3 - mass / total)
    turn, push = gravity / inertia, -1 / (total * inertia)
    slide = -mass * length / total
    change = np.array([[0, 1, 0, 0], [0, 0, slide * turn, 0], [0, 0, 0, 1], [0, 0, turn, 0]])
    force = np.array([[0], [1 / total + slide * push], [0], [push]])
    return np.eye(4) + simulator.tau * change, simulator.tau * simulator.force_mag * force


class MountainCarSwing:
    """Pushes the way it is going. The car gains energy with every swing.

    Args:
        discrete: Whether pushes are choices: left, none, right.
    """

    def __init__(self, discrete: bool) -> None:
        self.discrete = discrete

    def begin(self, simulator: Any, observation: np.ndarray, rng: np.random.Generator) -> None:
        pass

    def act(self, observation: np.ndarray) -> Any:
        right = observation[1] >= 0
        return (2 if right else 0) if self.discrete else np.array([1.0 if right else -1.0])


class TableOptimal:
    """The best action by value iteration, where the environment shows its table ``P`` as gymnasium's toy texts do."""

    discount = 0.999

    def __init__(self) -> None:
        self.best = np.zeros(0, np.int64)

    def begin(self, simulator: Any, observation: np.ndarray, rng: np.random.Generator) -> None:
        if not len(self.best):
            self.best = best_actions(simulator.P, self.discount)

    def act(self, observation: np.ndarray) -> int:
        return int(self.best[int(observation.argmax())])


def best_actions(table: Mapping[int, Mapping[int, list[tuple[float, int, float, bool]]]], discount: float) -> np.ndarray:
    """The best action of every state; the first of several that are equally good."""
    states, actions = len(table), len(table[0])
    reward, move = np.zeros((states, actions)), np.zeros((states, actions, states))
    for state, choices in table.items():
        for action, outcomes in choices.items():
            for chance, following, paid, over in outcomes:
                reward[state, action] += chance * paid
                move[state, action, following] += 0.0 if over else chance
    return best_of(optimal_values(move, reward, discount))


class Known:
    """The best action, where the environment itself can tell it: it has a method ``best_action(observation)``."""

    certain = True
    """That it would do the same again, so that its propensities are known."""

    def begin(self, simulator: Any, observation: np.ndarray, rng: np.random.Generator) -> None:
        self.simulator = simulator

    def act(self, observation: np.ndarray) -> Any:
        return self.simulator.best_action(observation)


class MazeWaypoints:
    """PointMaze: the shortest way over the cells of the maze, each approached by a proportional-derivative controller."""

    def begin(self, simulator: Any, observation: np.ndarray, rng: np.random.Generator) -> None:
        self.simulator = simulator

    def act(self, observation: np.ndarray) -> np.ndarray:
        simulator, maze = self.simulator, self.simulator.maze
        position, speed = simulator.data.qpos[:2], simulator.data.qvel[:2]
        here, there = (tuple(map(int, maze.cell_xy_to_rowcol(place))) for place in (position, simulator.goal))
        path = shortest_path(maze.maze_map, here, there)
        target = simulator.goal if len(path) < 2 else maze.cell_rowcol_to_xy(np.array(path[1]))
        return np.clip(10 * (target - position) - 2 * speed, -1.0, 1.0)


def shortest_path(maze_map: list[list[Any]], here: tuple[int, ...], there: tuple[int, ...]) -> list[tuple[int, int]]:
    """Cells from one to the other, both among them; walls are 1. Empty where there is no way."""
    came: dict[tuple[int, ...], tuple[int, ...]] = {here: here}
    waiting = deque([here])
    while waiting and there not in came:
        row, column = waiting.popleft()
        for cell in ((row + 1, column), (row, column + 1), (row - 1, column), (row, column - 1)):
            inside = 0 <= cell[0] < len(maze_map) and 0 <= cell[1] < len(maze_map[0])
            if inside and maze_map[cell[0]][cell[1]] != 1 and cell not in came:
                came[cell] = (row, column)
                waiting.append(cell)
    path = [there] if there in came else []
    while path and path[-1] != here:
        path.append(came[path[-1]])
    return [(cell[0], cell[1]) for cell in reversed(path)]


CONTROLLERS: Mapping[str, tuple[str, Callable[[], Behaviour]]] = {
    "PendulumEnv": ("Pendulum", PendulumSwingUp),
    "CartPoleEnv": ("CartPole", CartPoleBalance),
    "Continuous_MountainCarEnv": ("MountainCarContinuous", lambda: MountainCarSwing(discrete=False)),
    "MountainCarEnv": ("MountainCar", lambda: MountainCarSwing(discrete=True)),
    "PointMazeEnv": ("PointMaze", MazeWaypoints),
}
"""By the name of the environment's class, or of one it derives from: what a user calls it, and its controller."""


def scripted(task: GymTask) -> Behaviour | None:
    """The controller for an environment, if there is one."""
    env = task.make_one()
    try:
        names = [kind.__name__ for kind in type(env.unwrapped).__mro__]
        knows = hasattr(env.unwrapped, "best_action")
        has_table = hasattr(env.unwrapped, "P") and hasattr(env.observation_space, "n")
    finally:
        env.close()
    found = next((CONTROLLERS[name][1] for name in names if name in CONTROLLERS), None)
    if found is not None:
        return found()
    return Known() if knows else TableOptimal() if has_table else None


def demand_scripted(task: GymTask) -> Behaviour:
    """The same, which must be there."""
    found = scripted(task)
    if found is None:
        known = ", ".join(name for name, _ in CONTROLLERS.values())
        raise UserError(
            f"{task.name} has no scripted controller; {known} have one, and so have gym:upslope/..., environments that show their "
            "table P (FrozenLake, CliffWalking, Taxi) and those with a method best_action(observation). Give a trained run: "
            "--from RUN."
        )
    return found
