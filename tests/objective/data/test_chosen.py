"""The chosen answers as rows of their own: a term on them is supervised learning beside the loss of contests."""

from __future__ import annotations

import torch
from small_learner import SIZES, learner, weights

from upslope.methods import find
from upslope.objective.advantage.constant import ConstantAdvantage
from upslope.objective.aggregate import SequenceMeanTokenMean
from upslope.objective.data.chosen import ChosenAside
from upslope.objective.ratio import NoRatio
from upslope.objective.surrogate import LogLikelihood
from upslope.objective.terms import Term


def with_term(scale: float):
    term = Term("chosen", ConstantAdvantage(), NoRatio(), LogLikelihood(), SequenceMeanTokenMean(), when="with", scale=scale)
    return find("dpo").derive(name="dpo-sft", data=(ChosenAside(),), terms={"sft": term})


def test_the_term_learns_from_the_chosen_answers_alone():
    made = learner(with_term(1.0), SIZES)
    metrics = made.step(1)
    chosen, rows = made.last.aside["chosen"], made.last
    assert chosen.rows == int((rows.label["side"] > 0).sum()) and bool((chosen.label["side"] == 1).all())
    assert metrics["sft_loss"] > 0
    assert metrics["logp_chosen"] < 0


def test_a_term_of_scale_zero_is_dpo():
    plain, held, imitating = learner("dpo", SIZES), learner(with_term(0.0), SIZES), learner(with_term(1.0), SIZES)
    for made in (plain, held, imitating):
        made.step(1)
    assert torch.equal(weights(plain), weights(held)) and not torch.equal(weights(plain), weights(imitating))
