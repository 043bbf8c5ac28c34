"""Tokenization: what a tokenizer makes of prompts and answers, many at a time, and which tokens end a text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from upslope.errors import UserError

Long = Literal["refuse", "cut", "skip"]


@dataclass(frozen=True)
class PromptLimit:
    """The most tokens of a prompt, and what becomes of a longer one."""

    tokens: int
    long: Long = "refuse"
    """``"cut"`` keeps its end; whatever else still meets one when it is encoded refuses it."""


def fitting(tokenizer: object, prompts: Sequence[str], limit: PromptLimit | None) -> list[list[int]]:
    """The ids of each prompt as `encoded` gives them, none longer than the limit.

    A prompt is cut as text, from the front, and then encoded like any other: what a tokenizer or a chat template puts around it
    stays whole. How much is cut depends on the prompt alone.
    """
    found = encoded(tokenizer, prompts)
    if limit is None:
        return found
    for number, (prompt, ids) in enumerate(zip(prompts, found, strict=True)):
        if len(ids) <= limit.tokens:
            continue
        if limit.long != "cut":
            raise UserError(
                f"a prompt has {len(ids)} tokens where {limit.tokens} leave room for the answer; it begins {prompt[:60]!r}. Give a "
                "smaller --max-tokens, or --long cut to read only the ends of such prompts."
            )
        found[number] = encoded(tokenizer, [cut_to(tokenizer, prompt, limit.tokens)])[0]
    return found


def cut_to(tokenizer: object, prompt: str, tokens: int) -> str:
    """The longest end of a prompt that has at most so many tokens, by bisection over its characters."""

    def fits(start: int) -> bool:
        return len(encoded(tokenizer, [prompt[start:]])[0]) <= tokens

    if fits(0):
        return prompt
    low, high = 0, len(prompt)  # what begins at low is too long, what begins at high fits
    if not fits(high):
        raise UserError(
            f"{tokens} tokens are not even enough for what the chat template or the tokenizer puts around a prompt: "
            "give a smaller --max-tokens."
        )
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    return prompt[high:]


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
