"""Episodes that are longer than what lies between two checkpoints, behind which all begin anew: they never come to their end."""

from __future__ import annotations

import warnings

from upslope.errors import Remark


class CutEpisodes:
    """Tells, once, that no episode ended between two checkpoints.

    Args:
        task: Its name.
        told: Nothing is to be told, as of environments that go on behind a checkpoint.
    """

    def __init__(self, task: str, told: bool = False):
        self.task, self.told = task, told
        self.steps, self.ended = 0, False

    def stepped(self, ended: bool) -> None:
        """Every environment made a step; ``ended``: the episode of any of them."""
        self.steps += 1
        self.ended = self.ended or ended

    def begin_anew(self) -> None:
        """Somebody is about to act in fresh episodes."""
        if self.steps and not self.ended and not self.told:
            self.told = True
            warnings.warn(Remark(
                f"no episode of {self.task} ended in the {self.steps:,} steps of each environment between two checkpoints, and "
                "behind a checkpoint episodes begin anew: longer ones never come to their end in training. Give a larger "
                "--checkpoint-every (in steps of the run) or --horizon."), stacklevel=4)  # fmt: skip
        self.steps, self.ended = 0, False
