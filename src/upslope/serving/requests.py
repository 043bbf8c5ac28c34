"""What is asked of the server, read and checked before it reaches the engine."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from upslope.errors import UserError
from upslope.policies.language_model import LanguageModel
from upslope.policies.tokenization import chat_text
from upslope.runtime.seeding import generator
from upslope.serving.body import BadRequest, Fields, kind, quoted
from upslope.types import Sampling

MOST_ROWS = 8192
"""Completions one request may ask for."""
MOST_TOKENS = 2**22
"""Tokens one request may ask for: completions times ``max_tokens``."""
MOST_PROMPT_TOKENS = 2**22
"""Tokens of all its prompts."""
LONGEST_PROMPT = 2**15
"""Tokens of one prompt where the model does not say how much it can read."""
TOKEN_CHARACTERS = 64
"""A text of more characters than this for each token that it may have is refused unread."""
MOST_STOPS = 64
"""Texts that may end an answer."""
LEAST_TEMPERATURE = 1e-30
"""Logits divided by less are no numbers any more."""
MOST_TOPS = 20
"""Likeliest tokens told of each place of an echoed text."""
MOST_SCORES = 2**20
"""Log-probabilities of echoed texts that one request may ask for: each takes a few hundred bytes until it is sent."""
CHAT_TOKENS = 1024
"""The most tokens of a chat answer where the request does not say."""
COMPLETION_TOKENS = 16
"""The same for a completion: OpenAI's default."""

SHARED = frozenset(
    {"model", "n", "max_tokens", "temperature", "top_p", "top_k", "min_p", "seed", "stop", "stop_token_ids", "stream"}
    | {"stream_options", "logprobs", "return_token_ids", "return_tokens_as_token_ids", "uniforms"}
)


@dataclass(frozen=True, eq=False)
class CompletionRequest:
    """A request for completions."""

    prompts: list[list[int]]
    n: int
    sampling: Sampling
    numbers: Iterator[Tensor]
    """What is drawn with: ``max_tokens`` numbers for each completion in turn, made when it begins."""
    stop: tuple[str, ...] = ()
    stop_ids: frozenset[int] = frozenset()
    writes: bool = True
    """Whether anything is to be continued: false with ``max_tokens`` 0."""
    stream: bool = False
    usage: bool = False
    """Whether a stream ends with the counts of tokens."""
    logprobs: bool = False
    echo: tuple[str, ...] = ()
    """The prompts' texts, if they are to stand before the completions."""
    tops: int = 0
    """With ``echo`` and ``logprobs``: how many of the likeliest tokens to tell of each place."""
    ids: bool = False
    """Whether token ids come back."""
    spelled: bool = False
    """Whether ``logprobs.tokens`` spells ids, as ``token_id:123``."""

    @property
    def scored(self) -> bool:
        """Whether the log-probabilities of the prompt are asked for."""
        return bool(self.echo) and self.logprobs

    @property
    def limit(self) -> int:
        """The most tokens of a completion; 0 where only the prompt is to be scored."""
        return self.sampling.max_tokens if self.writes else 0


def read_completion(body: object, policy: LanguageModel, name: str) -> CompletionRequest:
    """A request to ``/v1/completions``."""
    fields = Fields(body, SHARED | {"prompt", "echo"}, name)
    echo, logprobs = fields.flag("echo"), fields.whole("logprobs", None, 0)
    _refuse_tops(logprobs, echo)
    given = _prompt_list(fields.get("prompt"))
    limit = fields.whole("max_tokens", COMPLETION_TOKENS, 0 if echo else 1)
    assert limit is not None
    _refuse_amount(len(given), fields.whole("n", 1, 1) or 1, limit)  # before anything is read that long
    asked = _asked(fields, policy, _prompts(given, policy), limit, logprobs is not None)
    if not echo:
        return asked
    if asked.stream:
        raise BadRequest("stream with echo is not supported here: leave one of them out.", "stream")
    scores = asked.n * sum(len(prompt) + limit for prompt in asked.prompts) * (1 + (logprobs or 0))
    if logprobs is not None and scores > MOST_SCORES:
        raise BadRequest(
            f"echo with logprobs={logprobs} asks for {scores} log-probabilities; the most of one request is {MOST_SCORES}. "
            "Ask in several requests, or for fewer of the likeliest tokens.",
            "logprobs",
        )
    texts = (each if isinstance(each, str) else policy.decode(ids) for each, ids in zip(given, asked.prompts, strict=True))
    return replace(asked, echo=tuple(texts), tops=logprobs or 0)


def _refuse_tops(logprobs: int | None, echo: bool) -> None:
    """Refuses more log-probabilities than are recorded."""
    most = MOST_TOPS if echo else 1
    if logprobs is not None and logprobs > most:
        why = f"give 0 to {most}" if echo else "only those of the sampled tokens are recorded: give 0 or 1, or 'echo' for more"
        raise BadRequest(f"logprobs is {quoted(logprobs)}; {why}.", "logprobs")


def read_chat(body: object, policy: LanguageModel, name: str) -> CompletionRequest:
    """A request to ``/v1/chat/completions``."""
    fields = Fields(body, SHARED | {"messages", "max_completion_tokens", "chat_template_kwargs"}, name)
    limit = fields.whole("max_completion_tokens", None, 1) or fields.whole("max_tokens", None, 1)
    _refuse_amount(1, fields.whole("n", 1, 1) or 1, limit or 1)
    prompt = _conversation(fields.get("messages"), policy, fields.get("chat_template_kwargs"))
    room = positions(policy)
    if limit is None:
        limit = max(min(CHAT_TOKENS, room - len(prompt) if room else CHAT_TOKENS), 1)
        _refuse_amount(1, fields.whole("n", 1, 1) or 1, limit)
    return _asked(fields, policy, [prompt], limit, fields.flag("logprobs"))


def _refuse_amount(prompts: int, n: int, limit: int) -> None:
    """Refuses what is too much before any memory is taken for it."""
    rows = prompts * n
    if rows > MOST_ROWS:
        asked = f"{prompts} prompts with n={quoted(n)} are {quoted(rows)} completions"
        raise BadRequest(f"{asked}; the most is {MOST_ROWS}.", "n" if n > 1 else "prompt")
    if rows * limit > MOST_TOKENS:
        raise BadRequest(
            f"{rows} completions of max_tokens={quoted(limit)} are {quoted(rows * limit)} tokens; the most of one request is "
            f"{MOST_TOKENS}. Ask for them in several requests.",
            "max_tokens",
        )


def positions(policy: LanguageModel) -> int:
    """How long a prompt and its completion may be together; 0 where the model does not say."""
    return getattr(policy.model.config.get_text_config(), "max_position_embeddings", None) or 0


def _asked(fields: Fields, policy: LanguageModel, prompts: list[list[int]], limit: int, logprobs: bool) -> CompletionRequest:
    n = fields.whole("n", 1, 1) or 1
    rows = len(prompts) * n
    room = positions(policy)
    longest = max(map(len, prompts))
    if room and longest + limit > room:
        raise BadRequest(
            f"a prompt of {longest} tokens and max_tokens={quoted(limit)} are more than the model's {room} positions.",
            "max_tokens",
            code="context_length_exceeded",
        )
    options = fields.get("stream_options") or {}
    return CompletionRequest(
        prompts=prompts,
        n=n,
        sampling=_sampling(fields, policy, limit),
        numbers=_numbers(fields, rows, limit),
        stop=_stops(fields.get("stop")),
        # The model's own end every answer anyway.
        stop_ids=frozenset(_ids(fields.get("stop_token_ids") or [], "stop_token_ids", None)) - frozenset(policy.stop_ids),
        writes=limit > 0,
        stream=fields.flag("stream"),
        usage=bool(isinstance(options, Mapping) and options.get("include_usage")),
        logprobs=logprobs,
        ids=fields.flag("return_token_ids"),
        spelled=fields.flag("return_tokens_as_token_ids"),
    )


def _sampling(fields: Fields, policy: LanguageModel, limit: int) -> Sampling:
    """How tokens are to be drawn."""
    top_k = fields.whole("top_k", 0, -1) or 0
    temperature = fields.number("temperature", 1.0)
    if 0 < temperature < LEAST_TEMPERATURE:
        raise BadRequest(f"temperature={temperature} is too small to divide by; 0 takes the likeliest token.", "temperature")
    try:
        return Sampling(
            max_tokens=max(limit, 1),
            temperature=temperature,
            top_k=min(max(top_k, 0), policy.model.config.get_text_config().vocab_size),
            top_p=fields.number("top_p", 1.0),
            min_p=fields.number("min_p", 0.0),
        )
    except UserError as wrong:
        raise BadRequest(str(wrong)) from None


def _prompt_list(given: object) -> list[object]:
    """One prompt or several, each text or token ids, as a list."""
    if isinstance(given, str) or (isinstance(given, list) and given and isinstance(given[0], int)):
        return [given]
    if not isinstance(given, list) or not given:
        raise BadRequest(f"prompt is {kind(given)}; it must be text, token ids, or a list of either.", "prompt")
    return given


def _prompts(given: list[object], policy: LanguageModel) -> list[list[int]]:
    found, total = [], 0
    for each in given:
        ids = text_ids(each, policy, "prompt") if isinstance(each, str) else _ids(each, "prompt", policy)
        if not ids:
            raise BadRequest("a prompt has no tokens: the first one needs something to follow.", "prompt")
        _refuse_length(len(ids), "tokens", positions(policy) or LONGEST_PROMPT, "prompt")
        total += len(ids)
        if total > MOST_PROMPT_TOKENS:
            raise BadRequest(f"the prompts have more than {MOST_PROMPT_TOKENS} tokens together. Ask in several requests.", "prompt")
        found.append(ids)
    return found


def text_ids(text: str, policy: LanguageModel, field: str, **settings: bool) -> list[int]:
    """Text as it stands: a template goes with chat only."""
    # A text that cannot fit is not cut into tokens first: that alone would take seconds of it.
    _refuse_length(len(text), "characters", (positions(policy) or LONGEST_PROMPT) * TOKEN_CHARACTERS, field)
    ids = list(policy.tokenizer(text, **settings).input_ids)
    _refuse_length(len(ids), "tokens", positions(policy) or LONGEST_PROMPT, field)
    return ids


def _refuse_length(length: int, what: str, most: int, field: str) -> None:
    if length > most:
        raise BadRequest(f"a prompt of {length} {what}; the most is {most}. Shorten it.", field, code="context_length_exceeded")


def _ids(given: object, field: str, policy: LanguageModel | None) -> list[int]:
    if not isinstance(given, list) or any(isinstance(token, bool) or not isinstance(token, int) for token in given):
        raise BadRequest(f"{field} must be a list of token ids.", field)
    if policy is not None:
        size = policy.model.config.get_text_config().vocab_size
        if wrong := [token for token in given if not 0 <= token < size]:
            raise BadRequest(f"token id {quoted(wrong[0])} is none of the model's {size}.", field)
    return list(given)


def _stops(given: object) -> tuple[str, ...]:
    found = [given] if isinstance(given, str) else given or []
    if not isinstance(found, list) or any(not isinstance(each, str) or not each for each in found):
        raise BadRequest(f"stop is {quoted(given)}; it must be text or a list of texts.", "stop")
    if len(found) > MOST_STOPS:
        raise BadRequest(f"stop has {len(found)} texts; the most is {MOST_STOPS}.", "stop")
    return tuple(found)


def _numbers(fields: Fields, rows: int, limit: int) -> Iterator[Tensor]:
    given = fields.get("uniforms")
    if given is None:
        seed = fields.whole("seed", None, -(2**63))
        return _drawn(secrets.randbits(62) if seed is None else seed, rows, limit)
    if not isinstance(given, list) or not all(isinstance(row, list) for row in given):
        raise BadRequest("uniforms must be a list of lists of numbers, one list per completion.", "uniforms")
    wanted = f"{rows} completions of max_tokens={limit} need {[rows, limit]}, all in [0, 1)"
    if len(given) != rows or any(len(row) != limit for row in given):
        shape = [len(given), max(map(len, given), default=0)]
        raise BadRequest(f"uniforms of shape {shape}: {wanted}.", "uniforms")
    try:
        found = torch.tensor(given, dtype=torch.float32)
    except (TypeError, ValueError, RuntimeError, OverflowError):  # texts, lists, integers beyond any float
        raise BadRequest("uniforms must be a list of lists of numbers, one list per completion.", "uniforms") from None
    if found.shape != (rows, limit) or not bool(((found >= 0) & (found < 1)).all()):
        raise BadRequest(f"uniforms of shape {list(found.shape)}: {wanted}.", "uniforms")
    return iter(found)


def _drawn(seed: int, rows: int, limit: int) -> Iterator[Tensor]:
    """The same numbers as ``uniforms((rows, limit), seed, "serve")``, a row at a time."""
    source = generator(seed, "serve")
    for _ in range(rows):
        yield torch.rand(limit, generator=source)


def _conversation(given: object, policy: LanguageModel, template: object) -> list[int]:
    """Messages as ids, through the tokenizer's chat template, as the run put its prompts.

    Args:
        template: arguments of the template that the request gives, over those of the run.
    """
    if template is not None and not isinstance(template, dict):
        raise BadRequest(f"chat_template_kwargs is {kind(template)}; it must be an object.", "chat_template_kwargs")
    if not isinstance(given, list) or not given:
        raise BadRequest(f"messages is {kind(given)}; it must be a list of messages with role and content.", "messages")
    messages = []
    for message in given:
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise BadRequest(f"{quoted(message)} is no message: it needs a role and content.", "messages")
        messages.append({"role": message["role"], "content": _content(message.get("content"))})
    if not getattr(policy.tokenizer, "chat_template", None):
        raise BadRequest("this model has no chat template; ask /v1/completions.", "messages")
    own = policy.prompt_format
    form = replace(own, template={**own.template, **template}) if template else own
    try:
        form.check(policy.tokenizer, policy.name)
    except UserError as wrong:
        raise BadRequest(str(wrong), "chat_template_kwargs") from None
    try:
        text = chat_text(policy.tokenizer, form.messages(messages), form)
    except UserError as wrong:
        raise BadRequest(str(wrong), "messages") from None
    ids = text_ids(text, policy, "messages", add_special_tokens=False)
    if not ids:
        raise BadRequest("these messages have no tokens.", "messages")
    return ids


def _content(given: Any) -> str:
    parts = given if isinstance(given, list) else [{"type": "text", "text": given}]
    texts = [part["text"] for part in parts if isinstance(part, dict) and part.get("type") == "text" and "text" in part]
    if len(texts) != len(parts) or not all(isinstance(text, str) for text in texts):
        raise BadRequest("a message's content must be text, or a list of parts of type text.", "messages")
    return "".join(texts)
