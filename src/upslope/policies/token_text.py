"""Token text: what each single token says, for people who look at an answer token by token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

WORD_MARK = "▁"
"""How SentencePiece writes the blank before a word, which decoding a token by itself leaves out."""


class TokenText:
    """Texts of a tokenizer's tokens, each worked out once. A token that is only part of a character is shown as ``\\ufffd``."""

    def __init__(self, tokenizer: Any):
        self.tokenizer = tokenizer
        self.known: dict[int, str] = {}

    def __call__(self, ids: Sequence[int]) -> list[str]:
        known = self.known
        for token in ids:
            if token not in known:
                known[token] = self._piece(token)
        return [known[token] for token in ids]

    def _piece(self, token: int) -> str:
        text = self.tokenizer.decode([token], skip_special_tokens=False, clean_up_tokenization_spaces=False)
        name = self.tokenizer.convert_ids_to_tokens(token)
        begins_a_word = isinstance(name, str) and name.startswith(WORD_MARK) and not text.startswith(" ")
        return f" {text}" if begins_a_word else text
