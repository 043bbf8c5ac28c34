"""Parts written as text, as in ``PessimisticClip(low=0.1)``: read as data, never evaluated.

A class with its fields by name. Values are numbers, ``inf``, words, ``true`` and ``false``, other parts, and tuples of these; words
that are no Python names need quotes. Several parts are separated by commas, and ``none`` is no part.
"""

from __future__ import annotations

import ast
import dataclasses
import math
import typing
from typing import Any

from upslope.errors import MethodError, UserError, did_you_mean
from upslope.fields import all_ranges, hints, problem, shown
from upslope.plain_data import JsonDict
from upslope.types.part import Part
from upslope.types.part_index import class_name, kind_of, own_parts, package_parts

LONGEST = 4000
"""Characters of a part that are read."""
WORDS = {"true": True, "false": False, "inf": math.inf}


class NotAPart(MethodError):
    """Text that does not even look like a part, such as a number."""


def read_parts(text: str, fits: object, where: str) -> tuple[Part, ...]:
    """The parts a text describes; none for ``none``.

    Args:
        fits: what may stand in the place: a class of parts, or a type with one in it.
        where: the beginning of a message, as in ``--set surrogate=DualClip``.

    Raises:
        NotAPart: for a number or a text in quotes.
        MethodError: for a class or a field that is not there, does not fit, or has a value it cannot have.
    """
    if text.strip().lower() in ("none", ""):
        return ()
    wanted = part_class_in(fits)
    tree = _parsed(text, where)
    items = tree.elts if isinstance(tree, (ast.Tuple, ast.List)) else [tree]
    try:
        return tuple(_Reader(where).part(item, wanted) for item in items)
    except RecursionError:
        raise MethodError(f"{where[:80]}...: that is nested too deep.") from None


def parts_meant(value: object, fits: object, where: str) -> tuple[Part, ...] | None:
    """The parts that the value of a knob means, given as text or as they are; ``None`` if it is a number or the like."""
    if isinstance(value, str):
        try:
            return read_parts(value, fits, where)
        except NotAPart:
            return None
    given = value if isinstance(value, (tuple, list)) else () if value is None else (value,)
    if not all(isinstance(each, Part) for each in given):
        return None
    for part in given:
        check_fits(type(part), part_class_in(fits), where)
    return tuple(given)


def check_fits(kind: type[Part], wanted: type[Part], where: str) -> None:
    """Refuses a class of parts where another is wanted, and says what would fit."""
    if not issubclass(kind, wanted):
        article = "an" if kind_of(kind)[0] in "aeiou" else "a"
        raise MethodError(f"{where}: {kind.__name__} is {article} {kind_of(kind)}, which does not fit there. {_what_fits(wanted)}")


def _what_fits(wanted: type[Part]) -> str:
    return f"What fits: {', '.join(fitting(wanted))}."


def part_class_in(hint: object) -> type[Part]:
    """The class of parts in a type such as ``Mix``, ``Mix | None`` or ``tuple[Filter, ...]``; any part if it says nothing."""
    if isinstance(hint, type) and issubclass(hint, Part):
        return hint
    return next((found for inner in typing.get_args(hint) if (found := part_class_in(inner)) is not Part), Part)


def holds_parts(hint: object) -> bool:
    """Whether a field of this type holds parts."""
    return part_class_in(hint) is not Part or hint is Part


def fitting(wanted: type[Part]) -> list[str]:
    """Names of our parts that may stand where ``wanted`` is asked for, those of its own kind."""
    if wanted is Part:
        return sorted(map(class_name, own_parts()))
    kind = kind_of(wanted)
    return [part.__name__ for part in own_parts().values() if issubclass(part, wanted) and kind_of(part) == kind]


def as_text(value: object) -> str:
    """A value of a knob as `read_parts` and ``--set`` read it again, exactly."""
    if isinstance(value, Part):
        fields = ", ".join(f"{f.name}={_quoted(getattr(value, f.name))}" for f in dataclasses.fields(value))
        return f"{type(value).__name__}({fields})"
    if isinstance(value, (tuple, list)):
        return ", ".join(map(as_text, value)) or "none"
    return str(value)


def _quoted(value: object) -> str:
    if isinstance(value, tuple):
        return f"({''.join(f'{_quoted(item)}, ' for item in value)})"
    return as_text(value) if isinstance(value, Part) else repr(value)


# -- reading ---------------------------------------------------------------------------------------------------------------


def _parsed(text: str, where: str) -> ast.expr:
    if len(text) > LONGEST:
        raise MethodError(f"{where[:80]}...: a part has at most {LONGEST:,} characters here. Write the method into a file instead.")
    try:
        return ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        why = error.msg if isinstance(error, SyntaxError) else str(error)
        raise MethodError(
            f"{where}: that is no part ({why or 'it is nested too deep'}). Write it as Class or Class(field=value)."
        ) from None


@dataclasses.dataclass(frozen=True)
class _Reader:
    where: str

    def part(self, node: ast.expr, wanted: type[Part]) -> Part:
        """The part of one expression: a class, or a call of it with fields by name."""
        package = ""
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div) and isinstance(node.left, ast.Name):
            package, node = node.left.id, node.right
        named = node.func if isinstance(node, ast.Call) else node
        name = named.attr if isinstance(named, ast.Attribute) and isinstance(named.value, ast.Name) else getattr(named, "id", "")
        if not name:
            raise NotAPart(f"{self.where}: {_source(node)} is no part. Write it as Class or Class(field=value).")
        kind = self._class(name, package, wanted)
        if isinstance(named, ast.Attribute) and getattr(named.value, "id", "") != kind_of(kind):
            raise MethodError(f"{self.where}: {name} is a part of the kind {kind_of(kind)!r}; leave out what stands before it.")
        return self._made(kind, node if isinstance(node, ast.Call) else None)

    def _class(self, name: str, package: str, wanted: type[Part]) -> type[Part]:
        """The class of this name: ours, or that of an installed package, if it fits."""
        found = {} if package else {each: kind for each, kind in own_parts().items() if class_name(each) == name}
        if not found:
            among = package_parts(package.replace("_", "-").lower())
            found = {each: kind for each, kind in among.items() if class_name(each) == name}
        if len(found) > 1:
            raise MethodError(
                f"{self.where}: several packages have a part {name}; say which as PACKAGE/{name}: {', '.join(found)}."
            )
        if not found:
            near = did_you_mean(name, fitting(wanted))
            raise MethodError(f"{self.where}: no part is named {name!r}.{near} {_what_fits(wanted)}")
        (kind,) = found.values()
        check_fits(kind, wanted, self.where)
        return kind

    def _made(self, kind: type[Part], call: ast.Call | None) -> Part:
        known = [f.name for f in dataclasses.fields(kind)]
        told = f"Its fields: {', '.join(known) or 'none'}."
        if call is not None and call.args:
            raise MethodError(f"{self.where}: give the fields of {kind.__name__} by name, as in field=value. {told}")
        given: JsonDict = {}
        for keyword in call.keywords if call is not None else ():
            if keyword.arg is None or keyword.arg not in known:
                asked = f"has no field {keyword.arg!r}" if keyword.arg else "takes no **"
                raise MethodError(f"{self.where}: {kind.__name__} {asked}.{did_you_mean(keyword.arg or '', known)} {told}")
            if keyword.arg in given:
                raise MethodError(f"{self.where}: {kind.__name__} is given {keyword.arg!r} twice.")
            given[keyword.arg] = self._field(kind, keyword.arg, keyword.value)
        try:
            return kind(**given)
        except UserError as error:
            raise MethodError(f"{self.where}: {error}") from None
        except Exception as error:  # a part of somebody's package may raise anything
            needed = [f.name for f in dataclasses.fields(kind) if f.default is f.default_factory is dataclasses.MISSING]
            left = ", ".join(name for name in needed if name not in given)
            why = f"needs {left}" if left else f"cannot be made of {given}: {error}"
            raise MethodError(f"{self.where}: {kind.__name__} {why}. {told}") from error

    def _field(self, kind: type[Part], name: str, node: ast.expr) -> Any:
        hint = hints(kind).get(name, Any)
        value = self._value(node, hint, f"{name} of {kind.__name__}")
        if hint is float and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        if wrong := problem(value, hint, all_ranges(kind).get(name, "")):
            raise MethodError(f"{self.where}: {name} of {kind.__name__} is {shown(value)}; {wrong}")
        return value

    def _value(self, node: ast.expr, hint: object, what: str) -> Any:
        if isinstance(node, (ast.Tuple, ast.List)):
            return tuple(self._value(item, hint, what) for item in node.elts)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.UAdd)):
            value = self._value(node.operand, hint, what)
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                return -value if isinstance(node.op, ast.USub) else value
        elif isinstance(node, ast.Constant) and isinstance(node.value, (bool, int, float, str)):
            return node.value
        elif holds_parts(hint) and isinstance(node, (ast.Name, ast.Attribute, ast.Call, ast.BinOp)):
            return self.part(node, part_class_in(hint))
        elif isinstance(node, ast.Name):
            return WORDS.get(node.id.lower(), node.id)
        raise MethodError(f"{self.where}: {what} is {_source(node)}; it must be a number, a word, a part or a tuple of these.")


def _source(node: ast.expr) -> str:
    return shown(ast.unparse(node))[1:-1]
