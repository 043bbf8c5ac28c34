"""Whether both sides of a PPO row also learn the same: the evaluation return after a longer run, over seeds."""

from __future__ import annotations

import json
import math
import multiprocessing
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import control_sides
import numpy as np
from side_by_side import arguments, command, main
from sides import Row

from upslope.errors import UserError

STEPS, SEEDS, EPISODES = 200_000, 3, 50


def main_with_return(row: Row) -> None:
    """The row's command, with ``--equal-return`` in place of a measurement."""
    parser = arguments(row)
    parser.add_argument(
        "--equal-return",
        action="store_true",
        help=f"no timing: train both sides for {STEPS:,} steps with {SEEDS} seeds, and add their returns to the result",
    )
    parser.add_argument("--steps", type=int, default=STEPS, help=f"environment steps of --equal-return, at least ({STEPS})")
    parser.add_argument("--seeds", type=int, default=SEEDS, help=f"seeds of --equal-return ({SEEDS})")
    given = parser.parse_args()
    if not given.equal_return:
        return main(row, given)
    try:
        add_returns(row, given.out, given.steps, given.seeds)
    except UserError as problem:
        sys.exit(str(problem))


def add_returns(row: Row, folder: Path, steps: int, seeds: int) -> None:
    """Trains, evaluates and writes the comparison into the row's result."""
    file = folder / f"{row.name}.json"
    if not file.is_file():
        raise UserError(f"no {file}: measure first, python bench/{row.name}.py; --equal-return adds to that result.")
    if seeds < 2:
        raise UserError(f"--seeds {seeds}: a spread needs at least 2.")
    iterations = math.ceil(steps / row.given.steps)
    found = {
        "ours": _returns("upslope", control_sides.return_ours, row, iterations, seeds),
        "peer": _returns(row.peer.name, control_sides.return_sb3, row, iterations, seeds),
    }
    told = compare(found["ours"], found["peer"]) | {
        "env_steps": iterations * row.given.steps,
        "episodes": EPISODES,
        "command": command(),
    }
    print(f"{row.name}: return {told['ours']['mean']:.1f} against {told['peer']['mean']:.1f}, "
          f"{'within' if told['equal'] else 'NOT within'} noise")  # fmt: skip
    file.write_text(json.dumps(json.loads(file.read_text()) | {"equal_return": told}, indent=1) + "\n")


def _returns(name: str, run: Callable[..., float], row: Row, iterations: int, seeds: int) -> list[float]:
    """One return per seed, each of a process of its own."""
    found = []
    context = multiprocessing.get_context("spawn")
    for seed in range(seeds):
        with context.Pool(1) as pool:
            found.append(pool.apply(run, (replace(row.given, seed=seed), iterations, EPISODES)))
        print(f"{row.name}: {name}, seed {seed}: return {found[-1]:.1f}", flush=True)
    return found


def compare(ours: Sequence[float], peer: Sequence[float]) -> dict[str, Any]:
    """Mean and spread over seeds, and whether the difference is within two standard errors of it (or none at all)."""
    told: dict[str, Any] = {}
    for role, returns in (("ours", ours), ("peer", peer)):
        told[role] = {"mean": float(np.mean(returns)), "spread": float(np.std(returns, ddof=1)), "seeds": list(returns)}
    difference = told["ours"]["mean"] - told["peer"]["mean"]
    error = math.sqrt(np.var(ours, ddof=1) / len(ours) + np.var(peer, ddof=1) / len(peer))
    return told | {"difference": difference, "standard_error": error, "equal": abs(difference) <= 2 * error}
