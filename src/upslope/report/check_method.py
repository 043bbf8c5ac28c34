"""``upslope check-method``: the checks of `upslope.testing` on one method, a line each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from upslope.errors import UserError
from upslope.learners.base import check_learner
from upslope.testing import CHECKS, CheckResult, Ground, run_checks
from upslope.testing.runs import IN_RUNS
from upslope.types import Method


def checked(
    method: Method,
    *,
    off: Mapping[str, Any],
    task: str = "",
    reward: str = "",
    runs: bool = True,
    say: Callable[[str], None] = lambda line: None,
) -> list[CheckResult]:
    """How each check of a method came out.

    Args:
        off: knobs with which it must be its parent.
        task, reward: what the checks that train do so on; left out, a few seconds' work of their own.
        runs: whether to make the checks that train.
        say: is given each line as it is known.
    """
    check_learner(method)
    if off and not method.parent:
        raise UserError(f"--off: {method.name} has no parent that it could be. Leave it out.")
    found = []
    names = [name for name in CHECKS if runs or name not in IN_RUNS]
    for each in run_checks(method, names, off=off, ground=Ground(task, reward)):
        say(str(each))
        found.append(each)
    return found


def verdict(method: Method, found: list[CheckResult]) -> str:
    """The last line."""
    failed = [each.check for each in found if not each.passed]
    if not failed:
        return f"{method.name} passes all {len(found)} checks"
    return f"{method.name} fails {len(failed)} of {len(found)} checks: {', '.join(failed)}"
