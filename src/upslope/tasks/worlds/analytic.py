"""Worlds of a few numbers whose best action is a formula: LQR, newsvendor, inventory, fishery, and an arm with two links.

Each has ``best_action(observation)``, and says in its docstring what is exact about it.
"""

from __future__ import annotations

import math
from typing import Any

import gymnasium
import numpy as np

from upslope.runtime.seeding import numpy_generator
from upslope.tasks.worlds.solving import regulator
from upslope.tasks.worlds.table import at_least


class AnalyticWorld(gymnasium.Env[np.ndarray, np.ndarray]):
    """Vectors in, vectors out; what differs is `begin` and `move`."""

    def begin(self) -> np.ndarray:
        """The first observation of an episode."""
        raise NotImplementedError

    def move(self, action: np.ndarray) -> tuple[np.ndarray, float, bool]:
        """The next observation, the reward, and whether that was the end. ``action`` is within its bounds."""
        raise NotImplementedError

    def best_action(self, observation: np.ndarray) -> np.ndarray:
        """What the formula says."""
        raise NotImplementedError

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        return self.begin().astype(np.float32), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        space = self.action_space
        assert isinstance(space, gymnasium.spaces.Box)
        seen, reward, over = self.move(np.clip(np.asarray(action, np.float64), space.low, space.high))
        return seen.astype(np.float32), float(reward), over, False, {}

    def _spaces(
        self, observation: tuple[np.ndarray | float, np.ndarray | float], seen: int, low: float, high: float, acts: int
    ) -> None:
        """Of so many numbers seen and acted with."""
        least, most = (np.broadcast_to(end, seen).astype(np.float32) for end in observation)
        self.observation_space = gymnasium.spaces.Box(least, most)
        self.action_space = gymnasium.spaces.Box(low, high, (acts,), np.float32)


class LQR(AnalyticWorld):
    r"""A linear system with quadratic cost: ``x' = A x + B u``, reward ``-(x'x + u'u)``.

    The best action is ``-K x`` with the gain of the Riccati equation, as long as it stays within the bounds; `K`, `A` and `B` are
    there to look at.

    Args:
        size: Numbers in the state. A turns and mixes them without growth: its largest eigenvalue has size 1.
        controls: Numbers in an action, each within twice of what the regulator asks for at the farthest start.
        noise: Standard deviation of what is added to every number of the state at every step.
        seed: Of A and B.
    """

    def __init__(self, size: int = 2, controls: int = 1, noise: float = 0.0, seed: int = 0) -> None:
        at_least("size", size, 1)
        at_least("controls", controls, 1)
        at_least("noise", noise, 0.0)
        rng = numpy_generator(seed, "worlds", "lqr", size, controls)
        mixed = rng.standard_normal((size, size))
        self.A = mixed / np.abs(np.linalg.eigvals(mixed)).max()
        self.B = rng.standard_normal((size, controls))
        self.K = regulator(self.A, self.B, np.eye(size), np.eye(controls))
        self.noise = noise
        most = 2.0 * float(np.abs(self.K).sum(1).max())
        self._spaces((-np.inf, np.inf), size, -most, most, controls)

    def begin(self) -> np.ndarray:
        self.x = self.np_random.uniform(-1, 1, len(self.A))
        return self.x

    def move(self, action: np.ndarray) -> tuple[np.ndarray, float, bool]:
        reward = -float(self.x @ self.x + action @ action)
        self.x = self.A @ self.x + self.B @ action + self.noise * self.np_random.standard_normal(len(self.x))
        return self.x, reward, False

    def best_action(self, observation: np.ndarray) -> np.ndarray:
        return -self.K @ observation.astype(np.float64)


class Newsvendor(AnalyticWorld):
    r"""How much to order before it is known how much will be asked for; then it is over.

    Demand is exponential with the mean that is seen, ``m``. Selling pays ``price``, ordering costs ``cost``. The best order is the
    quantile ``q = -m ln(cost / price)`` of demand, which earns ``price m (1 - exp(-q / m)) - cost q`` on average.

    Args:
        price, cost: Of a unit.
    """

    largest = 10.0
    means = (0.5, 2.0)

    def __init__(self, price: float = 2.0, cost: float = 1.0) -> None:
        if not 0 < cost < price:
            raise ValueError(f"cost={cost} and price={price}; what is sold must cost something, and less than it pays")
        self.price, self.cost = price, cost
        self._spaces(self.means, 1, 0.0, self.largest, 1)

    def begin(self) -> np.ndarray:
        self.mean = float(self.np_random.uniform(*self.means))
        return np.array([self.mean])

    def move(self, action: np.ndarray) -> tuple[np.ndarray, float, bool]:
        asked = self.np_random.exponential(self.mean)
        return np.array([self.mean]), self.price * min(float(action[0]), asked) - self.cost * float(action[0]), True

    def best_action(self, observation: np.ndarray) -> np.ndarray:
        return np.array([min(-float(observation[0]) * math.log(self.cost / self.price), self.largest)])

    def mean_reward(self, mean: float, order: float) -> float:
        """Of an order where demand has this mean."""
        return self.price * mean * (1 - math.exp(-order / mean)) - self.cost * order


class Inventory(AnalyticWorld):
    r"""Stock that is ordered anew every day; what is missing is delivered later.

    Demand is uniform between 0 and ``2 mean``. A day costs ``holding`` for each unit left over and ``backlog`` for each unit owed.
    The best policy is a base stock: order up to the quantile ``backlog / (backlog + holding)`` of demand, ``base_stock``. At most
    ``2 mean`` can be ordered, which is always enough.

    Args:
        mean: Of a day's demand.
        holding, backlog: Costs of a unit.
    """

    def __init__(self, mean: float = 1.0, holding: float = 1.0, backlog: float = 4.0) -> None:
        for name, value in (("mean", mean), ("holding", holding), ("backlog", backlog)):
            at_least(name, value, 1e-9)
        self.most, self.holding, self.backlog = 2 * mean, holding, backlog
        self.base_stock = self.most * backlog / (backlog + holding)
        self._spaces((-np.inf, np.inf), 1, 0.0, self.most, 1)

    def begin(self) -> np.ndarray:
        self.stock = float(self.np_random.uniform(self.base_stock - self.most, self.base_stock))
        return np.array([self.stock])

    def move(self, action: np.ndarray) -> tuple[np.ndarray, float, bool]:
        self.stock += float(action[0]) - float(self.np_random.uniform(0, self.most))
        cost = self.holding * max(self.stock, 0.0) + self.backlog * max(-self.stock, 0.0)
        return np.array([self.stock]), -cost, False

    def best_action(self, observation: np.ndarray) -> np.ndarray:
        return np.array([self.base_stock - float(observation[0])])

    def mean_cost(self, level: float) -> float:
        """Of a day that begins with this much after the order, up to ``2 mean``."""
        return (self.holding * level**2 + self.backlog * (self.most - level) ** 2) / (2 * self.most)


class Fishery(AnalyticWorld):
    r"""Fish that grow logistically between seasons; a share of them is caught in each, which is the reward.

    What is left, ``s``, becomes ``s + growth s (1 - s / capacity)``, times noise with mean 1. The best catch leaves half of the
    capacity and earns ``growth capacity / 4`` a season in the long run (constant escapement, Reed 1979); the last seasons before a
    time limit could be fished empty, and are not. Below a hundredth of the capacity it is over.

    Args:
        growth: Of few fish, in a season.
        capacity: Fish that the lake can hold.
        noise: The next season has between ``1 - noise`` and ``1 + noise`` times as many, uniformly.
    """

    def __init__(self, growth: float = 0.8, capacity: float = 1.0, noise: float = 0.1) -> None:
        if not (0 < growth <= 1 and capacity > 0 and 0 <= noise < 1):
            raise ValueError(
                f"growth={growth}, capacity={capacity}, noise={noise}; between 0 and 1, above 0, and from 0 to below 1"
            )
        self.growth, self.capacity, self.noise = growth, capacity, noise
        self._spaces((0.0, np.inf), 1, 0.0, 1.0, 1)

    def begin(self) -> np.ndarray:
        self.fish = float(self.np_random.uniform(0.5, 1.0)) * self.capacity
        return np.array([self.fish])

    def move(self, action: np.ndarray) -> tuple[np.ndarray, float, bool]:
        caught = float(action[0]) * self.fish
        left = self.fish - caught
        grown = left + self.growth * left * (1 - left / self.capacity)
        self.fish = grown * float(self.np_random.uniform(1 - self.noise, 1 + self.noise))
        return np.array([self.fish]), caught, self.fish < self.capacity / 100

    def best_action(self, observation: np.ndarray) -> np.ndarray:
        fish = max(float(observation[0]), 1e-9)
        return np.array([max(0.0, 1 - self.capacity / 2 / fish)])


class TwoLinkArm(AnalyticWorld):
    r"""An arm of two links in the plane whose joints turn, to be brought to a point; every step costs the distance that is left.

    Seen are sine and cosine of both joints and the point. The controller finds the angles that reach the point exactly (inverse
    kinematics, in closed form), and turns both joints towards the nearer of the two ways as fast as they can: it arrives and stays,
    though another way there may cost a little less.

    Args:
        first, second: Lengths of the links.
        speed: Radians that a joint turns in a step.
    """

    def __init__(self, first: float = 1.0, second: float = 1.0, speed: float = 0.2) -> None:
        for name, value in (("first", first), ("second", second), ("speed", speed)):
            at_least(name, value, 1e-9)
        self.links, self.speed = (first, second), speed
        self._spaces((-first - second, first + second), 6, -1.0, 1.0, 2)

    def begin(self) -> np.ndarray:
        self.angles = self.np_random.uniform(-math.pi, math.pi, 2)
        self.goal = self.hand(self.np_random.uniform(-math.pi, math.pi, 2))  # whatever a pose reaches can be reached
        return self._seen()

    def move(self, action: np.ndarray) -> tuple[np.ndarray, float, bool]:
        self.angles = self.angles + self.speed * action
        return self._seen(), -float(np.linalg.norm(self.hand(self.angles) - self.goal)), False

    def hand(self, angles: np.ndarray) -> np.ndarray:
        """Where the end of the arm is."""
        first, second = self.links
        elbow = first * np.array([math.cos(angles[0]), math.sin(angles[0])])
        return elbow + second * np.array([math.cos(angles.sum()), math.sin(angles.sum())])

    def poses(self, point: np.ndarray) -> list[np.ndarray]:
        """The two poses that reach a point, with the elbow to either side."""
        first, second = self.links
        bent = (float(point @ point) - first**2 - second**2) / (2 * first * second)
        elbow = math.acos(min(max(bent, -1.0), 1.0))
        found = []
        for turn in (elbow, -elbow):
            shoulder = math.atan2(point[1], point[0]) - math.atan2(second * math.sin(turn), first + second * math.cos(turn))
            found.append(np.array([shoulder, turn]))
        return found

    def best_action(self, observation: np.ndarray) -> np.ndarray:
        seen = observation.astype(np.float64)
        angles = np.arctan2(seen[[0, 2]], seen[[1, 3]])
        ways = [np.angle(np.exp(1j * (pose - angles))) for pose in self.poses(seen[4:])]
        nearer = min(ways, key=lambda way: float(np.abs(way).max()))
        return np.clip(nearer / self.speed, -1.0, 1.0)

    def _seen(self) -> np.ndarray:
        sines, cosines = np.sin(self.angles), np.cos(self.angles)
        return np.concatenate([[sines[0], cosines[0], sines[1], cosines[1]], self.goal])
