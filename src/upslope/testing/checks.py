"""What every method must do, on random batches: the table tests of the catalogue, for methods of anybody.

A check takes a method and raises `AssertionError` with what is wrong. Nothing is trained here; `upslope.testing.runs` does that.
"""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from upslope.errors import MethodError
from upslope.learners import actor_critic
from upslope.methods import catalogue
from upslope.objective.estimator import (
    annotate,
    begin_fit,
    begin_update,
    bind,
    check,
    decision_losses,
    drawn_share,
    fit_losses,
    has_actor_loss,
    provided_by,
    silent_rows,
)
from upslope.runtime import user_code
from upslope.runtime.method_file import check_can_be_found_again, dump_method, load_method, user_bundles
from upslope.testing.batches import (
    CUTS,
    assert_same,
    batch_for,
    expect,
    first_states,
    gradient,
    map_positions,
    probes_descended,
    replace_view,
    right_pad,
    with_needs,
)
from upslope.testing.drawn import kinds
from upslope.testing.edge_cases import (
    BAD,
    empty_mask,
    empty_rows,
    equal_rewards,
    extreme,
    far,
    group_of_one,
    infinite,
    spoiled,
)
from upslope.testing.table_nets import TableNets
from upslope.types import Batch, Method

__all__ = [
    "BAD", "ON_BATCHES", "complete", "cuts", "cuts_in_float32", "empty_mask", "empty_rows", "equal_rewards", "equals", "expect",
    "extreme", "far", "files", "garbage", "group_of_one", "identity", "infinite", "losses", "masks", "needs", "order", "padding",
    "parts", "silent", "spoiled", "unsampled",
]  # fmt: skip


# -- as a value ------------------------------------------------------------------------------------------------------------


def complete(method: Method) -> None:
    """It fills its slots with parts that fit, and a missing column is named."""
    if method.learner == "actor-critic":
        actor_critic.check(method, method.needs())
    check(method, method.needs())
    for need in sorted(method.needs() - provided_by(method)):
        try:
            check(method, method.needs() - {need})
        except MethodError as refused:
            expect(need in str(refused), f"without {need!r} the message does not name it: {refused}")
        else:
            raise AssertionError(f"it says that it needs {need!r}, and is not refused without it")


def identity(method: Method) -> None:
    """Derived without changes it is itself; with its parent's parts it is its parent, to the last bit."""
    expect(method.derive() == method, "derive() without changes gives another method")
    parent = catalogue().get(method.parent)
    if parent is None:
        return
    back = method.derive(**{slot: getattr(parent, slot) for slot in method.diff(parent)})
    expect(not back.diff(parent), f"with the parts of {parent.name} it still differs in {', '.join(back.diff(parent))}")
    equals(back, parent)


def equals(method: Method, other: Method, seed: int = 0) -> None:
    """Two methods have the same loss and gradient, to the last bit."""
    batch = with_needs(batch_for(method, seed), other)
    try:
        assert_same(gradient(method, batch), gradient(other, batch), exact=True)
    except AssertionError as problem:
        slots = ", ".join(method.diff(other)) or "no slot"
        raise AssertionError(
            f"it is not {other.name}, from which it still differs in {slots}: {problem}. (Columns of references are drawn at "
            "random here, so two references that would agree in a run differ.)"
        ) from None


def files(method: Method) -> None:
    """It comes back from a run's files as it is."""
    check_can_be_found_again(method)
    text = dump_method(method)
    with tempfile.TemporaryDirectory() as folder:
        code = Path(folder)
        user_code.keep(user_bundles(method), code)
        back = load_method(text, code)
    # A kept file is a module of its own, so its classes are others: what the file says must be the same.
    expect(dump_method(back) == text, "written, read and written again it is another method")
    if not user_bundles(method):
        expect(back == method and hash(back) == hash(method), "read back from a file it is another method")


def parts(method: Method) -> None:
    """Its parts are frozen values that print themselves."""
    for path, part in method.parts():
        expect(str(part).startswith(type(part).__name__), f"{path} prints as {str(part)[:60]!r}, without its class")
        for field in dataclasses.fields(part):
            expect(getattr(part, field.name) is not None, f"{path}.{field.name} is None; write 'no bound' as inf")
            try:
                setattr(part, field.name, 0)
            except dataclasses.FrozenInstanceError:
                continue
            raise AssertionError(f"{path}.{field.name} can be changed: decorate {type(part).__name__} with @dataclass(frozen=True)")


# -- how an update is cut --------------------------------------------------------------------------------------------------


def cuts(method: Method, ways: Sequence[str] = CUTS, **more: Any) -> None:
    """How an update is cut into slices changes nothing."""
    batch = batch_for(method, seed=1, groups=3, samples=4, empty_rows=1, **more)
    whole = gradient(method, batch)
    own = () if method.scorer is None else (method.scorer[0],)  # a reward model learns through its head alone
    by_policy = [whole.logp, *(whole.more[name] for name in (*probes_descended(method), *own))]
    learns = whole.largest() if method.learner == "actor-critic" else max(float(column.abs().max()) for column in by_policy)
    expect(learns > 0, "its gradient is zero on a batch with every kind of reward")
    for how in ways:
        with _named(f"cut {how}"):
            assert_same(gradient(method, batch, how), whole)


def cuts_in_float32(method: Method, **more: Any) -> None:
    """The same to the rounding of float32."""
    batch = batch_for(method, seed=2, groups=3, samples=4, dtype=torch.float32, **more)
    whole = gradient(method, batch)
    for name, column in (whole.per_decision() | dict(whole.weights)).items():
        expect(column.dtype == torch.float32, f"its gradient in {name} is {column.dtype} on a batch of float32")
    for how in CUTS:
        with _named(f"cut {how}, in float32"):
            assert_same(gradient(method, batch, how), whole, rtol=1e-5, atol=1e-7)


WITHIN_GROUPS = (2, 0, 3, 1, 5, 4, 7, 6, 11, 8, 9, 10)
INTERLEAVED = (8, 0, 4, 1, 9, 5, 2, 10, 6, 3, 7, 11)


def order(method: Method, orders: Sequence[Sequence[int]] = (WITHIN_GROUPS, INTERLEAVED), **more: Any) -> None:
    """The order of rows and of groups changes nothing."""
    for rows in orders:
        batch = batch_for(method, seed=3, groups=3, samples=4, empty_rows=1 if rows == WITHIN_GROUPS else 0, **more)
        places = torch.tensor(rows)
        shuffled, whole = gradient(method, batch.take_rows(places)), gradient(method, batch)
        assert_same(shuffled, whole.at(partial(torch.index_select, dim=0, index=places)))


def padding(method: Method, **more: Any) -> None:
    """Positions behind the last decision change nothing."""
    batch = batch_for(method, seed=4, groups=3, samples=4, empty_rows=1, **more)
    whole, padded = gradient(method, batch), gradient(method, right_pad(batch, 5))
    width = batch.sampled.shape[1]
    expect(padded.logp.shape[1] == width + 5, f"its gradient has {padded.logp.shape[1]} positions of {width + 5}")
    for name, column in padded.per_decision().items():
        expect(not column[:, width:].any(), f"there is a gradient in {name} in the padding")
    assert_same(padded.at(lambda column: column[:, :width]), whole)


# -- what was not sampled --------------------------------------------------------------------------------------------------


def garbage(method: Method, how: str = "whole", **more: Any) -> None:
    """NaN in every column where the policy did not decide changes nothing."""
    batch = batch_for(method, seed=5, groups=3, samples=4, empty_rows=1, **more)

    def spoil(column: Tensor, by: float = torch.nan) -> Tensor:
        sampled = batch.sampled.view(*batch.sampled.shape, *(1,) * (column.dim() - 2))
        return torch.where(sampled > 0, column, by) if column.is_floating_point() else column

    spoiled = map_positions(batch.replace(nets=None), spoil).replace(sampled=batch.sampled)
    if batch.nets is not None:  # a sampler pads observations with numbers, whichever they are
        spoiled = spoiled.replace(nets=cast(TableNets, batch.nets).take(lambda column: spoil(column, 7.0)))
    assert_same(gradient(method, spoiled, how), gradient(method, batch), exact=how == "whole")


def unsampled(method: Method, **more: Any) -> None:
    """What was not sampled gets no gradient."""
    batch = batch_for(method, seed=6, groups=3, samples=4, empty_rows=1, **more)
    found, off = gradient(method, batch), batch.sampled == 0
    expect(off[0].any() and off[0, :-1].any(), "a hole in the middle of a row belongs to this check")
    for name, column in found.per_decision().items():
        expect(not column[off].any(), f"decisions that were not sampled have a gradient in {name}")


def masks(method: Method, **more: Any) -> None:
    """Tokens that were not sampled change nothing and get no gradient."""
    garbage(method, **more)
    garbage(method, "packed", **more)
    unsampled(method, **more)


# -- promises the learner relies on ----------------------------------------------------------------------------------------


def silent(method: Method, **more: Any) -> None:
    """Rows that the learner may leave out have no gradient."""
    if method.learner == "actor-critic":
        return  # every row that is drawn is learned from
    batch = batch_for(method, seed=13, groups=3, samples=4, empty_rows=1, **more)
    reward = batch.reward.clone()
    reward[4:8] = 1.0  # one group without signal
    batch = batch.replace(reward=reward, components={"task": reward})
    found = silent_rows(method, begin_update(method, annotate(method, bind(method, first_states(method), batch))))
    expect(found[1], "a row without a decision is not silent")
    outcome = gradient(method, batch, use_filter=False)
    for name, column in outcome.per_decision().items():
        expect(not column[found].any(), f"rows that are left out as silent have a gradient in {name}")


def losses(method: Method, **more: Any) -> None:
    """The losses of decisions sum to the loss, and notes are a column each."""
    batch = batch_for(method, seed=14, groups=3, samples=4, **more)
    stored = method.learner == "actor-critic"
    bound, total = bind(method, first_states(method), batch), torch.zeros((), dtype=batch.sampled.dtype)
    pieces = [_noted(method, bound, name) for name, _ in method.learned]
    if not stored or has_actor_loss(method):
        pieces.append(decision_losses(method, begin_update(method, annotate(method, bound))))
    for found, notes in pieces:
        fits = found.shape == batch.sampled.shape
        expect(fits, f"losses have the shape {tuple(found.shape)}, decisions {tuple(batch.sampled.shape)}")
        total = total + found.sum().detach()
        for name, column in notes.items():
            whole = column.shape == batch.sampled.shape or (not stored and column.shape == batch.reward.shape)
            share = column.dtype == torch.bool and not stored and column.dim() == 2
            fits = (share or (column.is_floating_point() and whole)) and whole and not column.requires_grad
            kinds = "a number" if stored else "a boolean for each decision, or a number for each row or decision"
            expect(fits, f"the note {name!r} is {column.dtype} {tuple(column.shape)}, not {kinds}, without gradient")
    torch.testing.assert_close(total, gradient(method, batch, use_filter=False).loss)


def _noted(method: Method, batch: Batch, name: str) -> tuple[Tensor, Mapping[str, Tensor]]:
    """Losses and notes of a learned model."""
    model = dict(method.learned)[name]
    own = batch.replace(nets=cast(TableNets, batch.nets).scoped(name), share=drawn_share(method, batch))
    return fit_losses(method, model, begin_fit(method, model, own))


def needs(method: Method, **more: Any) -> None:
    """It needs the columns that it names, and no others."""
    batch = batch_for(method, seed=16, groups=2, samples=3, **more)
    # Which columns rows drawn from a store have, their learner knows before it asks a part.
    refused = (MethodError, KeyError) if method.learner == "actor-critic" else MethodError
    for need in sorted(method.needs()):
        poorer = without_column(batch, need)
        if poorer is None:
            continue
        try:
            gradient(method, poorer if poorer.current is not None else poorer.replace(current=batch.current))
        except refused:
            continue
        raise AssertionError(f"it names {need!r} in its needs, and does without it")
    poorer = batch
    for need in UNASKED[method.learner]:
        if need not in method.needs():
            poorer = without_column(poorer, need) or poorer
    assert_same(gradient(method, poorer), gradient(method, batch), exact=True)


UNASKED = {
    "policy-gradient": ("reference.start.logp", "proximal.entropy", "proximal.value", "current.entropy", "current.value"),
    "actor-critic": ("step_reward", "signal.discount", "signal.return_to_go", "signal.online", "label.source"),
}
"""Columns that a method does without if it does not name them."""


def without_column(batch: Batch, need: str) -> Batch | None:
    """The batch without this column; ``None`` for what every batch has."""
    view, _, name = need.partition(".")
    if view in ("signal", "label") and batch.nets is not None:
        return batch.replace(**{view: {each: kept for each, kept in getattr(batch, view).items() if each != name}})
    if view == "reference" and batch.nets is not None:
        return batch.replace(nets=cast(TableNets, batch.nets).without_reference(name.split(".")[0]))
    if view == "reference":
        return batch.replace(reference={each: kept for each, kept in batch.reference.items() if each != name.split(".")[0]})
    if need == "step_reward" and batch.nets is not None:
        return batch.replace(step_reward=None)
    if view not in ("current", "proximal") or need == "current.logp" or getattr(batch, view) is None:
        return None
    return batch.replace(**{view: None}) if name == "logp" else replace_view(batch, view, **{name: None})


@contextmanager
def _named(what: str) -> Iterator[None]:
    """Puts what was tried in front of an assertion's message."""
    try:
        yield
    except AssertionError as error:
        raise AssertionError(f"{what}: {error}") from None


def each_kind(*checks: Callable[..., None]) -> Callable[[Method], None]:
    """Several checks as one line of a report; for methods of stored experience with each kind of action that they take."""

    def run(method: Method) -> None:
        for kind in kinds(method) if method.learner == "actor-critic" else (None,):
            for each in checks:
                with _named(f"with {kind} actions") if kind else nullcontext():
                    each(method, **({"kind": kind} if kind else {}))

    return run


ON_BATCHES: Mapping[str, tuple[str, Callable[[Method], None]]] = {
    "complete": ("its slots fit together, and a missing column is refused by name", complete),
    "identity": ("derived without changes it is itself, with its parent's parts its parent", identity),
    "files": ("it comes back from a run's files as it is", files),
    "parts": ("its parts are frozen values that print themselves", parts),
    "cuts": ("how an update is cut changes nothing", each_kind(cuts, cuts_in_float32)),
    "order": ("the order of rows and groups changes nothing", each_kind(order)),
    "padding": ("positions behind the last decision change nothing", each_kind(padding)),
    "masks": ("what was not sampled changes nothing and gets no gradient", each_kind(masks)),
    "empty": ("an empty mask gives zero, rows without a decision are in no mean", each_kind(empty_mask, empty_rows)),
    "groups of one": ("a group of one sample is finite", each_kind(group_of_one)),
    "equal rewards": ("groups of equal rewards are finite", each_kind(equal_rewards)),
    "infinite": ("infinite, missing and very far log-probabilities stay finite", each_kind(infinite)),
    "silent": ("rows that are left out have no gradient; losses sum to the loss", each_kind(silent, losses)),
    "needs": ("it needs the columns it names, and no others", each_kind(needs)),
}
"""What is checked on random batches: by name, what it says and how."""
