"""One table for all methods: edge cases, cuts, permutations, padding, files. A new method of the catalogue is covered by itself."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from batches import CUTS, Outcome, assert_same, gradient, kept_rows, map_positions, random_batch, replace_view, right_pad
from torch import Tensor

from upslope.errors import MethodError
from upslope.methods import catalogue
from upslope.objective.aggregate import SequenceMeanTokenSum, SequenceSumTokenMean, TokenMean
from upslope.objective.estimator import (
    annotate,
    begin_update,
    bind,
    brought,
    check,
    decision_losses,
    early_columns,
    silent_rows,
    slice_scope,
    stateful,
)  # fmt: skip
from upslope.objective.ratio import EntropyMix, Hybrid, NoRatio
from upslope.objective.surrogate import BranchClip, PessimisticClip
from upslope.runtime.method_file import dump_method, load_method
from upslope.types import SINGLE_SLOTS, Batch, Method, View

METHODS = list(catalogue().values())
grpo, dhpo = (catalogue()[name] for name in ("grpo", "dhpo"))
each_method = pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)


# -- how an update is cut --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", CUTS)
@each_method
def test_how_an_update_is_cut_changes_nothing(method: Method, how: str):
    batch = random_batch(seed=1, groups=3, samples=4, empty_rows=1)
    whole = gradient(method, batch)
    assert whole.logp.abs().max() > 0, "a test on a zero gradient would show nothing"
    assert_same(gradient(method, batch, how), whole)


@each_method
def test_cuts_agree_to_rounding_in_float32(method: Method):
    batch = random_batch(seed=2, groups=3, samples=4, dtype=torch.float32)
    whole = gradient(method, batch)
    assert whole.logp.dtype == torch.float32
    for how in CUTS:
        assert_same(gradient(method, batch, how), whole, rtol=1e-5, atol=1e-7)


@each_method
def test_order_of_rows_within_groups_changes_nothing(method: Method):
    batch = random_batch(seed=3, groups=3, samples=4, empty_rows=1)
    order = torch.tensor([2, 0, 3, 1, 5, 4, 7, 6, 11, 8, 9, 10])
    shuffled = gradient(method, batch.take_rows(order))
    whole = gradient(method, batch)
    assert_same(shuffled, Outcome(whole.loss, whole.logp[order], whole.entropy[order], whole.value[order]))


@each_method
def test_order_of_groups_changes_nothing(method: Method):
    batch = random_batch(seed=3, groups=3, samples=4)
    order = torch.tensor([8, 0, 4, 1, 9, 5, 2, 10, 6, 3, 7, 11])  # groups interleaved
    shuffled = gradient(method, batch.take_rows(order))
    whole = gradient(method, batch)
    assert_same(shuffled, Outcome(whole.loss, whole.logp[order], whole.entropy[order], whole.value[order]))


@each_method
def test_right_padding_changes_nothing(method: Method):
    batch = random_batch(seed=4, groups=3, samples=4, empty_rows=1)
    whole, padded = gradient(method, batch), gradient(method, right_pad(batch, 5))
    assert padded.logp.shape[1] == batch.sampled.shape[1] + 5
    assert_same(Outcome(padded.loss, padded.logp[:, :-5], padded.entropy[:, :-5], padded.value[:, :-5]), whole)
    assert all(not getattr(padded, name)[:, -5:].any() for name in ("logp", "entropy", "value"))


# -- what was not sampled --------------------------------------------------------------------------------------------------


def _with_nan_where_not_sampled(batch: Batch) -> Batch:
    """NaN in every float column, in all views, wherever the policy did not decide."""

    def spoil(column: Tensor) -> Tensor:
        return torch.where(batch.sampled > 0, column, torch.nan) if column.is_floating_point() else column

    return map_positions(batch, spoil).replace(sampled=batch.sampled)


@pytest.mark.parametrize("how", ["whole", "packed"])
@each_method
def test_garbage_where_nothing_was_sampled_changes_nothing(method: Method, how: str):
    batch = random_batch(seed=5, groups=3, samples=4, empty_rows=1)
    spoiled = _with_nan_where_not_sampled(batch)
    assert spoiled.proximal.logp.isnan().any() and spoiled.step_reward.isnan().any()
    assert_same(gradient(method, spoiled, how), gradient(method, batch), exact=how == "whole")


@each_method
def test_what_was_not_sampled_gets_no_gradient(method: Method):
    batch = random_batch(seed=6, groups=3, samples=4, empty_rows=1)
    found = gradient(method, batch)
    off = batch.sampled == 0
    assert off[0].any() and off[0, :-1].any(), "a hole in the middle of a row belongs to this test"
    for name in ("logp", "entropy", "value"):
        assert not getattr(found, name)[off].any(), name


# -- edge cases ------------------------------------------------------------------------------------------------------------


LEARNS_FROM_EQUAL_REWARDS = {"ngrpo"}
"""Its virtual sample tells a group of failures from nothing."""


@each_method
def test_equal_rewards_are_finite_and_no_signal_for_groups(method: Method):
    batch = random_batch(seed=7, groups=3, samples=6)
    reward = torch.full_like(batch.reward, 0.1)  # six times 0.1 has a mean that is not 0.1: equality must not go through it
    found = gradient(method, batch.replace(reward=reward, components={"task": reward}))
    assert found.finite()
    compares = "group" in method.advantage.needs() and method.name not in LEARNS_FROM_EQUAL_REWARDS
    if compares and not method.regularize and not method.models:
        plain = method.derive(reward=())  # a penalty for length may well tell the rows apart
        assert not gradient(plain, batch.replace(reward=reward, components={"task": reward})).logp.any()


@each_method
def test_a_group_of_one_is_finite(method: Method):
    assert gradient(method, random_batch(seed=8, groups=4, samples=1)).finite()


@each_method
def test_one_row_of_one_decision_is_finite(method: Method):
    assert gradient(method, random_batch(seed=8, groups=1, samples=1, positions=1, ragged=False)).finite()


@each_method
def test_an_empty_mask_gives_zero_loss_and_zero_gradient(method: Method):
    batch = random_batch(seed=9, groups=2, samples=3)
    found = gradient(method, batch.replace(sampled=torch.zeros_like(batch.sampled)))
    assert found.loss == 0 and not found.logp.any() and not found.entropy.any() and not found.value.any()


@each_method
def test_rows_without_a_decision_are_finite_and_in_no_mean(method: Method):
    batch = random_batch(seed=10, groups=2, samples=4, empty_rows=2)
    whole = gradient(method, batch, use_filter=False)
    assert whole.finite() and not whole.logp[1:3].any()
    # Their rewards count in the group's statistics, so the advantages are taken from the whole batch; the means do not.
    states = {path: part.init() for path, part in stateful(method).items()}
    annotated = annotate(method, bind(method, states, batch))
    there = torch.tensor([0, 3, 4, 5, 6, 7])
    shares = begin_update(method, annotated).share
    torch.testing.assert_close(begin_update(method, annotated.take_rows(there)).share, shares[there])


def _reached(method: Method, batch: Batch, rows: tuple[int, ...]) -> set[int]:
    """Rows whose gradient may depend on the log-probabilities of these: their own, their group's, or all of the update's."""
    wide = [part.needs() for _, part in method.parts() if part.seen_at_once() == "update"]
    wide += [part.prepare_needs() for _, part in method.parts() if part.prepares()]
    if any(need.endswith(".logp") for needs in wide for need in needs):
        return set(range(batch.rows))
    if slice_scope(method) == "group":
        return set(torch.isin(batch.group, batch.group[list(rows)]).nonzero().squeeze(1).tolist())
    return set(rows)


BAD = {"nan": torch.nan, "inf": torch.inf, "-inf": -torch.inf}


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize(
    "where",
    ["current", *(pytest.param(each, marks=pytest.mark.slow) for each in ("proximal", "reference", "current and proximal"))],
)
@each_method
def test_infinite_and_missing_log_probabilities_stay_finite(method: Method, where: str, bad: str):
    batch = random_batch(seed=11, groups=2, samples=3)
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
        assert found.finite()
        untouched = [row for row in range(batch.rows) if row not in _reached(method, batch, (0, 3, 5))]
        torch.testing.assert_close(found.logp[untouched], clean.logp[untouched])
        if "current" in where:
            assert not any(found.logp[row, position] for row, position in hit), "a spoiled decision cannot say where to go"


@pytest.mark.parametrize("distance", [100.0, -100.0])
@each_method
def test_very_large_log_ratios_stay_finite_in_float32(method: Method, distance: float):
    batch = random_batch(seed=12, groups=2, samples=3, dtype=torch.float32)
    found = gradient(method, replace_view(batch, "current", logp=batch.proximal.logp + distance))
    assert found.finite()


# -- promises the learner relies on ----------------------------------------------------------------------------------------


@each_method
def test_silent_rows_have_no_gradient(method: Method):
    batch = random_batch(seed=13, groups=3, samples=4, empty_rows=1)
    reward = batch.reward.clone()
    reward[4:8] = 1.0  # one group without signal
    batch = batch.replace(reward=reward, components={"task": reward})
    states = {path: part.init() for path, part in stateful(method).items()}
    update = begin_update(method, annotate(method, bind(method, states, batch)))
    silent = silent_rows(method, update)
    assert silent[1], "a row without a decision is always silent"
    found = gradient(method, batch, use_filter=False)
    for name in ("logp", "entropy", "value"):
        assert not getattr(found, name)[silent].any(), name


def test_aggregates_give_their_means():
    batch = begin_update(grpo, random_batch(seed=1, empty_rows=1))
    lengths, rows = batch.lengths(), 11
    assert TokenMean()(batch).sum().item() == pytest.approx(1)
    assert grpo.aggregate(batch).sum(1).tolist() == pytest.approx([1 / rows if length else 0.0 for length in lengths])
    assert SequenceSumTokenMean()(batch).sum(1).tolist() == pytest.approx([1.0 if length else 0.0 for length in lengths])
    torch.testing.assert_close(SequenceMeanTokenSum()(batch).sum(1), lengths / rows)


@each_method
def test_decision_losses_sum_to_the_loss_and_notes_are_columns(method: Method):
    batch = random_batch(seed=14, groups=3, samples=4)
    states = {path: part.init() for path, part in stateful(method).items()}
    losses, notes = decision_losses(method, begin_update(method, annotate(method, bind(method, states, batch))))
    assert losses.shape == batch.sampled.shape
    torch.testing.assert_close(losses.sum().detach(), gradient(method, batch, use_filter=False).loss)
    for name, column in notes.items():
        assert column.shape == batch.sampled.shape and column.dtype == torch.bool, name


@each_method
def test_a_filter_keeps_whole_rows_in_order(method: Method):
    batch = random_batch(seed=15, groups=3, samples=4)
    rows = kept_rows(method, batch)
    assert rows.tolist() == sorted(rows.tolist())
    if not method.filter:
        assert len(rows) == batch.rows


# -- what it needs ---------------------------------------------------------------------------------------------------------


def _without_column(batch: Batch, need: str) -> Batch | None:
    """The batch without this column; ``None`` for what every batch has."""
    view, _, column = need.partition(".")
    if view == "reference":
        return batch.replace(reference={name: kept for name, kept in batch.reference.items() if name != column.split(".")[0]})
    if view not in ("current", "proximal") or need == "current.logp":
        return None
    return batch.replace(**{view: None}) if column == "logp" else replace_view(batch, view, **{column: None})


@each_method
def test_what_it_says_it_needs_it_needs(method: Method):
    batch = random_batch(seed=16, groups=2, samples=3)
    for need in method.needs():
        poorer = _without_column(batch, need)
        if poorer is None:
            continue
        if poorer.current is None:
            poorer = poorer.replace(current=batch.current)
        with pytest.raises(MethodError):
            gradient(method, poorer)


@each_method
def test_what_it_does_not_name_it_does_not_need(method: Method):
    batch = random_batch(seed=16, groups=2, samples=3)
    poorer = batch
    for need in ("reference.start.logp", "proximal.entropy", "proximal.value", "current.entropy", "current.value"):
        if need not in method.needs():
            poorer = _without_column(poorer, need)
    whole = gradient(method, batch)
    assert_same(gradient(method, poorer), whole, exact=True)


@each_method
def test_a_ratio_without_the_proximal_policy_is_refused(method: Method):
    batch = random_batch(seed=16, groups=2, samples=3).replace(proximal=None)
    if method.ratio.branches() and getattr(method.ratio, "against", "proximal") == "proximal":
        with pytest.raises(MethodError):
            gradient(method, batch)
    else:
        assert gradient(method, batch).finite()


@each_method
def test_check_passes_with_all_columns_and_names_a_missing_one(method: Method):
    check(method, method.needs())
    for need in method.needs() - brought(method):
        with pytest.raises(MethodError, match=need.replace(".", r"\.")):
            check(method, method.needs() - {need})


@pytest.mark.parametrize("slot", SINGLE_SLOTS)
@each_method
def test_check_refuses_an_incomplete_method(method: Method, slot: str):
    with pytest.raises(MethodError, match=slot):
        check(method.without(slot))


def test_a_ratio_and_a_surrogate_that_do_not_fit_are_refused():
    for method in (grpo.derive(ratio=NoRatio()), grpo.derive(surrogate=BranchClip()), dhpo.derive(surrogate=PessimisticClip())):
        with pytest.raises(MethodError, match="cannot bound the ratio"):
            check(method)


def test_scopes_of_slices():
    entropy = {over: dhpo.derive(ratio=Hybrid(mix=EntropyMix(over=over))) for over in ("response", "group", "batch")}
    assert [slice_scope(catalogue()[name]) for name in ("ppo", "dapo", "gspo", "gmpo")] == [
        "decision",
        "decision",
        "sequence",
        "sequence",
    ]
    assert {over: slice_scope(method) for over, method in entropy.items()} == dict.fromkeys(entropy, "sequence")
    assert slice_scope(dhpo.derive(ratio=Hybrid(mix=EntropyMix(over="group", source="current")))) == "group"
    looking_ahead = {name for name, method in catalogue().items() if early_columns(method)}
    assert looking_ahead == {"bapo", "clip-cov", "kl-cov", "capo", "safe"} and not any(map(early_columns, entropy.values()))


# -- as a value ------------------------------------------------------------------------------------------------------------


@each_method
def test_toml_gives_the_method_back_exactly(method: Method):
    text = dump_method(method)
    back = load_method(text)
    assert back == method and hash(back) == hash(method)
    assert dump_method(back) == text
    assert [(path, type(part)) for path, part in back.parts()] == [(path, type(part)) for path, part in method.parts()]


@each_method
def test_it_says_what_it_is(method: Method):
    assert method.name in str(method) and method.paper.title and method.formula and method.differs
    for slot in SINGLE_SLOTS:
        assert str(getattr(method, slot)) in str(method)


@pytest.mark.parametrize("method", [method for method in METHODS if method.parent], ids=lambda method: method.name)
def test_it_differs_from_its_parent_only_where_the_diff_says(method: Method):
    parent = catalogue()[method.parent]
    changed = method.diff(parent)
    assert changed, "a method equal to its parent is not a method"
    assert parent.derive(**{slot: getattr(method, slot) for slot in changed}).diff(method) == {}


@each_method
def test_every_part_prints_and_is_frozen(method: Method):
    for path, part in method.parts():
        assert str(part).startswith(type(part).__name__), path
        for field in dataclasses.fields(part):
            assert getattr(part, field.name) is not None, f"{path}.{field.name}"
            with pytest.raises(dataclasses.FrozenInstanceError):
                setattr(part, field.name, 0)
