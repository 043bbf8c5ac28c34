"""Rewards by name: ``exact``, ``math-verify``, one of an installed package, or a function of one's own as ``file.py:function``.

A reward is called with three lists of text, ``reward(prompts, responses, answers)``, once for all responses of a step, and gives
a number for each response or a mapping of named lists of numbers with ``"reward"`` among them.
"""

from __future__ import annotations

import inspect
import re

from upslope.errors import did_you_mean
from upslope.plugins import REWARDS, Plugin, missing, named, plugins
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
    if plugin := named(REWARDS, spec):
        return _of_package(plugin)
    if re.fullmatch(r"[\w.-]+/[\w.-]+", spec):
        raise missing(spec.partition("/")[0], REWARDS, f"{spec!r} is a reward of a package")
    known = [*VERIFIERS, *(each.name for each in plugins(REWARDS))]
    told = f"no reward named {spec!r}.{did_you_mean(spec, known)} Rewards are {', '.join(known)}"
    raise RewardError(f"{told}, or a function of yours as my.py:score.")


def plugin_of(spec: str) -> Plugin | None:
    """The entry point of the installed package whose reward a text names; nothing if it names one of ours, a file's, or none."""
    return named(REWARDS, spec) if spec and spec not in VERIFIERS and ".py" not in spec else None


def _of_package(plugin: Plugin) -> UserReward:
    """The function that an entry point names, checked like a user's own."""
    function = plugin.load()
    if not callable(function):
        where = f"{plugin.package}'s entry point {REWARDS} {plugin.name} = {plugin.value!r}"
        raise RewardError(f"{where} names no function. Reinstall the package, or ask its authors.")
    file = inspect.getfile(function) if inspect.isfunction(function) else ""
    return UserReward(function, file)
