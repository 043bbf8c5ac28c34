"""Requests at work: their completions as they are written, and how far they are."""

from __future__ import annotations

import dataclasses
import queue
import threading
from dataclasses import dataclass, field
from typing import NamedTuple

from torch import Tensor

from upslope.policies.language_model import LanguageModel
from upslope.serving.requests import CompletionRequest
from upslope.types import Finish

SMALL_ROWS = 64
"""A request for more completions than this does not share a call with small ones, which would read it again at every arrival."""
MIDDLE_TOKENS = 2**15
"""Tokens that separate large requests from very large ones, so that neither waits for the other."""


class TokenScore(NamedTuple):
    """How likely a token of a given text is."""

    logp: float
    top: list[tuple[int, float]]
    """The likeliest tokens at its place and their log-probabilities; the token itself is always among them."""


@dataclass(eq=False)
class RequestRow:
    """A completion under way."""

    prompt: list[int]
    limit: int
    numbers: Tensor | None = None
    """What is drawn with, ``[limit]``; there from its first call on until it ends."""
    tokens: list[int] = field(default_factory=list)
    logp: list[float] = field(default_factory=list)
    entropy: list[float] = field(default_factory=list)
    finish: Finish | None = None
    scored: list[TokenScore] | None = None
    """Prompt and completion, token by token, where that is asked for; there once it is worked out."""
    text: str = ""
    """What is said of it so far: without special tokens, and without the text it ends at."""

    def copy(self) -> RequestRow:
        """The row as it stands."""
        return dataclasses.replace(self, tokens=list(self.tokens), logp=list(self.logp), entropy=list(self.entropy))


class Written(NamedTuple):
    """How far a request is: its rows as they stand, which nobody changes any more, and whether they go on."""

    rows: list[RequestRow]
    going: bool


class News:
    """The latest word on a request. Only the latest: a client that reads slowly must not make the server keep every version."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._latest: Written | Exception | None = None

    def put(self, latest: Written | Exception) -> None:
        with self._changed:
            self._latest = latest
            self._changed.notify()

    def get(self, timeout: float | None = None) -> Written | Exception:
        """What nobody has read yet; `queue.Empty` if there is nothing for so many seconds."""
        with self._changed:
            self._changed.wait_for(lambda: self._latest is not None, timeout)
            found, self._latest = self._latest, None
        if found is None:
            raise queue.Empty
        return found


@dataclass(eq=False)
class RequestJob:
    """A request at work."""

    asked: CompletionRequest
    rows: list[RequestRow]
    told: News = field(default_factory=News)
    dropped: bool = False
    """Nobody waits for it any more."""
    handed_on: bool = False
    """It is written, and waits to be scored or is being scored."""
    begun: int = 0
    """Rows, from the first on, that have been in a call."""

    @staticmethod
    def of(asked: CompletionRequest) -> RequestJob:
        ended: Finish | None = None if asked.writes else "length"
        return RequestJob(
            asked, [RequestRow(prompt, asked.limit, finish=ended) for prompt in asked.prompts for _ in range(asked.n)]
        )

    @property
    def written(self) -> bool:
        """Whether nothing is left to be continued."""
        return all(row.finish is not None for row in self.rows)

    @property
    def to_score(self) -> bool:
        """Whether all is written, and log-probabilities of the whole texts are what is left to do."""
        return self.asked.scored and self.written and any(row.scored is None for row in self.rows)

    @property
    def windowed(self) -> bool:
        """Whether its text is looked at while it is written."""
        return self.asked.stream or bool(self.asked.stop) or bool(self.asked.stop_ids)

    @property
    def tokens(self) -> int:
        """The most it can write; what is to be scored counts as well."""
        read = self.asked.n * sum(map(len, self.asked.prompts)) if self.asked.scored else 0
        return len(self.rows) * self.asked.limit + read

    @property
    def size(self) -> int:
        """0, 1, 2: small, large, very large."""
        return 0 if len(self.rows) <= SMALL_ROWS else 1 if self.tokens <= MIDDLE_TOKENS else 2

    @property
    def kind(self) -> tuple[object, ...]:
        """Jobs of one kind can share a call."""
        if self.to_score:
            return (self.size, "score")
        drawn = self.asked.sampling
        return (self.size, drawn.temperature, drawn.top_k, drawn.top_p, drawn.min_p)

    def numbers_of(self, row: int) -> Tensor:
        """What a row is drawn with. Rows begin in their order, so nothing is drawn before it is needed."""
        while self.begun <= row:
            self.rows[self.begun].numbers = next(self.asked.numbers)
            self.begun += 1
        found = self.rows[row].numbers
        assert found is not None
        return found

    def tell(self) -> None:
        """Says how far it is, to whom that is of use."""
        going = not self.written or self.to_score
        if not going:
            self.told.put(Written(self.rows, False))
        elif self.asked.stream:
            self.told.put(Written([row.copy() for row in self.rows], True))


def settle(asked: CompletionRequest, row: RequestRow, policy: LanguageModel, finish: Finish) -> None:
    """Whether the row has ended, and its text."""
    if finish == "stop" or len(row.tokens) >= row.limit:
        row.finish = finish
    extra = [place for place, token in enumerate(row.tokens) if token in asked.stop_ids] if asked.stop_ids else []
    if extra:
        _cut(row, extra[0] + 1)
    row.text = policy.decode(row.tokens)
    ends = [place for stop in asked.stop if (place := row.text.find(stop)) >= 0]
    if ends:
        _cut(row, _tokens_before(row, policy, asked.stop))
        row.text = row.text[: min(ends)]
    if row.finish is not None:
        row.numbers = None


def _tokens_before(row: RequestRow, policy: LanguageModel, stops: tuple[str, ...]) -> int:
    """The fewest tokens whose text holds a stop text."""
    low, high = 1, len(row.tokens)
    while low < high:
        middle = (low + high) // 2
        said = policy.decode(row.tokens[:middle])
        low, high = (low, middle) if any(stop in said for stop in stops) else (middle + 1, high)
    return low


def _cut(row: RequestRow, length: int) -> None:
    row.tokens, row.logp, row.entropy = row.tokens[:length], row.logp[:length], row.entropy[:length]
    row.finish = "stop"
