"""Memory that runs out in an update: it begins again with smaller slices and ends as if nothing had been."""

from __future__ import annotations

import dataclasses
import warnings

import pytest
import torch
from small_learner import SIZES, learner, weights

from upslope.errors import Remark, UserError
from upslope.learners.policy_gradient import PolicyGradient

SETTINGS = dataclasses.replace(SIZES, updates_per_step=1, lr=1e-3, record="all")
TIMES = ("seconds", "seconds_sampling", "tokens_per_second")


def made(method: str, tokens: int = 0) -> PolicyGradient:
    found = learner(method, SETTINGS)
    found.policy.slices.tokens = tokens
    found.rollout.reuse = False  # what sampling computed is read in another order by other slices
    return found


def fails(learner: PolicyGradient, at: tuple[int, ...]) -> list[int]:
    """Memory runs out in these backward passes, when the last layers have their gradients and the first ones not yet."""
    calls: list[int] = []

    def hook(grad: torch.Tensor) -> None:
        calls.append(len(calls) + 1)
        if calls[-1] in at:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.\nmore lines")

    learner.policy.model.model.layers[0].input_layernorm.weight.register_hook(hook)
    return calls


def stepped(made: PolicyGradient) -> tuple[torch.Tensor, dict[str, float], dict[str, torch.Tensor]]:
    metrics = {key: value for key, value in made.step(1).items() if key not in TIMES}
    assert made.traced is not None
    return weights(made), metrics, made.traced.columns


@pytest.mark.parametrize("method", ["dr-grpo", "grpo", "gspo", "pacs"])
def test_an_update_that_broke_off_in_its_second_slice_ends_as_one_that_did_not(method: str):
    whole, cut = made(method), made(method, 60)
    calls = fails(cut, (2,))
    with pytest.warns(Remark, match="memory ran out in a slice of .* tokens: .* the update begins again"):
        broken = stepped(cut)
    smaller = cut.policy.slices.tokens
    assert 0 < smaller <= 30 and len(calls) >= 6, "the second of two slices failed, and then there were four or more"
    expected = stepped(whole)
    torch.testing.assert_close(broken[0], expected[0], rtol=0, atol=1e-6)
    assert broken[1].keys() == expected[1].keys()
    assert all(broken[1][key] == pytest.approx(value, rel=1e-4, abs=1e-6) for key, value in expected[1].items())
    for name, column in expected[2].items():
        torch.testing.assert_close(broken[2][name], column, rtol=1e-5, atol=1e-6, equal_nan=True)
    # With the same slices from the beginning, not a bit is another.
    same = stepped(made(method, smaller))
    assert torch.equal(broken[0], same[0]) and broken[1] == same[1]
    assert all(torch.equal(broken[2][name], column) or column.isnan().any() for name, column in same[2].items())


def test_it_is_said_once_and_the_checkpoint_keeps_it():
    first = made("dr-grpo", 64)
    fails(first, (1, 4))
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        first.step(1)
    assert len([each for each in heard if issubclass(each.category, Remark)]) == 1
    tokens = first.policy.slices.tokens
    assert tokens < 32, "halved twice"
    again = made("dr-grpo", 64)
    again.load_state(first.state())
    assert again.policy.token_budget() == again.policy.frozen_copy().token_budget() == tokens


@pytest.mark.parametrize(("method", "recompute", "says"), [
    ("dr-grpo", 0, "a row .* --recompute all"),
    ("dr-grpo", 1, "a row .* --max-tokens"),
    ("pacs", 1, "a group of 4 rows .* --samples-per-task 2"),
])  # fmt: skip
def test_what_cannot_be_cut_further_ends_the_run_with_the_setting_that_makes_it_fit(method: str, recompute: int, says: str):
    never = made(method)
    never.policy.recompute = recompute
    fails(never, tuple(range(1, 1000)))
    before = weights(never)
    with pytest.warns(Remark), pytest.raises(UserError, match=says):
        never.step(1)
    assert torch.equal(weights(never), before)
    assert all(parameter.grad is None for parameter in never.policy.model.parameters()), "and nothing is left of the attempt"


def test_a_pass_without_gradient_is_cut_smaller_too(monkeypatch):
    """The reference's, here."""
    broken, whole, failed = made("grpo", 200), made("grpo"), []
    start = broken.references.start
    evaluate = start.evaluate

    def once(rows, *arguments, **more):
        if not failed:
            failed.append(rows.rows)
            raise torch.cuda.OutOfMemoryError("CUDA out of memory.")
        return evaluate(rows, *arguments, **more)

    monkeypatch.setattr(start, "evaluate", once)
    with pytest.warns(Remark, match="memory ran out"):
        found = stepped(broken)
    assert failed and broken.policy.slices.tokens < 200
    torch.testing.assert_close(found[0], stepped(whole)[0], rtol=0, atol=1e-6)
