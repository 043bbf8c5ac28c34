"""Exact answers for small worlds whose tables or matrices are known: what learning is held against.

A table is ``transition [S, A, S]``, the chance of every next state, and ``reward [S, A]``, the mean reward. A row of ``transition``
that sums to less than 1 ends the episode with the chance that is missing.
"""

from __future__ import annotations

import numpy as np

from upslope.errors import UserError

MOST_IMPROVEMENTS = 1_000
"""Policies that are tried before it is said that none is the best: each is better than the last, and ten are rarely needed."""
TIE = 1e-9
"""Actions whose values differ by less, beside the size of the values, are equally good."""


def optimal_values(transition: np.ndarray, reward: np.ndarray, discount: float) -> np.ndarray:
    """``Q* [S, A]``, exactly: by policy iteration, which solves a linear system for every policy that it tries.

    Example:
        >>> import numpy as np
        >>> stay_or_leave = np.array([[[1.0], [0.0]]])          # one state: the second action ends the episode
        >>> optimal_values(stay_or_leave, np.array([[1.0, 5.0]]), 0.9).round(6).tolist()
        [[10.0, 5.0]]
    """
    _check(transition, reward, discount)
    chosen = reward.argmax(1)
    for _ in range(MOST_IMPROVEMENTS):
        value = policy_values(transition, reward, chosen, discount)
        better = best_of(value, chosen)
        if (better == chosen).all():
            return value
        chosen = better
    raise UserError(f"no best policy was found in {MOST_IMPROVEMENTS:,} improvements of a table of {len(reward)} states.")


def policy_values(transition: np.ndarray, reward: np.ndarray, policy: np.ndarray, discount: float) -> np.ndarray:
    """``Q [S, A]`` of a policy: the action ``[S]`` of every state, or the chance ``[S, A]`` of every action."""
    _check(transition, reward, discount)
    chance = chances(policy, reward.shape[1])
    moves, paid = _under(transition, reward, chance)
    value = np.linalg.solve(np.eye(len(reward)) - discount * moves, paid)
    return reward + discount * transition @ value


def chances(policy: np.ndarray, actions: int) -> np.ndarray:
    """The chance ``[S, A]`` of every action, also where a policy names one action of every state."""
    return np.eye(actions)[policy] if policy.ndim == 1 else policy


def best_of(value: np.ndarray, unless_equal: np.ndarray | None = None) -> np.ndarray:
    """The best action ``[S]`` of values ``[S, A]``, the first of several; where it is as good, the one that is given."""
    best = value.max(1, keepdims=True)
    good = value >= best - TIE * (1 + np.abs(best))
    first = good.argmax(1)
    return first if unless_equal is None else np.where(good[np.arange(len(value)), unless_equal], unless_equal, first)


def gain(transition: np.ndarray, reward: np.ndarray, policy: np.ndarray) -> float:
    """The average reward a step of a policy that is acted by for ever.

    Raises:
        UserError: if it depends on where one starts, or episodes end.
    """
    return _gain_and_bias(transition, reward, policy)[0]


def optimal_gain(transition: np.ndarray, reward: np.ndarray) -> tuple[float, np.ndarray]:
    """The largest average reward a step, and the action ``[S]`` of every state that earns it (Howard's policy iteration).

    Raises:
        UserError: if a policy that it tries has no single average reward.
    """
    chosen = reward.argmax(1)
    for _ in range(MOST_IMPROVEMENTS):
        found, bias = _gain_and_bias(transition, reward, chosen)
        better = best_of(reward + transition @ bias, chosen)
        if (better == chosen).all():
            return found, chosen
        chosen = better
    raise UserError(f"no best policy was found in {MOST_IMPROVEMENTS:,} improvements of a table of {len(reward)} states.")


def _gain_and_bias(transition: np.ndarray, reward: np.ndarray, policy: np.ndarray) -> tuple[float, np.ndarray]:
    """Solves ``g + h = r + P h`` with ``h`` of the first state 0."""
    moves, paid = _under(transition, reward, chances(policy, reward.shape[1]))
    if not np.allclose(moves.sum(1), 1):
        raise UserError("an average reward is of a world without an end; in this one episodes end. Ask for values with a discount.")
    system = np.eye(len(paid)) - moves
    system[:, 0] = 1.0  # in the place of the first state's h stands g
    if np.linalg.matrix_rank(system) < len(paid):
        raise UserError("the average reward of this policy depends on where it starts: some states never reach others.")
    found = np.linalg.solve(system, paid)
    bias = found.copy()
    bias[0] = 0.0
    return float(found[0]), bias


def regulator(change: np.ndarray, force: np.ndarray, state_cost: np.ndarray, action_cost: np.ndarray) -> np.ndarray:
    """The gain K of the linear-quadratic regulator ``u = -K x``, by iterating the Riccati equation."""
    value = state_cost
    for _ in range(2000):
        gain = np.linalg.solve(action_cost + force.T @ value @ force, force.T @ value @ change)
        value, before = state_cost + change.T @ value @ (change - force @ gain), value
        if np.abs(value - before).max() <= 1e-10 * np.abs(value).max():
            break
    return gain


def quadratic_cost(
    change: np.ndarray, force: np.ndarray, state_cost: np.ndarray, action_cost: np.ndarray, gain: np.ndarray, steps: int
) -> np.ndarray:
    """``V``: acting by ``u = -gain x`` for so many steps costs ``x' V x`` from ``x`` on, where nothing is disturbed."""
    closed, each = change - force @ gain, state_cost + gain.T @ action_cost @ gain
    value = np.zeros_like(state_cost)
    for _ in range(steps):
        value = each + closed.T @ value @ closed
    return value


def _under(transition: np.ndarray, reward: np.ndarray, chance: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Where a policy goes ``[S, S]``, and what it is paid ``[S]``."""
    return np.einsum("sa,sat->st", chance, transition), (chance * reward).sum(1)


def _check(transition: np.ndarray, reward: np.ndarray, discount: float) -> None:
    states, actions = reward.shape
    if transition.shape != (states, actions, states):
        raise UserError(
            f"transition has the shape {transition.shape} and reward {reward.shape}; they must be [S, A, S] and [S, A]."
        )
    if not 0 <= discount < 1:
        raise UserError(f"discount is {discount}; it must be at least 0 and below 1. For an average reward ask for the gain.")
