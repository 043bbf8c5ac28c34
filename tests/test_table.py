"""One table for all methods: edge cases, cuts, permutations, padding, files. A new method of the catalogue is covered by itself."""

from __future__ import annotations

import pytest
import torch
from batches import CUTS, gradient, kept_rows, random_batch

from upslope.errors import MethodError
from upslope.learners import actor_critic
from upslope.methods import catalogue
from upslope.objective.aggregate import SequenceMeanTokenSum, SequenceSumTokenMean, TokenMean
from upslope.objective.estimator import (
    begin_update,
    check,
    early_columns,
    slice_scope,
)  # fmt: skip
from upslope.objective.ratio import EntropyMix, Hybrid, NoRatio
from upslope.objective.surrogate import BranchClip, PessimisticClip
from upslope.runtime.method_file import dump_method, load_method
from upslope.testing import checks
from upslope.testing.batches import batch_for, with_needs
from upslope.testing.drawn import kinds
from upslope.types import SINGLE_SLOTS, Method

METHODS = [method for method in catalogue().values() if method.learner != "measure"]
SAMPLING = [method for method in METHODS if method.learner == "policy-gradient"]
STORING = [method for method in METHODS if method.learner == "actor-critic"]
CASES = [pytest.param(method, {}, id=method.name) for method in SAMPLING]
CASES += [pytest.param(method, {"kind": kind}, id=f"{method.name}-{kind}") for method in STORING for kind in kinds(method)]
grpo, dhpo = (catalogue()[name] for name in ("grpo", "dhpo"))
each_method = pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
each_case = pytest.mark.parametrize(("method", "more"), CASES)
"""A method of stored experience is tried with each kind of action that it takes."""
sampling_method = pytest.mark.parametrize("method", SAMPLING, ids=lambda method: method.name)
"""Those that learn from what they just sampled: ratios, groups and views of the policy are theirs alone."""


# -- how an update is cut --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", CUTS)
@each_case
def test_how_an_update_is_cut_changes_nothing(method: Method, more: dict, how: str):
    checks.cuts(method, [how], **more)


@pytest.mark.slow
@each_case
def test_cuts_agree_to_rounding_in_float32(method: Method, more: dict):
    checks.cuts_in_float32(method, **more)


@each_case
def test_order_of_rows_within_groups_changes_nothing(method: Method, more: dict):
    checks.order(method, [checks.WITHIN_GROUPS], **more)


@each_case
def test_order_of_groups_changes_nothing(method: Method, more: dict):
    checks.order(method, [checks.INTERLEAVED], **more)


@each_case
def test_right_padding_changes_nothing(method: Method, more: dict):
    checks.padding(method, **more)


# -- what was not sampled --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["whole", "packed"])
@each_case
def test_garbage_where_nothing_was_sampled_changes_nothing(method: Method, more: dict, how: str):
    checks.garbage(method, how, **more)


@each_case
def test_what_was_not_sampled_gets_no_gradient(method: Method, more: dict):
    checks.unsampled(method, **more)


# -- edge cases ------------------------------------------------------------------------------------------------------------


LEARNS_FROM_EQUAL_REWARDS = {"ngrpo", "p3o", "f-dpg"}
"""The virtual sample of the first tells a group of failures from nothing; the others count the KL as part of the reward."""


@sampling_method
def test_equal_rewards_are_finite_and_no_signal_for_groups(method: Method):
    batch = random_batch(seed=7, groups=3, samples=6)
    reward = torch.full_like(batch.reward, 0.1)  # six times 0.1 has a mean that is not 0.1: equality must not go through it
    batch = with_needs(batch.replace(reward=reward, components={"task": reward}), method, seed=7)
    found = gradient(method, batch)
    assert found.finite()
    compares = "group" in method.advantage.needs() and method.name not in LEARNS_FROM_EQUAL_REWARDS
    if compares and not method.regularize and not method.models:
        plain = method.derive(reward=())  # a penalty for length may well tell the rows apart
        assert not gradient(plain, batch).logp.any()


@each_case
def test_a_group_of_one_and_one_row_of_one_decision_are_finite(method: Method, more: dict):
    checks.group_of_one(method, **more)


@each_case
def test_an_empty_mask_gives_zero_loss_and_zero_gradient(method: Method, more: dict):
    checks.empty_mask(method, **more)


@each_case
def test_rows_without_a_decision_are_finite_and_in_no_mean(method: Method, more: dict):
    checks.empty_rows(method, **more)


@pytest.mark.parametrize(("method", "more"), [case for case in CASES if case.values[1]])
def test_equal_rewards_of_stored_experience_are_finite(method: Method, more: dict):
    checks.equal_rewards(method, **more)


@pytest.mark.parametrize("size", [1e4, -1e4])
@pytest.mark.parametrize(("method", "more"), [case for case in CASES if case.values[1]])
def test_large_rewards_and_saturated_networks_stay_finite(method: Method, more: dict, size: float):
    checks.extreme(method, size, **more)


@pytest.mark.parametrize("bad", checks.BAD)
@pytest.mark.parametrize(
    "where",
    ["current", *(pytest.param(each, marks=pytest.mark.slow) for each in ("proximal", "reference", "current and proximal"))],
)
@sampling_method
def test_infinite_and_missing_log_probabilities_stay_finite(method: Method, where: str, bad: str):
    checks.spoiled(method, where, bad)


@pytest.mark.parametrize("distance", [100.0, -100.0])
@sampling_method
def test_very_large_log_ratios_stay_finite_in_float32(method: Method, distance: float):
    checks.far(method, distance)


# -- promises the learner relies on ----------------------------------------------------------------------------------------


@sampling_method
def test_silent_rows_have_no_gradient(method: Method):
    checks.silent(method)


def test_aggregates_give_their_means():
    batch = begin_update(grpo, random_batch(seed=1, empty_rows=1))
    lengths, rows = batch.lengths(), 11
    assert TokenMean()(batch).sum().item() == pytest.approx(1)
    assert grpo.aggregate(batch).sum(1).tolist() == pytest.approx([1 / rows if length else 0.0 for length in lengths])
    assert SequenceSumTokenMean()(batch).sum(1).tolist() == pytest.approx([1.0 if length else 0.0 for length in lengths])
    torch.testing.assert_close(SequenceMeanTokenSum()(batch).sum(1), lengths / rows)


@each_case
def test_decision_losses_sum_to_the_loss_and_notes_are_columns(method: Method, more: dict):
    checks.losses(method, **more)


@sampling_method
def test_a_filter_keeps_whole_rows_in_order(method: Method):
    batch = random_batch(seed=15, groups=3, samples=4)
    rows = kept_rows(method, batch)
    assert rows.tolist() == sorted(rows.tolist())
    if not method.filter:
        assert len(rows) == batch.rows


# -- what it needs ---------------------------------------------------------------------------------------------------------


@each_case
def test_it_needs_the_columns_it_names_and_no_others(method: Method, more: dict):
    checks.needs(method, **more)


@sampling_method
def test_a_ratio_without_the_proximal_policy_is_refused(method: Method):
    batch = batch_for(method, seed=16, groups=2, samples=3).replace(proximal=None)
    reads = any(need.startswith("proximal.") for need in method.advantage.needs())
    elsewhere = ((), ("reference",), ("score",))
    moved = method.ratio.branches() not in elsewhere and getattr(method.ratio, "against", "proximal") == "proximal"
    if reads or moved:
        with pytest.raises(MethodError):
            gradient(method, batch)
    else:
        assert gradient(method, batch).finite()


@each_method
def test_check_passes_with_all_columns_and_names_a_missing_one(method: Method):
    checks.complete(method)


@pytest.mark.parametrize("slot", SINGLE_SLOTS)
@sampling_method
def test_check_refuses_an_incomplete_method(method: Method, slot: str):
    with pytest.raises(MethodError, match=slot):
        check(method.without(slot))


@pytest.mark.parametrize("method", STORING, ids=lambda method: method.name)
def test_check_refuses_stored_experience_without_data_or_aggregate(method: Method):
    for slot in ("data", "aggregate"):
        with pytest.raises(MethodError, match=slot):
            actor_critic.check(method.without(slot), method.needs())


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
    assert looking_ahead == {"bapo", "clip-cov", "kl-cov", "capo", "safe", "kto"} and not any(map(early_columns, entropy.values()))


# -- as a value ------------------------------------------------------------------------------------------------------------


@each_method
def test_toml_gives_the_method_back_exactly(method: Method):
    checks.files(method)
    back = load_method(dump_method(method))
    assert [(path, type(part)) for path, part in back.parts()] == [(path, type(part)) for path, part in method.parts()]


@each_method
def test_it_says_what_it_is(method: Method):
    assert method.name in str(method) and method.paper.title and method.formula and method.differs
    for slot in SINGLE_SLOTS:
        part = getattr(method, slot)
        assert part is None or str(part) in str(method)


@pytest.mark.parametrize("method", [method for method in METHODS if method.parent], ids=lambda method: method.name)
def test_it_differs_from_its_parent_only_where_the_diff_says(method: Method):
    parent = catalogue()[method.parent]
    changed = method.diff(parent)
    assert changed, "a method equal to its parent is not a method"
    assert parent.derive(**{slot: getattr(method, slot) for slot in changed}).diff(method) == {}
    checks.identity(method)


@each_method
def test_every_part_prints_and_is_frozen(method: Method):
    checks.parts(method)
