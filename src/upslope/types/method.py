"""What a method is: a value, made of parts."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, get_args, get_origin, get_type_hints

from upslope.errors import MethodError, did_you_mean
from upslope.fields import hints, problem, shown
from upslope.knobs import Setting, said, set_in_names, set_in_order, set_in_stack, set_knob
from upslope.plain_data import JsonDict, Knobs
from upslope.types.learned import Acting, Learned, Solved
from upslope.types.part import Part
from upslope.types.part_text import fitting, parts_meant
from upslope.types.slot_fields import ByDomain, InOrder, Named, Stack
from upslope.types.slots import (
    Advantage,
    Aggregate,
    Controller,
    Curriculum,
    Data,
    Filter,
    LossTerm,
    Memory,
    Model,
    ModelPart,
    ModelView,
    PolicyPart,
    Ratio,
    Reference,
    Regularizer,
    Reward,
    RolloutPlan,
    Shape,
    Surrogate,
    Weight,
)
from upslope.types.stages import TrainingStage

TEXTS = ("name", "family", "parent", "differs", "formula", "use_when", "notes", "learner")
"""Fields of a method that are text."""
SETTINGS = "settings."
"""Before the name of a run's setting among the knobs by domain."""


@dataclass(frozen=True)
class Paper:
    """Where a method comes from."""

    title: str
    year: int
    arxiv: str = ""

    def __post_init__(self) -> None:
        for name, kind in hints(Paper).items():
            if wrong := problem(getattr(self, name), kind):
                raise MethodError(f"the {name} of a paper is {shown(getattr(self, name))}; {wrong}")

    def __str__(self) -> str:
        return f"{self.title} ({self.year}{', arXiv ' + self.arxiv if self.arxiv else ''})"


@dataclass(frozen=True)
class Method:
    """A policy-optimization method: a value, made of parts.

    Slots that hold one part take that part; slots that stack take a part, a tuple of parts or ``None``; named slots (``models``,
    ``references``, ``memory``, ``terms``) take a mapping of names to parts; ``stages`` takes parts that have names, in order.
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
    learner: str = "policy-gradient"
    """What trains it: ``"policy-gradient"`` on rows just sampled, ``"actor-critic"`` on rows drawn from stored experience.
    ``"measure"`` marks an analysis that trains nothing."""
    offline: bool = False
    """Whether it was made to learn from a dataset alone: given one, it does not act unless it is asked to."""
    stages: InOrder[TrainingStage] = InOrder()
    curriculum: Curriculum | None = None
    rollout: RolloutPlan | None = None
    reward: Stack[Reward] = Stack()
    data: Stack[Data] = Stack()
    filter: Stack[Filter] = Stack()
    advantage: Advantage | None = None
    shape: Stack[Shape] = Stack()
    policy: PolicyPart | None = None
    ratio: Ratio | None = None
    surrogate: Surrogate | None = None
    weight: Stack[Weight] = Stack()
    aggregate: Aggregate | None = None
    regularize: Stack[Regularizer] = Stack()
    models: Named[ModelPart] = Named()
    references: Named[Reference] = Named()
    memory: Named[Memory] = Named()
    terms: Named[LossTerm] = Named()
    controller: Stack[Controller] = Stack()
    acting: Stack[Acting] = Stack()
    on: ByDomain = ByDomain()
    """Knobs that papers set differently by domain: ``{"text": {"advantage.lam": 1.0}}``, and settings that go with the method:
    ``{"control": {"settings.minibatch": 256}}``. Applied when a run is made; what a user gives wins."""

    def __post_init__(self) -> None:
        for name in TEXTS:
            if not isinstance(getattr(self, name), str):
                raise MethodError(f"the {name} of a method is {shown(getattr(self, name))}; it must be text.")
        if not isinstance(self.offline, bool):
            raise MethodError(f"offline of {self.name} is {shown(self.offline)}; it must be true or false.")
        for slot in SLOTS:
            self._check_slot(slot)
        for path, part in self.parts():
            part.check_knobs(path)

    def _check_slot(self, slot: str) -> None:
        """Refuses what does not belong into the slot. A function would do its work, but has no knobs to be kept with a run."""
        wanted = SLOT_CLASSES[slot]
        for path, part in self.held(slot):
            if isinstance(part, wanted):
                continue
            given = f"{part}, {_belongs(part)}" if isinstance(part, Part) else f"{shown(part)}, which is no part{_instead(part)}"
            fits = f"It takes a part that derives from {wanted.__name__}: {', '.join(fitting(wanted)) or 'there is none yet'}."
            raise MethodError(f"{path} of {self.name} is {given}. {fits}")

    def held(self, slot: str) -> list[tuple[str, Part]]:
        """The parts of a slot with their paths."""
        value = getattr(self, slot)
        if slot in SINGLE_SLOTS + OPTIONAL_SLOTS:
            return [] if value is None else [(slot, value)]
        if slot in ORDERED_SLOTS:
            return [(f"{slot}.{getattr(part, 'name', place)}", part) for place, part in enumerate(value)]
        return [(f"{slot}.{place}", part) for place, part in (value if slot in NAMED_SLOTS else enumerate(value))]

    @property
    def view(self) -> ModelView | None:
        """Which view of a language model is trained; none where the policy is a network of a controller."""
        return self.policy if isinstance(self.policy, ModelView) else None

    @property
    def heads(self) -> tuple[tuple[str, Model], ...]:
        """Its models that are outputs of the policy."""
        return tuple((name, model) for name, model in self.models if isinstance(model, Model))

    @property
    def scorer(self) -> tuple[str, Model] | None:
        """Of a reward model: the head that scores answers, with its name."""
        return next(((name, model) for name, model in self.heads if model.scores), None)

    @property
    def learned(self) -> tuple[tuple[str, Learned], ...]:
        """Its models with networks of their own, in the order in which an update fits them."""
        own = [(name, model) for name, model in self.models if isinstance(model, Learned)]
        return tuple(sorted(own, key=lambda each: each[1].order))

    @property
    def solved(self) -> tuple[tuple[str, Solved], ...]:
        """Its models that are computed from all that is recorded."""
        return tuple((name, model) for name, model in self.models if isinstance(model, Solved))

    # -- looking at it -------------------------------------------------------------------------------------------------

    def parts(self) -> tuple[tuple[str, Part], ...]:
        """Every part with its path, slot by slot."""
        return self._parts

    @cached_property
    def _parts(self) -> tuple[tuple[str, Part], ...]:
        return tuple(self._walk())

    def _walk(self) -> Iterator[tuple[str, Part]]:
        for slot in SLOTS:
            for path, part in self.held(slot):
                yield from part.walk(path)

    def needs(self) -> frozenset[str]:
        """All columns the parts of this method read beyond the basic ones."""
        return self._needs

    @cached_property
    def _needs(self) -> frozenset[str]:
        return frozenset().union(*(part.all_needs() for _, part in self.parts()))

    def diff(self, other: Method) -> dict[str, tuple[str, str]]:
        """Slots in which two methods differ, what trains them and what on: ``{slot: (other's, ours)}`` as text."""
        return {
            slot: (_slot_text(getattr(other, slot)), _slot_text(getattr(self, slot)))
            for slot in COMPARED
            if getattr(self, slot) != getattr(other, slot)
        }

    def __str__(self) -> str:
        lines = [f"{self.name}: {self.paper}"]
        lines += [f"  {slot:<11}{_slot_text(getattr(self, slot))}" for slot in SLOTS if getattr(self, slot)]
        return "\n".join(lines)

    # -- making another ------------------------------------------------------------------------------------------------

    def derive(self, **changes: Any) -> Method:
        """This method with some slots changed; its name becomes the parent unless the name stays.

        A new name starts without notes, formula, differences and advice unless they are given: those were about the parent. Its
        knobs per domain (``on``) stay, as all slots do; give ``on={}`` to drop them.
        """
        known = [f.name for f in dataclasses.fields(self)]
        if unknown := [name for name in changes if name not in known]:
            raise MethodError(f"a method has no slot {unknown[0]!r}.{did_you_mean(unknown[0], known)} It has {', '.join(SLOTS)}.")
        if changes.get("name", self.name) != self.name:
            changes = {"parent": self.name, "notes": "", "formula": "", "differs": "", "use_when": "", **changes}
        return dataclasses.replace(self, **changes)

    def without(self, *slots: str) -> Method:
        """This method with these slots emptied."""
        emptied: JsonDict = {slot: None if slot in SINGLE_SLOTS + OPTIONAL_SLOTS else () for slot in slots}
        return dataclasses.replace(self, **emptied)

    def with_knobs(self, knobs: Knobs) -> Method:
        """This method with knobs set by path, as in ``{"surrogate.high": 0.3}``, one after the other.

        A path names a slot, then fields. Inside a slot that stacks, give the position (``regularize.0.weight``) or leave
        it out when there is one part; inside ``models`` and ``stages``, the name.
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
            change = {"stack": set_in_stack, "named": set_in_names, "in order": set_in_order, "one": set_knob}[_FORM[slot]]
            changed: Any = change(getattr(method, slot), rest.split(".") if rest else [], asked, SLOT_CLASSES[slot])
            if changed is None and slot in SINGLE_SLOTS and self.learner == "policy-gradient":
                raise MethodError(f"{asked}: a method needs its {slot}. Give another part.")
            method = dataclasses.replace(method, **{slot: changed})
            done.append(path)
        return method

    def for_domain(self, domain: str) -> Method:
        """This method with the knobs its papers use in ``domain`` ("text" or "control")."""
        knobs = dict(dict(self.on).get(domain, ()))
        return self.with_knobs({path: value for path, value in knobs.items() if not path.startswith(SETTINGS)})

    def settings_on(self, *domains: str) -> dict[str, object]:
        """Sizes and rates that its papers use in these domains, under the names of a run's settings."""
        found = [(path, value) for domain in domains for path, value in dict(self.on).get(domain, ())]
        return {path.removeprefix(SETTINGS): value for path, value in found if path.startswith(SETTINGS)}


def _slots() -> tuple[dict[str, type[Part]], dict[str, str]]:
    """Of each slot of `Method`, in the order of its fields, the class of its parts and how it holds them."""
    classes: dict[str, type[Part]] = {}
    form: dict[str, str] = {}
    for name, hint in get_type_hints(Method).items():
        origin, inside = get_origin(hint), [kind for kind in get_args(hint) if isinstance(kind, type) and issubclass(kind, Part)]
        if inside:
            classes[name] = inside[0]
            form[name] = {Stack: "stack", Named: "named", InOrder: "in order"}.get(origin, "one")  # type: ignore[arg-type]
    return classes, form


SLOT_CLASSES, _FORM = _slots()
"""What the parts of each slot derive from, in the order from tasks to the loss. A new slot is a field of `Method`."""
SLOTS = tuple(SLOT_CLASSES)
COMPARED = ("learner", "offline", *SLOTS)
"""What makes two methods different ones."""
SINGLE_SLOTS = ("advantage", "ratio", "surrogate", "aggregate")
"""A policy-gradient method needs a part in each of these."""
OPTIONAL_SLOTS = tuple(slot for slot in SLOTS if _FORM[slot] == "one" and slot not in SINGLE_SLOTS)
"""These hold one part or none: the plain way."""
STACKED_SLOTS = tuple(slot for slot in SLOTS if _FORM[slot] == "stack")
NAMED_SLOTS = tuple(slot for slot in SLOTS if _FORM[slot] == "named")
ORDERED_SLOTS = tuple(slot for slot in SLOTS if _FORM[slot] == "in order")
"""Their parts have names, and come one after another."""


def _instead(value: object) -> str:
    """The cure where a class stands in place of a part."""
    return f"; write {value.__name__}()" if isinstance(value, type) and issubclass(value, Part) else ""


def _belongs(part: Part) -> str:
    """Where a part would stand, in words."""
    for slot, kind in SLOT_CLASSES.items():
        if isinstance(part, kind):
            return f"which is for the slot {slot!r}"
    return "which is for no slot of its own"


def _slot_text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if not value:
        return "none"
    if isinstance(value, (Part, str)):
        return str(value)
    return " + ".join(f"{item[0]}: {item[1]}" if isinstance(item, tuple) else str(item) for item in value)
