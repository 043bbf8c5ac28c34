"""A trained reward model as a reward: ``rm:runs/rm``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

from upslope.errors import UserError
from upslope.policies.reward_model import RewardModel
from upslope.policies.reward_runs import PREFIX, RewardRun
from upslope.policies.tokenization import PromptFormat
from upslope.rewards.errors import RewardError
from upslope.rewards.weighted import WeightedRewards
from upslope.tasks.text import Reward


class ModelReward:
    """What a reward model says of responses: all of a step in few passes, any size of number.

    It reads text, so that its tokenizer may be another than the policy's. The model is loaded when something is scored first.

    Args:
        text: the run that trained it, as `RewardRun.parse` reads it.

    Raises:
        RewardError: if there is no such run, or it trained no reward model.
    """

    needs_answer = False

    def __init__(self, text: str):
        try:
            self.run = RewardRun.parse(text)
        except UserError as problem:
            raise RewardError(str(problem)) from None
        self.device = "cpu"
        """Where it computes."""

    @property
    def name(self) -> str:
        return f"{PREFIX}{self.run.path}"

    @cached_property
    def model(self) -> RewardModel:
        return self.run.load(self.device)

    def check_format(self, form: PromptFormat) -> None:
        """Refuses prompts that are put to the policy with another system message or template than to the reward model.

        Where its tokenizer has no chat template, both read the bare prompt and nothing can differ.
        """
        own = self.run.prompt_format()
        for flag, theirs, ours in (("--system", own.system, form.system), ("--template", own.template, form.template)):
            if theirs != ours and getattr(self.model.policy.tokenizer, "chat_template", None):
                raise RewardError(f"{self.name} learned with {flag} {_shown(theirs)}, and this run has {_shown(ours)}: it would "
                                  f"judge answers to other prompts than the policy is given. Give the run the same {flag}, or "
                                  "train a reward model with the run's.")  # fmt: skip

    def __call__(
        self, prompts: Sequence[str], responses: Sequence[str], answers: Sequence[str], messages: Sequence[Any] | None = None
    ) -> list[float]:
        asked = [said or prompt for prompt, said in zip(prompts, messages or [None] * len(prompts), strict=True)]
        return self.model.scores(asked, responses)


def _shown(value: str | Mapping[str, Any]) -> str:
    if isinstance(value, str):
        return repr(value) if value else "none"
    return ",".join(f"{name}={each}" for name, each in value.items()) or "none"


def reward_models(reward: Reward | None) -> Iterator[ModelReward]:
    """The reward models among what a task is rewarded by."""
    if isinstance(reward, ModelReward):
        yield reward
    for part in reward.parts if isinstance(reward, WeightedRewards) else ():
        yield from reward_models(part.reward)


def tells_no_right_answers(reward: Reward | None) -> bool:
    """Whether a reward's size is a reward model's, so that no answer is right or wrong by it."""
    return any(reward_models(reward)) and not (isinstance(reward, WeightedRewards) and reward.judge is not None)
