"""Errors a user can mend: the message quotes what was given and says what to do. The command line prints them without a trace."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """Something in the input, the settings or the machine that the user can change."""


class MethodError(UserError):
    """A method that cannot be made or cannot run on this task. Raised before the first rollout."""


class TaskError(UserError):
    """A task, data file or reward function that cannot be used."""


class MissingExtra(UserError):
    """A package that belongs to an extra is not installed."""

    def __init__(self, package: str, install: str):
        super().__init__(f"{package} is not installed. Install it with:\n  {install}")


def did_you_mean(given: str, known: Iterable[str]) -> str:
    """`` Did you mean 'x'?`` or nothing, ready to be appended to a message."""
    near = difflib.get_close_matches(given, list(known), n=2, cutoff=0.5)
    return f" Did you mean {' or '.join(repr(name) for name in near)}?" if near else ""
