"""Tokenization: what a tokenizer makes of prompts and answers, many at a time, and which tokens end a text."""

from __future__ import annotations

import inspect
import itertools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from upslope.errors import UserError, did_you_mean
from upslope.plain_data import Message, Prompt

Long = Literal["refuse", "cut", "skip"]


@dataclass(frozen=True)
class PromptLimit:
    """The most tokens of a prompt, and what becomes of a longer one."""

    tokens: int
    long: Long = "refuse"
    """``"cut"`` keeps its end; whatever else still meets one when it is encoded refuses it."""


@dataclass(frozen=True)
class PromptFormat:
    """How a prompt is put to a model with a chat template."""

    system: str = ""
    """A system message before every prompt that does not begin with its own."""
    template: Mapping[str, Any] = field(default_factory=dict)
    """Further arguments of the chat template, such as ``enable_thinking``."""

    @classmethod
    def parse(cls, system: str, template: str) -> PromptFormat:
        """The format that ``--system`` and ``--template`` ask for."""
        return cls(system, parse_template(template))

    def messages(self, prompt: Prompt) -> list[Message]:
        """The prompt as the messages of a conversation; a text is a user's."""
        said: list[Message] = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)
        own = said[0]["role"] in ("system", "developer")
        return [{"role": "system", "content": self.system}, *said] if self.system and not own else said

    def check(self, tokenizer: Any, name: str) -> None:
        """Refuses what the model's chat template would ignore.

        Args:
            name: of the model, for messages.
        """
        template = getattr(tokenizer, "chat_template", None)
        for flag, given in (("--system", self.system), ("--template", self.template)):
            if given and not template:
                raise UserError(f"{flag}: {name!r} has no chat template to take it. Leave it out, or write it into the prompts.")
        ours = inspect.signature(tokenizer.apply_chat_template).parameters if self.template else ()
        for word in self.template:
            if word in ours or not re.search(rf"\b{re.escape(word)}\b", str(template)):
                near = did_you_mean(word, set(re.findall(r"\b[a-z]+_[a-z_]+\b", str(template))) - set(ours))
                raise UserError(f"--template {word}=...: the chat template of {name!r} reads no {word!r}.{near}")


PLAIN = PromptFormat()


def parse_template(text: str) -> dict[str, Any]:
    """``enable_thinking=false,level=2`` as the arguments of a chat template: JSON where it is JSON, else text."""
    found: dict[str, Any] = {}
    for item in filter(None, (each.strip() for each in text.split(","))):
        name, equals, value = (word.strip() for word in item.partition("="))
        if not name.isidentifier() or not equals or not value:
            raise UserError(f"--template {text!r}: {item!r} is not of the form NAME=VALUE, as in enable_thinking=false.")
        if name in found:
            raise UserError(f"--template {text!r} gives {name!r} twice. Leave one out.")
        try:
            found[name] = json.loads(value.lower() if value.lower() in ("true", "false") else value)
        except ValueError:
            found[name] = value
    return found


def fitting(tokenizer: object, prompts: Sequence[Prompt], limit: PromptLimit | None, form: PromptFormat = PLAIN) -> list[list[int]]:
    """The ids of each prompt as `encoded` gives them, none longer than the limit.

    A prompt is cut as text, from the front, and then encoded like any other: what a tokenizer or a chat template puts around it
    stays whole. How much is cut depends on the prompt alone.
    """
    found = encoded(tokenizer, prompts, form)
    if limit is None:
        return found
    for number, (prompt, ids) in enumerate(zip(prompts, found, strict=True)):
        if len(ids) <= limit.tokens:
            continue
        if limit.long != "cut":
            raise UserError(
                f"a prompt has {len(ids)} tokens where {limit.tokens} leave room for the answer; it begins {_last(prompt)[:60]!r}. "
                "Give a smaller --max-tokens, or --long cut to read only the ends of such prompts."
            )
        found[number] = encoded(tokenizer, [cut_to(tokenizer, prompt, limit.tokens, form)], form)[0]
    return found


def cut_to(tokenizer: object, prompt: Prompt, tokens: int, form: PromptFormat = PLAIN) -> Prompt:
    """The longest end of a prompt that has at most so many tokens, by bisection over its characters.

    Of a conversation the last message is cut, and all before it stays.
    """

    def fits(start: int) -> bool:
        return len(encoded(tokenizer, [_from_character(prompt, start)], form)[0]) <= tokens

    if fits(0):
        return prompt
    low, high = 0, len(_last(prompt))  # what begins at low is too long, what begins at high fits
    if not fits(high):
        raise UserError(
            f"{tokens} tokens are not even enough for what the chat template or the tokenizer puts around a prompt: "
            "give a smaller --max-tokens."
        )
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    return _from_character(prompt, high)


def _last(prompt: Prompt) -> str:
    """A prompt's text, or that of its last message."""
    return prompt if isinstance(prompt, str) else str(prompt[-1]["content"])


def _from_character(prompt: Prompt, start: int) -> Prompt:
    if isinstance(prompt, str):
        return prompt[start:]
    return [*prompt[:-1], {**prompt[-1], "content": _last(prompt)[start:]}]


def encoded(tokenizer: Any, prompts: Sequence[Prompt], form: PromptFormat = PLAIN) -> list[list[int]]:
    """The ids of each prompt; one of a chat model becomes a user's message. Neighbours that are the same are looked at once."""
    new = [not number or prompt != prompts[number - 1] for number, prompt in enumerate(prompts)]
    texts, special = _texts(tokenizer, list(itertools.compress(prompts, new)), form)
    distinct = tokenizer(texts, add_special_tokens=special).input_ids if texts else []
    return [distinct[number - 1] for number in itertools.accumulate(new)]


def encoded_answers(tokenizer: Any, texts: Sequence[str]) -> list[list[int]]:
    """The ids of texts as somebody answers them: nothing is put around them. All in one call, which shares them among the cores."""
    return tokenizer(list(texts), add_special_tokens=False).input_ids if texts else []


def encoded_lengths(tokenizer: Any, prompts: Sequence[Prompt], form: PromptFormat = PLAIN) -> list[int]:
    """How many ids each prompt has; of a fast tokenizer without writing them down."""
    backend = getattr(tokenizer, "backend_tokenizer", None) if getattr(tokenizer, "is_fast", False) else None
    if backend is None or backend.truncation is not None or backend.padding is not None:
        return [len(ids) for ids in encoded(tokenizer, prompts, form)]
    texts, special = _texts(tokenizer, prompts, form)
    return [len(ids) for ids in backend.encode_batch_fast(texts, add_special_tokens=special)] if texts else []


def _texts(tokenizer: Any, prompts: Sequence[Prompt], form: PromptFormat) -> tuple[list[str], bool]:
    """What the tokenizer is given, and whether it puts its special tokens around it."""
    if not getattr(tokenizer, "chat_template", None):
        return [plain_text(prompt) for prompt in prompts], True
    # As text first: templates write their special tokens themselves, so none may be added when it becomes ids.
    return [chat_text(tokenizer, form.messages(prompt), form) for prompt in prompts], False


def chat_text(tokenizer: Any, messages: Sequence[Message], form: PromptFormat = PLAIN) -> str:
    """What the chat template makes of messages, up to where the answer begins.

    Raises:
        UserError: if it refuses them.
    """
    try:
        return str(tokenizer.apply_chat_template(list(messages), add_generation_prompt=True, tokenize=False, **form.template))
    except Exception as wrong:  # a template is a program that came with the model, and may fail in any way
        said = " ".join(str(wrong).split())[:200]
        raise UserError(f"the model's chat template refuses a prompt: {said}. It begins {_last(messages)[:60]!r}.") from wrong


def plain_text(prompt: Prompt) -> str:
    """A prompt for a model without a chat template.

    Raises:
        UserError: for a conversation. A text made up of its turns would be in a form that no model has learned.
    """
    if isinstance(prompt, str):
        return prompt
    if len(prompt) == 1 and prompt[0]["role"] == "user":
        return str(prompt[0]["content"])
    roles = ", ".join(str(message["role"]) for message in prompt)
    raise UserError(
        f"a prompt is a conversation ({roles}), and the model has no chat template to put it in; it ends {_last(prompt)[-60:]!r}. "
        "Take a model that has one, or write each prompt as one text."
    )


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
