"""Rewards by name: one of ours (``exact``, ``number``, ``length:max=200``), a reward model that a run trained (``rm:runs/rm``), one
of an installed package, or a function of one's own as ``file.py:function``; several of them weighed, ``exact`` and
``length:max=200*0.1``.

A reward is called with three lists of text, ``reward(prompts, responses, answers)``, once for all responses of a step, and gives
a number for each response or a mapping of named lists of numbers with ``"reward"`` among them. Functions that were written for TRL
or verl are called as these libraries do.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence
from typing import Any

from upslope.errors import did_you_mean
from upslope.plugins import REWARDS, Plugin, missing, named, plugins
from upslope.rewards.builtin import Boxed, BuiltIn, Choice, Contains, ExactMatch, Format, Json, Length, Number, Regex, Repetition
from upslope.rewards.errors import RewardError
from upslope.rewards.given import GivenReward, combined, labels_of, read_rewards, texts_of
from upslope.rewards.milestones import Milestones
from upslope.rewards.programs import CodeTests
from upslope.rewards.spec import BUILT_IN, built_in
from upslope.rewards.user import UserReward, load_user_reward
from upslope.rewards.verifiers import MathVerify
from upslope.rewards.weighted import RewardPart, WeightedRewards
from upslope.runtime.reward_text import MODEL_PREFIX, RewardText
from upslope.tasks.text import Reward

__all__ = [
    "Boxed", "Choice", "CodeTests", "Contains", "ExactMatch", "Format", "Json", "Length", "MathVerify", "Milestones", "Number",
    "Regex", "Repetition", "RewardError", "RewardPart", "UserReward", "WeightedRewards", "load_reward",
]  # fmt: skip


def load_reward(given: Any) -> Reward:
    """The reward that a text stands for, or several of them weighed.

    Args:
        given: a text, ``exact`` or ``mine.py:style*0.3``; a function, which gets the same checks as one from a file; a list of
            these; or a mapping of names to one of these or to a pair of it and a weight.

    Raises:
        RewardError: if there is no such reward, file or function, or it cannot be called as rewards are.
    """
    if isinstance(given, WeightedRewards):
        return given
    loaded = combined([_part(each) for each in read_rewards(given)])
    if loaded is None:
        raise RewardError("no reward was given. Give one such as 'exact', 'number' or a function of yours as my.py:score.")
    return loaded


def kept_or_held(given: Any) -> tuple[tuple[str, ...], Reward | None]:
    """What a run keeps of the rewards it is given in Python: the texts that name them; and, where one of them has no such text, the
    reward itself, which no folder can hold."""
    read = read_rewards(given)
    if (texts := texts_of(read)) is not None:
        return texts, None
    held = load_reward(given)
    return labels_of(held), held


def load_rewards(texts: Sequence[str]) -> Reward | None:
    """The reward of a plan; nothing if it has none."""
    return load_reward(list(texts)) if texts else None


def _part(given: GivenReward) -> RewardPart:
    what = given.what
    if not isinstance(what, str):
        what = what if isinstance(what, (BuiltIn, MathVerify, CodeTests, UserReward, WeightedRewards)) else UserReward(what)
        return RewardPart(what, given.weight, given.label)
    return RewardPart(_by_name(RewardText(what)), given.weight, given.label)


def _by_name(text: RewardText) -> Reward:
    if text.name.startswith(MODEL_PREFIX):
        from upslope.rewards.model_reward import ModelReward  # loads torch

        return ModelReward(text.name)
    if (ours := built_in(text.name)) is not None:
        return ours
    if text.is_code:
        file, _, function = text.name.rpartition(":")
        return load_user_reward(file, function)
    if text.name.endswith(".py"):
        raise RewardError(f"{text.name!r} names a file; say which function in it, as {text.name}:score.")
    if plugin := named(REWARDS, text.name):
        return _of_package(plugin)
    if re.fullmatch(r"[\w.-]+/[\w.-]+", text.name):
        raise missing(text.name.partition("/")[0], REWARDS, f"{text.name!r} is a reward of a package")
    known = [*BUILT_IN, f"{MODEL_PREFIX}RUN", *(each.name for each in plugins(REWARDS))]
    told = f"no reward named {text.name!r}.{did_you_mean(text.name.partition(':')[0], known)} Rewards are {', '.join(known)}"
    raise RewardError(f"{told}, or a function of yours as my.py:score.")


def plugin_of(spec: str) -> Plugin | None:
    """The entry point of the installed package whose reward a text names; nothing if it names one of ours, a file's, or none."""
    text = RewardText.parse(spec)
    ours = text.name.partition(":")[0] in BUILT_IN or text.name.startswith(MODEL_PREFIX)
    return named(REWARDS, text.name) if text.name and not ours and ".py" not in text.name else None


def _of_package(plugin: Plugin) -> UserReward:
    """The function that an entry point names, checked like a user's own."""
    function = plugin.load()
    if not callable(function):
        where = f"{plugin.package}'s entry point {REWARDS} {plugin.name} = {plugin.value!r}"
        raise RewardError(f"{where} names no function. Reinstall the package, or ask its authors.")
    file = inspect.getfile(function) if inspect.isfunction(function) else ""
    return UserReward(function, file)
