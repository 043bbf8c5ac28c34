"""Tokens sampled beside demonstrated ones: how often each, whence the random numbers, and the gradient they give on average."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from upslope.errors import MethodError
from upslope.objective.base import ProbeInputs
from upslope.objective.functional.one_token import OneTokenSamples
from upslope.types import decision_keys


def _decisions(count: int, vocabulary: int, seed: int = 0) -> ProbeInputs:
    random = torch.Generator().manual_seed(seed)
    logits = torch.randn(count, vocabulary, generator=random, dtype=torch.float64)
    action = torch.randint(0, vocabulary, (count,), generator=random)
    key = decision_keys(torch.tensor([seed]), count).squeeze(0)
    return ProbeInputs(logits, torch.zeros(count, 1), action, torch.zeros(count), key)


def _gradient(probe: OneTokenSamples, seen: ProbeInputs) -> Tensor:
    logits = seen.logits.clone().requires_grad_()
    return torch.autograd.grad(probe(seen._replace(logits=logits)).sum(), logits)[0]


def test_the_column_is_the_mean_of_rewards_times_log_probabilities():
    seen, probe = _decisions(6, 5), OneTokenSamples(samples=7, wrong=-0.3, temperature=1.7)
    drawn = probe.drawn(seen)
    assert drawn.shape == (6, 7) and 0 < int((drawn == seen.action.unsqueeze(1)).sum()) < 42
    for place in range(6):
        logp = seen.logits[place].log_softmax(0)
        terms = [(1.0 if token == seen.action[place] else -0.3) * logp[token] for token in drawn[place].tolist()]
        torch.testing.assert_close(probe(seen)[place], sum(terms) / 7, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("temperature", [1.0, 1.3])
def test_each_token_is_drawn_as_often_as_the_policy_says_at_that_temperature(temperature: float):
    seen, samples = _decisions(3, 6), 40_000
    drawn = OneTokenSamples(samples=samples, temperature=temperature).drawn(seen)
    expected = (seen.logits / temperature).softmax(1)
    found = torch.stack([row.bincount(minlength=6) for row in drawn]) / samples
    error = (expected * (1 - expected) / samples).sqrt()
    assert float(((found - expected) / error).abs().max()) < 4


def test_rare_tokens_of_a_large_vocabulary_are_drawn_and_impossible_ones_never():
    logits = torch.zeros(1, 50_000)
    logits[0, 0], logits[0, -10_000:] = 22.0, -torch.inf  # all but 1.1e-5 of the mass on one token
    seen = ProbeInputs(logits, torch.zeros(1, 1), torch.tensor([0]), torch.zeros(1), torch.tensor([5]))
    probe = OneTokenSamples(samples=2_000_000, temperature=1.0)
    drawn = probe.drawn(seen)
    rare = int((drawn > 0).sum())
    assert abs(rare - 22.3) < 4 * 22.3**0.5, "2,000,000 times 40,000 / exp(22)"
    assert int(drawn.max()) < 40_000 and bool(probe(seen).isfinite().all())


def test_draws_are_those_of_the_decision_whoever_stands_beside_it():
    seen, probe = _decisions(8, 9), OneTokenSamples(samples=16)
    whole = probe.drawn(seen)
    turned = [None if column is None else column.flip(0) for column in seen]
    assert torch.equal(probe.drawn(ProbeInputs(*turned)).flip(0), whole)
    assert torch.equal(probe.drawn(ProbeInputs(*(column[3:5] for column in seen))), whole[3:5])
    assert not torch.equal(probe.drawn(seen._replace(key=seen.key + 1)), whole)
    assert torch.equal(OneTokenSamples(samples=4).drawn(seen), whole[:, :4]), "more samples add to fewer"


def test_its_mean_gradient_is_that_of_the_demonstrated_tokens_probability():
    """E over draws of the gradient, enumerated: sum over tokens of pi(a) R(a) grad log pi(a) = (1 - wrong) grad pi(x)."""
    seen, wrong = _decisions(5, 4), -0.4
    logits = seen.logits.clone().requires_grad_()
    chosen = logits.softmax(1).gather(1, seen.action.unsqueeze(1)).sum()
    expected = (1 - wrong) * torch.autograd.grad(chosen, logits)[0]
    logp = logits.log_softmax(1)
    reward = torch.full_like(logp, wrong).scatter(1, seen.action.unsqueeze(1), 1.0)
    enumerated = torch.autograd.grad((logp.exp().detach() * reward * logp).sum(), logits)[0]
    torch.testing.assert_close(enumerated, expected, rtol=1e-12, atol=1e-12)
    # By the probe itself: many copies of each decision, with keys of their own.
    copies, samples = 4000, 8
    keys = decision_keys(torch.arange(5), copies).flatten()
    many = ProbeInputs(*(column.repeat_interleave(copies, 0) for column in seen[:4]), keys)
    grads = _gradient(OneTokenSamples(samples, wrong, 1.0), many).view(5, copies, 4)
    error = grads.std(1) / copies**0.5
    assert float(((grads.mean(1) - expected) / error).abs().max()) < 4
    hot = _gradient(OneTokenSamples(samples, wrong, 2.0), many).view(5, copies, 4)
    assert float(((hot.mean(1) - expected) / error).abs().max()) > 8, "drawn at another temperature it is another gradient"


def test_without_keys_nothing_is_drawn():
    seen = _decisions(2, 3)._replace(key=None)
    with pytest.raises(MethodError, match="OneTokenSamples draws random numbers, and these rows have no keys"):
        OneTokenSamples()(seen)
