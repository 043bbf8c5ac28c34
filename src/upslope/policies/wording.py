"""Between text and token ids: what a tokenizer makes of prompts and answers, many at a time, and which tokens end a text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def encoded(tokenizer: Any, prompts: Sequence[str]) -> list[list[int]]:
    """The ids of each prompt; one of a chat model becomes a user's message."""
    if not getattr(tokenizer, "chat_template", None):
        return tokenizer(list(prompts)).input_ids if prompts else []
    said = [[{"role": "user", "content": prompt}] for prompt in prompts]
    # As text first: templates write their special tokens themselves, so none may be added when it becomes ids.
    texts = [tokenizer.apply_chat_template(each, add_generation_prompt=True, tokenize=False) for each in said]
    return tokenizer(texts, add_special_tokens=False).input_ids if texts else []


def decoded(tokenizer: Any, rows: Sequence[Sequence[int]]) -> list[str]:
    """The text of each row of ids, without special tokens."""
    if getattr(tokenizer, "is_fast", False):  # all at once, without what `transformers` does to each row before and after
        return tokenizer.backend_tokenizer.decode_batch([list(row) for row in rows], skip_special_tokens=True)
    return [tokenizer.decode(list(row), skip_special_tokens=True, clean_up_tokenization_spaces=False) for row in rows]


def stop_ids(model: Any, tokenizer: Any) -> frozenset[int]:
    """Whatever the model's generation settings or the tokenizer call the end of a sequence."""
    found = {tokenizer.eos_token_id}
    for settings in (getattr(model, "generation_config", None), model.config):
        ends = getattr(settings, "eos_token_id", None)
        found |= set(ends) if isinstance(ends, (list, tuple)) else {ends}
    return frozenset(found - {None})
