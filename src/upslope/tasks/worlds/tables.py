"""Worlds of few states: random ones, chains, RiverSwim, combination locks, frozen lakes and bandits.

A world's own ``seed`` makes its table; which episodes are played there is a matter of ``reset(seed)``, as everywhere.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from upslope.runtime.seeding import numpy_generator
from upslope.tasks.worlds.table import Table, TableWorld, a_chance, at_least


class RandomMDP(TableWorld):
    """Every action of every state leads to a few random states, with random chances, and pays a random reward (Garnet).

    Args:
        states, actions: How many there are.
        branching: Next states that an action can lead to.
        seed: Another one is another world.
    """

    def __init__(self, states: int = 20, actions: int = 4, branching: int = 3, seed: int = 0) -> None:
        at_least("states", states, 1)
        at_least("actions", actions, 1)
        if not 1 <= branching <= states:
            raise ValueError(f"branching={branching}; it must be between 1 and the number of states, {states}")
        rng = numpy_generator(seed, "worlds", "random-mdp", states, actions, branching)
        move = np.zeros((states, actions, states))
        for state in range(states):
            for action in range(actions):
                move[state, action, rng.choice(states, branching, replace=False)] = rng.dirichlet(np.ones(branching))
        super().__init__(Table.of(move, rng.random((states, actions)), start=np.full(states, 1 / states)))


class Chain(TableWorld):
    """States in a row, left or right; 1 for stepping beyond the right end, which ends the episode, and nothing else.

    Args:
        states: How many there are before the end.
        slip: Chance that a step goes the other way.
    """

    def __init__(self, states: int = 5, slip: float = 0.0) -> None:
        at_least("states", states, 1)
        a_chance("slip", slip)
        move, payment = np.zeros((states + 1, 2, states + 1)), np.zeros((states + 1, 2, states + 1))
        for state in range(states):
            for action, (wanted, other) in enumerate([(-1, 1), (1, -1)]):
                for step, chance in ((wanted, 1 - slip), (other, slip)):
                    move[state, action, max(state + step, 0)] += chance
        move[states, :, states] = 1.0
        payment[states - 1, :, states] = 1.0
        super().__init__(Table.of(move, payment, ends=(states,)))


class RiverSwim(TableWorld):
    """Against the current to a large reward, or with it to a small one (numbers of Osband, Russo and Van Roy 2013).

    Swimming right succeeds with 0.35, stays with 0.6 and is carried left with 0.05; from the left bank it succeeds with 0.6, at
    the right bank it stays with 0.6 and is carried left otherwise. Left always succeeds. 0.005 at the left bank for going left, 1
    at the right bank for going right.

    Args:
        states: From bank to bank.
    """

    def __init__(self, states: int = 6) -> None:
        at_least("states", states, 2)
        last = states - 1
        move, reward = np.zeros((states, 2, states)), np.zeros((states, 2))
        for state in range(states):
            move[state, 0, max(state - 1, 0)] = 1.0
        move[0, 1, :2] = 0.4, 0.6
        for state in range(1, last):
            move[state, 1, state - 1 : state + 2] = 0.05, 0.6, 0.35
        move[last, 1, last - 1 :] = 0.4, 0.6
        reward[0, 0], reward[last, 1] = 0.005, 1.0
        super().__init__(Table.of(move, reward))


class CombinationLock(TableWorld):
    """One action of each state leads on and every other one back to the beginning; 1 for the last, which opens the lock.

    Args:
        length: Actions in the combination.
        actions: To choose from.
        seed: Of the combination.
    """

    def __init__(self, length: int = 6, actions: int = 3, seed: int = 0) -> None:
        at_least("length", length, 1)
        at_least("actions", actions, 2)
        self.combination = numpy_generator(seed, "worlds", "lock", length, actions).integers(actions, size=length)
        move, payment = np.zeros((length + 1, actions, length + 1)), np.zeros((length + 1, actions, length + 1))
        move[:, :, 0] = 1.0
        for state, right in enumerate(self.combination):
            move[state, right] = np.eye(length + 1)[state + 1]
        payment[length - 1, :, length] = 1.0
        super().__init__(Table.of(move, payment, ends=(length,)))


class FrozenLakeMap(TableWorld):
    """A frozen lake with a random map that can be crossed; the moves, slips and rewards are those of gymnasium's FrozenLake.

    Args:
        size: Of a side.
        frozen: Share of the cells that are ice and no hole.
        slippery: Whether a move goes to either side as often as where it was meant to.
        seed: Of the map.

    Attributes:
        map: Its rows, of S, F, H and G.
    """

    def __init__(self, size: int = 4, frozen: float = 0.8, slippery: bool = True, seed: int = 0) -> None:
        from gymnasium.envs.toy_text.frozen_lake import FrozenLakeEnv, generate_random_map

        at_least("size", size, 2)
        a_chance("frozen", frozen)
        at_least("frozen", frozen, 0.5)  # with less ice it takes ever longer to find a map with a way across
        self.map: list[str] = generate_random_map(size, frozen, seed)
        lake = FrozenLakeEnv(desc=self.map, is_slippery=slippery)
        super().__init__(_from_gymnasium(lake))


def _from_gymnasium(world: Any) -> Table:
    """The table of one of gymnasium's toy texts."""
    states, actions = len(world.P), len(world.P[0])
    move, payment = np.zeros((states, actions, states)), np.zeros((states, actions, states))
    over: set[int] = set()
    for state, choices in world.P.items():
        for action, outcomes in choices.items():
            for chance, following, paid, end in outcomes:
                move[state, action, following] += chance
                payment[state, action, following] = paid
                over |= {following} if end else set()
    return Table.of(move, payment, np.asarray(world.initial_state_distrib, np.float64), tuple(over))


class Bandit(TableWorld):
    """One choice among arms, each with its own chance of a reward of 1; then it is over. Logs keep the chance of what was chosen.

    Args:
        arms: To choose from.
        contexts: States, one of which is shown; each has chances of its own.
        seed: Of the chances, which are uniform.
    """

    chance_is_paid = True
    keeps_propensities = True
    """Whether data that are made here have a column of propensities."""

    def __init__(self, arms: int = 5, contexts: int = 1, seed: int = 0) -> None:
        at_least("arms", arms, 1)
        at_least("contexts", contexts, 1)
        chance = numpy_generator(seed, "worlds", "bandit", arms, contexts).random((contexts, arms))
        over = contexts  # a state of its own, in which the episode is
        move, reward = np.zeros((contexts + 1, arms, contexts + 1)), np.zeros((contexts + 1, arms))
        move[:, :, over] = 1.0
        reward[:contexts] = chance
        super().__init__(Table.of(move, reward, np.append(np.full(contexts, 1 / contexts), 0.0), (over,)))
