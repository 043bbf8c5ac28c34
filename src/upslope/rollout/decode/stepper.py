"""The decoding step: one token further in many rows at once, a prompt's keys and values kept once for all its rows.

Rows live in *slots*. A slot knows its row, its prompt, how many tokens it has said and the last of them; a row that has ended
leaves its slot to the next one that waits, or the last slots move into the gaps. Which slot a row has changes nothing about what
it says.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from upslope.policies.forward.activation_cache import ActivationCache, CacheWriter
from upslope.policies.forward.attention_cpu import Attended, attend_some, attend_with_logsumexp, hiding, merged
from upslope.policies.forward.blocks import Products, after, projected
from upslope.policies.forward.decoder import prompt_memory
from upslope.policies.forward.layer_ops import normed
from upslope.policies.forward.logprobs import head_logits
from upslope.policies.forward.packing import Layout, pad
from upslope.rollout.decode.draw import draw_tokens
from upslope.rollout.decode.pages import Pages, Seats
from upslope.rollout.decode.record import DecodeJob, Record
from upslope.rollout.decode.speculation import Drafting
from upslope.rollout.decode.weights import Weights

COPIED = 48
"""Prompts up to so long are copied into the cache of each of their rows."""


class Prompts:
    """Keys and values of all prompts but their last tokens, packed: per layer two of ``[S, kv_heads, width]``.

    Args:
        kept: where what is computed is written down, for learning.
    """

    def __init__(self, weights: Weights, prompts: Sequence[Sequence[int]], kept: ActivationCache | None = None):
        device = weights.device
        self.texts = prompts
        self.lengths = [len(prompt) - 1 for prompt in prompts]
        self.last = torch.tensor([prompt[-1] for prompt in prompts], device=device)
        self.length = torch.tensor(self.lengths, device=device)
        ids = torch.tensor([token for prompt in prompts for token in prompt[:-1]], dtype=torch.long, device=device)
        places = torch.tensor([place for length in self.lengths for place in range(length)], dtype=torch.long, device=device)
        self.layout = Layout(ids, places, self.lengths, [], [], device)
        self.kept = kept
        self.memory = prompt_memory(weights.body, weights.blocks, weights.embedding[ids], self.layout, kept)

    def padded(self) -> list[tuple[Tensor, Tensor]]:
        """The same as ``[G, kv_heads, longest, width]``."""
        places = self.layout.prompt_places
        return [
            (pad(k, self.lengths, places).transpose(1, 2), pad(v, self.lengths, places).transpose(1, 2)) for k, v in self.memory
        ]


class Slots:
    """Which row each slot continues and how far it is, ``[slots]`` each."""

    def __init__(self, count: int, device: torch.device):
        self.row, self.prompt, self.step, self.token = (torch.zeros(count, dtype=torch.long, device=device) for _ in range(4))
        self.ended = torch.ones(count, dtype=torch.bool, device=device)

    def columns(self) -> tuple[Tensor, ...]:
        return self.row, self.prompt, self.step, self.token, self.ended


class Stepper:
    """Decoding in plain torch, for any device.

    Short prompts are copied into the cache of each row that continues them: one look at all keys costs less than two. Long ones
    stay where they are, and all rows of a prompt look at it together.

    Args:
        count: slots.
        room: the most tokens a row may say.
    """

    prompts: Prompts
    job: DecodeJob
    slot_axis = 1
    """Of the cache."""
    steps = 1
    """How many tokens `advance` draws in each slot before it is asked which rows have ended."""
    drafting: Drafting | None = None
    """When it drafts what rows may say next; None: never."""
    pages: Pages | None = None
    """What rows may hold of the cache together, if not each has a stretch of full length."""

    def __init__(self, weights: Weights, count: int, room: int):
        self.weights, self.room = weights, room
        self.slots = Slots(count, weights.device)
        self.cache = torch.empty(0)

    def fits(self, prompts: Prompts, seats: Seats, room: int, job: DecodeJob | None) -> bool:
        """Whether it can turn to this work: memory that is at hand costs no time."""
        return len(self.slots.row) == seats.rows and self.room == room

    def begin(self, prompts: Prompts, job: DecodeJob | None = None) -> None:
        """Turn to new prompts, and to the rows that continue them."""
        weights, longest = self.weights, max(prompts.lengths)
        body, count = weights.body, len(self.slots.row)
        self.prompts = prompts
        if job is not None:
            self.job = job
        self.slots.ended.fill_(True)
        self._forget_pages(job)
        self._padded = prompts.padded() if longest else []
        self._copies = longest <= COPIED or weights.device.type != "cpu"
        """Whether rows keep their prompts themselves."""
        keys = self.room + (longest if self._copies else 0)
        shape = (len(weights.blocks), count, 2 * body.kv_heads, keys, body.width)
        if self.cache.shape != shape:
            self.cache = torch.zeros(shape, dtype=weights.dtype, device=weights.device)
            """Keys and values of what the slots' rows have said, behind their prompts where these are copied. What no row has
            written may be anything that is a number."""
        self._grid: _Grid | None = None

    def fill(self, slots: Tensor, rows: Tensor, prompts: Tensor) -> None:
        """Let slots begin with new rows."""
        self._seat(slots, rows, prompts)
        if self._copies:
            for cache, (keys, values) in zip(self.cache, self._padded, strict=False):
                cache[slots, :, : keys.shape[2]] = torch.cat([keys, values], 1)[prompts]
        self._grid = None

    def _seat(self, slots: Tensor, rows: Tensor, prompts: Tensor) -> None:
        own = self.slots
        own.row[slots], own.prompt[slots], own.step[slots] = rows, prompts, 0
        own.token[slots], own.ended[slots] = self.prompts.last[prompts], False
        if self.pages is not None:
            self.pages.begin(slots.tolist(), rows.tolist())

    def _forget_pages(self, job: DecodeJob | None) -> None:
        if self.pages is not None:
            self.pages.clear([] if job is None else job.limits.tolist())

    def vacancies(self, rows: Sequence[int]) -> int:
        """How many of the rows that wait may begin now, the first of them, if there are slots for all."""
        return len(rows) if self.pages is None else self.pages.vacancies(rows)

    def make_room(self) -> list[int]:
        """Makes sure that every row can go on. Returns the rows that were put back for that, the youngest first: they have said
        nothing, and their slots are empty."""
        back = [] if self.pages is None else self.pages.grow(self.steps)
        rows = self.slots.row[back].tolist() if back else []
        for row in rows:
            self.record.cut(row, 0, self.job.pad)
        if self.job.heard is not None:
            self.job.heard.forget(rows)
        if back:
            self.slots.ended[back] = True
        return rows

    def end(self, slots: Tensor) -> None:
        """What the rows of these slots held is free: they have ended."""
        if self.pages is not None:
            self.pages.end(slots.tolist())

    def move(self, source: Tensor, target: Tensor) -> None:
        """Rows of some slots go on in others, whose own have ended; the slots they leave are empty."""
        for column in self.slots.columns():
            column[target] = column[source]
        self.slots.ended[source] = True
        if self.pages is not None:
            self.pages.move(source.tolist(), target.tolist())
        self._move_cache(source, target)
        self._grid = None

    def _move_cache(self, source: Tensor, target: Tensor) -> None:
        if len(source):
            slots = self.cache.movedim(self.slot_axis, 0)
            slots[target] = slots[source]

    def advance(self, count: int) -> None:
        """Draws a token in each of the first ``count`` slots and writes it down; slots whose row has ended write nothing."""
        slots, job = self.slots, self.job
        row, step, alive = slots.row[:count], slots.step[:count], ~slots.ended[:count]
        draw = draw_tokens(self.logits(count), job.sampling, job.uniforms[row, step])
        written: tuple[Tensor, ...] = (draw.token, torch.ones_like(draw.logp), draw.logp, draw.entropy)
        where = (row, step)
        if not bool(alive.all()):
            where, written = (row[alive], step[alive]), tuple(value[alive] for value in written)
        for column, value in zip(job.record, written, strict=True):
            column[where] = value
        slots.token[:count] = draw.token
        slots.step[:count] = step + alive
        slots.ended[:count] |= torch.isin(draw.token, job.stops) | (slots.step[:count] >= job.limits[row])
        slots.step[:count].clamp_max_(self.room - 1)

    def listen(self, count: int) -> None:
        """Ends the rows of the first ``count`` slots that have said a text that ends them."""
        job = self.job
        if job.heard is None:
            return
        # Rows that have ended too: a text may stand before the token that ended them, or be complete only with it.
        said = job.heard.listen(self.record, self.slots.row[:count].tolist())
        self.slots.ended[:count] |= torch.tensor(said, device=self.slots.ended.device)

    @property
    def record(self) -> Record:
        """Where draws are written down."""
        return self.job.record

    def finish(self) -> None:
        """All rows have ended: what was drawn must stand in the job's record now."""

    def logits(self, count: int) -> Tensor:
        """Of the next token in the first ``count`` slots ``[count, V]``; what they last said enters the cache."""
        slots = self.slots
        return self._read(slots.token[:count].unsqueeze(1), slots.step[:count].unsqueeze(1))

    def _read(self, ids: Tensor, steps: Tensor, real: Tensor | None = None) -> Tensor:
        """Logits ``[count * T, V]`` of what follows each of some tokens ``[count, T]`` of the first ``count`` slots: each sees
        those before it. They enter the cache.

        Args:
            steps: the number of each token in its row.
            real: the others only fill the rectangle and enter nothing; None: all are tokens of rows.
        """
        weights, (count, each) = self.weights, ids.shape
        body, prompt = weights.body, self.slots.prompt[:count]
        place = self.prompts.length[prompt].unsqueeze(1) + steps
        rope = (weights.cos[place.flatten()].unsqueeze(1), weights.sin[place.flatten()].unsqueeze(1))
        at = place if self._copies else steps
        attend = self._attend_at_once if self._copies else self._attend_in_two
        if not self._copies and (self._grid is None or self._grid.count != count):
            self._grid = _Grid(prompt, self.prompts.length, weights.dtype)
        latest = int(at.max()) + 1
        hidden = self._hidden(at, latest)
        slot, where, chosen = _entries(at, real)
        newest = self.cache[:, :count, :, latest - 1].unbind(0)
        keys, values = (part.unbind(0) for part in self.cache[:, :count, :, :latest].split(body.kv_heads, 2))
        x = weights.embedding[ids.flatten()].to(torch.promote_types(weights.dtype, torch.float32))
        places, delta = self._places(ids, steps, real), None
        for number, block in enumerate(weights.step_blocks):
            into = None if places is None else places.into(number)
            x, packed = projected(body, block, x, delta, rope, into=None if into is None else into.heads)
            q, said = packed[:, : body.heads], packed[:, body.heads :]
            if hidden is None:  # all rows are equally far
                newest[number].copy_(said)
            else:
                self.cache[number, slot, :, where] = said if chosen is None else said[chosen]
            out, logsumexp = attend(_by_slot(q, count, body.kv_heads), keys[number], values[number], hidden, number)
            out = _by_token(out, each)
            x, behind = after(body, block, x, out.flatten(1), into=None if into is None else into.rest)
            if places is not None:
                attended = Attended(out, _by_token(logsumexp.unsqueeze(-1), each).squeeze(-1))
                places.write(number, Products(packed, attended, behind), into)
            delta = behind.delta
        x = x if delta is None else x + delta
        return head_logits(normed(x, weights.last_norm, body.eps).to(weights.dtype), weights.head)

    def _hidden(self, at: Tensor, latest: int) -> Tensor | None:
        """What hides keys behind a token's own, of its row and of others' lengths; None where there are none."""
        if not bool((at != latest - 1).any()):
            return None
        body, (count, each) = self.weights.body, at.shape
        ahead = torch.arange(latest, device=at.device) > at.unsqueeze(2)
        hidden = hiding(ahead.view(count, 1, each, latest), self.weights.dtype)
        return hidden if each == 1 else hidden.repeat_interleave(body.heads // body.kv_heads, 2)

    def _places(self, ids: Tensor, steps: Tensor, real: Tensor | None) -> CacheWriter | None:
        """Where what is computed of these tokens is written down, if it is."""
        slots, kept, (count, each) = self.slots, self.prompts.kept, ids.shape
        if kept is None:
            return None
        alive = ~slots.ended[:count] if real is None else real.flatten()
        return CacheWriter(kept, slots.row[:count].repeat_interleave(each), steps.flatten(), ids.flatten(), alive)

    def _attend_at_once(self, q: Tensor, k: Tensor, v: Tensor, hidden: Tensor | None, number: int) -> Attended:
        """Attention ``[B, kv_heads, repeat, width]`` over the cache, which holds the prompts too."""
        if q.device.type == "cpu":
            return attend_with_logsumexp(q, k, v, self.weights.body.scale, hidden)
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=hidden, scale=self.weights.body.scale)
        return Attended(out, out.new_empty(0))  # nothing is kept there

    def _attend_in_two(self, q: Tensor, k: Tensor, v: Tensor, hidden: Tensor | None, number: int) -> Attended:
        """The same over the cache and, all rows of a prompt together, over the prompt; two softmaxes made one."""
        grid, scale = self._grid, self.weights.body.scale
        assert grid is not None
        keys, values = (part if grid.used is None else part[grid.used] for part in self._padded[number])
        own = attend_with_logsumexp(q, k, v, scale, hidden)
        there, logsumexp = attend_some(grid.spread(q), keys, values, scale, grid.absent)
        repeat = q.shape[2]
        return merged(own, Attended(grid.gather(there, repeat), grid.gather(logsumexp.unsqueeze(-1), repeat).squeeze(-1)))


def _entries(at: Tensor, real: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
    """Slot and place in the cache of each token ``[count, T]`` that enters it, and which these are, if not all."""
    slot = torch.arange(len(at), device=at.device).repeat_interleave(at.shape[1])
    if real is None or bool(real.all()):
        return slot, at.flatten(), None
    chosen = real.flatten().nonzero().squeeze(1)
    return slot[chosen], at.flatten()[chosen], chosen


def _by_slot(q: Tensor, count: int, kv_heads: int) -> Tensor:
    """Queries ``[count * T, heads, width]`` as ``[count, kv_heads, T * repeat, width]``."""
    q = q.view(count, -1, kv_heads, q.shape[1] // kv_heads, q.shape[2])
    return q.transpose(1, 2).flatten(2, 3)


def _by_token(out: Tensor, each: int) -> Tensor:
    """The way back, of ``[count, kv_heads, T * repeat, F]``: ``[count * T, heads, F]``."""
    return out.unflatten(2, (each, -1)).transpose(1, 2).flatten(0, 1).flatten(1, 2)


class _Grid:
    """Slots ordered by prompt, as many places for each prompt as the busiest has: all of a prompt's rows meet its keys at once."""

    def __init__(self, prompt: Tensor, lengths: Tensor, dtype: torch.dtype):
        used, inverse, busy = prompt.unique(return_inverse=True, return_counts=True)
        self.count, self.groups, self.n = len(prompt), len(used), int(busy.max())
        order = inverse.argsort(stable=True)
        first = busy.cumsum(0) - busy
        rank = torch.empty_like(order)
        rank[order] = torch.arange(len(order), device=order.device) - first[inverse[order]]
        place = inverse * self.n + rank
        whole = torch.arange(self.count, device=place.device)
        full = self.groups * self.n == self.count and torch.equal(place, whole)
        self.place = None if full else place
        self.used = None if self.groups == len(lengths) else used
        longest = int(lengths.max())
        absent = torch.arange(longest, device=place.device) >= lengths[used].unsqueeze(1)
        self.absent = hiding(absent.view(self.groups, 1, 1, longest), dtype) if bool(absent.any()) else None

    def spread(self, x: Tensor) -> Tensor:
        """``[B, kv, repeat, F]`` as ``[groups, kv, n * repeat, F]``."""
        _, kv, repeat, features = x.shape
        if self.place is not None:
            x = x.new_zeros(self.groups * self.n, kv, repeat, features).index_copy_(0, self.place, x)
        return x.view(self.groups, self.n, kv, repeat, features).transpose(1, 2).reshape(self.groups, kv, self.n * repeat, features)

    def gather(self, x: Tensor, repeat: int) -> Tensor:
        """The way back."""
        _, kv, _, features = x.shape
        x = x.view(self.groups, kv, self.n, repeat, features).transpose(1, 2).reshape(-1, kv, repeat, features)
        return x if self.place is None else x[self.place]
