"""The catalogue: every method is a value in one of the modules below; this file only finds them.

    >>> from upslope.methods import dapo, minirl_r2
    >>> dapo.parent, minirl_r2.name
    ('grpo', 'minirl-r2')

A method is imported by its name, with underscores for dashes. Methods of installed packages join by the entry point
``upslope.methods``.
"""

from __future__ import annotations

import importlib
import pkgutil
import warnings
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import ModuleType

from upslope.errors import MethodError, Remark, UserError, did_you_mean
from upslope.learners.base import MEASURE
from upslope.objective.stages import Stage
from upslope.plugins import METHODS, Plugin, plugins
from upslope.runtime.arguments import checked, mapping, optional, several, text
from upslope.types import NAMED_SLOTS, ORDERED_SLOTS, SLOTS, STACKED_SLOTS, Method
from upslope.types.lazy_names import unknown
from upslope.types.method import COMPARED, SETTINGS

__all__ = ["catalogue", "compose", "find"]  # and every method, by `__getattr__`
RUN_FILE = "run.toml"
"""How the path of a run's plan ends, which names the method of that run."""


def __getattr__(name: str) -> Method:
    """A method as an attribute of this module: the catalogue is read when the first one is asked for."""
    if name.startswith("_"):  # asked by Python itself, while modules below are being imported
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # Ours first: a package's module is being imported when it says ``from upslope.methods import grpo``.
    found = _by_identifier(own_methods()).get(name) or _by_identifier(catalogue()).get(name)
    if found is None:
        raise unknown(name, __name__, "method", _by_identifier(catalogue()))
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_by_identifier(catalogue())})


def _by_identifier(methods: dict[str, Method]) -> dict[str, Method]:
    return {name.replace("-", "_"): method for name, method in methods.items()}


@cache
def own_methods() -> dict[str, Method]:
    """Every method of upslope itself that can be trained, by name."""
    return {name: method for name, method in _own_values().items() if method.learner != MEASURE}


@cache
def measures() -> dict[str, Method]:
    """Papers that measure data and train nothing, by name."""
    return {name: method for name, method in _own_values().items() if method.learner == MEASURE}


@cache
def _own_values() -> dict[str, Method]:
    found: dict[str, Method] = {}
    for module in pkgutil.walk_packages(__path__, prefix=f"{__name__}."):
        for value in vars(importlib.import_module(module.name)).values():
            if isinstance(value, Method) and found.setdefault(value.name, value) != value:
                raise MethodError(f"two different methods are called {value.name!r}.")
    return found


@cache
def catalogue() -> dict[str, Method]:
    """Every method by name, in the order of year and name: ours, and those of installed packages.

    A package that cannot be used is left out with a remark.
    """
    found = {**own_methods(), **{name: method for name, (method, _) in package_methods().items()}}
    return dict(sorted(found.items(), key=lambda item: (item[1].paper.year, item[0])))


@cache
def package_methods() -> dict[str, tuple[Method, Plugin]]:
    """Methods of installed packages by name, each with the entry point it comes from."""
    own = own_methods()
    found: dict[str, tuple[Method, Plugin]] = {}
    taken = dict.fromkeys(own, "upslope's own")
    twice = set()
    for plugin in plugins(METHODS):
        try:
            methods = list(_methods_of(plugin))
        except UserError as problem:
            warnings.warn(Remark(str(problem)), stacklevel=2)
            continue
        place = f"that of {plugin.package} {plugin.version} ({plugin.value})"
        for method in methods:
            if method == own.get(method.name) or method == found.get(method.name, (None,))[0]:
                continue  # taken from there, to derive from
            if method.name in taken:
                twice.add(method.name)
                told = f"two methods are called {method.name!r}: {taken[method.name]} and {place}. "
                kept = "Ours is used" if method.name in own else "Neither is used"
                warnings.warn(Remark(f"{told}{kept}; ask the package's authors for another name."), stacklevel=2)
                continue
            taken[method.name], found[method.name] = place, (method, plugin)
    return {name: entry for name, entry in found.items() if name not in twice}


def _methods_of(plugin: Plugin) -> Iterator[Method]:
    """The methods an entry point names: one, or those of a module under public names."""
    value = plugin.load()
    if isinstance(value, ModuleType):
        yield from (each for name, each in vars(value).items() if isinstance(each, Method) and not name.startswith("_"))
    elif isinstance(value, Method):
        yield value
    else:
        where = f"{plugin.package}'s entry point {METHODS} {plugin.name} = {plugin.value!r}"
        raise UserError(f"{where} names neither a module nor a Method. Reinstall the package, or ask its authors.")


def find(name: str) -> Method:
    """The method of this name; an unknown one is refused with the nearest names."""
    methods = own_methods()
    if name in measures():
        return measures()[name]
    if name not in methods:
        methods = catalogue()
    if name not in methods:
        raise MethodError(f"no method named {name!r}.{did_you_mean(name, methods)} 'upslope methods' lists all {len(methods)}.")
    return methods[name]


def check_own_name(method: Method) -> None:
    """Refuses a user's method that is called like one of the catalogue and is another: no table could tell them apart."""
    known = catalogue().get(method.name)
    if known is not None and (changed := ", ".join(method.diff(known))):
        raise MethodError(f"your method is called {method.name!r} like one of the catalogue, and differs from it in {changed}. "
                          "Give it a name of its own: derive(name=...).")  # fmt: skip


def composed_of(spec: str) -> list[str]:
    """The words of a composition such as ``dhpo+mine.py:name``. The path of a file may have a plus in it."""
    path, name = (spec, "") if spec.endswith((".py", RUN_FILE)) else spec.rpartition(":")[::2]
    return [spec] if "+" not in name and Path(path).is_file() else spec.split("+")


@checked(
    names=several(text("the name of a method, or a method", Method), "a list of names of methods, as in ['dhpo', 'high-entropy']"),
    take=optional(mapping("a dict from slots to methods, as in {'surrogate': 'dapo'}", text("the name of a method"))),
)
def compose(names: Sequence[str | Method], take: Mapping[str, str] | None = None) -> Method:
    """The first method with what each other changes against its own parent.

    Slots that stack take additions and removals, ``models`` merges by name, ``stages`` too, in order and a name's first stage
    staying; the rest hold one part: two different changes of such a slot collide.
    Methods in front that sample nothing (``sft+grpo``) are no change of the one behind: they are its stages, for half of the run.

    Args:
        names: as in ``"dhpo+high-entropy".split("+")``; a method of one's own as it is.
        take: which method wins a slot that collides, as in ``{"surrogate": "dapo"}``.
    """
    base, *others = found = [each if isinstance(each, Method) else find(each) for each in names]
    called = [each.name for each in found]
    take = dict(take or {})
    _check_take(take, called)
    if given := next((place for place, each in enumerate(found) if _samples(each)), 0):
        return _one_after_another(found[:given], found[given:], take)
    method, changed_by = base, {slot: base.name for slot in (base.diff(_parent(base, found)) if base.parent else SLOTS)}
    for other in others:
        if other.learner != base.learner:
            told = f"{base.name} {LEARNS[base.learner]} and {other.name} {LEARNS[other.learner]}"
            raise MethodError(f"{told}: what one changes has no place in the other. Compose methods that learn in the same way.")
        if not other.parent:
            cure = "" if _samples(other) else f" To train it before: {other.name}+{base.name}."
            raise MethodError(f"{other.name} has no parent, so it is no change that could be added to {base.name}.{cure}")
        parent = _parent(other, found)
        for slot in other.diff(parent):
            if slot in ORDERED_SLOTS:
                merged = _merge_in_order(getattr(method, slot), getattr(other, slot), getattr(parent, slot))
                method = method.derive(**{slot: merged})
                continue
            if slot in STACKED_SLOTS or slot in NAMED_SLOTS:
                if slot in NAMED_SLOTS and any(_collisions(method, other, parent, slot)) and take.get(slot) not in called:
                    name, mine, theirs = next(_collisions(method, other, parent, slot))
                    raise _both_fill(changed_by.get(slot, base.name), other.name, slot, mine, theirs, f"{slot}.{name}")
                if slot in NAMED_SLOTS and take.get(slot, other.name) != other.name:
                    continue
                merged = _merge(getattr(method, slot), getattr(other, slot), getattr(parent, slot), named=slot in NAMED_SLOTS)
                method = method.derive(**{slot: merged})
                continue
            mine, theirs = getattr(method, slot), getattr(other, slot)
            if mine != theirs and slot in changed_by and take.get(slot) not in (other.name, changed_by[slot]):
                raise _both_fill(changed_by[slot], other.name, slot, mine, theirs)
            if take.get(slot, other.name) == other.name:
                method = method.derive(**{slot: theirs})
                changed_by[slot] = other.name
        method = method.derive(on=_with_settings(method, other, parent))
    return method.derive(name="+".join(called), parent=base.name, differs=f"with the changes of {', '.join(called[1:])}")


BEFORE = 0.5
"""Share of the run of methods that are trained before another one."""


def _samples(method: Method) -> bool:
    """Whether it learns from what its policy does, and not only from what others wrote."""
    return method.rollout is None or method.rollout.samples


def _one_after_another(before: list[Method], after: list[Method], take: dict[str, str]) -> Method:
    """The second methods composed, with the first ones composed as stages before it."""

    def composed(methods: list[Method]) -> Method:
        names = {each.name for each in methods}
        return compose(methods, {slot: name for slot, name in take.items() if name in names}) if len(methods) > 1 else methods[0]

    first, then = composed(before), composed(after)
    own = first.with_knobs({f"stages.{stage.name}.share": BEFORE * stage.share for stage in first.stages}).stages
    whole = Stage.of_method(first, BEFORE * (1 - sum(stage.share for stage in first.stages)))
    return then.derive(
        name="+".join(each.name for each in (*before, *after)),
        stages=_merge_in_order((*own, whole), then.stages, ()),
        parent=then.name,
        differs=f"after the training of {first.name} in {BEFORE:.0%} of the run",
    )


def _both_fill(ours: str, theirs: str, slot: str, mine: object, other: object, path: str = "") -> MethodError:
    return MethodError(f"{ours} and {theirs} both fill {path or slot!r}: {mine} and {other}. "
                       f"Say which: --take {slot}={ours} or --take {slot}={theirs}.")  # fmt: skip


def _collisions(ours: Method, theirs: Method, parent: Method, slot: str) -> Iterator[tuple[str, object, object]]:
    """What they changed under a name that we have changed otherwise, with both parts."""
    mine, before = dict(getattr(ours, slot)), dict(getattr(parent, slot))
    for name, part in getattr(theirs, slot):
        if name in mine and part not in (mine[name], before.get(name)) and mine[name] != before.get(name):
            yield name, mine[name], part


def _parent(method: Method, beside: Sequence[Method]) -> Method:
    """What a method derives from: one of those it is composed with, or of the catalogue."""
    for other in beside:
        if other.name == method.parent:
            return other
    try:
        return find(method.parent)
    except MethodError:
        raise MethodError(
            f"{method.name} derives from {method.parent!r}, which is not in the catalogue, so what it changes is not known. "
            "Derive it from a method of the catalogue to compose it."
        ) from None


LEARNS = {
    "policy-gradient": "learns from what it has just sampled",
    "actor-critic": "learns from stored experience",
    "measure": "measures data",
}
"""What a learner is to people."""


def _with_settings(ours: Method, theirs: Method, parent: Method) -> dict[str, dict[str, object]]:
    """Our knobs by domain, with the settings in which they differ from their parent: these go with what they change."""
    merged: dict[str, dict[str, object]] = {domain: dict(knobs) for domain, knobs in ours.on}
    for domain, knobs in theirs.on:
        before = dict(dict(parent.on).get(domain, ()))
        new = {path: value for path, value in knobs if path.startswith(SETTINGS) and before.get(path) != value}
        merged = {**merged, domain: {**merged.get(domain, {}), **new}} if new else merged
    return merged


def _check_take(take: dict[str, str], names: list[str]) -> None:
    for slot, name in take.items():
        if slot not in COMPARED:
            raise MethodError(f"--take {slot}={name}: no slot named {slot!r}.{did_you_mean(slot, SLOTS)}")
        if name not in names:
            raise MethodError(f"--take {slot}={name}: {name!r} is not among the composed methods {', '.join(names)}.")


def _merge_in_order(ours: tuple, theirs: tuple, parents: tuple) -> tuple:
    """Ours without what they removed from their parent, then what they added under names that we do not have."""
    removed = {part.name for part in parents} - {part.name for part in theirs}
    kept = [part for part in ours if part.name not in removed]
    known = {part.name for part in (*kept, *parents)}
    return (*kept, *(part for part in theirs if part.name not in known))


def _merge(ours: tuple, theirs: tuple, parents: tuple, named: bool) -> tuple:
    """Ours with what they added to their parent added and what they removed removed."""
    if named:
        removed = {key for key, _ in parents} - {key for key, _ in theirs}
        added = [item for item in theirs if item not in parents]
        kept = {key: part for key, part in ours if key not in removed}
        return tuple((kept | dict(added)).items())
    removed_parts = [part for part in parents if part not in theirs]
    return (
        *(part for part in ours if part not in removed_parts),
        *(part for part in theirs if part not in parents and part not in ours),
    )
