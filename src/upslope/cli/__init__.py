"""The command line: reads flags, calls the library, prints. What is heavy is imported by the command that needs it."""

from __future__ import annotations

import argparse
import atexit
import os
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NoReturn

from upslope.cli.codes import BROKEN, BROKEN_PIPE, FAILED, INTERRUPTED
from upslope.errors import Remark, UserError, did_you_mean
from upslope.runtime.environment import ALLOCATOR
from upslope.runtime.synonyms import meant

ASKING = ("recommend", "suggest", "find", "search", "choose", "which")
"""What somebody types who looks for a method."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command; the exit code: 0 done, 1 a fault of ours, 2 something to mend, 3 too large, 130 interrupted."""
    if argv is not None:
        return _run(list(argv))
    for name, value in ALLOCATOR.items():  # the process is ours, with those it starts
        os.environ.setdefault(name, value)
    code = _run(sys.argv[1:])
    if sys.gettrace() is None and sys.getprofile() is None:  # whoever measures wants to see the end
        _leave(code)
    return code


def _leave(code: int) -> NoReturn:
    """Ends the process without taking it apart: torch and a GPU's driver need a second or two to free piece by piece what the
    system takes back at once. Threads that have work, and whatever is registered for the end, come first."""
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):
            stream.flush()
    os._exit(code)


def _run(words: list[str]) -> int:
    debug = "--debug" in words
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("always", Remark)
            warnings.formatwarning = _in_a_line
            code = _dispatch([word for word in words if word != "--debug"])
        sys.stdout.flush()
        return code
    except UserError as error:
        return _failed(str(error), error.code, debug)
    except KeyboardInterrupt:
        print("upslope: interrupted.", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # The reader (head, less) has what it wanted. Standard output is replaced so that closing it does not complain.
        with suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except OSError as problem:  # the disk, a folder, a port: what the system refuses has its own words
        what = f"{problem.filename}: " if problem.filename else ""
        return _failed(f"{what}{problem.strerror or problem}.", FAILED, debug)
    except Exception as fault:
        said = f"{type(fault).__name__}: {fault}" if str(fault) else type(fault).__name__
        return _failed(f"this should not have happened: {said}. With --debug it says where.", BROKEN, debug)


def _in_a_line(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> str:
    """A remark for the user without the place in our code it came from; any other warning as ever."""
    return f"note: {message}\n" if issubclass(category, Remark) else _format_warning(message, category, *where, **more)


_format_warning = warnings.formatwarning


def _failed(message: str, code: int, debug: bool) -> int:
    """One line for the user; all that is known for whoever asks."""
    if debug:
        traceback.print_exc(file=sys.stderr)
    print(f"upslope: {message}".encode(errors="backslashreplace").decode(), file=sys.stderr)
    return code


def _dispatch(argv: list[str]) -> int:
    from upslope.cli.parsers import parsers

    parser, commands = parsers()
    named = next((word for word in argv if not word.startswith("-")), None)
    if named is not None and named not in commands:
        known = [name for name in commands if " " not in name]
        asked = " Methods for a situation: upslope methods --for 'my rewards are noisy'." if named in ASKING else ""
        raise UserError(f"no command named {named!r}.{asked or did_you_mean(named, known)} There are {', '.join(known)}.")
    if not argv:
        parser.print_help()
        return 0
    try:
        flags, unknown = parser.parse_known_args(argv)
    except SystemExit as asked:  # --help and --version have printed what they had to say
        return int(asked.code or 0)
    if unknown:
        _refuse(unknown, flags, commands)
    run: Callable[[argparse.Namespace], int] = flags.run
    return run(flags)


def _refuse(unknown: list[str], flags: argparse.Namespace, commands: Mapping[str, argparse.ArgumentParser]) -> NoReturn:
    parser = commands[flags.command]
    first = next((word for word in unknown if word.startswith("-")), unknown[0])
    if not first.startswith("-"):
        parser.error(f"{first!r} is one word too many")
    flag = first.partition("=")[0]
    known = [name for action in parser._actions for name in action.option_strings]
    trained = [name for action in commands["train"]._actions for name in action.option_strings]
    if flags.command in ("resume", "eval", "try") and (flag in trained or meant(flag, (), flags=True)):
        own = "goes on with" if flags.command == "resume" else "takes"
        near = f" It {own} the run's own plan; 'upslope train' begins another run with other settings.{did_you_mean(flag, known)}"
    else:
        near = meant(flag, known, _parts_at_hand(flags), flags=True)
    raise UserError(f"{parser.prog.partition(' ')[2]}: no flag {flag!r}.{near} '{parser.prog} --help' lists all.")


def _parts_at_hand(flags: argparse.Namespace) -> Sequence[tuple[str, Any]]:
    """Of the method that was named, so that a knob can be shown with its path; none if it cannot be found."""
    named = getattr(flags, "method", None) or next(iter(getattr(flags, "what", ())), None)
    if not named or ".py" in named:  # code of the user's own is not run for a message
        return ()
    from upslope.api import method

    with suppress(UserError):
        return method(named).parts()
    return ()
