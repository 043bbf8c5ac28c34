"""Names of parts: ``kind.Class``, as in ``surrogate.PessimisticClip``, wherever their code lies.

Files know parts by these names, so that modules may move. A part of an installed package is ``PACKAGE/kind.Class``, and is found
through the package's entry point ``upslope.parts`` only.
"""

from __future__ import annotations

import importlib
import pkgutil
import warnings
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from types import MappingProxyType, ModuleType

from upslope.errors import MethodError, Remark, UserError, did_you_mean
from upslope.plugins import PARTS, Plugin, missing, normalised, plugins
from upslope.types import learned, probes, slots, stages
from upslope.types.part import Part

HOMES = (
    "upslope.evolve",
    "upslope.objective",
    "upslope.policies.control.networks",
    "upslope.policies.views",
    "upslope.rollout.acting",
    "upslope.rollout.both_orders",
    "upslope.rollout.categories",
    "upslope.rollout.given",
    "upslope.rollout.pairs",
    "upslope.rollout.revisions",
    "upslope.rollout.sampled",
    "upslope.rollout.search",
    "upslope.rollout.vine",
    "upslope.rollout.whole_episodes",
    "upslope.rollout.windows",
)
"""Packages and modules of ours that hold parts. They are imported when the first name is looked up, not before."""

RENAMED: Mapping[str, str] = MappingProxyType({})
"""Classes that had another name in older files: ``{"OldName": "kind.NewName"}``.

Files from before format 3 name a module too (``upslope.objective.surrogate.clip:PessimisticClip``). No class name was ever used
twice, so the class alone says which part is meant, and a module that moved needs no entry. Entries stay for good."""


KINDS: Mapping[str, type[Part]] = MappingProxyType(
    {
        "curriculum": slots.Curriculum,
        "rollout": slots.RolloutPlan,
        "reward": slots.Reward,
        "data": slots.Data,
        "filter": slots.Filter,
        "advantage": slots.Advantage,
        "shape": slots.Shape,
        "policy": slots.PolicyPart,
        "ratio": slots.Ratio,
        "mix": slots.Mix,
        "surrogate": slots.Surrogate,
        "weight": slots.Weight,
        "aggregate": slots.Aggregate,
        "regularizer": slots.Regularizer,
        "model": slots.ModelPart,
        "acting": learned.Acting,
        "network": learned.ModelNetwork,
        "reference": slots.Reference,
        "memory": slots.Memory,
        "term": slots.LossTerm,
        "stage": stages.TrainingStage,
        "controller": slots.Controller,
        "probe": probes.Probe,
    }
)
"""The word that files have for a kind of parts, and the class that these derive from. A word stays, whatever becomes of the class.

A class right below `Part` that is not in here is a kind of its own, in lower case: ``bounds.Bounds``."""


def kind_of(part: type[Part]) -> str:
    """The kind of a class of parts: that of the nearest class above it in the table."""
    known = {base: kind for kind, base in KINDS.items()}
    root = part
    for base in part.__mro__:
        if base in known:
            return known[base]
        if Part in base.__bases__:
            root = base
            break
    return root.__name__.lower()


@cache
def own_parts() -> Mapping[str, type[Part]]:
    """Every part of upslope by ``kind.Class``."""
    modules = []
    for home in HOMES:
        modules.append(importlib.import_module(home))
        for below in pkgutil.walk_packages(getattr(modules[-1], "__path__", ()), prefix=f"{home}."):
            modules.append(importlib.import_module(below.name))
    return MappingProxyType(by_name(part for module in modules for part in _defined_in(module)))


def by_name(parts: Iterable[type[Part]]) -> dict[str, type[Part]]:
    """Classes of parts by ``kind.Class``; two of one name are an error."""
    found: dict[str, type[Part]] = {}
    for part in sorted(parts, key=lambda each: each.__name__):
        name = f"{kind_of(part)}.{part.__name__}"
        if found.setdefault(name, part) is not part:
            raise MethodError(f"two parts are called {name!r}: one in {found[name].__module__}, one in {part.__module__}.")
    return found


def _defined_in(module: ModuleType) -> list[type[Part]]:
    """The parts a module of ours defines, without the classes that only say what a slot takes."""
    return [
        value
        for name, value in vars(module).items()
        if isinstance(value, type) and issubclass(value, Part) and value.__module__ == module.__name__
        if not name.startswith("_") and value not in KINDS.values()
    ]


def is_own(part: type[Part]) -> bool:
    """Whether a class is one of upslope's own."""
    return part.__module__.startswith("upslope.")


# -- parts of packages -----------------------------------------------------------------------------------------------------


def package_parts(package: str = "") -> dict[str, type[Part]]:
    """Parts of installed packages by ``PACKAGE/kind.Class``: those in the modules that their entry points name.

    Args:
        package: only of this one, whose code is imported; left out, of all that can be imported.
    """
    found: dict[str, type[Part]] = {}
    for plugin in plugins(PARTS):
        if package in ("", plugin.package):
            try:
                found |= {f"{plugin.package}/{name}": part for name, part in by_name(_public_parts(plugin)).items()}
            except UserError as problem:
                if package:
                    raise
                warnings.warn(Remark(str(problem)), stacklevel=2)
    return found


def _public_parts(plugin: Plugin) -> Iterator[type[Part]]:
    """The parts a package's module defines, or takes from elsewhere in the package, under public names."""
    module = plugin.load()
    if not isinstance(module, ModuleType):
        raise UserError(f"{plugin.package}'s entry point {PARTS} {plugin.name} = {plugin.value!r} names no module with parts.")
    top = module.__name__.partition(".")[0]
    for name, value in vars(module).items():
        own = isinstance(value, type) and issubclass(value, Part) and value.__module__.partition(".")[0] == top
        if own and not name.startswith("_") and name == value.__name__:
            yield value


def package_of(part: type[Part]) -> Plugin | None:
    """The installed package whose entry point gives this part; nothing if none does."""
    top = part.__module__.partition(".")[0]
    for plugin in plugins(PARTS):
        # Of other packages nothing is imported to find out.
        if plugin.value.partition(":")[0].partition(".")[0] == top and part in _public_parts(plugin):
            return plugin
    return None


# -- names -----------------------------------------------------------------------------------------------------------------


def modern_name(name: str) -> str:
    """The name of a part in today's spelling: what a file of any age says, if it means one of ours. Others are left as they are."""
    if "/" in name or ".py:" in name:
        return name
    given = name.rpartition(":")[2] if name.startswith("upslope.") and ":" in name else name.rpartition(".")[2]
    found = RENAMED.get(given)
    if found is None and name.startswith("upslope."):
        found = next((each for each in own_parts() if each.rpartition(".")[2] == given), None)
    return found or name


def class_name(name: str) -> str:
    """The bare class in a name that a file has for a part, whoever's it is."""
    return name.rpartition(":")[2].partition("@")[0].rpartition("/")[2].rpartition(".")[2]


def find_part(name: str) -> type[Part]:
    """The class that a file means by a name: one of ours, or of an installed package.

    Raises:
        MethodError: for any other. No module is imported because of the name.
    """
    if "/" in name:
        return _package_part(name)
    own = own_parts()
    found = own.get(modern_name(name))
    if found is None:
        near = did_you_mean(class_name(name), {class_name(each) for each in own})
        raise MethodError(f"{name!r} is not a part of upslope.{near}")
    return found


def _package_part(name: str) -> type[Part]:
    package, _, rest = name.partition("/")
    package = normalised(package)
    if package not in {plugin.package for plugin in plugins(PARTS)}:
        raise missing(package, PARTS, f"{name!r} is a part of a package")
    found = package_parts(package)
    if f"{package}/{rest}" not in found:
        near = did_you_mean(rest, [each.partition("/")[2] for each in found])
        raise MethodError(f"the package {package} has no part {rest!r}.{near} It has {', '.join(sorted(found)) or 'none'}.")
    return found[f"{package}/{rest}"]
