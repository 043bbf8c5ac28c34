"""What methods and parts compute on three fixed steps, as a few numbers each: `tests/objective/test_part_values.py` pins them."""

from __future__ import annotations

import math
import typing
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from functools import cache
from typing import Any, cast

import torch
from part_steps import Context, steps
from stored_values import KNOBS, stored_numbers, stored_refusals
from torch import Tensor

from upslope.errors import MethodError
from upslope.evolve.opponents import Opponents
from upslope.fields import hints
from upslope.learners.curricula import Ordering
from upslope.methods import catalogue
from upslope.objective import estimator
from upslope.objective.advantage import GAE, MovingBaseline
from upslope.objective.advantage.balanced import SoftBaseline
from upslope.objective.advantage.centred import CentredGAE
from upslope.objective.base import (
    Advantage,
    Aggregate,
    Controller,
    Data,
    Filter,
    Mix,
    Ratio,
    Regularizer,
    Reward,
    Shape,
    Surrogate,
    Weight,
)  # fmt: skip
from upslope.objective.controller import AdaptiveKL, TargetKL
from upslope.objective.models.success import SuccessClassifier
from upslope.objective.references import Snapshot, Start
from upslope.objective.reward import StepKL
from upslope.objective.reward.learned import LearnedSuccess
from upslope.testing.batches import probes_descended, with_needs
from upslope.types import Method, Metrics, Offer, Part, Source, Trajectories, View

Numbers = dict[str, float | str]
OTHER_TEXTS = {"component": "format", "segment": "window"}
"""Another value for fields that hold a name."""


@cache
def hosts() -> dict[str, Method]:
    """All methods, and a few more that use what no method does."""
    found = {name: method for name, method in catalogue().items() if method.learner != "measure"}
    grpo, ppo = found["grpo"], found["ppo"]
    extra = [
        grpo.derive(name="grpo with a KL reward", reward=StepKL(), controller=(AdaptiveKL(horizon=50), TargetKL()), regularize=()),
        grpo.derive(name="grpo with a start of its own", references={"start": Start(), "old": Snapshot(every=2)}),
        grpo.derive(name="grpo with a moving baseline", advantage=MovingBaseline()),
        grpo.derive(name="grpo with a soft baseline", advantage=SoftBaseline()),
        ppo.derive(name="ppo with a plain GAE", advantage=GAE(gamma=0.9, lam=0.8)),
        found["bpo"].derive(name="bpo with a centred GAE", advantage=CentredGAE(gamma=0.9, lam=0.8, centre="value")),
        found["serl"].derive(
            name="serl with a learned reward",
            reward=LearnedSuccess(),
            models={**dict(found["serl"].models), "success": SuccessClassifier()},
        ),
    ]
    return found | {method.name: method for method in extra}


# -- fixed steps -----------------------------------------------------------------------------------------------------------


# -- what a method makes of them -------------------------------------------------------------------------------------------


def numbers(method: Method) -> Numbers:
    """All that a method computes on the fixed steps, one after the other, with what it remembers in between."""
    if method.learner == "actor-critic":
        return stored_numbers(method, hosts()[method.name], fingerprint)
    estimator.check(method)
    found: Numbers = {"needs": " ".join(sorted(method.needs())), "scope": estimator.slice_scope(method)}
    found["columns"] = " ".join(sorted(estimator.early_columns(method))) + " | " + " ".join(sorted(estimator.slice_columns(method)))
    states = {path: part.init() for path, part in estimator.stateful(method).items()}
    for number, (rows, metrics) in enumerate(steps(), 1):
        assert rows.current is not None
        further = any(name not in rows.current.columns() for name, _ in method.heads)
        further |= bool({"label.category", "label.side", "signal.value"} & method.needs())
        if any(isinstance(part, Opponents) for part in method.data):  # refuses rows of other steps
            rows = rows.replace(label={name: column for name, column in rows.label.items() if name != "source"})
        if any(part.provides for part in method.data):  # those compare what answers say
            rows, further = rows.replace(info=[{"response": f"answer {row}"} for row in range(rows.rows)]), True
        if method.data and method.rollout is not None and not method.rollout.samples:  # what data parts see there nobody sampled
            rows = rows.replace(label={**rows.label, "source": torch.full_like(rows.group, int(Source.DEMONSTRATED))})
        if probes_descended(method) or further:  # columns beyond those of the fixed steps
            rows = cast(Trajectories, with_needs(rows, method))
        moved, told = _controlled(method, states, rows.progress, metrics)
        seen, outcome = _step(moved, states, rows)
        outcome |= told | _around(moved, states, rows, number)
        for path, part in estimator.stateful(moved).items():
            learned = seen if isinstance(part, Data) else rows.replace(signal=seen.signal if seen.rows == rows.rows else {})
            states[path] = part.update(states[path], learned, metrics)
        outcome["state"] = fingerprint(states)
        found |= {f"{number} {name}": value for name, value in outcome.items() if value != 0}
    return found


def _controlled(method: Method, states: dict[str, Any], progress: float, metrics: Metrics) -> tuple[Method, Numbers]:
    """The method as its controllers set it for a step, and what they said."""
    told: list[Any] = []
    for path, part in estimator.stateful(method).items():
        if isinstance(part, Controller):
            knobs = part.knobs(states[path], progress)
            method = method.with_knobs(knobs)
            told += [knobs, list(part.snapshots(states[path], progress)), part.ends_passes(metrics)]
    return method, {"controllers": fingerprint(told)}


def _around(method: Method, states: dict[str, Any], rows: Trajectories, number: int) -> Numbers:
    """What parts say that are not called in an update: which tasks, which copies, which prompts."""
    found: Numbers = {}
    if method.curriculum is not None:
        tasks = torch.arange(998, 1006)
        offer = Offer(
            task=tasks,
            category=tasks % 3,
            difficulty=(tasks % 5).float(),
            uniform=(tasks.double() * 0.618) % 1,
            wanted=4,
            samples=4,
            max_tokens=16,
            seed=number,
            names={0: "fact", 1: "behaviour", 2: "condition"},
            value=lambda head: torch.sin(tasks.float()).abs(),
        )
        order = Ordering(method, states, rows.progress)(offer)
        found["curriculum"] = fingerprint([order.chosen, order.samples, order.limit, order.temperature, dict(order.why)])
    for name, part in method.references:
        dues = [part.due(step) for step in range(1, 9)]
        found[f"reference {name}"] = fingerprint([dues, part.copies, vars(part.sees(rows).inputs)["prompt"], number])
    return found


def _step(method: Method, states: dict[str, Any], rows: Trajectories) -> tuple[Trajectories, Numbers]:
    """The rows as they were learned from, and the numbers of one update on them."""
    current = rows.current
    assert current is not None
    rows = estimator.score(method, estimator.bind(method, states, rows.replace(current=None)), late=False)
    found: Numbers = {"score": fingerprint([rows.reward, rows.step_reward])}
    # What policies say of the rows goes with them through everything that chooses or joins rows.
    views = {"current": current, "proximal": rows.proximal, **rows.reference}
    carried = {f"{which} {name}": column.detach() for which, view in views.items() for name, column in view.columns().items()}
    rows = rows.replace(segment={**rows.segment, **carried})
    for part in method.data:
        rows = part(rows, Context(rows))
        found["data"] = fingerprint([rows.group, rows.label, rows.key, rows.signal, rows.reward])
    seen = {which: View.of({name: rows.segment[f"{which} {name}"] for name in view.columns()}) for which, view in views.items()}
    rows = rows.replace(
        proximal=seen.pop("proximal"), reference={name: seen[name] for name in rows.reference or ("start", "blind")}
    )
    aside = {name: _term(method, name, rows) for name, _ in method.terms}
    rows = rows.take_rows(estimator.kept(method, rows, late=False))
    found["early"] = fingerprint([rows.group, rows.reward, estimator.rows_with_signal(method, rows)])
    rows = estimator.annotate(method, rows)
    rows = rows.take_rows(estimator.kept(method, rows, late=True))
    found |= {"advantage": fingerprint(rows.advantage), "signal": fingerprint(rows.signal), "reward": fingerprint(rows.reward)}
    leaves = {name: rows.segment[f"current {name}"].clone().requires_grad_() for name in current.columns()}
    return rows, found | _update(method, rows, leaves) | {f"term {name}": value for name, value in aside.items()}


def _update(method: Method, rows: Trajectories, leaves: dict[str, Tensor]) -> Numbers:
    view = View.of(leaves)
    early = view.map(lambda column: column.detach()) if estimator.early_columns(method) else None
    update = estimator.begin_update(method, rows.replace(current=early)).replace(current=view)
    losses, notes = estimator.decision_losses(method, update)
    grads = torch.autograd.grad(losses.sum(), list(leaves.values()), allow_unused=True)
    found: Numbers = {"loss": fingerprint(losses), "notes": fingerprint(notes), "shaped": fingerprint(update.advantage)}
    found |= {"share": fingerprint(update.share), "weight": fingerprint(estimator.decision_weight(method, update))}
    found |= {"counted": fingerprint(update.counted), "silent": fingerprint(estimator.silent_rows(method, update))}
    return found | {f"gradient {name}": fingerprint(grad) for name, grad in zip(leaves, grads, strict=True) if grad is not None}


def _term(method: Method, name: str, rows: Trajectories) -> float:
    """The update of a further term on the rows put aside for it; 0 where there are none."""
    term = dict(method.terms)[name]
    aside = rows.aside.get(term.source)
    if aside is None:
        return 0.0
    own = term.as_method(name, method)
    aside = estimator.annotate(own, aside.replace(state=rows.state, memory=rows.memory))
    leaves = {
        "logp": (aside.behavior.logp + 0.3 * torch.sin(torch.arange(aside.sampled.numel()).reshape(aside.sampled.shape) * 1.7))
    }
    return fingerprint(_update(own, aside, {name: column.double().requires_grad_() for name, column in leaves.items()}))


def fingerprint(value: Any) -> float:
    """One number that changes, as good as surely, with every number and every name in a value."""
    if isinstance(value, Tensor):
        column = value.detach().double().flatten().nan_to_num(3.25, 17.0, -19.0)
        column = torch.where(column.abs() > 2**40, column / 2**53, column)  # keys of decisions
        return float((column * torch.cos(0.7 * torch.arange(len(column), dtype=torch.float64) + 0.3)).sum())
    if isinstance(value, View):
        return fingerprint(value.columns())
    if isinstance(value, str):
        return zlib.crc32(value.encode()) / 2**32
    if isinstance(value, Mapping):
        return sum(fingerprint(str(key)) * (0.5 + fingerprint(item)) for key, item in value.items())
    if isinstance(value, (list, tuple)):
        return sum(math.cos(0.3 * place) * (0.1 + fingerprint(item)) for place, item in enumerate(value))
    if is_dataclass(value):
        return fingerprint(vars(value))
    return 0.0 if value is None else float(value)


# -- parts with other knobs ------------------------------------------------------------------------------------------------


@cache
def part_hosts() -> dict[str, tuple[str, str]]:
    """For each class of parts the first method that uses it, and the part's path there."""
    found: dict[str, tuple[str, str]] = {}
    for name, method in sorted(hosts().items(), key=lambda host: host[1].learner != "policy-gradient"):
        for path, part in method.parts():
            if type(part).__module__.startswith("upslope.objective."):
                found.setdefault(type(part).__name__, (name, path))
    return dict(sorted(found.items()))


def variants(part: Part) -> Iterator[tuple[str, Any]]:
    """Other values of the part's knobs, one at a time; some may be refused."""
    for name, hint in hints(type(part)).items():
        for value in _others(name, getattr(part, name), hint):
            yield name, value


def _others(name: str, value: Any, hint: Any) -> tuple[Any, ...]:
    if typing.get_origin(hint) is typing.Literal:
        return tuple(choice for choice in typing.get_args(hint) if choice != value)
    if isinstance(value, bool):
        return (not value,)
    if isinstance(value, int):
        return value + 1, value + 2, value - 1
    if isinstance(value, float):
        if math.isinf(value):
            return 1.5, 0.4
        return (value * 1.4, value * 0.6) if value else (0.3, 1.5)
    return (OTHER_TEXTS[name],) if name in OTHER_TEXTS else ()


def part_numbers(kind: str) -> dict[str, list[float]]:
    """Of a class of parts, for each other value of a knob: one number of each step."""
    name, path = part_hosts()[kind]
    method = hosts()[name]
    found: dict[str, list[float]] = {}
    for field, value in variants(dict(method.parts())[path]):
        if method.learner == "actor-critic" and field in KNOBS:
            continue
        try:
            outcome = numbers(method.with_knobs({f"{path}.{field}": value}))
        except MethodError:
            continue
        by_step = [{key: each for key, each in outcome.items() if key.startswith(f"{step} ")} for step in (1, 2, 3, 4)]
        by_step = by_step if by_step[3] else by_step[:3]
        rest = {key: each for key, each in outcome.items() if not key[0].isdigit()}
        found[f"{name}: {path}.{field}={value}"] = [fingerprint(each) for each in (rest, *by_step)]
    return found


PLACES = (-1.0, 0.0, 0.5, 1.0, 2.0, 3.0)


def accepted_knobs(kind: str) -> dict[str, str]:
    """Of each number among a part's knobs, where it may be: ``+`` or ``-`` around round values and around its other knobs."""
    name, path = part_hosts()[kind]
    part = dict(hosts()[name].parts())[path]
    held = {f.name: getattr(part, f.name) for f in fields(part)}
    knobs = {field: value for field, value in held.items() if isinstance(value, (int, float)) and not isinstance(value, bool)}
    found = {}
    for field, value in knobs.items():
        around = [other for other in knobs.values() if isinstance(other, float) and math.isfinite(other)]
        places = sorted({*PLACES, *around, *(1 - other for other in around)})
        whole = isinstance(value, int)
        values = range(-2, 5) if whole else [place + by for place in places for by in (-1e-3, 0.0, 1e-3)] + [math.inf]
        found[field] = "".join("+" if _accepts(part, field, value) else "-" for value in values)
    return found


def _accepts(part: Part, field: str, value: float) -> bool:
    try:
        replace(part, **{field: value})
    except MethodError:
        return False
    return True


CALLED = (Advantage, Shape, Ratio, Mix, Surrogate, Weight, Aggregate, Regularizer, Reward, Filter)
LACKING: dict[str, Callable[[Trajectories], Trajectories]] = {
    "current": lambda batch: batch.replace(current=None),
    "current but logp": lambda batch: batch.replace(current=View(batch.current.logp)),
    "proximal": lambda batch: batch.replace(proximal=None),
    "proximal but logp": lambda batch: batch.replace(proximal=View(batch.proximal.logp)),
    "behavior.entropy": lambda batch: batch.replace(behavior=View(batch.behavior.logp)),
    "reference": lambda batch: batch.replace(reference={}),
    "signal": lambda batch: batch.replace(signal={}),
    **{name: lambda batch, name=name: batch.replace(**{name: {}}) for name in ("segment", "label", "components", "prepared")},
    **{
        name: lambda batch, name=name: batch.replace(**{name: None})
        for name in ("advantage", "key", "step_reward", "ended", "bootstrap", "counted", "share")
    },
    "horizon": lambda batch: batch.replace(horizon=0),
}  # fmt: skip


def refusals(kind: str) -> dict[str, str]:
    """What a part says to a batch that lacks something: the kind of error; a part that does without is not listed."""
    name, path = part_hosts()[kind]
    method = hosts()[name]
    part = dict(method.parts())[path]
    if method.learner == "actor-critic":
        return stored_refusals(method)
    if not isinstance(part, CALLED) or path.startswith("terms."):
        return {}
    rows = steps()[0][0]
    if {"label.side", "signal.value"} & method.needs() or any(each.provides for each in method.data):
        rows = cast(Trajectories, with_needs(rows, method))
    states = {place: each.init() for place, each in estimator.stateful(method).items()}
    batch = estimator.annotate(method, estimator.bind(method, states, rows))
    batch = estimator.begin_update(method, batch).replace(current=rows.current)
    further = (method.ratio(batch),) if isinstance(part, Surrogate) else ()
    found = {}
    for what, without in LACKING.items():
        try:
            part(without(batch), *further)
        except Exception as error:
            found[what] = type(error).__name__
    return found


def asks(kind: str) -> dict[str, str]:
    """What a part asks for, as it is and with other knobs, also at their ends: columns, its scope, whether it prepares."""
    name, path = part_hosts()[kind]
    part = dict(hosts()[name].parts())[path]
    found = {"as it is": _asked(part)}
    ends = [(f.name, end) for f in fields(part) if isinstance(getattr(part, f.name), float) for end in (0.0, 1.0, math.inf)]
    for field, value in (*variants(part), *ends):
        if _accepts(part, field, value) and (asked := _asked(replace(part, **{field: value}))) != found["as it is"]:
            found[f"{field}={value}"] = asked
    return found


def _asked(part: Part) -> str:
    try:
        early = " prepared from " + " ".join(sorted(part.prepare_needs())) if part.prepares() else ""
        probes = "".join(f" probing {probe}" for probe in part.probes())
        return f"{part.seen_at_once()}: {' '.join(sorted(part.needs()))}{early}{probes}"
    except MethodError:
        return "refused"
