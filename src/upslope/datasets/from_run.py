"""A trained run as the one who acts: its last checkpoint, or one from the way there."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from upslope.datasets.behaviours import Behaviour, PolicyActions
from upslope.datasets.collecting import Progress, first_decisions, quiet, returns
from upslope.errors import UserError
from upslope.experience import Episodes, Space
from upslope.experience.card import spaces_of
from upslope.experience.log import MASK
from upslope.run import Run, load_components
from upslope.runtime.checkpoint_files import DIGESTS
from upslope.runtime.files import load_state
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
        made = load_components(self.run, checkpoint)
        return PolicyActions(made.task, made.policy.acting(), made.rollout.observations)

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

    def experience(self, steps: int | None) -> Episodes:
        """What the run itself has seen, up to its last checkpoint; or the first so many decisions of it, an equal share of every
        environment's.

        Raises:
            UserError: if it kept none, or not as much.
        """
        folder, path = self.run.path / "experience", self.run.path
        rows = load_state(self.run.folder.reader(self.last()), "learner")["rollout"].get("logged", [])
        if not sum(rows) or not folder.is_dir():
            raise UserError(
                f"{path} kept no experience: runs of methods that learn from stored experience do, such as sac and dqn."
            )
        lanes = [self._lane(folder, number, length) for number, length in enumerate(rows) if length]
        total = sum(len(lane.decisions) for lane in lanes)
        if steps is not None and steps > total:
            raise UserError(f"--steps {steps}: {path} has seen {total:,} decisions. Ask for fewer, or leave --steps out for all.")
        if steps is not None:
            shares = np.diff([steps * part // len(lanes) for part in range(len(lanes) + 1)])
            lanes = [first_decisions(lane, int(share)) for lane, share in zip(lanes, shares, strict=True) if share]
        columns = {name: np.concatenate([lane.by_name[name] for lane in lanes]) for name in lanes[0].by_name}
        return Episodes(**columns, pieces=lanes[0].pieces)

    def _lane(self, folder: Path, number: int, rows: int) -> Episodes:
        """What one environment of the run has shown."""
        observation, action = spaces_of(self.task)
        kinds = {"observation": observation, "action": action, "reward": Space((), "float32"), "ended": Space((), "int8")}
        if (folder / f"{number}.{MASK}").is_file() and action.n is not None:
            kinds[MASK] = Space((action.n,), "bool")
        found = {}
        for name, kind in kinds.items():
            file, shape = folder / f"{number}.{name}", (rows, *kind.shape)
            if not file.is_file() or file.stat().st_size < np.dtype(kind.dtype).itemsize * int(np.prod(shape)):
                raise UserError(f"{file} is missing, or shorter than the checkpoint says. The run's experience is not whole.")
            found[name] = np.fromfile(file, kind.dtype, int(np.prod(shape))).reshape(shape)
        return Episodes(**found, pieces=observation.pieces)

    def _return(self, task: GymTask, checkpoint: Path, progress: Progress) -> float:
        return float(np.mean(returns(task, self.at(checkpoint), EPISODES, SEED, f"judging {checkpoint.name}", progress)))
