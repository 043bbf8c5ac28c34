"""What a method is: a value, made of parts."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from upslope.errors import MethodError, did_you_mean
from upslope.fields import shown
from upslope.knobs import Setting, said, set_in_names, set_in_stack, set_knob
from upslope.types.part import Part
from upslope.types.part_index import slot_class
from upslope.types.part_text import parts_meant


@dataclass(frozen=True)
class Paper:
    """Where a method comes from."""

    title: str
    year: int
    arxiv: str = ""

    def __str__(self) -> str:
        return f"{self.title} ({self.year}{', arXiv ' + self.arxiv if self.arxiv else ''})"


SINGLE_SLOTS = ("advantage", "ratio", "surrogate", "aggregate")
OPTIONAL_SLOTS = ("curriculum", "rollout", "policy")
"""These hold one part or none: the plain way."""
STACKED_SLOTS = ("reward", "data", "filter", "shape", "weight", "regularize", "controller")
NAMED_SLOTS = ("models", "references", "memory", "terms")
SLOTS = (
    *("curriculum", "rollout", "reward", "data", "filter", "advantage", "shape"),
    *("policy", "ratio", "surrogate", "weight", "aggregate"),
    *("regularize", "models", "references", "memory", "terms", "controller"),
)
"""In the order in which they act."""


@dataclass(frozen=True)
class Method:
    """A policy-optimization method: a value, made of parts.

    Slots that hold one part take that part; slots that stack take a part, a tuple of parts or ``None``; named slots (``models``,
    ``references``, ``memory``, ``terms``) take a mapping of names to parts.
    `derive` makes a new method from this one, `diff` says what two methods do differently.
    """

    name: str
    paper: Paper
    family: str = "rlvr"
    parent: str = ""
    differs: str = ""
    formula: str = ""
    use_when: str = ""
    """In which situation one would take it instead of its parent, for the method's page."""
    notes: str = ""
    """Doubts and departures from the paper, for the method's page."""
    curriculum: Any = None
    rollout: Any = None
    reward: Any = ()
    data: Any = ()
    filter: Any = ()
    advantage: Any = None
    shape: Any = ()
    policy: Any = None
    ratio: Any = None
    surrogate: Any = None
    weight: Any = ()
    aggregate: Any = None
    regularize: Any = ()
    models: Any = ()
    references: Any = ()
    memory: Any = ()
    terms: Any = ()
    controller: Any = ()
    on: Any = ()
    """Knobs that papers set differently by domain: ``{"text": {"advantage.lam": 1.0}}``. Applied when a run is made."""

    def __post_init__(self) -> None:
        for slot in STACKED_SLOTS:
            value = getattr(self, slot)
            value = () if value is None else tuple(value) if isinstance(value, (tuple, list)) else (value,)
            object.__setattr__(self, slot, value)
        for slot in NAMED_SLOTS:
            object.__setattr__(self, slot, _pairs(getattr(self, slot)))
        by_domain = _pairs(self.on)
        object.__setattr__(self, "on", tuple((domain, _pairs(knobs)) for domain, knobs in by_domain))
        for slot in SLOTS:
            self._check_slot(slot)
        for path, part in self.parts():
            part.check_knobs(path)

    def _check_slot(self, slot: str) -> None:
        """Refuses what is no part. A function would do its work, but has no knobs to be kept with a run."""
        value = getattr(self, slot)
        if slot in SINGLE_SLOTS + OPTIONAL_SLOTS:
            held = [] if value is None else [(slot, value)]
        else:
            held = [(f"{slot}.{place}", part) for place, part in (value if slot in NAMED_SLOTS else enumerate(value))]
        for path, part in held:
            if not isinstance(part, Part):
                raise MethodError(f"{path} of {self.name} is {shown(part)}, which is no part. Write it as a frozen dataclass that "
                                  "derives from the slot's class in upslope.objective.base.")  # fmt: skip

    # -- looking at it -------------------------------------------------------------------------------------------------

    def parts(self) -> tuple[tuple[str, Part], ...]:
        """Every part with its path, in the order in which slots act."""
        return self._parts

    @cached_property
    def _parts(self) -> tuple[tuple[str, Part], ...]:
        return tuple(self._walk())

    def _walk(self) -> Iterator[tuple[str, Part]]:
        for slot in SLOTS:
            value = getattr(self, slot)
            if isinstance(value, Part):
                yield from value.walk(slot)
            elif slot in NAMED_SLOTS:
                for name, part in value:
                    yield from part.walk(f"{slot}.{name}")
            elif value:
                for position, part in enumerate(value):
                    yield from part.walk(f"{slot}.{position}")

    def needs(self) -> frozenset[str]:
        """All columns the parts of this method read beyond the basic ones."""
        return self._needs

    @cached_property
    def _needs(self) -> frozenset[str]:
        return frozenset().union(*(part.needs() for _, part in self.parts()))

    def diff(self, other: Method) -> dict[str, tuple[str, str]]:
        """Slots in which two methods differ: ``{slot: (other's, ours)}`` as text."""
        return {
            slot: (_slot_text(getattr(other, slot)), _slot_text(getattr(self, slot)))
            for slot in SLOTS
            if getattr(self, slot) != getattr(other, slot)
        }

    def __str__(self) -> str:
        lines = [f"{self.name}: {self.paper}"]
        lines += [f"  {slot:<11}{_slot_text(getattr(self, slot))}" for slot in SLOTS if getattr(self, slot)]
        return "\n".join(lines)

    # -- making another ------------------------------------------------------------------------------------------------

    def derive(self, **changes: Any) -> Method:
        """This method with some slots changed; its name becomes the parent unless the name stays.

        A new name starts with no notes, formula or per-domain knobs of its own unless they are given: those were about the parent.
        """
        if changes.get("name", self.name) != self.name:
            changes = {"parent": self.name, "notes": "", "formula": "", "differs": "", "use_when": "", **changes}
        return dataclasses.replace(self, **changes)

    def without(self, *slots: str) -> Method:
        """This method with these slots emptied."""
        emptied: dict[str, Any] = {slot: None if slot in SINGLE_SLOTS + OPTIONAL_SLOTS else () for slot in slots}
        return dataclasses.replace(self, **emptied)

    def with_knobs(self, knobs: Mapping[str, Any]) -> Method:
        """This method with knobs set by path, as in ``{"surrogate.high": 0.3}``, one after the other.

        A path names a slot, then fields. Inside a slot that stacks, give the position (``regularize.0.weight``) or leave
        it out when there is one part; inside ``models``, the name.
        Where a part stands, the value is another part, perhaps as text: ``{"surrogate": "PessimisticClip(low=0.1)"}``. In a slot
        that stacks, several are separated by commas, the position behind the last adds one, and ``none`` empties; inside
        ``models``, a new name adds one.
        """
        method, done = self, list[str]()
        for path, value in knobs.items():
            slot, _, rest = path.partition(".")
            if slot not in SLOTS:
                raise MethodError(f"no slot named {slot!r} in --set {path}={said(value)}.{did_you_mean(slot, SLOTS)}")
            asked = Setting(path, value, method.name, parts_meant)
            if undone := [each for each in done if each.startswith(f"{path}.")]:
                raise MethodError(f"{asked} stands behind --set {undone[0]}=..., which it would undo. Give the whole part first.")
            change = set_in_stack if slot in STACKED_SLOTS else set_in_names if slot in NAMED_SLOTS else set_knob
            changed: Any = change(getattr(method, slot), rest.split(".") if rest else [], asked, slot_class(slot))
            if changed is None and slot in SINGLE_SLOTS:
                raise MethodError(f"{asked}: a method needs its {slot}. Give another part.")
            method = dataclasses.replace(method, **{slot: changed})
            done.append(path)
        return method

    def for_domain(self, domain: str) -> Method:
        """This method with the knobs its papers use in ``domain`` ("text" or "control")."""
        return self.with_knobs(dict(dict(self.on).get(domain, ())))


def _pairs(value: Any) -> tuple:
    if not value:
        return ()
    items = value.items() if isinstance(value, Mapping) else value
    if not isinstance(items, Iterable) or any(not isinstance(item, tuple) or len(item) != 2 for item in items):
        raise MethodError(f"{shown(value)} stands where a mapping of names is wanted, as in models={{'value': ValueFunction()}}.")
    return tuple(sorted(items, key=lambda item: str(item[0])))


def _slot_text(value: Any) -> str:
    if not value:
        return "none"
    if isinstance(value, Part):
        return str(value)
    return " + ".join(f"{item[0]}: {item[1]}" if isinstance(item, tuple) else str(item) for item in value)
