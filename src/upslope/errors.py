"""Errors a user can mend: the message quotes what was given and says what to do. The command line prints them without a trace."""

from __future__ import annotations

import difflib
import sys
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import ClassVar


class UserError(Exception):
    """Something in the input, the settings or the machine that the user can change."""

    code: ClassVar[int] = 2
    """With which the command line ends."""


class Remark(UserWarning):
    """Something the user should know and that does not stop the run. The live view shows it as a note."""


# Each is said whenever it is so, not once in a process: the next run of a notebook may have the same to say. What the user or a
# test has chosen for warnings comes first.
warnings.filterwarnings("always", category=Remark, append=True)


class MethodError(UserError):
    """A method that cannot be made or cannot run on this task. Raised before the first rollout."""


class TaskError(UserError):
    """A task, data file or reward function that cannot be used."""


class MissingExtra(UserError):
    """A package that belongs to an extra is not installed."""

    def __init__(self, package: str, *install: str):
        super().__init__("\n  ".join([f"{package} not installed. Install with:", *install]))


def pip_install(what: str) -> str:
    """The command that installs into the Python that is running, wherever it is typed."""
    return f"{sys.executable} -m pip install {what}"


def install_extra(extra: str) -> str:
    """The command for one of our extras: from the checkout this package was installed from, if it was."""
    root = Path(__file__).resolve().parents[2]
    return pip_install(f"-e '{root}[{extra}]'" if (root / "pyproject.toml").is_file() else f"'upslope[{extra}]'")


def did_you_mean(given: str, known: Iterable[str]) -> str:
    """`` Did you mean 'x'?`` or nothing, ready to be appended to a message."""
    known = list(known)
    folded = {name.casefold(): name for name in reversed(known)}
    swapped = [name for name in known if sorted(name) == sorted(given)]  # the commonest slip, which difflib ranks low
    close = [folded[name] for name in difflib.get_close_matches(given.casefold(), list(folded), n=2, cutoff=0.5)]
    near = list(dict.fromkeys([*swapped, *close]))[:2]
    return f" Did you mean {' or '.join(repr(name) for name in near)}?" if near else ""
