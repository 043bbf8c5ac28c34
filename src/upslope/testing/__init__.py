"""For tests of one's own methods: random batches, gradients, and every check that the catalogue's methods pass.

    >>> from upslope.methods import grpo
    >>> from upslope.testing import check_method, gradient, random_batch
    >>> check_method(grpo, only=["cuts", "masks"])
    >>> gradient(grpo, random_batch(seed=0)).finite()
    True

``upslope check-method`` prints the same checks line by line.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from upslope.errors import UserError, did_you_mean
from upslope.methods import find
from upslope.testing.batches import CUTS, Outcome, assert_same, batch_for, cut, gradient, random_batch
from upslope.testing.checks import ON_BATCHES, equals
from upslope.testing.runs import IN_RUNS, Ground
from upslope.types import Method

__all__ = [
    "CHECKS", "CUTS", "CheckResult", "Ground", "Outcome", "assert_same", "batch_for", "check_method", "cut", "gradient",
    "random_batch", "run_checks",
]  # fmt: skip

CHECKS: tuple[str, ...] = (*ON_BATCHES, *IN_RUNS)
"""Names of all checks, in the order in which they are made. The last two train for a few seconds."""


@dataclass(frozen=True)
class CheckResult:
    """How one check came out."""

    check: str
    passed: bool
    said: str
    """What was checked, or what is wrong."""

    def __str__(self) -> str:
        return f"{'ok' if self.passed else 'FAILED':<7} {self.check:<14} {self.said}"


def check_method(
    method: Method,
    only: Sequence[str] = CHECKS,
    *,
    off: Mapping[str, Any] | None = None,
    ground: Ground | None = None,
) -> None:
    """Makes every check of a method, as in ``def test_mine(): check_method(mine)``.

    Args:
        only: Some of `CHECKS`, as in ``@pytest.mark.parametrize("check", CHECKS)`` with ``only=[check]``.
        off: Knobs with which it must be its parent to the last bit, as in ``{"shape.factor": 1.0}``.
        ground: What to train on, for a method that needs more of a task than prompts and rewards.

    Raises:
        AssertionError: naming every check that failed, and why.
    """
    failed = [each for each in run_checks(method, only, off=off, ground=ground) if not each.passed]
    if failed:
        raise AssertionError("\n".join([f"{method.name} fails {len(failed)} checks:", *map(str, failed)]))


def run_checks(
    method: Method,
    only: Sequence[str] = CHECKS,
    *,
    off: Mapping[str, Any] | None = None,
    ground: Ground | None = None,
) -> Iterator[CheckResult]:
    """The same as results, one after the other. One that fails does not stop the others."""
    for name in only:
        if name not in CHECKS:
            raise UserError(f"no check named {name!r}.{did_you_mean(name, CHECKS)} There are {', '.join(CHECKS)}.")
    reverted = method.with_knobs(off) if off else None
    parent = find(method.parent) if off else None  # with neither a parent nor one that is known, that is an error of the caller's
    for name in only:
        about = (ON_BATCHES.get(name) or IN_RUNS[name])[0]
        try:
            if name in ON_BATCHES:
                ON_BATCHES[name][1](method)
            else:
                IN_RUNS[name][1](method, ground or Ground())
            if name == "identity" and reverted is not None and parent is not None:
                equals(reverted, parent)
        except Exception as error:  # a part of anybody's may raise anything
            yield CheckResult(name, False, _in_a_line(error))
        else:
            yield CheckResult(name, True, about)


def _in_a_line(error: Exception) -> str:
    words = " ".join(str(error).split())
    words = words if len(words) <= 300 else f"{words[:297]}..."
    return words if isinstance(error, (AssertionError, UserError)) else f"raised {type(error).__name__}: {words}"
