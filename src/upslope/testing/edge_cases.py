"""What every method must bear, on random batches: equal rewards, single samples, nothing sampled, numbers that are not finite."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor

from upslope.objective.estimator import annotate, begin_update, bind, slice_scope
from upslope.testing.batches import batch_for, expect, first_states, gradient, replace_view
from upslope.testing.table_nets import TableNets
from upslope.types import Batch, Method, View

BAD: Mapping[str, float] = {"nan": torch.nan, "inf": torch.inf, "-inf": -torch.inf}


def equal_rewards(method: Method, **more: Any) -> None:
    """Groups of equal rewards give a finite loss and gradient."""
    batch = batch_for(method, seed=7, groups=3, samples=6, **more)
    reward, paid = torch.full_like(batch.reward, 0.1), torch.full_like(batch.sampled, 0.1)
    equal = batch.replace(reward=reward, components={"task": reward})
    equal = equal.replace(step_reward=paid) if method.learner == "actor-critic" else equal
    expect(gradient(method, equal).finite(), "NaN or inf where all rewards are 0.1")


def group_of_one(method: Method, **more: Any) -> None:
    """Groups of one sample, and a row of one decision, give a finite loss and gradient."""
    batch = batch_for(method, seed=8, groups=4, samples=1, **more)
    expect(gradient(method, batch).finite(), "NaN or inf for groups of one sample")
    single = batch_for(method, seed=8, groups=1, samples=1, positions=1, ragged=False, **more)
    expect(gradient(method, single).finite(), "NaN or inf for one row of one decision")


def empty_mask(method: Method, **more: Any) -> None:
    """A batch in which nothing was sampled gives zero loss and zero gradient."""
    batch = batch_for(method, seed=9, groups=2, samples=3, **more)
    found = gradient(method, batch.replace(sampled=torch.zeros_like(batch.sampled)))
    expect(found.loss == 0, f"its loss is {float(found.loss):g} where nothing was sampled")
    for name, column in (found.per_decision() | dict(found.weights)).items():
        expect(not column.any(), f"there is a gradient in {name} where nothing was sampled")


def empty_rows(method: Method, **more: Any) -> None:
    """Rows without a decision are finite and in no mean."""
    batch = batch_for(method, seed=10, groups=2, samples=4, empty_rows=2, **more)
    whole = gradient(method, batch, use_filter=False)
    silent = not any(column[1:3].any() for column in whole.per_decision().values())
    expect(whole.finite() and silent, "rows without a decision give NaN or a gradient")
    # Their rewards count in the group's statistics, so the advantages are taken from the whole batch; the means do not.
    annotated = annotate(method, bind(method, first_states(method), batch))
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
    compares = [part.needs() for _, part in method.held("advantage")]  # what it compares within a group it may have from a policy
    compared = any("group" in needs and any(need.endswith(".logp") for need in needs) for needs in compares)
    if slice_scope(method) == "group" or compared:
        return set(torch.isin(batch.group, batch.group[list(rows)]).nonzero().squeeze(1).tolist())
    return set(rows)


def infinite(method: Method, **more: Any) -> None:
    """Log-probabilities and log-ratios that are infinite, missing or very large stay finite; so do far rewards and networks."""
    if method.learner == "actor-critic":
        for size in (1e4, -1e4):
            extreme(method, size, **more)
        return
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


def extreme(method: Method, size: float, **more: Any) -> None:
    """Large rewards, actions at the ends of their range and networks that saturate stay finite in float32."""
    batch = batch_for(method, seed=12, groups=2, samples=3, dtype=torch.float32, **more)
    assert batch.action is not None and batch.step_reward is not None
    nets = cast(TableNets, batch.nets)
    ends = batch.action.sign() if batch.action.is_floating_point() else batch.action
    far_off = nets.take(lambda column: 100.0 * column if column.is_floating_point() else column)
    unknown = {**batch.signal, "return_to_go": torch.full_like(batch.sampled, -torch.inf)}
    for name, spoilt in {
        f"where rewards are {size:g}": batch.replace(step_reward=torch.full_like(batch.step_reward, size)),
        "where actions are at the ends of their range": batch.replace(action=ends),
        "where observations are far off": batch.replace(nets=far_off),
        "where returns are not known": batch.replace(signal=unknown),
    }.items():
        expect(gradient(method, spoilt).finite(), f"NaN or inf {name}")
