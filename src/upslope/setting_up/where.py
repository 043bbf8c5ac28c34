"""Where a run of text samples: what goes together, said before anything is started."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from upslope.errors import Remark, UserError
from upslope.objective.references.speaking import speakers
from upslope.objective.weight.truncated import Truncated
from upslope.runtime.python_objects import PythonObjects
from upslope.runtime.settings import Settings
from upslope.types import Method

if TYPE_CHECKING:
    from upslope.rollout.sampling_crew import SamplingCrew


WINDOWS, LEAST_WINDOW = 4, 8
"""Pieces that an answer is written in where it may be interrupted, and tokens of one at least: each reads what is there again."""


def reuses_sampling(settings: Settings) -> bool:
    """Whether learning may start from what sampling has computed: only in one process, in one call, with the weights of now as they
    are."""
    apart = settings.workers or settings.shares > 1 or settings.max_staleness or settings.learners > 1
    return settings.reuse == "auto" and not settings.plain and not apart and settings.sampling_precision == "auto"


def corrects_for_age(method: Method) -> bool:
    """Whether a method divides by who really sampled, or weighs by it; one that samples nothing has nothing to correct."""
    if method.rollout is not None and not method.rollout.samples:
        return True
    own = [part for part in (method.ratio, method.surrogate) if part is not None]
    weighs = any(isinstance(part, Truncated) for _, part in method.parts())
    return weighs or any("behavior.logp" in part.all_needs() for part in own)


def check_found_by_workers(settings: Settings, objects: PythonObjects) -> None:
    """Refuses other processes where a task, reward or model is only in this one; those that score need no model."""
    flags = [("workers", settings.workers), ("learners", settings.learners > 1), ("reward_workers", settings.reward_workers)]
    for name in [name for name, some in flags if some]:
        if lost := [what for what in objects.unkept() if (what, name) != ("model", "reward_workers")]:
            flag = f"--{name.replace('_', '-')} {getattr(settings, name)}"
            raise UserError(f"{flag}: the {' and '.join(lost)} was given as a Python object, which no other process can find. "
                            "Put it into a file ('mine.py:name'), or leave them out.")  # fmt: skip


def check_learners(settings: Settings) -> None:
    """Refuses more learners than there are GPUs, where they learn on those."""
    count, there = settings.learners, torch.cuda.device_count() if settings.device == "cuda" else 0
    if settings.device == "cuda" and count > max(there, 1):
        gpus = f"{'is' if there == 1 else 'are'} {there} GPU{'s'[: there != 1]}"
        told = f"--learners {count}, and there {gpus}: each learner has one of its own"
        raise UserError(f"{told}. Give at most {there}, or --device cpu.")


def check_shard(method: Method, settings: Settings) -> None:
    """Refuses to divide what cannot be divided, or among nobody; says what computes it."""
    if not settings.shard:
        return
    if settings.learners == 1:
        raise UserError("--shard divides weights, gradients and Adam's moments among learners, and there is one. Give --learners "
                        "2, or leave it out.")  # fmt: skip
    if method.learner != "policy-gradient":
        raise UserError(f"--shard: {method.name} learns by the {method.learner} learner, in one process. Leave it out.")
    if settings.lora:
        raise UserError(f"--shard with --lora {settings.lora}: adapters have few gradients and moments to divide, and the weights "
                        "under them are held whole. Leave one of them out.")  # fmt: skip
    if settings.adam_states != "float32":
        raise UserError(f"--shard with --adam-states {settings.adam_states}: moments in parts are held in float32; the parts are "
                        "smaller already. Leave --adam-states out.")  # fmt: skip
    if settings.recompute not in ("auto", "off", 0):
        raise UserError(f"--shard with --recompute {settings.recompute}: `transformers` computes what is in parts, and keeps all "
                        "activations of a slice. Leave --recompute out; a smaller --slice-tokens keeps fewer.")  # fmt: skip
    if asked := speakers(method):
        path, names = next(iter(asked.items()))
        raise UserError(f"--shard: {path} of {method.name} samples from the reference {min(names)!r}, of which each learner holds "
                        "a part. Leave --shard out.")  # fmt: skip
    if not settings.plain:
        warnings.warn(
            Remark("--shard: `transformers` computes what is learned, layer by layer, every row with its prompt; sampling stays as "
                   "it is."), stacklevel=2,
        )  # fmt: skip


def check_reachable(settings: Settings) -> None:
    """Refuses a Ray cluster that is not there, before anything large is loaded. This connects to it."""
    if settings.workers and settings.where != "local":
        from upslope.rollout.ray_cluster import connect

        _check_place(settings.where, settings.workers)
        connect(settings.where)


def check_room(settings: Settings) -> None:
    """Refuses a Ray cluster without room for the workers."""
    if settings.workers and settings.where != "local":
        from upslope.rollout.ray_cluster import check_room

        check_room(settings.where, settings.workers, gpus_of_each(settings))


def gpus_of_each(settings: Settings) -> float:
    """What each worker asks of a Ray cluster."""
    return 1.0 if settings.device == "cuda" else 0.0


def _check_place(where: str, workers: int) -> None:
    """Refuses a place that is none, and one without workers to be there."""
    if where == "local":
        return
    host, _, port = where.removeprefix("ray://").rpartition(":")
    if where != "ray" and not (where.startswith("ray://") and host and port.isdigit() and 0 < int(port) < 65536):
        raise UserError(f"--where is {where!r}; it must be local, ray, or the address of a cluster such as ray://10.0.0.1:10001.")
    if not workers:
        raise UserError(f"--where {where} says where workers are, and there are none. Give --workers 1, or leave it out.")


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
    check_learners(settings)
    check_scoring(method, settings)
    staleness, tasks = settings.max_staleness, settings.tasks_per_step or 32
    _check_place(settings.where, settings.workers)
    if settings.shares > tasks:
        raise UserError(f"--shares {settings.shares} is more than the {tasks} problems of a step; give at most {tasks}.")
    if settings.workers and settings.engine != "torch":
        raise UserError(f"--workers {settings.workers} with --engine {settings.engine}: workers sample with copies of the policy, "
                        "and that engine holds weights of its own. Take --engine torch, or no workers.")  # fmt: skip
    if settings.pace == "free" and not (settings.workers and staleness):
        raise UserError("--pace free lets workers take the newest weights there are, which needs somebody who samples while others "
                        "learn. Give --workers 1 and --max-staleness 1, or leave it out.")  # fmt: skip
    if settings.interrupt and settings.pace != "free":
        raise UserError("--interrupt takes newer weights inside an answer, whenever they come, and --pace exact promises a run "
                        "that repeats. Give --pace free with it, or leave it out.")  # fmt: skip
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


def interrupt_every(settings: Settings, rollout: Any) -> int:
    """Tokens of an answer after which a worker may take newer weights; 0 for never.

    Raises:
        UserError: if these answers are not written one after the other.
    """
    from upslope.rollout.text import TextRollout

    if not settings.interrupt:
        return 0
    if type(rollout).fulfil is not TextRollout.fulfil:
        raise UserError("--interrupt goes with answers that are written from beginning to end; this method samples in its own way. "
                        "Leave it out.")  # fmt: skip
    return max(rollout.sampling.max_tokens // WINDOWS, LEAST_WINDOW)


def worker_pool(settings: Settings, folder: Path, trusted: bool, device: torch.device | str) -> SamplingCrew[Any, Any]:
    """The workers that the settings ask for, of the run in a folder.

    Args:
        device: Where rows go.
    """
    from upslope.rollout.workers import WorkerPlan, WorkerPool

    plan = WorkerPlan(folder, settings.workers, settings.threads or 1, settings.pace == "free", trusted, device)
    if settings.where == "local":
        return WorkerPool(plan)
    from upslope.rollout.ray_pool import RayPool

    return RayPool(plan, settings.where, gpus_of_each(settings))
