"""Callbacks: objects of the user's own that are called as a run goes on, and may end it early."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence
from pathlib import Path

from upslope.errors import UserError
from upslope.fields import shown
from upslope.plain_data import JsonDict

HOOKS = ("on_step", "on_evaluation", "on_checkpoint", "on_end")


class StopTraining(Exception):
    """Raised by a callback: the run ends after this step, as if it had been its last, and is evaluated and saved."""


class Callback:
    """What is called as a run goes on; an object need not be one, any of these methods will do.

    All are called in the training's own thread, and the run waits for them. One that raises `StopTraining` ends the run early; one
    that raises anything else ends it with a checkpoint and an error that names it.
    """

    def on_step(self, step: int, metrics: JsonDict) -> bool | None:
        """After a step, with the metrics that ``metrics.jsonl`` has of it. Returning ``False`` ends the run early."""

    def on_evaluation(self, step: int, result: JsonDict) -> None:
        """After an evaluation: ``score``, its interval ``low`` and ``high``, and what else the task has. The first is of step 0."""

    def on_checkpoint(self, step: int, path: Path) -> None:
        """When a checkpoint is whole and on the disk: told at the next step or at the end. Old ones are deleted, so copy it."""

    def on_end(self, summary: JsonDict) -> None:
        """When the run has ended and ``summary.json`` is written."""


def checked_callbacks(given: object) -> tuple[object, ...]:
    """What a user gave as callbacks.

    Raises:
        UserError: if one of them has nothing to call.
    """
    if given is None:
        return ()
    if isinstance(given, (str, bytes)) or not isinstance(given, Iterable):
        one = f" Give callbacks=[{type(given).__name__}(...)]." if _hooks(given) else ""
        raise UserError(f"callbacks is {shown(given)} ({type(given).__name__}); it must be a list of objects with {_any()}.{one}")
    found = tuple(given)
    for each in found:
        if isinstance(each, type):
            raise UserError(f"callbacks: {each.__name__} is a class, not an object of it. Give {each.__name__}(...).")
        if not _hooks(each):
            raise UserError(f"callbacks: {shown(each)} ({type(each).__name__}) has none of the methods {_any()}.")
        for hook in _hooks(each):
            _check_signature(each, hook)
    return found


def _check_signature(callback: object, hook: str) -> None:
    """Refuses a method that cannot be called as ours is, such as that of another library's callback."""
    wanted = tuple(inspect.signature(getattr(Callback, hook)).parameters)[1:]
    try:
        inspect.signature(getattr(callback, hook)).bind(*wanted)
    except TypeError:
        told = f"callbacks: {type(callback).__name__}.{hook} cannot be called with {', '.join(wanted)}"
        cure = f"Write it as def {hook}(self, {', '.join(wanted)}); callbacks of other libraries do not fit"
        raise UserError(f"{told}. {cure}.") from None
    except ValueError:
        return  # some callables written in C have no signature


def _hooks(value: object) -> list[str]:
    return [name for name in HOOKS if callable(getattr(value, name, None))]


def _any() -> str:
    return f"{', '.join(HOOKS[:-1])} or {HOOKS[-1]}"


class CallbackList:
    """The callbacks of a run, called one after the other."""

    def __init__(self, callbacks: Sequence[object] = ()):
        self.callbacks = tuple(callbacks)
        self.stop = ""
        """Why one of them ends the run early."""
        self.failure: Exception | None = None
        """What one of them raised, and `failed` which and when; from there on none is called."""
        self.failed = ""

    def call(self, hook: str, step: int, *arguments: object) -> None:
        """Calls a method of all that have it."""
        for each in self.callbacks:
            method, name = getattr(each, hook, None), f"{type(each).__name__}.{hook}"
            if method is None or self.failure is not None:
                continue
            try:
                goes_on = method(*arguments)
            except StopTraining as asked:
                reason = " ".join(str(asked).split())
                self.stop = self.stop or f"{name} raised StopTraining at step {step}{f': {reason}' if reason else ''}"
            except Exception as problem:
                self.failure, self.failed = problem, f"{name} at step {step}"
            else:
                if hook == "on_step" and goes_on is False:
                    self.stop = self.stop or f"{name} returned False at step {step}"

    def error(self, saved: str) -> UserError:
        """The failure in words.

        Args:
            saved: what is safe, and how to go on.
        """
        why = " ".join(f"{type(self.failure).__name__}: {self.failure}".split())
        told = UserError(f"the callback {self.failed} failed ({why}). {saved}")
        told.__cause__ = self.failure
        return told
