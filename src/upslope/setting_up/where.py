"""Where a run of text samples: what goes together, said before anything is started."""

from __future__ import annotations

import warnings

from upslope.errors import Remark, UserError
from upslope.objective.weight.truncated import Truncated
from upslope.runtime.python_objects import PythonObjects
from upslope.runtime.settings import Settings
from upslope.types import Method


def reuses_sampling(settings: Settings) -> bool:
    """Whether learning may start from what sampling has computed: only in one process, in one call, with the weights of now."""
    apart = settings.workers or settings.shares > 1 or settings.max_staleness
    return settings.reuse == "auto" and not settings.plain and not apart


def corrects_for_age(method: Method) -> bool:
    """Whether a method divides by who really sampled, or weighs by it; one that samples nothing has nothing to correct."""
    if method.rollout is not None and not method.rollout.samples:
        return True
    own = [part for part in (method.ratio, method.surrogate) if part is not None]
    weighs = any(isinstance(part, Truncated) for _, part in method.parts())
    return weighs or any("behavior.logp" in part.all_needs() for part in own)


def check_found_by_workers(settings: Settings, objects: PythonObjects) -> None:
    """Refuses workers where a task, reward or model is only in this process; those that score need no model."""
    scored = [name for name in objects.unkept() if name != "model"] if settings.reward_workers else []
    flag = f"--workers {settings.workers}" if settings.workers else f"--reward-workers {settings.reward_workers}"
    if lost := objects.unkept() if settings.workers else scored:
        what = " and ".join(lost)
        raise UserError(f"{flag}: the {what} was given as a Python object, which no other process can find. "
                        "Put it into a file ('mine.py:name'), or leave the workers out.")  # fmt: skip


def check_scoring(method: Method, settings: Settings) -> None:
    """Refuses to score apart what is not scored, or what must be scored before more can be sampled."""
    if not settings.reward_workers:
        if settings.reward_seconds is not None or settings.reward_retries != Settings().reward_retries:
            raise UserError("--reward-seconds and --reward-retries are for processes that score, and without --reward-workers this "
                            "one does. Add --reward-workers 1.")  # fmt: skip
        return
    flag, plans = f"--reward-workers {settings.reward_workers}", [method.rollout, *(stage.rollout for stage in method.stages)]
    if all(plan is not None and not plan.samples for plan in plans):
        raise UserError(f"{flag}: {method.name} samples nothing that could be scored. Leave it out.")
    if not all(plan is None or plan.scored_last for plan in plans):
        raise UserError(f"{flag}: {method.name} searches, and what it samples next depends on what the last answer earned, so "
                        "that scoring cannot follow sampling. Leave it out.")  # fmt: skip


def check_where(method: Method, settings: Settings) -> None:
    """Refuses settings of workers, shares and staleness that do not go together, or not with this method; says what is odd."""
    check_scoring(method, settings)
    staleness, tasks = settings.max_staleness, settings.tasks_per_step or 32
    if settings.shares > tasks:
        raise UserError(f"--shares {settings.shares} is more than the {tasks} problems of a step; give at most {tasks}.")
    if settings.workers and settings.engine != "torch":
        raise UserError(f"--workers {settings.workers} with --engine {settings.engine}: workers sample with copies of the policy, "
                        "and that engine holds weights of its own. Take --engine torch, or no workers.")  # fmt: skip
    if settings.pace == "free" and not (settings.workers and staleness):
        raise UserError("--pace free lets workers take the newest weights there are, which needs somebody who samples while others "
                        "learn. Give --workers 1 and --max-staleness 1, or leave it out.")  # fmt: skip
    phases = [stage.as_method(method) for stage in method.stages] + [method]
    if staleness and not settings.uncorrected and not all(map(corrects_for_age, phases)):
        name = next(each.name for each in phases if not corrects_for_age(each))
        raise UserError(
            f"--max-staleness {staleness} with {name}, whose ratio does not know who sampled: what older weights wrote would count "
            f"as if those of now had. Take {method.name}+asyncflow, which corrects for it, or --uncorrected to see what happens."
        )
    if settings.workers > settings.shares:
        warnings.warn(
            Remark(f"--workers {settings.workers} with --shares {settings.shares}: a step is cut into {settings.shares}, so that "
                   f"some workers may wait. --shares {settings.workers} has work for all."), stacklevel=2,
        )  # fmt: skip
