"""Whether a run's first steps had anything to learn from: rewards that do not differ within a group have no advantage."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

from upslope.errors import Remark
from upslope.fields import shown
from upslope.plain_data import JsonDict
from upslope.runtime.run_folder import RunFolder
from upslope.types import Method

FIRST_STEPS = 5
"""Looked at before anything is said: a single step of few groups may have no signal by chance."""
ALMOST_ALL = 0.95
"""Share of groups without a difference from which it is said."""
SHOWN = 3
CURE_IN_CONTROL = (
    "Try more episodes in a group (--samples-per-task), levels that are easier to begin with, or a method that remembers what it "
    "once found, such as dqn or sac"
)
TEACH = frozenset({"answers", "solutions", "hints", "documents"})
"""What data parts may ask of a task: then others teach where one's own answers do not differ."""


class SignalWatch:
    """Says once, after a run's first steps, that almost no group of answers differed in reward.

    Nothing is kept from step to step: it reads what the run has logged, so a run that was resumed says the same.
    """

    def __init__(self, method: Method, rewards: Sequence[str], samples_per_task: int, control: bool = False):
        self.rewards, self.control = ", ".join(rewards), control
        taught = any(part.needs_of_task & TEACH for path, part in method.parts() if path.startswith("data."))
        compared = any(column.startswith("signal.win") for part in method.data for column in part.provides)
        self.watches = samples_per_task > 1 and "group" in method.needs() and not taught and not compared

    def say(self, step: int, folder: RunFolder) -> None:
        """A remark after a step, if it is the one and there is something to say."""
        if step == FIRST_STEPS and self.watches:
            steps = [record for record in folder.read("metrics.jsonl") if record.get("kind") == "step"]
            if told := self.remark(steps[:FIRST_STEPS], folder.read("samples.jsonl")):
                warnings.warn(Remark(told), stacklevel=2)

    def remark(self, steps: Sequence[JsonDict], samples: Sequence[JsonDict]) -> str:
        """What to say of these steps and of some of their rollouts; nothing if there was a signal."""
        shares = [record["constant_groups"] for record in steps if "constant_groups" in record]
        if len(shares) < FIRST_STEPS or sum(shares) / len(shares) < ALMOST_ALL:
            return ""
        earned = sum(record.get("reward", 0.0) for record in steps) / len(steps)
        if self.control:
            where = f"in {sum(shares) / len(shares):.0%} of the groups of the first {FIRST_STEPS} steps"
            told = f"{where} every episode returned the same ({earned:.4g} on average), so almost nothing is learned"
            return f"{told}. {CURE_IN_CONTROL}."
        same = f"in {sum(shares) / len(shares):.0%} of the groups of the first {FIRST_STEPS} steps every answer earned the same"
        return (
            f"{same} ({earned:.2g} on average), so almost nothing is learned. {self._reward()}{_beside(samples)}. {_cure(earned)}."
        )

    def _reward(self) -> str:
        return f"The reward is {self.rewards}" if self.rewards else "The task pays its own reward"


def _beside(samples: Sequence[JsonDict]) -> str:
    """Some answers beside the expected ones, of different problems as far as there are."""
    different = list({sample.get("prompt"): sample for sample in samples if "response" in sample}.values())[:SHOWN]
    said = (
        shown(sample["response"]) + (f" where {shown(sample['answer'])} is expected" if sample.get("answer") else "")
        for sample in different
    )
    return f"; it was told {'; '.join(said)}" if different else ""


def _cure(earned: float) -> str:
    if earned >= ALMOST_ALL:
        return "Try harder problems, or a reward that tells good answers apart"
    return (
        "Try a reward that finds the answer in what the model says (--reward number, boxed, choice or contains), easier problems, "
        "a larger --max-tokens, or a better start (--model, --warm-start)"
    )
