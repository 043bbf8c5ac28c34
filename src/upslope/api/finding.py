"""Names become methods."""

from __future__ import annotations

from collections.abc import Mapping

from upslope.api.argument_checks import METHOD, checks
from upslope.errors import MethodError, UserError, did_you_mean
from upslope.methods import RUN_FILE, catalogue, check_own_name, compose, composed_of, find
from upslope.plan import method_of_run
from upslope.runtime.arguments import checked, text
from upslope.runtime.user_code import load_file
from upslope.types import Method


@checked(family=text("the name of a family of methods, such as 'rlvr'"))
def list_methods(family: str = "") -> list[Method]:
    """The catalogue, or one family of it."""
    found = [each for each in catalogue().values() if not family or each.family == family]
    if not found:
        families = sorted({each.family for each in catalogue().values()})
        raise UserError(f"no family named {family!r}.{did_you_mean(family, families)} There are {', '.join(families)}.")
    return found


@checked(spec=text(METHOD, Method), **checks("take"))
def method(spec: str | Method, take: Mapping[str, str] | None = None) -> Method:
    """A method by name (``"dhpo"``), from a file (``"mine.py"``, ``"mine.py:name"``), of a run (``"runs/mine-0/run.toml"``) or by
    composition (``"dhpo+mine.py"``).

    Args:
        take: for a composition, which method wins a slot that two of them fill: ``{"surrogate": "dapo"}``.
    """
    if isinstance(spec, Method):
        return spec
    words = composed_of(spec)
    found = [_by_word(word) for word in words]
    if len(found) == 1:
        return found[0]
    called = {word: each.name for word, each in zip(words, found, strict=True)}
    return compose(found, {slot: called.get(name, name) for slot, name in (take or {}).items()})


def _by_word(word: str) -> Method:
    if word.endswith(RUN_FILE):
        return method_of_run(word)
    return _from_file(word) if word.endswith(".py") or ".py:" in word else find(word)


def _from_file(spec: str) -> Method:
    path, _, name = spec.partition(":")
    module = load_file(path)
    # Methods it merely imported, to derive from, are not its own.
    found = {
        value.name: value for value in vars(module).values() if isinstance(value, Method) and catalogue().get(value.name) != value
    }
    if not found:
        raise MethodError(f"{path} defines no Method. Derive one: my_method = grpo.derive(name='my-method', ...).")
    if name:
        if name not in found:
            raise MethodError(f"{path} defines no method named {name!r}.{did_you_mean(name, found)} It has {', '.join(found)}.")
        check_own_name(found[name])
        return found[name]
    if len(found) > 1:
        raise MethodError(f"{path} defines {len(found)} methods; say which: {', '.join(f'{path}:{each}' for each in found)}.")
    (own,) = found.values()
    check_own_name(own)
    return own
