"""What a piece of a method is."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from torch import Tensor

from upslope.errors import MethodError
from upslope.fields import all_ranges, hints, problem, shown

if TYPE_CHECKING:
    from upslope.types.batch import Batch

Metrics = dict[str, float]
Scope = Literal["decision", "segment", "sequence", "group", "update", "step"]


@dataclass(frozen=True)
class Part:
    """A piece of a method: fields are its knobs, the call is pure tensor code.

    Fields hold numbers, text, booleans, parts and tuples of these, never ``None`` (write "no bound" as ``inf``): that is
    what makes a method print, compare, hash and go through TOML exactly.
    """

    scope: ClassVar[Scope] = "decision"
    """What one call of the part must see at once, and so when it is called: on slices of an update that hold whole decisions,
    segments, sequences or groups; once an ``update``; once a ``step``. Where it depends on knobs, `seen_at_once` says it."""
    text_only: ClassVar[bool] = False
    """Whether it makes sense for language models alone: it reads prompts, or asks for reference answers."""
    needs_of_task: ClassVar[frozenset[str]] = frozenset()
    """What a task must say of its problems beside prompt and score, such as ``"hints"`` or ``"solutions"``
    (`upslope.tasks.giving` has the words); the method is refused on tasks that do not."""
    judges_by: ClassVar[str] = ""
    """Name of the knob by which it tells a good reward from a bad one, if it does; its default suits answers that earn 0 or 1."""
    ranges: ClassVar[Mapping[str, str]] = MappingProxyType({})
    """Where a knob can only be right, as an interval: ``{"weight": "[0, inf)"}``. Those of the base classes hold as well."""

    def needs(self) -> frozenset[str]:
        """Columns this part reads beyond the basic ones, such as ``"proximal.entropy"``."""
        return frozenset()

    def probes(self) -> tuple[Any, ...]:
        """What the policy must compute for it inside its forward pass, where logits and hidden states are (`Probe` parts)."""
        return ()

    def prepares(self) -> bool:
        """Whether `prepare` runs, with these field values."""
        return type(self).prepare is not Part.prepare

    def prepare(self, batch: Batch) -> Tensor:
        """What a part that is called on slices must know of the whole update, ``[N, ...]``; it runs once, before that is cut.

        The call reads it as ``batch.prepared[self]``.
        """
        raise NotImplementedError

    def prepare_needs(self) -> frozenset[str]:
        """Columns that `prepare` reads. One of the ``current`` policy costs a further forward pass."""
        return frozenset()

    def seen_at_once(self) -> Scope:
        """The scope with these field values; most parts have the same for all."""
        return self.scope

    def all_needs(self) -> frozenset[str]:
        """Columns that its call or `prepare` reads."""
        return self.needs() | self.prepare_needs()

    def walk(self, path: str = "") -> Iterator[tuple[str, Part]]:
        """This part and every part inside it, with dotted paths."""
        yield path, self
        for f in dataclasses.fields(self):
            value = getattr(self, f.name)
            below = f"{path}.{f.name}" if path else f.name
            if isinstance(value, Part):
                yield from value.walk(below)
            elif isinstance(value, tuple):
                for position, item in enumerate(value):
                    if isinstance(item, Part):
                        yield from item.walk(f"{below}.{position}")

    def check_knobs(self, path: str) -> None:
        """Refuses fields of another type than declared, NaN, and knobs out of their `ranges`; ``path`` is for the message."""
        kinds, intervals = hints(type(self)), all_ranges(type(self))
        for name, kind in kinds.items():
            value = getattr(self, name)
            if wrong := problem(value, kind, intervals.get(name, "")):
                raise MethodError(f"{path}.{name} of {type(self).__name__} is {shown(value)}; {wrong}")

    def __str__(self) -> str:
        knobs = ", ".join(f"{f.name}={_short(getattr(self, f.name))}" for f in dataclasses.fields(self))
        return f"{type(self).__name__}({knobs})"


def _short(value: object) -> str:
    if isinstance(value, tuple):
        return f"({', '.join(map(_short, value))}{',' if len(value) == 1 else ''})"
    return f"{value:g}" if isinstance(value, float) else str(value) if isinstance(value, Part) else repr(value)


@dataclass(frozen=True)
class Head:
    """What a learned model asks the policy to build: an output per decision, whose column has the model's name.

    Fields:
        outputs: more than one are combined into their soft minimum.
        softness: of that minimum; small takes the smallest, large the mean.
        detached: its loss does not reach the policy: only the head learns from it.
    """

    outputs: int = 1
    softness: float = 1.0
    detached: bool = False
