"""What every method must do, on random batches: the table tests of the catalogue, for methods of anybody.

A check takes a method and raises `AssertionError` with what is wrong. Nothing is trained here; `upslope.testing.runs` does that.
"""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor

from upslope.errors import MethodError
from upslope.methods import catalogue
from upslope.objective.estimator import (
    annotate,
    begin_update,
    bind,
    check,
    decision_losses,
    provided_by,
    silent_rows,
    slice_scope,
    stateful,
)
from upslope.runtime import user_code
from upslope.runtime.method_file import check_can_be_found_again, dump_method, load_method, user_bundles
from upslope.testing.batches import (
    CUTS,
    Outcome,
    assert_same,
    batch_for,
    gradient,
    map_positions,
    replace_view,
    right_pad,
    with_needs,
)
from upslope.types import Batch, Method, View

VIEWS = ("logp", "entropy", "value")
BAD: Mapping[str, float] = {"nan": torch.nan, "inf": torch.inf, "-inf": -torch.inf}


def expect(holds: object, otherwise: str) -> None:
    """Raises with a sentence. No ``assert``: Python leaves those out where it is told to optimise."""
    if not holds:
        raise AssertionError(otherwise)


# -- as a value ------------------------------------------------------------------------------------------------------------


def complete(method: Method) -> None:
    """It fills its slots with parts that fit, and a missing column is named."""
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


def cuts(method: Method, ways: Sequence[str] = CUTS) -> None:
    """How an update is cut into slices changes nothing."""
    batch = batch_for(method, seed=1, groups=3, samples=4, empty_rows=1)
    whole = gradient(method, batch)
    expect(whole.logp.abs().max() > 0, "its gradient is zero on a batch with every kind of reward")
    for how in ways:
        with _named(f"cut {how}"):
            assert_same(gradient(method, batch, how), whole)


def cuts_in_float32(method: Method) -> None:
    """The same to the rounding of float32."""
    batch = batch_for(method, seed=2, groups=3, samples=4, dtype=torch.float32)
    whole = gradient(method, batch)
    expect(whole.logp.dtype == torch.float32, f"its gradient is {whole.logp.dtype} on a batch of float32")
    for how in CUTS:
        with _named(f"cut {how}, in float32"):
            assert_same(gradient(method, batch, how), whole, rtol=1e-5, atol=1e-7)


WITHIN_GROUPS = (2, 0, 3, 1, 5, 4, 7, 6, 11, 8, 9, 10)
INTERLEAVED = (8, 0, 4, 1, 9, 5, 2, 10, 6, 3, 7, 11)


def order(method: Method, orders: Sequence[Sequence[int]] = (WITHIN_GROUPS, INTERLEAVED)) -> None:
    """The order of rows and of groups changes nothing."""
    for rows in orders:
        batch = batch_for(method, seed=3, groups=3, samples=4, empty_rows=1 if rows == WITHIN_GROUPS else 0)
        places = torch.tensor(rows)
        shuffled, whole = gradient(method, batch.take_rows(places)), gradient(method, batch)
        assert_same(shuffled, Outcome(whole.loss, whole.logp[places], whole.entropy[places], whole.value[places]))


def padding(method: Method) -> None:
    """Positions behind the last decision change nothing."""
    batch = batch_for(method, seed=4, groups=3, samples=4, empty_rows=1)
    whole, padded = gradient(method, batch), gradient(method, right_pad(batch, 5))
    width = batch.sampled.shape[1]
    expect(padded.logp.shape[1] == width + 5, f"its gradient has {padded.logp.shape[1]} positions of {width + 5}")
    for name in VIEWS:
        expect(not getattr(padded, name)[:, width:].any(), f"there is a gradient in {name} in the padding")
    assert_same(Outcome(padded.loss, padded.logp[:, :width], padded.entropy[:, :width], padded.value[:, :width]), whole)


# -- what was not sampled --------------------------------------------------------------------------------------------------


def garbage(method: Method, how: str = "whole") -> None:
    """NaN in every column where the policy did not decide changes nothing."""
    batch = batch_for(method, seed=5, groups=3, samples=4, empty_rows=1)

    def spoil(column: Tensor) -> Tensor:
        return torch.where(batch.sampled > 0, column, torch.nan) if column.is_floating_point() else column

    spoiled = map_positions(batch, spoil).replace(sampled=batch.sampled)
    assert_same(gradient(method, spoiled, how), gradient(method, batch), exact=how == "whole")


def unsampled(method: Method) -> None:
    """What was not sampled gets no gradient."""
    batch = batch_for(method, seed=6, groups=3, samples=4, empty_rows=1)
    found, off = gradient(method, batch), batch.sampled == 0
    expect(off[0].any() and off[0, :-1].any(), "a hole in the middle of a row belongs to this check")
    for name in VIEWS:
        expect(not getattr(found, name)[off].any(), f"decisions that were not sampled have a gradient in {name}")


def masks(method: Method) -> None:
    """Tokens that were not sampled change nothing and get no gradient."""
    garbage(method)
    garbage(method, "packed")
    unsampled(method)


# -- edge cases ------------------------------------------------------------------------------------------------------------


def equal_rewards(method: Method) -> None:
    """Groups of equal rewards give a finite loss and gradient."""
    batch = batch_for(method, seed=7, groups=3, samples=6)
    reward = torch.full_like(batch.reward, 0.1)
    expect(
        gradient(method, batch.replace(reward=reward, components={"task": reward})).finite(), "NaN or inf where all rewards are 0.1"
    )


def group_of_one(method: Method) -> None:
    """Groups of one sample, and a row of one decision, give a finite loss and gradient."""
    expect(gradient(method, batch_for(method, seed=8, groups=4, samples=1)).finite(), "NaN or inf for groups of one sample")
    single = batch_for(method, seed=8, groups=1, samples=1, positions=1, ragged=False)
    expect(gradient(method, single).finite(), "NaN or inf for one row of one decision")


def empty_mask(method: Method) -> None:
    """A batch in which nothing was sampled gives zero loss and zero gradient."""
    batch = batch_for(method, seed=9, groups=2, samples=3)
    found = gradient(method, batch.replace(sampled=torch.zeros_like(batch.sampled)))
    expect(found.loss == 0, f"its loss is {float(found.loss):g} where nothing was sampled")
    for name in VIEWS:
        expect(not getattr(found, name).any(), f"there is a gradient in {name} where nothing was sampled")


def empty_rows(method: Method) -> None:
    """Rows without a decision are finite and in no mean."""
    batch = batch_for(method, seed=10, groups=2, samples=4, empty_rows=2)
    whole = gradient(method, batch, use_filter=False)
    expect(whole.finite() and not whole.logp[1:3].any(), "rows without a decision give NaN or a gradient")
    # Their rewards count in the group's statistics, so the advantages are taken from the whole batch; the means do not.
    annotated = annotate(method, bind(method, _states(method), batch))
    there = torch.tensor([0, 3, 4, 5, 6, 7])
    shares = begin_update(method, annotated).share
    assert shares is not None
    torch.testing.assert_close(begin_update(method, annotated.take_rows(there)).share, shares[there])


def spoiled(method: Method, where: str = "current", bad: str = "inf") -> None:
    """Infinite and missing log-probabilities stay finite, and touch no other row than they may.

    Args:
        where: views that have them: ``"current"``, ``"proximal"``, ``"reference"``, or several in one text.
        bad: which value, of ``BAD``.
    """
    batch = batch_for(method, seed=11, groups=2, samples=3)
    clean = gradient(method, batch)
    hit = (0, int(batch.sampled[0].nonzero()[1])), (3, int(batch.sampled[3].nonzero()[0])), (5, 0)

    def spoil(column: Tensor) -> Tensor:
        column = column.detach().clone()
        for row, position in hit:
            column[row, position] = BAD[bad]
        return column

    for view in ("current", "proximal"):
        if view in where:
            batch = replace_view(batch, view, logp=spoil(getattr(batch, view).logp))
    if "reference" in where:
        batch = batch.replace(reference={name: View(spoil(view.logp)) for name, view in batch.reference.items()})
    for how in ("whole", "rows"):
        found = gradient(method, batch, how)
        expect(found.finite(), f"NaN or inf where a log-probability of {where} is {bad}")
        untouched = [row for row in range(batch.rows) if row not in _reached(method, batch, (0, 3, 5))]
        torch.testing.assert_close(found.logp[untouched], clean.logp[untouched])
        if "current" in where:
            pulled = any(found.logp[row, position] for row, position in hit)
            expect(not pulled, "a decision whose log-probability is not finite has a gradient")


def _reached(method: Method, batch: Batch, rows: tuple[int, ...]) -> set[int]:
    """Rows whose gradient may depend on the log-probabilities of these: their own, their group's, or all of the update's."""
    wide = [part.needs() for _, part in method.parts() if part.seen_at_once() == "update"]
    wide += [part.prepare_needs() for _, part in method.parts() if part.prepares()]
    if any(need.endswith(".logp") for needs in wide for need in needs):
        return set(range(batch.rows))
    if slice_scope(method) == "group":
        return set(torch.isin(batch.group, batch.group[list(rows)]).nonzero().squeeze(1).tolist())
    return set(rows)


def infinite(method: Method) -> None:
    """Log-probabilities and log-ratios that are infinite, missing or very large stay finite."""
    for where in ("current", "proximal"):
        for bad in BAD:
            spoiled(method, where, bad)
    for distance in (100.0, -100.0):
        far(method, distance)


def far(method: Method, distance: float) -> None:
    """Very large log-ratios stay finite in float32."""
    batch = batch_for(method, seed=12, groups=2, samples=3, dtype=torch.float32)
    assert batch.proximal is not None
    found = gradient(method, replace_view(batch, "current", logp=batch.proximal.logp + distance))
    expect(found.finite(), f"NaN or inf where every log-ratio is {distance:g}")


# -- promises the learner relies on ----------------------------------------------------------------------------------------


def silent(method: Method) -> None:
    """Rows that the learner may leave out have no gradient."""
    batch = batch_for(method, seed=13, groups=3, samples=4, empty_rows=1)
    reward = batch.reward.clone()
    reward[4:8] = 1.0  # one group without signal
    batch = batch.replace(reward=reward, components={"task": reward})
    found = silent_rows(method, begin_update(method, annotate(method, bind(method, _states(method), batch))))
    expect(found[1], "a row without a decision is not silent")
    outcome = gradient(method, batch, use_filter=False)
    for name in VIEWS:
        expect(not getattr(outcome, name)[found].any(), f"rows that are left out as silent have a gradient in {name}")


def losses(method: Method) -> None:
    """The losses of decisions sum to the loss, and notes are columns of booleans."""
    batch = batch_for(method, seed=14, groups=3, samples=4)
    found, notes = decision_losses(method, begin_update(method, annotate(method, bind(method, _states(method), batch))))
    expect(
        found.shape == batch.sampled.shape, f"losses have the shape {tuple(found.shape)}, decisions {tuple(batch.sampled.shape)}"
    )
    torch.testing.assert_close(found.sum().detach(), gradient(method, batch, use_filter=False).loss)
    for name, column in notes.items():
        fits = column.shape == batch.sampled.shape and column.dtype == torch.bool
        expect(fits, f"the note {name!r} is {column.dtype} {tuple(column.shape)}, not a boolean for each decision")


def needs(method: Method) -> None:
    """It needs the columns that it names, and no others."""
    batch = batch_for(method, seed=16, groups=2, samples=3)
    for need in sorted(method.needs()):
        poorer = without_column(batch, need)
        if poorer is None:
            continue
        try:
            gradient(method, poorer if poorer.current is not None else poorer.replace(current=batch.current))
        except MethodError:
            continue
        raise AssertionError(f"it names {need!r} in its needs, and does without it")
    poorer = batch
    for need in ("reference.start.logp", "proximal.entropy", "proximal.value", "current.entropy", "current.value"):
        if need not in method.needs():
            poorer = without_column(poorer, need) or poorer
    assert_same(gradient(method, poorer), gradient(method, batch), exact=True)


def without_column(batch: Batch, need: str) -> Batch | None:
    """The batch without this column; ``None`` for what every batch has."""
    view, _, name = need.partition(".")
    if view == "reference":
        return batch.replace(reference={each: kept for each, kept in batch.reference.items() if each != name.split(".")[0]})
    if view not in ("current", "proximal") or need == "current.logp":
        return None
    return batch.replace(**{view: None}) if name == "logp" else replace_view(batch, view, **{name: None})


def _states(method: Method) -> dict:
    return {path: part.init() for path, part in stateful(method).items()}


@contextmanager
def _named(what: str) -> Iterator[None]:
    """Puts what was tried in front of an assertion's message."""
    try:
        yield
    except AssertionError as error:
        raise AssertionError(f"{what}: {error}") from None


def both(*checks: Callable[[Method], None]) -> Callable[[Method], None]:
    """Several checks as one line of a report."""

    def run(method: Method) -> None:
        for each in checks:
            each(method)

    return run


ON_BATCHES: Mapping[str, tuple[str, Callable[[Method], None]]] = {
    "complete": ("its slots fit together, and a missing column is refused by name", complete),
    "identity": ("derived without changes it is itself, with its parent's parts its parent", identity),
    "files": ("it comes back from a run's files as it is", files),
    "parts": ("its parts are frozen values that print themselves", parts),
    "cuts": ("how an update is cut changes nothing", both(cuts, cuts_in_float32)),
    "order": ("the order of rows and groups changes nothing", order),
    "padding": ("positions behind the last decision change nothing", padding),
    "masks": ("what was not sampled changes nothing and gets no gradient", masks),
    "empty": ("an empty mask gives zero, rows without a decision are in no mean", both(empty_mask, empty_rows)),
    "groups of one": ("a group of one sample is finite", group_of_one),
    "equal rewards": ("groups of equal rewards are finite", equal_rewards),
    "infinite": ("infinite, missing and very far log-probabilities stay finite", infinite),
    "silent": ("rows that are left out have no gradient; losses sum to the loss", both(silent, losses)),
    "needs": ("it needs the columns it names, and no others", needs),
}
"""What is checked on random batches: by name, what it says and how."""
