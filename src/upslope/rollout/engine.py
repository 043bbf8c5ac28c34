"""The torch engine: continues prompts with a language model and records how likely each token was when it was drawn.

A prompt is computed once however often it is continued, rows that have ended leave the batch, and every token is drawn by
inverting the cumulative distribution at a number that belongs to its row and position: which rows are still alive cannot change
what a row draws. Left out: compiled decoding and static caches.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from upslope.errors import UserError
from upslope.policies.language_model import LanguageModel
from upslope.rollout.sampling import Completions, Draw, Finish, Sampling, draw_tokens
from upslope.types import Trajectories

DEAD_SHARE = 1 / 8
"""Ended rows are dropped once they are this share of the batch: dropping copies the cache, keeping computes them again."""


class TorchEngine:
    """Samples with the policy's own module: nothing is copied, so it is never out of date.

    Args:
        policy: The language model to continue prompts with.
    """

    memory_bytes: int = 2 * 2**30
    """What cache and logits of the rows sampled at once may take; a call with more is cut into chunks of prompts."""

    def __init__(self, policy: LanguageModel):
        self.policy = policy

    def sync(self, policy: LanguageModel) -> None:
        """Continue with this policy's weights from now on. They are shared, not copied."""
        self.policy = policy

    def generate(
        self,
        prompts: Sequence[list[int]],
        n: int,
        sampling: Sampling,
        uniforms: Tensor,
        limits: Sequence[int] | None = None,
    ) -> Completions:
        """Continues each prompt ``n`` times.

        Args:
            prompts: Ids to continue, of any lengths. The same prompt twice is computed once.
            n: Completions per prompt.
            sampling: How tokens are drawn.
            uniforms: ``[R, max_tokens]`` numbers in [0, 1), ``R = len(prompts) * n``: the only randomness there is.
            limits: The most tokens the completions of each prompt may have, where some have less room than ``max_tokens``.

        Raises:
            UserError: if a prompt is empty or, with its completion, longer than the model's positions; or if the model
                no longer gives numbers.
        """
        limits = [sampling.max_tokens] * len(prompts) if limits is None else [min(own, sampling.max_tokens) for own in limits]
        self._refuse(prompts, n, sampling, uniforms, limits)
        # Tensors made in inference mode could never enter a loss, hence out of it even if the caller is in it.
        with torch.inference_mode(False), torch.no_grad():
            uniforms = uniforms.to(self.policy.device)
            stops = torch.tensor(sorted(self.policy.stop_ids), dtype=torch.long, device=self.policy.device)
            room = torch.tensor(limits, device=self.policy.device).repeat_interleave(n)
            record = _Record.blank(len(uniforms), sampling.max_tokens, self.policy)
            for first, last in self._chunks(prompts, n, sampling.max_tokens):
                rows = slice(first * n, last * n)
                stream = _Stream(self.policy, prompts[first:last], n, sampling.max_tokens)
                _sample(stream, sampling, uniforms[rows], stops, room[rows], record.part(rows))
            if not record.logp.isfinite().all():
                raise UserError(f"{self.policy.name!r} gives log-probabilities that are not numbers: its weights have blown up. "
                                "A smaller learning rate or a tighter gradient norm keeps them.")  # fmt: skip
            return record.completions(stops)

    def probe(self, rows: Trajectories) -> float:
        """The largest difference between this engine's log-probabilities of sampled tokens and the policy's own.

        The engine is made to say the recorded tokens one by one, through its cache. Anything above rounding means that the two
        sides do not hold the same model, or that one of them is wrong.
        """
        assert rows.action is not None
        with torch.inference_mode(False), torch.no_grad():
            expected = self.policy.evaluate(rows).logp
            prompts = [ids[mask > 0].tolist() for ids, mask in zip(rows.inputs.prompt, rows.inputs.prompt_mask, strict=True)]
            stream = _Stream(self.policy, prompts, 1, rows.action.shape[1])
            worst = torch.zeros((), device=expected.device)
            for place in range(rows.action.shape[1]):
                logits = stream.logits.float()
                if rows.temperature is not None:
                    heat = rows.temperature[:, place : place + 1]
                    logits = logits / heat.where(heat > 0, 1.0)
                token = rows.action[:, place].clamp_min(0)
                logp = logits.log_softmax(1).gather(1, token.unsqueeze(1)).squeeze(1)
                apart = (logp - expected[:, place]).abs().masked_fill(rows.sampled[:, place] == 0, 0.0)
                worst = torch.maximum(worst, apart.max())
                if place + 1 < rows.action.shape[1]:
                    stream.advance(token)
            return float(worst)

    def _chunks(self, prompts: Sequence[list[int]], n: int, limit: int) -> Iterator[tuple[int, int]]:
        """Neighbouring prompts whose samples fit the memory together; always at least one."""
        config = self.policy.model.config.get_text_config()
        heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        # Keys and values, twice while they grow; and about six copies of the logits while drawing, some in float64.
        per_token = 4 * config.num_hidden_layers * heads * width * next(self.policy.model.parameters()).element_size()
        per_row = 24 * config.vocab_size
        start = longest = 0
        for number, prompt in enumerate(prompts):
            longest = max(longest, len(prompt))
            size = (number + 1 - start) * n * (per_row + per_token * (longest + limit))
            if number > start and size > self.memory_bytes:
                yield start, number
                start, longest = number, len(prompt)
        yield start, len(prompts)

    def _refuse(self, prompts: Sequence[list[int]], n: int, sampling: Sampling, uniforms: Tensor, limits: Sequence[int]) -> None:
        if not prompts or n < 1:
            raise UserError(f"nothing to generate: {len(prompts)} prompts, n={n}. Give at least one of each.")
        if any(not prompt for prompt in prompts):
            raise UserError("a prompt has no tokens: the first one needs something to follow, such as the start token.")
        if len(limits) != len(prompts) or min(limits) < 1:
            raise UserError(
                f"{len(limits)} limits, the smallest {min(limits)}, for {len(prompts)} prompts: each needs one above 0."
            )
        wanted = (len(prompts) * n, sampling.max_tokens)
        if tuple(uniforms.shape) != wanted:
            raise UserError(f"uniforms of shape {list(uniforms.shape)}: {len(prompts)} prompts, n={n} and max_tokens={wanted[1]} "
                            f"need {list(wanted)}.")  # fmt: skip
        room = getattr(self.policy.model.config.get_text_config(), "max_position_embeddings", None)
        longest, limit = max(((len(prompt), own) for prompt, own in zip(prompts, limits, strict=True)), key=sum)
        if room and longest + limit > room:
            raise UserError(f"a prompt of {longest} tokens and max_tokens={limit} are more than the {room} positions "
                            f"of {self.policy.name!r}. Shorten the prompt or the completion.")  # fmt: skip


def _sample(stream: _Stream, sampling: Sampling, uniforms: Tensor, stops: Tensor, room: Tensor, record: _Record) -> None:
    """Continues the rows of a stream, token by token, until each has stopped or reached its limit."""
    rows = torch.arange(len(uniforms), device=uniforms.device)
    alive = torch.ones_like(rows, dtype=torch.bool)
    for place in range(sampling.max_tokens):
        draw = draw_tokens(stream.logits, sampling, uniforms[rows, place])
        record.write(rows, place, draw, alive)
        alive = alive & ~torch.isin(draw.token, stops) & (room[rows] > place + 1)
        left = int(alive.sum())
        if left == 0 or place + 1 == sampling.max_tokens:
            return
        token = draw.token
        if len(rows) - left >= DEAD_SHARE * len(rows):
            kept = alive.nonzero().squeeze(1)
            if stream.keep(kept):
                rows, token, alive = rows[kept], token[kept], alive[kept]
        stream.advance(token)


class _Record(NamedTuple):
    """The columns of all rows while they are written; a part of it is a view."""

    tokens: Tensor
    sampled: Tensor
    logp: Tensor
    entropy: Tensor

    @staticmethod
    def blank(rows: int, positions: int, policy: LanguageModel) -> _Record:
        tokens = torch.full((rows, positions), policy.pad_id, dtype=torch.long, device=policy.device)
        return _Record(tokens, *(torch.zeros(rows, positions, device=policy.device) for _ in range(3)))

    def part(self, rows: slice) -> _Record:
        return _Record(*(column[rows] for column in self))

    def write(self, rows: Tensor, place: int, draw: Draw, alive: Tensor) -> None:
        """One position of the rows in the batch; those that have ended stay blank."""
        new = _Record(draw.token, torch.ones_like(draw.logp), draw.logp, draw.entropy)
        for column, value in zip(self, new, strict=True):
            column[rows, place] = value.where(alive, column[rows, place])

    def completions(self, stops: Tensor) -> Completions:
        longest = int(self.sampled.sum(1).max())
        ended = (torch.isin(self.tokens, stops) & (self.sampled > 0)).any(1)
        finish: list[Finish] = ["stop" if stopped else "length" for stopped in ended.tolist()]
        tokens, sampled, logp, entropy = (column[:, :longest].contiguous() for column in self)
        return Completions(tokens, sampled, logp, entropy, finish)


class _Stream:
    """Rows that are being continued: what the model remembers of each and where it stands.

    Prompts are padded on the left, so the next token of every row stands in the same column.
    """

    logits: Tensor
    """``[B, V]`` of each row's next token."""

    def __init__(self, policy: LanguageModel, prompts: Sequence[list[int]], n: int, room: int):
        self.policy = policy
        number: dict[tuple[int, ...], int] = {}
        owner = [number.setdefault(tuple(prompt), len(number)) for prompt in prompts for _ in range(n)]
        self._read(list(number), room)
        if owner != list(range(len(number))) and not self.keep(torch.tensor(owner, device=policy.device)):
            self._read([tuple(prompt) for prompt in prompts for _ in range(n)], room)

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
