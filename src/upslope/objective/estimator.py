"""The one estimator: how the parts of a method become the loss of a step, an update and a slice.

    loss = sum over decisions of  aggregate · weight · surrogate(ratio(current, proximal), advantage)  +  aggregate · further terms

`annotate` runs once a step, `begin_update` once an update, `decision_losses` once a slice; each takes a batch and gives one,
so that the same three calls serve a language model, a controller and a test on four numbers.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar, cast

import torch
from torch import Tensor

from upslope.errors import MethodError
from upslope.objective.base import Branch, Learned, Notes, Reward, State, Stateful
from upslope.objective.references.speaking import check_speakers
from upslope.types import SINGLE_SLOTS, Batch, Method, Part, Scope, View, call, column, wrong

SLICES: tuple[Scope, ...] = ("decision", "segment", "sequence", "group")
"""Scopes of parts that are called on slices, from the narrowest: a slice holds whole units of the widest among them."""
SLICED = ("ratio", "surrogate", "weight", "regularize", "models")
"""Slots whose parts are called on slices; what they must know of the whole update they `prepare`."""
SCOPES: dict[str, tuple[Scope, ...]] = {
    "shape": ("step", "update"),
    "weight": (*SLICES, "update"),
    "aggregate": ("update",),
    "models": (*SLICES, "update"),
    **dict.fromkeys(("ratio", "surrogate", "regularize"), SLICES),
}
"""What a part of each slot may see at once; those of the other slots run once a step."""
PartT = TypeVar("PartT", bound=Part)
BatchT = TypeVar("BatchT", bound=Batch)


def runs_once_an_update(part: Part) -> bool:
    """Whether a part is called where an update begins, on all of it. This and `on_slices` are the one reading of a scope."""
    return part.seen_at_once() == "update"


def on_slices(part: Part) -> bool:
    """Whether a part is called on slices of an update."""
    return part.seen_at_once() in SLICES


def filled(part: PartT | None) -> PartT:
    """The part of a slot that `check` has found filled."""
    assert part is not None
    return part


def check(method: Method, provides: Iterable[str] | None = None) -> None:
    """Refuses a method that is incomplete, whose ratio and surrogate do not fit, or that needs what cannot be had.

    Args:
        provides: columns the rollout and the policy can give; ``None`` leaves that unchecked.
    """
    _check_stages(method)
    method = method.without("stages")  # they learn before it, each from rows of its own
    _check_filled(method)
    branches = method.ratio.branches() if method.ratio else ()
    if method.surrogate is not None and not method.surrogate.takes(branches):
        raise MethodError(f"{method.name}: {type(method.surrogate).__name__} cannot bound the ratio {type(method.ratio).__name__}, "
                          f"which gives {', '.join(branches) or 'nothing'}. Change surrogate or ratio.")  # fmt: skip
    _check_scopes(method)
    for name, term in method.terms:
        check(term.as_method(name, method), None)
    check_speakers(method)
    if provides is None:
        return
    provides = frozenset(provides) | provided_by(method)
    missing = sorted(need for need in method.needs() if need not in provides)
    if missing:
        who = {need: path for path, part in method.parts() for need in part.all_needs()}
        lines = "; ".join(f"{who[need]} needs {need!r}" for need in missing)
        if "group" in missing:
            raise MethodError(
                f"{method.name} compares several answers to one task ({who['group']} needs 'group'), and these rows are in no "
                "groups. In an environment methods without a critic, such as grpo, learn from groups of whole episodes."
            )
        unnamed = sorted({need.split(".")[1] for need in missing if need.startswith("reference.")})
        if unnamed:
            raise MethodError(f"{method.name}: {lines}, and the method has no reference of that name. Give it one: "
                              f"references={{{unnamed[0]!r}: Snapshot()}}, or --set references.{unnamed[0]}=Snapshot.")  # fmt: skip
        raise MethodError(
            f"{method.name} cannot run here: {lines}, and this task and policy give only {', '.join(sorted(provides))}."
        )


def _check_stages(method: Method) -> None:
    """Each stage as the method it is, and whether all leave something for the method itself."""
    for stage in method.stages:
        check(stage.as_method(method), None)
    if (total := sum(stage.share for stage in method.stages)) >= 1:
        shares = ", ".join(f"{stage.name} {stage.share:g}" for stage in method.stages)
        cure = f"--set stages.{method.stages[0].name}.share=..."
        raise MethodError(f"the stages of {method.name} take {total:g} of the run ({shares}), and nothing is left for the method "
                          f"itself. Together they must stay below 1: {cure}")  # fmt: skip


def _check_filled(method: Method) -> None:
    """What learns from stored experience may do without a ratio, an advantage, or a loss of the policy's own."""
    needed = SINGLE_SLOTS if method.learner == "policy-gradient" else ("aggregate",)
    for slot in needed:
        if getattr(method, slot) is None:
            raise MethodError(f"{method.name} has no {slot}; a method of the {method.learner} learner needs one.")
    if method.learner == "policy-gradient" and (own := (*method.learned, *method.solved)):
        name, model = own[0]
        raise MethodError(f"{method.name}: models.{name} is a {type(model).__name__}, which learns from stored experience. "
                          "Derive the method from one of the actor-critic learner, such as sac.")  # fmt: skip


def _check_scopes(method: Method) -> None:
    for path, part in method.parts():
        allowed, scope = SCOPES.get(path.split(".")[0]), part.seen_at_once()
        if allowed is None or scope in allowed:
            continue
        cure = " What it must know of the whole update it computes in `prepare`." if allowed == SLICES else ""
        raise MethodError(f"{method.name}: {path} is a {type(part).__name__} of scope {scope!r}; there it is one of "
                          f"{', '.join(map(repr, allowed))}.{cure}")  # fmt: skip


def provided_by(method: Method) -> frozenset[str]:
    """Columns a method brings itself: of its heads, its probes, its data parts and those it compares with."""
    own = [*(name for name, _ in method.heads), *(probe.name for _, part in method.parts() for probe in part.probes())]
    columns = {f"{view}.{name}" for name in own for view in ("proximal", "current")}
    columns |= {column for part in method.data for column in part.provides}
    return frozenset(columns | {f"reference.{name}.logp" for name, _ in method.references})


def slice_scope(method: Method) -> Scope:
    """The widest thing that an update and a slice must hold whole: a decision, a segment, a sequence or a group."""
    return max((part.seen_at_once() for part in _sliced_parts(method)), key=SLICES.index, default="decision")


def _sliced_parts(method: Method) -> list[Part]:
    return [part for slot in SLICED for part in _slot_parts(method, slot) if on_slices(part)]


def _prepared_here(method: Method) -> list[Part]:
    """Parts that prepare where the policy's update begins; those of models with networks of their own do where these are fitted."""
    elsewhere = tuple(f"models.{name}." for name, _ in method.learned)
    here = [(path, part) for path, part in method.parts() if not f"{path}.".startswith(elsewhere)]
    return [part for path, part in here if path.split(".")[0] in SLICED and on_slices(part)]


def _slot_parts(method: Method, slot: str) -> list[Part]:
    return [part for path, part in method.parts() if path.split(".")[0] == slot]


def references(method: Method) -> frozenset[str]:
    """Names of the references that some part compares with."""
    return _reference_names(part for _, part in method.parts())


def early_references(method: Method) -> frozenset[str]:
    """Those that are read before the late filters; the others only matter for rows that learn."""
    return _reference_names(part for path, part in method.parts() if path.split(".")[0] not in SLICED)


def pulled_to_references(method: Method) -> bool:
    """Whether a regularizer compares with a reference: its gradient vanishes where the two policies are the same."""
    return bool(_reference_names(part for path, part in method.parts() if path.split(".")[0] == "regularize"))


def _reference_names(parts: Iterable[Part]) -> frozenset[str]:
    return frozenset(need.split(".")[1] for part in parts for need in part.all_needs() if need.startswith("reference."))


def stateful(method: Method) -> dict[str, Stateful]:
    """Parts with memory, by path."""
    return {path: part for path, part in method.parts() if isinstance(part, Stateful)}


def bind(method: Method, states: dict[str, State], batch: BatchT) -> BatchT:
    """The batch with each stateful part's state at hand."""
    known = {cast(Part, part): states[path] for path, part in stateful(method).items()}
    return batch.replace(state=known, memory=dict(method.memory))


def score(method: Method, batch: BatchT, *, late: bool) -> BatchT:
    """The method's own rewards: early those that need no policy columns, for every row; late the rest, for the rows kept."""
    for reward in method.reward:
        if reads_policy(reward) == late:
            scored = call(method, reward, reward, batch)
            if not (isinstance(scored, Batch) and isinstance(scored.reward, Tensor) and scored.reward.shape == batch.reward.shape):
                raise wrong(method, reward, scored, f"the batch with {batch.rows} rewards")
            batch = cast(BatchT, scored)
    return batch if batch.embedding is None else batch.replace(embedding=None)


def reads_policy(reward: Reward) -> bool:
    """Whether a reward reads columns of a policy, and so has to wait for them."""
    return any(need.partition(".")[0] in ("proximal", "current", "reference") for need in reward.needs())


def annotate(method: Method, batch: BatchT) -> BatchT:
    """Late rewards, advantage and shaping: what holds for the whole step. Early rewards (`score`) are in already."""
    batch = score(method, clean(batch), late=True)
    part = method.advantage
    if part is None:
        return batch.replace(advantage=torch.zeros_like(batch.sampled))
    advantage = column(method, part, batch)
    signals = call(method, part, part.signals, batch, advantage)
    batch = batch.replace(advantage=advantage, signal={**batch.signal, **signals})
    for shape in method.shape:
        if not runs_once_an_update(shape):
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


def begin_update(method: Method, batch: BatchT) -> BatchT:
    """What is fixed over one update: weights and mixes that see all of it, the denominators, the whitened advantage.

    The batch comes from `annotate`, whole or cut.
    """
    counted, weight = batch.sampled, torch.ones_like(batch.sampled)
    for part in method.weight:
        if runs_once_an_update(part):
            factor = column(method, part, batch).detach()
            weight = weight * factor
            if not part.counts_dropped():
                counted = counted * (factor > 0)
    batch = batch.replace(counted=counted)
    for shape in method.shape:
        if runs_once_an_update(shape):
            batch = batch.replace(advantage=column(method, shape, batch))
    batch = batch.replace(share=column(method, filled(method.aggregate), batch), signal={**batch.signal, "weight": weight})
    prepared = {part: call(method, part, part.prepare, batch) for part in _prepared_here(method) if part.prepares()}
    return batch.replace(prepared=prepared)


def decision_losses(method: Method, batch: Batch) -> tuple[Tensor, Notes]:
    """Loss of each decision ``[N, T]`` of a slice, already multiplied by its share: the slice's loss is the sum.

    ``batch.current`` must be set. Also gives the notes of the surrogate.
    """
    share = batch.share
    if share is None or (batch.current is None and batch.nets is None):
        raise MethodError("decision_losses needs begin_update first, and the current policy's columns.")
    batch = batch.replace(current=_clean_view(batch.current, batch.sampled)) if batch.current is not None else batch
    loss, notes = _surrogate_loss(method, batch)
    loss = loss * decision_weight(method, batch)
    apart = torch.zeros_like(loss)
    for term in (*method.regularize, *(model for _, model in method.heads)):
        if term.aggregated:
            loss = loss + column(method, term, batch)
        else:
            apart = apart + column(method, term, batch)
    return torch.where(share.ne(0), loss * share, 0.0) + torch.where(batch.sampled > 0, apart, 0.0), notes


def _surrogate_loss(method: Method, batch: Batch) -> tuple[Tensor, Notes]:
    ratio, surrogate = method.ratio, method.surrogate
    if surrogate is None:  # the policy reads a model, or learns from further terms alone
        return torch.zeros_like(batch.sampled), {}
    branches: tuple[Branch, ...] = ()
    if ratio is not None:
        branches = call(method, ratio, ratio, batch)
        if not (isinstance(branches, tuple) and all(isinstance(branch, Branch) for branch in branches)):
            raise wrong(method, ratio, branches, "a tuple of Branch")
    found = call(method, surrogate, surrogate, batch, branches)
    if not (isinstance(found, tuple) and len(found) == 2 and isinstance(found[1], dict)):
        raise wrong(method, surrogate, found, "a pair: the loss of each decision, and a dict of notes")
    if not (isinstance(found[0], Tensor) and found[0].shape == batch.sampled.shape and found[0].is_floating_point()):
        raise wrong(method, surrogate, found[0], f"a loss of shape {list(batch.sampled.shape)} with its notes")
    return found


def decision_weight(method: Method, batch: Batch) -> Tensor:
    """What the method's weights make of each decision of a slice ``[N, T]``, without gradient."""
    weight = batch.signal["weight"]
    for part in method.weight:
        if on_slices(part):
            weight = weight * column(method, part, batch).detach()
    return weight


def method_loss(method: Method, batch: Batch) -> Tensor:
    """The whole loss of one update on a batch that has its current columns: the three stages in a row. For tests and study."""
    losses, _ = decision_losses(method, begin_update(method, annotate(method, score(method, batch, late=False))))
    return losses.sum()


def silent_rows(method: Method, batch: Batch) -> Tensor:
    """Rows ``[N]`` without any gradient under this method, which therefore need not be computed."""
    assert batch.share is not None and batch.advantage is not None
    if not all(term.aggregated for term in (*method.regularize, *(model for _, model in method.heads))):
        return batch.lengths() == 0
    if method.regularize or method.heads or not filled(method.surrogate).silent_without_advantage:
        return (batch.share != 0).sum(1) == 0
    return ((batch.share * batch.signal["weight"] * batch.advantage) != 0).sum(1) == 0


def rows_with_signal(method: Method, batch: Batch) -> Tensor:
    """Numbers of the rows that may learn, as far as that is known before any policy column is.

    A row whose advantage is zero is left out if nothing else in the method could give it a gradient.
    """
    silent = not (method.regularize or method.heads) and filled(method.surrogate).silent_without_advantage
    known_early = not any(
        part.needs() - {"group"} for slot in ("reward", "advantage", "shape") for part in _slot_parts(method, slot)
    )
    if not (silent and known_early):
        return torch.arange(batch.rows)
    return (annotate(method, batch).advantage != 0).any(1).nonzero().squeeze(1)  # type: ignore[union-attr]


def clean(batch: BatchT) -> BatchT:
    """The batch with every column zero where nothing was sampled: what stands there belongs to nobody and may be NaN."""
    return batch.replace(
        behavior=_clean_view(batch.behavior, batch.sampled),
        proximal=None if batch.proximal is None else _clean_view(batch.proximal, batch.sampled),
        current=None if batch.current is None else _clean_view(batch.current, batch.sampled),
        reference={name: _clean_view(view, batch.sampled) for name, view in batch.reference.items()},
    )


def _clean_view(view: View, sampled: Tensor) -> View:
    return view.map(lambda column: torch.where(sampled > 0, column, 0.0))


def clean_drawn(batch: BatchT) -> BatchT:
    """The same for rows drawn from a store, whose losses read actions, rewards and signals where policies read views.

    A product with a share of zero does not do: zero times NaN is NaN, in the gradient too.
    """

    def zeroed(column: Tensor) -> Tensor:
        wide = batch.sampled.view(*batch.sampled.shape, *(1,) * (column.dim() - 2)) if column.dim() >= 2 else None
        return column if wide is None else torch.where(wide > 0, column, torch.zeros_like(column))

    return clean(batch).replace(
        action=None if batch.action is None else zeroed(batch.action),
        step_reward=None if batch.step_reward is None else zeroed(batch.step_reward),
        signal={name: zeroed(signal) for name, signal in batch.signal.items()},
    )


def begin_fit(method: Method, model: Learned, batch: BatchT) -> BatchT:
    """The batch with what the parts of a learned model prepare; its ``nets`` are scoped to the model, its ``share`` is set."""
    prepared = {part: call(method, part, part.prepare, batch) for _, part in model.walk() if part.prepares()}
    return batch.replace(prepared=prepared)


def drawn_share(method: Method, batch: Batch) -> Tensor:
    """What each decision of an update counts in the losses of learned models."""
    return column(method, filled(method.aggregate), batch.replace(counted=batch.sampled))


def fit_losses(method: Method, model: Learned, batch: Batch) -> tuple[Tensor, Notes]:
    """Loss of each decision ``[N, T]`` of a learned model, already multiplied by its share, and its notes."""
    share = batch.share
    assert share is not None, "begin_fit comes first"
    found = call(method, model, model.loss, batch)
    if not (isinstance(found, tuple) and len(found) == 2 and isinstance(found[0], Tensor) and found[0].shape == share.shape):
        raise wrong(method, model, found, f"a loss of shape {list(share.shape)} and a dict of notes")
    losses, notes = found
    return torch.where(share.ne(0), losses * share, 0.0), notes


def has_actor_loss(method: Method) -> bool:
    """Whether the policy descends a loss of its own; otherwise it reads a model."""
    return method.surrogate is not None or bool(method.regularize)


def slice_columns(method: Method) -> frozenset[str]:
    """Columns of the current policy, beyond log-probabilities, that are read where slices are."""
    return _current(need for part in _sliced_parts(method) for need in part.needs()) - {"logp"}


def early_columns(method: Method) -> frozenset[str]:
    """Columns of the current policy that are read before the update is cut: a further forward pass.

    In a step's first update the current policy is the proximal one, whose columns serve if they were computed anyway.
    """
    called = [part.needs() for _, part in method.parts() if runs_once_an_update(part)]
    prepared = [part.prepare_needs() for part in _sliced_parts(method) if part.prepares()]
    return _current(need for needs in (*called, *prepared) for need in needs)


def _current(needs: Iterable[str]) -> frozenset[str]:
    return frozenset(need.removeprefix("current.") for need in needs if need.startswith("current."))
