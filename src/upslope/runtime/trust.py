"""Which code may run: what this machine itself kept with a run, and what the user has agreed to, by digest.

Looking at a run never runs anything of it. What must (``resume``, and ``eval`` of a run with a reward, task or method of the user's
own) runs only code from the run's own ``code`` folder that is remembered here; other code is named, and left alone until the user
says ``--trust``.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from upslope.errors import Remark, UserError
from upslope.runtime import user_code
from upslope.runtime.code_bundle import digest_of
from upslope.runtime.reward_text import RewardText


class Untrusted(UserError):
    """Code of a run that this machine did not write, and that nobody has agreed to run."""


def store() -> Path:
    """The file with the digests that are trusted, a line each, in the user's own folder for such things."""
    home = os.environ.get("XDG_STATE_HOME") or Path("~/.local/state").expanduser()
    return Path(home) / "upslope" / "trusted-code"


def remember(digests: Iterable[str]) -> None:
    """Code with these digests may run from now on. Where that cannot be written down it is said: it will be asked for again."""
    new = sorted(set(digests) - trusted())
    if not new:
        return
    try:
        store().parent.mkdir(parents=True, exist_ok=True)
        with store().open("a", encoding="utf-8") as file:
            file.write("".join(f"{digest}\n" for digest in new))
    except OSError as problem:
        told = f"{store()} cannot be written ({problem.strerror}), so this code is not remembered; later it needs --trust."
        warnings.warn(Remark(told), stacklevel=2)


def trusted() -> set[str]:
    try:
        return set(store().read_text(encoding="utf-8").split())
    except (OSError, ValueError):
        return set()


def code_of(table: Mapping[str, object], code: Path) -> dict[str, str]:
    """What a run's ``run.toml`` would have run: by digest, which file or module that is. Nothing is run to find out.

    Raises:
        UserError: if the code is not the run's own or not what its digest says.
    """
    return {digest: what for digest, (what, _) in _needed(table, code).items()}


def named_code(table: Mapping[str, object], code: Path) -> dict[str, str]:
    """The same with every file that would run named, for people."""
    return {
        digest: f"{what} with {', '.join(beside)} beside it" if beside else what
        for digest, (what, beside) in _needed(table, code).items()
    }


def _needed(table: Mapping[str, object], code: Path) -> dict[str, tuple[str, list[str]]]:
    """By digest the file or module, and what else of its bundle runs with it."""
    found: dict[str, tuple[str, list[str]]] = {}
    for text in _references(table):
        path, _, bundle = user_code.locate(text, code)
        found[bundle.digest] = str(path), sorted(set(bundle.files) - {bundle.entry})
    settings = table.get("settings")
    for task in (table.get("task"), settings.get("test_task") if isinstance(settings, Mapping) else None):
        if isinstance(task, str) and (module := _gym_module(task)):
            found[digest_of({"gym": module.encode()})] = f"the module {module!r}, which {task!r} imports", []
    return found


def check(table: Mapping[str, object], code: Path, trust: bool) -> None:
    """Refuses to go on if the run would execute what is not trusted; with ``trust`` it is from here on.

    Raises:
        Untrusted: naming what would run.
    """
    needed = named_code(table, code)
    if trust:
        remember(needed)
        return
    known = trusted()
    if strange := sorted(what for digest, what in needed.items() if digest not in known):
        raise Untrusted(
            f"{code.parent} holds code that is not known here to be yours, and this would run it: {'; '.join(strange)}. Read it; "
            "if you trust it, say so once with --trust (in Python trust=True), and exactly this code is remembered."
        )


def _references(value: object, key: str = "") -> Iterator[str]:
    """All names of users' code in a plan: its task, its rewards, and parts wherever they stand."""
    if isinstance(value, str):
        if key == "reward" and (reward := RewardText.parse(value)).is_code:
            yield reward.name
        elif key in ("task", "test_task", "part") and ".py:" in value:
            yield value
    elif isinstance(value, Mapping):
        for name, item in value.items():
            yield from _references(item, name)
    elif isinstance(value, list):
        for item in value:
            yield from _references(item, key)


def _gym_module(task: str) -> str:
    """``MODULE`` of ``gym:MODULE:ID``, which gymnasium imports, or nothing. Whatever domain the file claims: it may lie."""
    family, *words = task.split(":")
    named = [word for word in words if "=" not in word]  # the last may hold knobs
    return named[0] if family == "gym" and len(named) > 1 else ""
