"""From the text of one reward to the reward: ``exact``, ``length:max=200``, ``regex:PATTERN``, ``format:think,answer``."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from upslope.errors import did_you_mean
from upslope.fields import hints, problem, shown
from upslope.rewards.builtin import Boxed, BuiltIn, Choice, Contains, ExactMatch, Format, Json, Length, Number, Regex, Repetition
from upslope.rewards.errors import RewardError
from upslope.rewards.milestones import Milestones
from upslope.rewards.programs import CodeTests
from upslope.rewards.verifiers import MathVerify
from upslope.runtime.reward_text import MODEL_PREFIX

_KINDS = (
    *(ExactMatch, Contains, Number, Boxed, Choice, MathVerify, CodeTests, Milestones),
    *(Json, Regex, Format, Length, Repetition),
)
BUILT_IN: dict[str, Any] = {kind.name: kind for kind in _KINDS}
"""The rewards by name."""


def built_in(text: str) -> BuiltIn | MathVerify | CodeTests | None:
    """The reward of ours that a text names, with its options; nothing if it names none.

    Raises:
        RewardError: if an option does not exist or cannot have this value.
    """
    name, colon, options = text.partition(":")
    if name not in BUILT_IN:
        return None
    kind = BUILT_IN[name]
    if kind is Regex:
        return Regex(options)
    if not colon:
        return kind()
    if kind is Format:
        return Format(tuple(tag.strip() for tag in options.split(",")))
    return kind(**_options(text, kind, options))


def from_anywhere(name: str) -> str:
    """A reward's name as it is right from every folder: the file of a JSON schema by its absolute path, a reward model by its run
    and the digest of its weights."""
    if name.startswith(MODEL_PREFIX):
        from upslope.policies.reward_runs import RewardRun  # loads torch

        return RewardRun.parse(name).kept()
    kind, _, file = name.partition(":schema=")
    return f"{kind}:schema={Path(file).expanduser().absolute()}" if kind == Json.name and file else name


def _options(text: str, kind: Any, options: str) -> dict[str, Any]:
    known = [f.name for f in dataclasses.fields(kind) if f.init]
    found: dict[str, Any] = {}
    for item in options.split(","):
        knob, equals, value = (part.strip() for part in item.partition("="))
        if knob not in known:
            has = f"Its options: {', '.join(known)}" if known else "It has none"
            raise RewardError(f"{text!r}: {kind.name} has no option {knob!r}.{did_you_mean(knob, known)} {has}.")
        if not equals or not value or knob in found:
            why = "is given twice" if knob in found else "is not of the form option=value"
            raise RewardError(f"{text!r}: {item.strip()!r} {why}, as in {kind.name}:{knob}=...")
        found[knob] = _value(value, hints(kind).get(knob, str))
        if wrong := problem(found[knob], hints(kind).get(knob)):
            raise RewardError(f"{text!r}: {knob} is {shown(found[knob])}; {wrong}")
    return found


def _value(text: str, hint: Any) -> Any:
    for number in (int, float):
        if hint in (int, float):
            try:
                return number(text)
            except (ValueError, OverflowError):
                continue
    return text
