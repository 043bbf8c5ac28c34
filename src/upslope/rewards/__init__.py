"""Rewards by name: ``exact``, ``math-verify``, or a function of one's own as ``file.py:function``.

A reward is called with three lists of text, ``reward(prompts, responses, answers)``, once for all responses of a step, and gives
a number for each response or a mapping of named lists of numbers with ``"reward"`` among them.
"""

from __future__ import annotations

from upslope.errors import did_you_mean
from upslope.rewards.user import RewardError, UserReward, load_user_reward
from upslope.rewards.verifiers import VERIFIERS, ExactMatch, MathVerify
from upslope.tasks.text import Reward

__all__ = ["ExactMatch", "MathVerify", "RewardError", "UserReward", "load_reward"]


def load_reward(spec: str | Reward) -> Reward:
    """The reward a text stands for; a function is taken as it is and gets the same checks as one from a file.

    Raises:
        RewardError: if there is no such reward, file or function, or it cannot be called with prompts, responses and answers.
    """
    if not isinstance(spec, str):
        return spec if isinstance(spec, (ExactMatch, MathVerify, UserReward)) else UserReward(spec)
    if spec in VERIFIERS:
        return VERIFIERS[spec]()
    file, colon, function = spec.rpartition(":")
    if colon and file.endswith(".py"):
        return load_user_reward(file, function)
    if spec.endswith(".py"):
        raise RewardError(f"{spec!r} names a file; say which function in it, as {spec}:score.")
    raise RewardError(
        f"no reward named {spec!r}.{did_you_mean(spec, VERIFIERS)} Rewards are {', '.join(VERIFIERS)}, or a function of yours "
        "as my.py:score."
    )
