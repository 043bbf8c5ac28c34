"""Methods to and from TOML tables, exactly: a part is a table of its kind, its class and all its fields.

Parts of ours are named ``kind.Class``, those of an installed package ``PACKAGE/kind.Class`` (`upslope.types.part_index`), those of
a user's own file by the code that a run keeps (`upslope.runtime.user_code`). Files from before format 3 name modules instead.
"""

from __future__ import annotations

import dataclasses
import tomllib
from functools import cached_property
from pathlib import Path
from typing import Any

import tomli_w

from upslope.errors import MethodError
from upslope.plain_data import JsonDict
from upslope.runtime import user_code
from upslope.runtime.code_bundle import Bundle
from upslope.types import NAMED_SLOTS, Method, Paper, Part
from upslope.types.part_index import find_part, is_own, kind_of, modern_name, own_parts, package_of
from upslope.types.part_text import as_text


def dump_method(method: Method) -> str:
    """The method as TOML text."""
    return tomli_w.dumps(method_table(method))


def load_method(text: str, code: Path | None = None) -> Method:
    """The method a TOML text describes; ``code`` is the folder with the user's own files it names."""
    return method_from_table(tomllib.loads(text), code)


def method_table(method: Method) -> JsonDict:
    """The method as plain tables."""
    table: JsonDict = {}
    for f in dataclasses.fields(method):
        value = getattr(method, f.name)
        if f.name == "paper":
            table[f.name] = dataclasses.asdict(value)
        elif f.name == "on":
            table[f.name] = {domain: {path: _knob(knob) for path, knob in knobs} for domain, knobs in value}
        elif f.name in NAMED_SLOTS:
            table[f.name] = {name: _part_table(part) for name, part in value}
        elif value is not None:
            table[f.name] = _plain(value)
    return table


def method_from_table(table: JsonDict, code: Path | None = None) -> Method:
    """The method that `method_table` described."""
    table = _expected(table, dict, "a method")
    known = {f.name for f in dataclasses.fields(Method)}
    if unknown := sorted(set(table) - known):
        raise MethodError(f"this method has fields {', '.join(unknown)} that this version of upslope does not know.")
    try:
        table["paper"] = Paper(**table["paper"])
        for slot in NAMED_SLOTS:
            table[slot] = {name: _value(part, code) for name, part in _expected(table.get(slot, {}), dict, slot).items()}
    except (KeyError, TypeError) as problem:
        raise MethodError(f"this is no whole method: {problem}.") from None
    for name, value in table.items():
        if name not in ("paper", "on", *NAMED_SLOTS):
            table[name] = _value(value, code)
    try:
        return Method(**table)
    except (TypeError, ValueError, AttributeError) as problem:
        raise MethodError(f"this is no whole method: {problem}.") from None


def _expected(value: object, kind: type, what: str) -> Any:
    """A copy of a table or list, if it is one."""
    if not isinstance(value, kind):
        raise MethodError(f"{what} is {str(value)[:60]!r}; it must be a {'table' if kind is dict else 'list'}.")
    return kind(value)


METHOD_DEFAULTS = {"learner": Method.learner, "offline": Method.offline}
"""Of a method itself: what it was when files did not say it."""


def modern_table(value: object) -> Any:
    """A method's table from a file of any age as this version would write it: parts by today's names, with the fields they gained.

    A field that is not in the file has its default. Nothing is made or imported because of the table; unknown names are left.
    """
    if isinstance(value, list):
        return [modern_table(item) for item in value]
    if not isinstance(value, dict):
        return value
    table = {name: modern_table(item) for name, item in value.items()}
    if isinstance(table.get("part"), str):
        table["part"] = modern_name(table["part"])
        kind = own_parts().get(table["part"])
        if kind is not None:
            table |= {name: default for name, default in _defaults(kind).items() if name not in table}
    return {**METHOD_DEFAULTS, **table} if "paper" in table else table


def _defaults(kind: type[Part]) -> JsonDict:
    """Of the fields that have one, as a file has it."""
    found = {}
    for f in dataclasses.fields(kind):
        if f.default is not dataclasses.MISSING:
            found[f.name] = _plain(f.default)
        elif f.default_factory is not dataclasses.MISSING:
            found[f.name] = _plain(f.default_factory())
    return found


def user_bundles(method: Method) -> set[Bundle]:
    """Code of the user's own that defines parts of this method."""
    return {found[0] for _, part in method.parts() if (found := user_code.defined_in(type(part)))}


def packages_of(method: Method) -> dict[str, str]:
    """Versions of the installed packages that parts of this method are of, by package."""
    kinds = {type(part) for _, part in method.parts() if not is_own(type(part)) and not user_code.defined_in(type(part))}
    return {plugin.package: plugin.version for kind in kinds if (plugin := package_of(kind))}


def check_can_be_found_again(method: Method) -> None:
    """Refuses parts that a run could not bring back as they are: resumed, it would fail or be another run."""
    for path, part in method.parts():
        kind = type(part)
        if not (is_own(kind) or user_code.defined_in(kind) or package_of(kind)):
            raise MethodError(
                f"{path} is a {kind.__name__} from the module {kind.__module__!r}, whose code the run cannot keep. Put the method "
                "into a file of its own, with the part in it or in a file beside it, and give that: up.train('my_method.py', ...). "
                "A package of yours declares its parts under the entry point 'upslope.parts'."
            )
        if lost := _lost_in_a_file(part):
            raise MethodError(f"{path} is a {kind.__name__}, which a resumed run could not make again: {lost}")


def _lost_in_a_file(part: Part) -> str:
    """What of a part its class and its fields do not say, with the cure; nothing if they say all."""
    kind, fields = type(part), dataclasses.fields(part)
    declare = "Decorate the class with @dataclass(frozen=True), declare every setting as a field, and write no __init__."
    if not _found_by_name(kind):
        return "its class is not found under its name in its file. Define it there once, outside of functions and other classes."
    if bare := [base.__name__ for base in kind.__mro__ if _has_settings_but_no_fields(base, {f.name for f in fields})]:
        return f"{bare[0]} has settings of its own and is no dataclass. {declare}"
    if hidden := [f.name for f in fields if not f.init]:
        return f"its field {hidden[0]!r} is not given when it is made (init=False). Work it out in the call instead."
    extra = [name for name in vars(part) if name not in {f.name for f in fields} and not _is_cached(kind, name)]
    if extra:
        return f"it holds {extra[0]!r}, which is no field. {declare}"
    try:
        given = {f.name: getattr(part, f.name) for f in fields}
        for value in given.values():
            _plain(value)
        again = kind(**given)
    except MethodError as error:
        return str(error)
    except Exception as error:
        return f"it cannot be made from its own fields ({type(error).__name__}: {error}). {declare}"
    changed = [name for name, value in given.items() if getattr(again, name) != value]
    return f"made from its own fields, its {changed[0]!r} is another. {declare}" if changed else ""


def _found_by_name(kind: type[Part]) -> bool:
    """Whether the name that files have for this class means this very class, and not another, or one made inside a function."""
    if is_own(kind):
        return own_parts().get(name_of(kind)) is kind
    return user_code.attribute_of(kind) is kind


def _has_settings_but_no_fields(kind: type, fields: set[str]) -> bool:
    """Whether a class of the user's declares or changes settings that the dataclass above it does not know of."""
    if kind.__module__.startswith("upslope.") or not issubclass(kind, Part) or "__dataclass_params__" in vars(kind):
        return False
    declared = [name for name, hint in vars(kind).get("__annotations__", {}).items() if "ClassVar" not in str(hint)]
    return bool(declared) or "__init__" in vars(kind) or not fields.isdisjoint(vars(kind))


def _is_cached(kind: type, name: str) -> bool:
    return isinstance(getattr(kind, name, None), cached_property)


def _plain(value: object) -> Any:
    if isinstance(value, Part):
        return _part_table(value)
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if isinstance(value, (bool, int, float, str)):
        return value
    raise MethodError(f"a part may hold numbers, text, booleans and parts, not {value!r}; write 'no bound' as inf.")


def _part_table(part: Part) -> JsonDict:
    return {"part": name_of(type(part)), **{f.name: _plain(getattr(part, f.name)) for f in dataclasses.fields(part)}}


def name_of(kind: type[Part]) -> str:
    """How files name a class of parts. One that none can find again gets the name of its module, which is read by nobody."""
    if is_own(kind):
        return f"{kind_of(kind)}.{kind.__name__}"
    if found := user_code.defined_in(kind):
        return found[1]
    plugin = package_of(kind)
    return f"{plugin.package}/{kind_of(kind)}.{kind.__name__}" if plugin else f"{kind.__module__}:{kind.__name__}"


def _knob(value: object) -> Any:
    """A value of a knob that is set by domain; a whole part as text."""
    if isinstance(value, tuple) and not any(isinstance(item, Part) for item in value):
        return list(value)
    return value if isinstance(value, (bool, int, float, str)) else as_text(value)


def _value(value: object, code: Path | None) -> Any:
    if isinstance(value, list):
        return tuple(_value(item, code) for item in value)
    if not isinstance(value, dict):
        return value
    if not isinstance(value.get("part"), str):
        raise MethodError(f"{str(value)[:60]!r} is no part: it does not say which.")
    kind = _part_class(value["part"], code)
    given = {name: _value(item, code) for name, item in value.items() if name != "part"}
    if unknown := sorted(set(given) - {f.name for f in dataclasses.fields(kind)}):
        raise MethodError(f"{value['part']} has no field {', '.join(unknown)} in this version of upslope.")
    try:
        return kind(**given)
    except MethodError:
        raise
    except Exception as problem:  # the user's own part may raise anything
        raise MethodError(f"{value['part']} cannot be made of {given}: {problem}.") from problem


def _part_class(name: str, code: Path | None) -> type[Part]:
    if ".py:" not in name:  # a run file must not be able to import whatever it likes
        return find_part(name)
    if code is None:
        raise MethodError(f"{name} is a part of a user's own file; the folder that holds it was not given.")
    found = user_code.resolve(name, code)
    if not (isinstance(found, type) and issubclass(found, Part)):
        raise MethodError(f"{name!r} is not a part.")
    return found
