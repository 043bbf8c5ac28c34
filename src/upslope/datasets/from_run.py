"""A trained run as the one who acts: its last checkpoint, or one from the way there."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from upslope.datasets.behaviours import Behaviour, PolicyActions
from upslope.datasets.collecting import Progress, quiet, returns
from upslope.errors import UserError
from upslope.run import Run, load_components
from upslope.runtime.checkpoint_files import DIGESTS
from upslope.runtime.run_folder import RunFolder
from upslope.tasks.gym import GymTask

THIRD = 1 / 3
NEAR = 0.2
"""How far from a third of the way a checkpoint may be to count as medium: from an eighth to about a half."""
EPISODES = 10
"""Over which a checkpoint is judged."""
SEED = 20_000
"""Of the episodes in which runs, experts and random actions are measured: the same for all datasets of an environment."""


@dataclass(frozen=True)
class ActingRun:
    """A run whose policy acts."""

    run: Run

    @classmethod
    def open(cls, path: str | Path) -> ActingRun:
        """From its folder.

        Raises:
            UserError: if it is none, or its task is text.
        """
        run = Run(RunFolder.open(path))
        if run.table["domain"] != "control":
            raise UserError(f"--from {path}: its task is {run.table['task']}, which is text. Data are made in environments.")
        return cls(run)

    @cached_property
    def task(self) -> GymTask:
        """The run's own."""
        return load_components(self.run).task

    def at(self, checkpoint: Path) -> Behaviour:
        """The policy of a checkpoint, its actions drawn as in training."""
        from upslope.rollout.deployed import DeployedPolicy

        made = load_components(self.run, checkpoint)
        return PolicyActions(made.task, lambda seed: DeployedPolicy(made.task, made.policy, made.rollout.observations, seed))

    def last(self) -> Path:
        """Its last checkpoint."""
        return self.run.folder.latest()

    def origin(self, checkpoint: Path) -> str:
        """Which run and checkpoint, and the digest of what it holds."""
        digest = hashlib.sha256((checkpoint / DIGESTS).read_bytes()).hexdigest()[:12]
        return f"{self.run.path.name}/{checkpoint.name} {digest}"

    def medium(self, task: GymTask, random: float, progress: Progress = quiet) -> Path:
        """The checkpoint nearest to a third of the way from random to the run's end.

        Args:
            random: The mean return of random actions.

        Raises:
            UserError: if the run kept none there.
        """
        earlier, path = self.run.folder.checkpoints()[:-1], self.run.path
        cure = "Train with --keep-checkpoints 20 and a small --checkpoint-every, so that some stay from the way there"
        if not earlier:
            raise UserError(f"{path} kept its last checkpoint only, and medium needs one from the way there. {cure}.")
        end = self._return(task, self.last(), progress)
        if end <= random:
            raise UserError(f"{path} ends at a mean return of {end:.4g}, no better than random actions ({random:.4g}): "
                            "there is no way from one to the other on which medium could lie.")  # fmt: skip
        shares = {each: (self._return(task, each, progress) - random) / (end - random) for each in earlier}
        best = min(shares, key=lambda each: abs(shares[each] - THIRD))
        if abs(shares[best] - THIRD) > NEAR:
            raise UserError(f"{path} kept no checkpoint near a third of the way from random actions ({random:.4g}) to its end "
                            f"({end:.4g}); the nearest, {best.name}, is {shares[best]:.0%} of the way. {cure}.")  # fmt: skip
        return best

    def _return(self, task: GymTask, checkpoint: Path, progress: Progress) -> float:
        return float(np.mean(returns(task, self.at(checkpoint), EPISODES, SEED, f"judging {checkpoint.name}", progress)))
