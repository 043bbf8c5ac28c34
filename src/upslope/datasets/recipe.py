"""Recipes by name, as in ``--recipe mixed:expert=0.1``: which data to make."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from upslope.errors import UserError, did_you_mean
from upslope.plain_data import JsonDict

BASES = ("random", "scripted", "expert", "medium", "oracle")
"""Who can be varied by another recipe."""


@dataclass(frozen=True)
class Kind:
    """A kind of recipe: what it does, and its options with their defaults."""

    about: str
    options: Mapping[str, Any]


KINDS: Mapping[str, Kind] = {
    "random": Kind("uniformly random actions", {}),
    "scripted": Kind("a controller written by hand", {}),
    "expert": Kind("the last checkpoint of --from RUN; without it the scripted controller", {}),
    "medium": Kind("the checkpoint of --from RUN a third of the way from random to its end", {}),
    "replay": Kind("the experience that --from RUN learned from", {}),
    "noisy": Kind("a controller whose actions are random with chance eps", {"eps": 0.3, "of": "expert"}),
    "mixed": Kind("this share of episodes by the expert, the others random", {"expert": 0.1}),
    "segments": Kind("first halves and second halves of episodes, never both: to be stitched", {"of": "expert"}),
    "two_quality": Kind("the expert in one half of the states, random actions in the other", {"axis": 0, "of": "expert"}),
    "narrow_action": Kind("actions from this share of their range, about its middle", {"share": 0.5, "of": "random"}),
    "oracle": Kind("OGBench's scripted manipulator, 'plan' or 'markov'", {"kind": "plan"}),
}
SHARES = ("eps", "expert", "share")


@dataclass(frozen=True)
class Recipe:
    """A kind with its options, all of them."""

    kind: str
    options: tuple[tuple[str, Any], ...] = ()

    @classmethod
    def parse(cls, text: str) -> Recipe:
        """Reads ``kind`` or ``kind:option=value,option=value``.

        Raises:
            UserError: if there is no such kind or option, or a value cannot be.
        """
        name, _, rest = text.partition(":")
        if name not in KINDS:
            explained = "'upslope data make --help' explains them"
            raise UserError(f"no recipe {name!r}.{did_you_mean(name, KINDS)} There are {', '.join(KINDS)}; {explained}.")
        given: JsonDict = {}
        for pair in filter(None, rest.split(",")):
            option, equals, value = pair.partition("=")
            if option not in KINDS[name].options:
                known = ", ".join(f"{key}={default}" for key, default in KINDS[name].options.items()) or "none"
                raise UserError(f"--recipe {text}: {name} has no option {option!r}. Its options: {known}.")
            if not equals or not value:
                raise UserError(f"--recipe {text}: {option!r} has no value, as in {option}={KINDS[name].options[option]}.")
            given[option] = _value(text, option, value)
        chosen = {**KINDS[name].options, **given}
        return cls(name, tuple(chosen.items()))

    def __getitem__(self, option: str) -> Any:
        return dict(self.options)[option]

    @property
    def base(self) -> str:
        """Who acts in it, where it varies another's acting: the kind itself where it does not."""
        return "expert" if self.kind == "mixed" else dict(self.options).get("of", self.kind)

    def __str__(self) -> str:
        return ":".join(filter(None, [self.kind, ",".join(f"{key}={value}" for key, value in self.options)]))


def _value(text: str, option: str, value: str) -> Any:
    if option == "of":
        if value not in BASES:
            raise UserError(f"--recipe {text}: of={value!r} is nobody who acts.{did_you_mean(value, BASES)} {', '.join(BASES)}.")
        return value
    if option == "kind":
        if value not in ("plan", "markov"):
            raise UserError(f"--recipe {text}: kind={value!r}; it must be plan or markov.")
        return value
    try:
        number = int(value) if option == "axis" else float(value)
    except ValueError:
        raise UserError(f"--recipe {text}: {option}={value!r} is no number.") from None
    if option in SHARES and not 0 <= number <= 1:
        raise UserError(f"--recipe {text}: {option}={value}; it must be between 0 and 1.")
    if option == "share" and number == 0:
        raise UserError(f"--recipe {text}: share=0 leaves no actions; it must be above 0.")
    if option == "axis" and number < 0:
        raise UserError(f"--recipe {text}: axis={value}; it counts the numbers of an observation from 0.")
    return number
