"""A call of the torch engine under way."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch

from upslope.policies.forward.activation_cache import ActivationCache
from upslope.rollout.decode.record import DecodeJob, Record
from upslope.rollout.decode.speculation import DraftSum
from upslope.rollout.decode.stepper import Stepper
from upslope.types import Completions


class Continuation:
    """A call of the engine under way, to be advanced a few tokens at a time."""

    steps: Generator[None]

    def __init__(self, job: DecodeJob):
        self.job = job
        self.stepper: Stepper | None = None
        """What continues the rows now, if it is our own decoding."""
        self.stopped: set[int] = set()
        """Rows that a text has ended."""
        self.kept: ActivationCache | None = None
        """What was computed on the way, if that was asked for and there was room."""
        self.drafts = DraftSum()

    def advance(self) -> bool:
        """Every row that is being continued says a token or a few; whether the call goes on."""
        # Not inside the generator: modes belong to the thread, and another call may have its turn before this one goes on.
        with sampling_mode():
            return next(self.steps, self) is None

    def close(self) -> None:
        """Gives up what has not been said yet."""
        self.steps.close()
        self.stepper = None

    def completions(self) -> Completions:
        """What was sampled."""
        with sampling_mode():
            done = self.job.record.completions(self.job.stops, self.stopped)
        return done if self.kept is None else replace(done, kept=self.kept.numbers)

    def written(self) -> Record:
        """What was sampled so far, to be read and left alone."""
        if self.stepper is not None:
            with sampling_mode():
                self.stepper.finish()
        return self.job.record


@contextmanager
def sampling_mode() -> Iterator[None]:
    """No gradients; and out of inference mode even if the caller is in it: tensors made there could never enter a loss."""
    with torch.inference_mode(False), torch.no_grad():
        yield
