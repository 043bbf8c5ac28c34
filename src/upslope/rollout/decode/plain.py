"""Decoding by `transformers` itself, for any model: right, and slower than the engine's own decoding."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from upslope.errors import UserError
from upslope.policies.language_model import LanguageModel
from upslope.rollout.decode.draw import draw_tokens
from upslope.rollout.decode.record import DecodeJob

DEAD_SHARE = 1 / 8
"""Ended rows are dropped once they are this share of the batch: dropping copies the cache, keeping computes them again."""


class TokenStream(Protocol):
    """Rows that are being continued, whoever does it: see `Stream`."""

    @property
    def logits(self) -> Tensor: ...

    def keep(self, index: Tensor) -> bool: ...

    def advance(self, token: Tensor) -> None: ...


def sample_stream(stream: TokenStream, job: DecodeJob) -> Iterator[None]:
    """Continues the rows of a stream until each has stopped or reached its limit; yields after every token."""
    sampling, uniforms, stops, room, record = job.sampling, job.uniforms, job.stops, job.limits, job.record
    rows = torch.arange(len(uniforms), device=uniforms.device)
    alive = torch.ones_like(rows, dtype=torch.bool)
    for place in range(sampling.max_tokens):
        draw = draw_tokens(stream.logits, sampling, uniforms[rows, place])
        record.write(rows, place, draw, alive)
        alive = alive & ~torch.isin(draw.token, stops) & (room[rows] > place + 1)
        if job.heard is not None:
            alive &= ~torch.tensor(job.heard.listen(record, rows.tolist()), device=alive.device)
        if bool(job.progress.withdrawn.any()):
            alive &= ~job.progress.withdrawn.to(alive.device)[rows]
        job.progress.ended[rows[~alive].cpu()] = True
        left = int(alive.sum())
        if left == 0 or place + 1 == sampling.max_tokens:
            return
        token = draw.token
        if len(rows) - left >= DEAD_SHARE * len(rows):
            kept = alive.nonzero().squeeze(1)
            if stream.keep(kept):
                rows, token, alive = rows[kept], token[kept], alive[kept]
        yield
        stream.advance(token)


class Stream:
    """Rows that are being continued: what the model remembers of each and where it stands.

    Prompts are padded on the left, so the next token of every row stands in the same column.
    """

    logits: Tensor
    """``[B, V]`` of each row's next token."""

    def __init__(self, policy: LanguageModel, prompts: Sequence[list[int]], each: Sequence[int], room: int):
        self.policy = policy
        number: dict[tuple[int, ...], int] = {}
        rows = [tuple(prompt) for prompt, n in zip(prompts, each, strict=True) for _ in range(n)]
        owner = [number.setdefault(prompt, len(number)) for prompt in rows]
        self._read(list(number), room)
        if owner != list(range(len(number))) and not self.keep(torch.tensor(owner, device=policy.device)):
            self._read(rows, room)

    def _read(self, prompts: list[tuple[int, ...]], room: int) -> None:
        """Computes the prompts, one row each, with room for so many more tokens."""
        self.column = width = max(len(prompt) for prompt in prompts)
        pad, device = self.policy.pad_id, self.policy.device
        ids = torch.tensor([[pad] * (width - len(prompt)) + list(prompt) for prompt in prompts], device=device)
        lengths = torch.tensor([[len(prompt)] for prompt in prompts], device=device)
        self.mask = torch.arange(width + room, device=device) >= width - lengths
        self.next_place = lengths
        self.cache: Any = None
        self._run(ids, (self.mask[:, :width].long().cumsum(1) - 1).clamp_min(0))

    def keep(self, index: Tensor) -> bool:
        """These rows, in this order, perhaps several times. False, and nothing changed, where the cache cannot do that."""
        layers = getattr(self.cache, "layers", None)
        if not layers or not all(hasattr(layer, "reorder_cache") for layer in layers):
            return False
        self.cache.reorder_cache(index)
        self.mask, self.next_place, self.logits = self.mask[index], self.next_place[index], self.logits[index]
        return True

    def advance(self, token: Tensor) -> None:
        """Appends a token to each row."""
        self.column += 1
        self._run(token.unsqueeze(1), self.next_place)
        self.next_place = self.next_place + 1

    def _run(self, ids: Tensor, places: Tensor) -> None:
        output = self.policy.model(
            input_ids=ids,
            attention_mask=self.mask[:, : self.column],
            position_ids=places,
            past_key_values=self.cache,
            use_cache=True,
            logits_to_keep=1,
        )
        self.cache = getattr(output, "past_key_values", None)
        if self.cache is None:
            raise UserError(f"{self.policy.name!r} returns no cache of what it has read (use_cache), which sampling needs.")
        self.logits = output.logits[:, -1]
