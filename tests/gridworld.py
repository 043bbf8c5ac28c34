"""A gridworld for the measures: from one corner to the other, four moves, -1 a step; and who acts in it."""

from collections.abc import Callable
from functools import cache

import numpy as np

from upslope.experience import Dataset, Episode, Episodes, Space
from upslope.types import Ended

SIZE, LIMIT = 5, 30
MOVES = np.array([[1, 0], [0, 1], [-1, 0], [0, -1]])
GOAL = (SIZE - 1, SIZE - 1)
Chooser = Callable[[tuple[int, int]], int]


def play(choose: Chooser, rng: np.random.Generator, slip: float = 0.0) -> Episode:
    """An episode; with ``slip`` a move is sometimes another one."""
    place, seen, taken = (0, 0), [(0, 0)], []
    while place != GOAL and len(taken) < LIMIT:
        taken.append(choose(place))
        move = taken[-1] if rng.random() >= slip else int(rng.integers(4))
        place = tuple(int(x) for x in np.clip(np.array(place) + MOVES[move], 0, SIZE - 1))  # type: ignore[assignment]
        seen.append(place)
    numbers = np.eye(SIZE * SIZE)[[row * SIZE + column for row, column in seen]]
    return Episode(numbers, np.array(taken), np.full(len(taken), -1.0), Ended.TERMINATED if place == GOAL else Ended.TRUNCATED)


def consistent(place: tuple[int, int]) -> int:
    """Shortest way, down first."""
    return 0 if place[0] < SIZE - 1 else 1


def either(rng: np.random.Generator) -> Chooser:
    """Shortest way too; where both moves are good, by chance."""

    def choose(place: tuple[int, int]) -> int:
        free = [move for move in (0, 1) if place[move] < SIZE - 1]
        return int(rng.choice(free))

    return choose


def eps_greedy(eps: float, rng: np.random.Generator) -> Chooser:
    return lambda place: int(rng.integers(4)) if rng.random() < eps else consistent(place)


def dataset(name: str, players: list[tuple[Chooser, float]], decisions: int = 3000, seed: int = 0, slip: float = 0.0) -> Dataset:
    """So many decisions, the players one after the other, each with its share of them."""
    rng, kept, used = np.random.default_rng([seed, 1]), [], 0.0
    for choose, share in players:
        used += share
        while sum(map(len, kept)) < used * decisions:
            kept.append(play(choose, rng, slip))
    return Dataset.of(Episodes.of(kept), name, random=-float(LIMIT - 1), expert=-8.0, action=Space((), "int64", n=4))


@cache
def five_kinds() -> dict[str, Dataset]:
    """The paper's: random, mixed, replay (exploration that fades), noisy, expert."""
    rng = np.random.default_rng(7)
    fading = [(eps_greedy(eps, rng), 0.1) for eps in np.linspace(1, 0.1, 10)]
    kinds = {
        "random": [(eps_greedy(1, rng), 1.0)],
        "mixed": [(eps_greedy(1, rng), 0.8), (consistent, 0.2)],
        "replay": fading,
        "noisy": [(eps_greedy(0.2, rng), 1.0)],
        "expert": [(consistent, 1.0)],
    }
    return {name: dataset(name, players) for name, players in kinds.items()}
