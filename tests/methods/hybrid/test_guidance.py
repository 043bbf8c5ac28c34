"""GHPO, Scaf-GRPO, ExPO and PoRo: what they are without help, and what a step learns with it."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from batches import gradient, random_batch
from small_learner import SIZES, learner, weights

from upslope.methods import find
from upslope.objective.estimator import annotate
from upslope.types import Source

grpo = find("grpo")


def unhelped(name: str):
    """The method with its help turned off, and grpo with what it changes besides."""
    method = find(name).with_knobs({"data.begin": 1.0, "data.hints": "AnswerShown()"})
    return method, grpo.derive(advantage=method.advantage, regularize=method.regularize)


@pytest.mark.checks("identity", "ghpo", "scaf-grpo", "expo-explain", "poro")
@pytest.mark.parametrize("name", ["ghpo", "scaf-grpo", "expo-explain", "poro"])
def test_without_help_it_is_grpo_to_the_last_bit(name):
    settings = dataclasses.replace(SIZES, updates_per_step=2)
    made = [learner(method, settings) for method in unhelped(name)]
    for each in made:
        for step in (1, 2):
            each.step(step)
    assert torch.equal(weights(made[0]), weights(made[1]))


def test_an_explanation_that_does_not_count_changes_nothing():
    """Weight 0 for what was explained: the same as no explanation, although it was sampled."""
    method = find("expo-explain").with_knobs({"terms.explained.scale": 0.0, "data.trigger": "always"})
    made = [learner(each) for each in (method, grpo)]
    found = [each.step(1) for each in made]
    assert found[0]["further_samples"] == 4 and torch.equal(weights(made[0]), weights(made[1]))


@pytest.mark.checks("oracle", "scaf-grpo", by="hand-worked numbers")
def test_one_success_among_failures_by_hand():
    """Rewards 1, 0, 0, 0: mean 1/4, spread 1/2 (over G - 1), so A = 1.5 and -0.5. In general (1 - 1/G)/std and -(1/G)/std."""
    batch = random_batch(seed=0, groups=1, samples=4, ragged=False)
    batch = batch.replace(reward=torch.tensor([1.0, 0, 0, 0], dtype=torch.float64))
    found = annotate(find("scaf-grpo"), batch).advantage[:, 0]
    assert found.tolist() == pytest.approx([1.5, -0.5, -0.5, -0.5], abs=1e-5)


@pytest.mark.checks("oracle", "ghpo", by="hand-worked numbers")
def test_the_spread_is_divided_with_the_released_epsilon():
    """Rewards 1, 0: mean 1/2, spread sqrt(1/2): A = ±0.5 / (0.70711 + 0.0001) = ±0.70701."""
    batch = random_batch(seed=0, groups=1, samples=2, ragged=False)
    found = annotate(find("ghpo"), batch.replace(reward=torch.tensor([1.0, 0.0], dtype=torch.float64))).advantage[:, 0]
    assert found.tolist() == pytest.approx([0.70701, -0.70701], abs=1e-5)


@pytest.mark.checks("oracle", "expo-explain", by="hand-worked numbers")
def test_the_term_of_explanations_by_hand():
    """Two explanations of 2 and 1 tokens: each weighs half, its tokens alike: d loss / d log π = -λ/4, -λ/4 and -λ/2."""
    term = find("expo-explain").terms[0][1]
    batch = random_batch(seed=0, groups=1, samples=2, positions=2, ragged=False)
    on = torch.tensor([[1.0, 1.0], [1.0, 0.0]], dtype=torch.float64)
    found = gradient(term.as_method("explained", grpo), batch.replace(sampled=on)).logp * term.scale
    assert torch.allclose(found, torch.tensor([[-0.125, -0.125], [-0.25, 0.0]], dtype=torch.float64))


@pytest.mark.checks("oracle", "poro", by="hand-worked numbers")
def test_all_answers_are_compared_with_each_other():
    """Two of one's own fail, two with the documents are right: mean 1/2, spread sqrt(1/3): A = ∓0.86603."""
    batch = random_batch(seed=0, groups=1, samples=4, ragged=False)
    source = torch.tensor([0, 0, int(Source.FURTHER), int(Source.FURTHER)])
    batch = batch.replace(reward=torch.tensor([0.0, 0, 1, 1], dtype=torch.float64), label={"source": source})
    found = annotate(find("poro"), batch).advantage[:, 0]
    assert found.tolist() == pytest.approx([-0.86603, -0.86603, 0.86603, 0.86603], abs=1e-5)


def test_poro_learns_without_the_documents_and_divides_by_whom_it_says():
    """The very rows of a step: their inputs are the plain prompts, and the behaviour is that of the prompts with documents."""
    method = find("poro").with_knobs({"data.hints": "AnswerShown()"})
    made = learner(method)
    made.step(1)
    rows = made.last
    guided = rows.label["source"] == Source.FURTHER
    assert guided.sum() == 16 and rows.rows == 32
    prompts = made.policy.decode_all(rows.inputs.prompt.tolist())
    assert not any(":" in prompt for prompt in prompts)
    asked = [note["asked"] for note, own in zip(rows.info, guided.tolist(), strict=True) if own]
    assert all(":" in prompt for prompt in asked)
    strict = learner(method.with_knobs({"ratio.against": "behavior"}))
    assert math.isfinite(strict.step(1)["loss"]) and not torch.equal(weights(strict), weights(made))
