"""The one estimator: how the parts of a method become the loss of a step, an update and a slice.

    loss = sum over decisions of  aggregate · weight · surrogate(ratio(current, proximal), advantage)  +  aggregate · further terms

`annotate` runs once a step, `begin_update` once an update, `decision_losses` once a slice; each takes a batch and gives one,
so that the same three calls serve a language model, a controller and a test on four numbers.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

import torch
from torch import Tensor

from upslope.errors import MethodError
from upslope.objective.base import SLOT_CLASSES, Branch, Notes, Remembers, State, Weight
from upslope.types import NAMED_SLOTS, SLOTS, STACKED_SLOTS, Batch, Method, Part, Scope, View, call, column, wrong

WIDTH: dict[Scope, int] = {"decision": 0, "sequence": 1, "group": 2, "update": -1, "step": -1}
"""How much of the batch a slice must hold for a part of each scope; wider scopes run before slices are cut."""
SLICED = ("ratio", "surrogate", "weight", "regularize", "models")
"""Slots whose parts are called on slices; what they must know of the whole update they `prepare`."""


def check(method: Method, provides: Iterable[str] | None = None) -> None:
    """Refuses a method that is incomplete, whose ratio and surrogate do not fit, or that needs what cannot be had.

    Args:
        provides: columns the rollout and the policy can give; ``None`` leaves that unchecked.
    """
    for slot in ("advantage", "ratio", "surrogate", "aggregate"):
        if getattr(method, slot) is None:
            raise MethodError(f"{method.name} has no {slot}; a policy-gradient method needs one.")
    _check_kinds(method)
    branches = method.ratio.branches()
    if not method.surrogate.takes(branches):
        raise MethodError(f"{method.name}: {type(method.surrogate).__name__} cannot bound the ratio {type(method.ratio).__name__}, "
                          f"which gives {', '.join(branches) or 'nothing'}. Change surrogate or ratio.")  # fmt: skip
    for path, shape in ((f"shape.{i}", shape) for i, shape in enumerate(method.shape)):
        if shape.scope not in ("step", "update"):
            raise MethodError(f"{method.name}: {path} has scope {shape.scope!r}; a shape runs once a 'step' or once an 'update'.")
    for name, term in method.terms:
        check(term.as_method(name, method), None)
    if provides is None:
        return
    provides = frozenset(provides) | brought(method)
    missing = sorted(need for need in method.needs() if need not in provides)
    if missing:
        who = {need: path for path, part in method.parts() for need in part.needs()}
        lines = "; ".join(f"{who[need]} needs {need!r}" for need in missing)
        if "group" in missing:
            raise MethodError(
                f"{method.name} compares several answers to one task ({who['group']} needs 'group'); an environment gives none. "
                "Take a method of the family control, such as ppo."
            )
        raise MethodError(
            f"{method.name} cannot run here: {lines}, and this task and policy give only {', '.join(sorted(provides))}."
        )


def _check_kinds(method: Method) -> None:
    """Refuses a part in a slot that is not its own."""
    for path, part in method.parts():
        slot, *below = path.split(".")
        outermost = not below or (len(below) == 1 and slot in (*STACKED_SLOTS, *NAMED_SLOTS))
        kind = SLOT_CLASSES.get(slot, Part)
        if outermost and not isinstance(part, kind):
            raise MethodError(f"{path} of {method.name} is a {type(part).__name__}; what stands there is a {kind.__name__}.")


def brought(method: Method) -> frozenset[str]:
    """Columns a method brings itself: of its heads, its probes and those it compares with."""
    own = [*(name for name, _ in method.models), *(probe.name for _, part in method.parts() for probe in part.probes())]
    columns = {f"{view}.{name}" for name in own for view in ("proximal", "current")}
    return frozenset(columns | {f"reference.{name}.logp" for name, _ in method.references})


def slice_scope(method: Method) -> Scope:
    """The widest thing a slice must hold whole: a decision, a sequence or a group."""
    parts = [part for slot in SLICED for part in _slot_parts(method, slot)]
    return max((part.seen_at_once() for part in parts), key=lambda scope: WIDTH[scope], default="decision")


def _slot_parts(method: Method, slot: str) -> list[Part]:
    return [part for path, part in method.parts() if path.split(".")[0] == slot]


def remembering(method: Method) -> dict[str, Remembers]:
    """Parts with memory, by path."""
    return {path: part for path, part in method.parts() if isinstance(part, Remembers)}


def bind(method: Method, states: dict[str, State], batch: Batch) -> Batch:
    """The batch with each remembering part's state at hand."""
    known = {cast(Part, part): states[path] for path, part in remembering(method).items()}
    return batch.replace(state=known, memory=dict(method.memory))


def score(method: Method, batch: Batch, *, late: bool) -> Batch:
    """The method's own rewards: early those that need no policy columns, for every row; late the rest, for the rows kept."""
    for reward in method.reward:
        if bool(reward.needs()) == late:
            scored = call(method, reward, reward, batch)
            if not (isinstance(scored, Batch) and isinstance(scored.reward, Tensor) and scored.reward.shape == batch.reward.shape):
                raise wrong(method, reward, scored, f"the batch with {batch.rows} rewards")
            batch = scored
    return batch


def annotate(method: Method, batch: Batch) -> Batch:
    """Late rewards, advantage and shaping: what holds for the whole step. Early rewards (`score`) are in already."""
    batch = score(method, clean(batch), late=True)
    advantage = column(method, method.advantage, batch)
    signals = call(method, method.advantage, method.advantage.signals, batch, advantage)
    batch = batch.replace(advantage=advantage, signal={**batch.signal, **signals})
    for shape in method.shape:
        if shape.scope == "step":
            batch = batch.replace(advantage=column(method, shape, batch))
    return batch


def kept(method: Method, batch: Batch, *, late: bool) -> Tensor:
    """Rows ``[N]`` that every filter of that stage keeps: the early ones before any policy column is, the late after `annotate`."""
    keep = torch.ones(batch.rows, dtype=torch.bool, device=batch.sampled.device)
    for part in method.filter:
        if part.late == late:
            found = call(method, part, part, batch)
            if not (isinstance(found, Tensor) and found.shape == keep.shape and found.dtype == torch.bool):
                raise wrong(method, part, found, f"a tensor of {batch.rows} booleans, one for each row")
            keep &= found
    return keep


def begin_update(method: Method, batch: Batch) -> Batch:
    """What is fixed over one update: weights and mixes that see all of it, the denominators, the whitened advantage.

    The batch comes from `annotate`, whole or cut.
    """
    counted, weight = batch.sampled, torch.ones_like(batch.sampled)
    for part in method.weight:
        if part.scope == "update":
            factor = column(method, part, batch).detach()
            weight = weight * factor
            if not part.counts_dropped():
                counted = counted * (factor > 0)
    batch = batch.replace(counted=counted)
    for shape in method.shape:
        if shape.scope == "update":
            batch = batch.replace(advantage=column(method, shape, batch))
    batch = batch.replace(share=column(method, method.aggregate, batch), signal={**batch.signal, "weight": weight})
    prepared = {part: call(method, part, part.prepare, batch) for slot in SLICED for part in _slot_parts(method, slot)}
    return batch.replace(prepared={part: found for part, found in prepared.items() if found is not None})


def decision_losses(method: Method, batch: Batch) -> tuple[Tensor, Notes]:
    """Loss of each decision ``[N, T]`` of a slice, already multiplied by its share: the slice's loss is the sum.

    ``batch.current`` must be set. Also gives the notes of the surrogate.
    """
    share = batch.share
    if share is None or batch.current is None:
        raise MethodError("decision_losses needs begin_update first, and the current policy's columns.")
    batch = batch.replace(current=_clean_view(batch.current, batch.sampled))
    loss, notes = _surrogate_loss(method, batch)
    loss = loss * decision_weight(method, batch)
    apart = torch.zeros_like(loss)
    for term in (*method.regularize, *(model for _, model in method.models)):
        if term.aggregated:
            loss = loss + column(method, term, batch)
        else:
            apart = apart + column(method, term, batch)
    return torch.where(share.ne(0), loss * share, 0.0) + torch.where(batch.sampled > 0, apart, 0.0), notes


def _surrogate_loss(method: Method, batch: Batch) -> tuple[Tensor, Notes]:
    branches = call(method, method.ratio, method.ratio, batch)
    if not (isinstance(branches, tuple) and all(isinstance(branch, Branch) for branch in branches)):
        raise wrong(method, method.ratio, branches, "a tuple of Branch")
    found = call(method, method.surrogate, method.surrogate, batch, branches)
    if not (isinstance(found, tuple) and len(found) == 2 and isinstance(found[1], dict)):
        raise wrong(method, method.surrogate, found, "a pair: the loss of each decision, and a dict of notes")
    if not (isinstance(found[0], Tensor) and found[0].shape == batch.sampled.shape and found[0].is_floating_point()):
        raise wrong(method, method.surrogate, found[0], f"a loss of shape {list(batch.sampled.shape)} with its notes")
    return found


def decision_weight(method: Method, batch: Batch) -> Tensor:
    """What the method's weights make of each decision of a slice ``[N, T]``, without gradient."""
    weight = batch.signal["weight"]
    for part in method.weight:
        if part.scope != "update":
            weight = weight * column(method, part, batch).detach()
    return weight


def method_loss(method: Method, batch: Batch) -> Tensor:
    """The whole loss of one update on a batch that has its current columns: the three stages in a row. For tests and study."""
    losses, _ = decision_losses(method, begin_update(method, annotate(method, score(method, batch, late=False))))
    return losses.sum()


def silent_rows(method: Method, batch: Batch) -> Tensor:
    """Rows ``[N]`` without any gradient under this method, which therefore need not be computed."""
    assert batch.share is not None and batch.advantage is not None
    if not all(term.aggregated for term in (*method.regularize, *(model for _, model in method.models))):
        return batch.lengths() == 0
    if method.regularize or method.models or not method.surrogate.silent_without_advantage:
        return (batch.share != 0).sum(1) == 0
    return ((batch.share * batch.signal["weight"] * batch.advantage) != 0).sum(1) == 0


def rows_with_signal(method: Method, batch: Batch) -> Tensor:
    """Numbers of the rows that may learn, as far as that is known before any policy column is.

    A row whose advantage is zero is left out if nothing else in the method could give it a gradient.
    """
    silent = not (method.regularize or method.models) and method.surrogate.silent_without_advantage
    known_early = not any(
        part.needs() - {"group"} for slot in ("reward", "advantage", "shape") for part in _slot_parts(method, slot)
    )
    if not (silent and known_early):
        return torch.arange(batch.rows)
    return (annotate(method, batch).advantage != 0).any(1).nonzero().squeeze(1)  # type: ignore[union-attr]


def clean(batch: Batch) -> Batch:
    """The batch with every column zero where nothing was sampled: what stands there belongs to nobody and may be NaN."""
    return batch.replace(
        behavior=_clean_view(batch.behavior, batch.sampled),
        proximal=None if batch.proximal is None else _clean_view(batch.proximal, batch.sampled),
        current=None if batch.current is None else _clean_view(batch.current, batch.sampled),
        reference={name: _clean_view(view, batch.sampled) for name, view in batch.reference.items()},
    )


def _clean_view(view: View, sampled: Tensor) -> View:
    return view.map(lambda column: torch.where(sampled > 0, column, 0.0))


def slice_columns(method: Method) -> frozenset[str]:
    """Columns of the current policy, beyond log-probabilities, that are read where slices are: not by weights of a whole update."""
    parts = [part for slot in SLICED for part in _slot_parts(method, slot)]
    inside = [part for part in parts if not (isinstance(part, Weight) and part.scope == "update")]
    needs = {need.removeprefix("current.") for part in inside for need in part.needs() if need.startswith("current.")}
    return frozenset(needs - {"logp"})


def early_columns(method: Method) -> frozenset[str]:
    """Columns of the current policy that a part of update scope reads before the update is cut: a further forward pass.

    In a step's first update the current policy is the proximal one, whose columns serve if they were computed anyway.
    """
    wide = [part for slot in SLOTS for part in _slot_parts(method, slot) if part.seen_at_once() == "update"]
    return frozenset(need.removeprefix("current.") for part in wide for need in part.needs() if need.startswith("current."))
