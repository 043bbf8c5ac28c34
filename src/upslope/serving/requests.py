"""What is asked of the server, read and checked before it reaches the engine."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from upslope.errors import UserError, did_you_mean
from upslope.policies.language_model import LanguageModel
from upslope.rollout.sampling import Sampling
from upslope.runtime.seeding import uniforms

MOST_ROWS = 8192
"""Completions one request may ask for."""
CHAT_TOKENS = 1024
"""The most tokens of a chat answer where the request does not say."""
COMPLETION_TOKENS = 16
"""The same for a completion: OpenAI's default."""

NEUTRAL: dict[str, tuple[Any, ...]] = {
    "best_of": (None, 1),
    "echo": (None, False),
    "frequency_penalty": (None, 0, 0.0),
    "function_call": (None, "none"),
    "functions": (None, []),
    "logit_bias": (None, {}),
    "modalities": (None, ["text"]),
    "parallel_tool_calls": (None, False, True),
    "presence_penalty": (None, 0, 0.0),
    "reasoning_effort": (None,),
    "repetition_penalty": (None, 1, 1.0),
    "response_format": (None, {"type": "text"}),
    "suffix": (None, ""),
    "tool_choice": (None, "none", "auto"),
    "tools": (None, []),
    "top_logprobs": (None, 0),
}
"""Fields of the protocol that are not supported, with the values at which they change nothing."""
REMARKS = frozenset({"user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key"})
"""Fields that never change an answer."""
SHARED = frozenset(
    {"model", "n", "max_tokens", "temperature", "top_p", "top_k", "min_p", "seed", "stop", "stop_token_ids", "stream"}
    | {"stream_options", "logprobs", "return_token_ids", "return_tokens_as_token_ids", "uniforms"}
)


class BadRequest(Exception):
    """A request that cannot be served, in OpenAI's shape."""

    def __init__(self, message: str, param: str | None = None, status: int = 400, code: str | None = None):
        super().__init__(message)
        self.param, self.status, self.code = param, status, code


@dataclass(frozen=True, eq=False)
class Asked:
    """A request for completions."""

    prompts: list[list[int]]
    n: int
    sampling: Sampling
    numbers: Tensor
    """``[rows, max_tokens]``, what is drawn with."""
    stop: tuple[str, ...] = ()
    stop_ids: frozenset[int] = frozenset()
    stream: bool = False
    usage: bool = False
    """Whether a stream ends with the counts of tokens."""
    logprobs: bool = False
    ids: bool = False
    """Whether token ids come back."""
    spelled: bool = False
    """Whether ``logprobs.tokens`` spells ids, as ``token_id:123``."""


def read_completion(body: Any, policy: LanguageModel, name: str) -> Asked:
    """A request to ``/v1/completions``."""
    fields = _Fields(body, SHARED | {"prompt"}, name)
    logprobs = fields.whole("logprobs", None, 0)
    if logprobs is not None and logprobs > 1:
        raise BadRequest(f"logprobs is {logprobs}; only those of the sampled tokens are recorded: give 0 or 1.", "logprobs")
    prompts = _prompts(fields.get("prompt"), policy)
    return _asked(fields, policy, prompts, fields.whole("max_tokens", COMPLETION_TOKENS, 1), logprobs is not None)


def read_chat(body: Any, policy: LanguageModel, name: str) -> Asked:
    """A request to ``/v1/chat/completions``."""
    fields = _Fields(body, SHARED | {"messages", "max_completion_tokens"}, name)
    prompt = _conversation(fields.get("messages"), policy)
    limit = fields.whole("max_completion_tokens", None, 1) or fields.whole("max_tokens", None, 1)
    room = positions(policy)
    if limit is None:
        limit = max(min(CHAT_TOKENS, room - len(prompt) if room else CHAT_TOKENS), 1)
    return _asked(fields, policy, [prompt], limit, fields.flag("logprobs"))


def positions(policy: LanguageModel) -> int:
    """How long a prompt and its completion may be together; 0 where the model does not say."""
    return getattr(policy.model.config.get_text_config(), "max_position_embeddings", None) or 0


def _asked(fields: _Fields, policy: LanguageModel, prompts: list[list[int]], limit: int | None, logprobs: bool) -> Asked:
    assert limit is not None
    n = fields.whole("n", 1, 1) or 1
    rows = len(prompts) * n
    if rows > MOST_ROWS:
        raise BadRequest(f"{len(prompts)} prompts with n={n} are {rows} completions; the most is {MOST_ROWS}.", "n")
    room = positions(policy)
    longest = max(map(len, prompts))
    if room and longest + limit > room:
        raise BadRequest(
            f"a prompt of {longest} tokens and max_tokens={limit} are more than the model's {room} positions.",
            "max_tokens",
            code="context_length_exceeded",
        )
    top_k = fields.whole("top_k", 0, -1) or 0
    try:
        sampling = Sampling(
            max_tokens=limit,
            temperature=fields.number("temperature", 1.0),
            top_k=max(top_k, 0),
            top_p=fields.number("top_p", 1.0),
            min_p=fields.number("min_p", 0.0),
        )
    except UserError as wrong:
        raise BadRequest(str(wrong)) from None
    options = fields.get("stream_options") or {}
    return Asked(
        prompts=prompts,
        n=n,
        sampling=sampling,
        numbers=_numbers(fields, rows, limit),
        stop=_stops(fields.get("stop")),
        stop_ids=frozenset(_ids(fields.get("stop_token_ids") or [], "stop_token_ids", None)),
        stream=fields.flag("stream"),
        usage=bool(isinstance(options, Mapping) and options.get("include_usage")),
        logprobs=logprobs,
        ids=fields.flag("return_token_ids"),
        spelled=fields.flag("return_tokens_as_token_ids"),
    )


class _Fields:
    """The body of a request. What nobody here knows is refused: a misspelt setting must not pass for one that was heeded."""

    def __init__(self, body: Any, known: frozenset[str], name: str):
        if not isinstance(body, dict):
            raise BadRequest(f"the body is {_kind(body)}; it must be a JSON object.")
        for key, value in body.items():
            if key in NEUTRAL and key not in known:
                if value not in NEUTRAL[key]:
                    raise BadRequest(f"{key}={value!r} is not supported here; leave it out.", key)
            elif key not in known and key not in REMARKS:
                raise BadRequest(f"no field {key!r}.{did_you_mean(key, known)}", key)
        asked = body.get("model")
        if asked is not None and asked != name:
            raise BadRequest(f"no model {asked!r}; this server has {name!r}.", "model", 404, "model_not_found")
        self.body = body

    def get(self, key: str) -> Any:
        return self.body.get(key)

    def number(self, key: str, default: float) -> float:
        value = self.body.get(key)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise BadRequest(f"{key} is {value!r}; it must be a number.", key)
        return float(value)

    def whole(self, key: str, default: int | None, least: int) -> int | None:
        value = self.body.get(key)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise BadRequest(f"{key} is {value!r}; it must be a whole number of at least {least}.", key)
        return value

    def flag(self, key: str) -> bool:
        value = self.body.get(key)
        if value is not None and not isinstance(value, bool):
            raise BadRequest(f"{key} is {value!r}; it must be true or false.", key)
        return bool(value)


def _kind(value: Any) -> str:
    return "empty" if value is None else f"a {type(value).__name__}"


def _prompts(given: Any, policy: LanguageModel) -> list[list[int]]:
    """One prompt or several, each text or token ids."""
    if isinstance(given, str) or (isinstance(given, list) and given and isinstance(given[0], int)):
        given = [given]
    if not isinstance(given, list) or not given:
        raise BadRequest(f"prompt is {_kind(given)}; it must be text, token ids, or a list of either.", "prompt")
    return [_text_ids(each, policy) if isinstance(each, str) else _ids(each, "prompt", policy) for each in given]


def _text_ids(text: str, policy: LanguageModel) -> list[int]:
    """Text as it stands: a template goes with chat only."""
    ids = list(policy.tokenizer(text).input_ids)
    if not ids:
        raise BadRequest("a prompt has no tokens: the first one needs something to follow.", "prompt")
    return ids


def _ids(given: Any, field: str, policy: LanguageModel | None) -> list[int]:
    if not isinstance(given, list) or any(isinstance(token, bool) or not isinstance(token, int) for token in given):
        raise BadRequest(f"{field} must be a list of token ids.", field)
    if policy is not None:
        size = policy.model.config.get_text_config().vocab_size
        if not given:
            raise BadRequest("a prompt has no tokens: the first one needs something to follow.", field)
        if wrong := [token for token in given if not 0 <= token < size]:
            raise BadRequest(f"token id {wrong[0]} is none of the model's {size}.", field)
    return list(given)


def _stops(given: Any) -> tuple[str, ...]:
    found = [given] if isinstance(given, str) else given or []
    if not isinstance(found, list) or any(not isinstance(each, str) or not each for each in found):
        raise BadRequest(f"stop is {given!r}; it must be text or a list of texts.", "stop")
    return tuple(found)


def _numbers(fields: _Fields, rows: int, limit: int) -> Tensor:
    given = fields.get("uniforms")
    if given is None:
        seed = fields.whole("seed", None, -(2**63))
        return uniforms((rows, limit), secrets.randbits(62) if seed is None else seed, "serve")
    try:
        found = torch.tensor(given, dtype=torch.float32)
    except (TypeError, ValueError):
        raise BadRequest("uniforms must be a list of lists of numbers, one list per completion.", "uniforms") from None
    if found.shape != (rows, limit) or not bool(((found >= 0) & (found < 1)).all()):
        raise BadRequest(
            f"uniforms of shape {list(found.shape)}: {rows} completions of max_tokens={limit} need {[rows, limit]}, all in [0, 1).",
            "uniforms",
        )
    return found


def _conversation(given: Any, policy: LanguageModel) -> list[int]:
    """Messages as ids, through the tokenizer's chat template."""
    if not isinstance(given, list) or not given:
        raise BadRequest(f"messages is {_kind(given)}; it must be a list of messages with role and content.", "messages")
    messages = []
    for message in given:
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise BadRequest(f"{message!r} is no message: it needs a role and content.", "messages")
        messages.append({"role": message["role"], "content": _content(message.get("content"))})
    if not getattr(policy.tokenizer, "chat_template", None):
        raise BadRequest("this model has no chat template; ask /v1/completions.", "messages")
    from jinja2 import TemplateError

    try:
        text = policy.tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    except (TemplateError, ValueError, TypeError) as wrong:
        raise BadRequest(f"the model's chat template refuses these messages: {wrong}", "messages") from None
    ids = list(policy.tokenizer(text, add_special_tokens=False).input_ids)
    if not ids:
        raise BadRequest("these messages have no tokens.", "messages")
    return ids


def _content(given: Any) -> str:
    parts = given if isinstance(given, list) else [{"type": "text", "text": given}]
    texts = [part["text"] for part in parts if isinstance(part, dict) and part.get("type") == "text" and "text" in part]
    if len(texts) != len(parts) or not all(isinstance(text, str) for text in texts):
        raise BadRequest("a message's content must be text, or a list of parts of type text.", "messages")
    return "".join(texts)
