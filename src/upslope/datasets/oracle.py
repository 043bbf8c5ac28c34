"""OGBench's scripted manipulators: they know where every cube is and where it shall go, and move the arm there.

They were written to collect data without a task. Here they work in environments with one: their target is a cube that is not yet
where the task wants it, and when they are done with one, the next one is. They draw from numpy's global numbers, which
`upslope.datasets.collecting.play` seeds.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from upslope.datasets.behaviours import Behaviour
from upslope.errors import UserError
from upslope.plain_data import JsonDict
from upslope.tasks.gym import GymTask


def cube_oracle(task: GymTask, kind: str) -> Behaviour:
    """The manipulator for a task.

    Args:
        kind: ``"plan"`` follows a path with noise on it, which it made when it began; ``"markov"`` looks anew at every step.

    Raises:
        UserError: if the task is none of OGBench's with cubes.
    """
    env = task.make_one()
    try:
        names = [each.__name__ for each in type(env.unwrapped).__mro__]
    finally:
        env.close()
    if "CubeEnv" not in names:
        raise UserError(f"--recipe oracle works in OGBench's cube environments, such as gym:cube-single-singletask-v0; "
                        f"{task.name} is none of them.")  # fmt: skip
    return CubeOracle(kind)


class CubeOracle:
    """Brings cubes to their places, one after the other."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def begin(self, simulator: Any, observation: np.ndarray, rng: np.random.Generator) -> None:
        from ogbench.manipspace.oracles.markov.cube_markov import CubeMarkovOracle
        from ogbench.manipspace.oracles.plan.cube_plan import CubePlanOracle

        self.simulator = simulator
        self.oracle: Any = CubePlanOracle(env=simulator) if self.kind == "plan" else CubeMarkovOracle(env=simulator)
        self._aim()

    def act(self, observation: np.ndarray) -> np.ndarray:
        if self.oracle.done:
            self._aim()
        return np.clip(self.oracle.select_action(None, self._known()), -1.0, 1.0)

    def _aim(self) -> None:
        """The next cube that is not where it shall be; the last one again where all are."""
        reached = self.simulator._compute_successes()
        self.cube = reached.index(False) if False in reached else len(reached) - 1
        self.oracle.reset(None, self._known())

    def _known(self) -> JsonDict:
        """All that an oracle asks: what the simulator tells while data are collected, of a target that is the task's."""
        from ogbench.manipspace import lie

        simulator = self.simulator
        target = simulator._cube_target_mocap_ids[self.cube]
        turned = lie.SO3(wxyz=simulator._data.mocap_quat[target]).compute_yaw_radians()
        return {
            **simulator.compute_ob_info(),
            "privileged/target_task": "cube",
            "privileged/target_block": self.cube,
            "privileged/target_block_pos": simulator._data.mocap_pos[target].copy(),
            "privileged/target_block_yaw": np.array([turned]),
        }
