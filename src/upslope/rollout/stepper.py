"""One token further in many rows at once: the model's decoding pass, a prompt's keys and values kept once for all its rows.

Rows live in *slots*. A slot knows its row, its prompt, how many tokens it has said and the last of them; a row that has ended
leaves its slot to the next one that waits, or the last slots move into the gaps. Which slot a row has changes nothing about what
it says.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from upslope.policies.attention import attend_with_mass, hiding, pad
from upslope.policies.blocks import after, projected
from upslope.policies.columns import head_logits
from upslope.policies.decoder import prompt_memory
from upslope.policies.layout import Layout
from upslope.policies.nodes import turned
from upslope.rollout.record import Job, Record
from upslope.rollout.sampling import draw_tokens
from upslope.rollout.weights import Weights

COPIED = 48
"""Prompts up to so long are copied into the cache of each of their rows."""


class Prompts:
    """Keys and values of all prompts but their last tokens, packed: per layer two of ``[S, kv_heads, width]``."""

    def __init__(self, weights: Weights, prompts: Sequence[Sequence[int]]):
        device = weights.device
        self.lengths = [len(prompt) - 1 for prompt in prompts]
        self.last = torch.tensor([prompt[-1] for prompt in prompts], device=device)
        self.length = torch.tensor(self.lengths, device=device)
        ids = torch.tensor([token for prompt in prompts for token in prompt[:-1]], dtype=torch.long, device=device)
        places = torch.tensor([place for length in self.lengths for place in range(length)], dtype=torch.long, device=device)
        self.layout = Layout(ids, places, self.lengths, [], [], device)
        self.memory = prompt_memory(weights.body, weights.blocks, weights.embedding[ids], self.layout)

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
    job: Job

    def __init__(self, weights: Weights, count: int, room: int):
        self.weights, self.room = weights, room
        self.slots = Slots(count, weights.device)

    def begin(self, prompts: Prompts, job: Job | None = None) -> None:
        """Turn to new prompts, and to the rows that continue them."""
        weights, longest = self.weights, max(prompts.lengths)
        body, count = weights.body, len(self.slots.row)
        self.prompts = prompts
        if job is not None:
            self.job = job
        self.slots.ended.fill_(True)
        self._padded = prompts.padded() if longest else []
        self._copies = longest <= COPIED or weights.device.type != "cpu"
        """Whether rows keep their prompts themselves."""
        keys = self.room + (longest if self._copies else 0)
        shape = (len(weights.blocks), 2, count, body.kv_heads, keys, body.width)
        self.cache = torch.zeros(shape, dtype=weights.dtype, device=weights.device)
        """Keys and values of what the slots' rows have said, behind their prompts where these are copied."""
        self._grid: _Grid | None = None

    def fill(self, slots: Tensor, rows: Tensor, prompts: Tensor) -> None:
        """Let slots begin with new rows."""
        own = self.slots
        own.row[slots], own.prompt[slots], own.step[slots] = rows, prompts, 0
        own.token[slots], own.ended[slots] = self.prompts.last[prompts], False
        if self._copies:
            for cache, (keys, values) in zip(self.cache, self._padded, strict=False):
                longest = keys.shape[2]
                cache[0, slots, :, :longest], cache[1, slots, :, :longest] = keys[prompts], values[prompts]
        self._grid = None

    def move(self, source: Tensor, target: Tensor) -> None:
        """Rows of some slots go on in others, whose own have ended; the slots they leave are empty."""
        for column in self.slots.columns():
            column[target] = column[source]
        self.slots.ended[source] = True
        if len(source):
            self.cache[:, :, target] = self.cache[:, :, source]
        self._grid = None

    def advance(self, count: int) -> None:
        """Draws a token in each of the first ``count`` slots and writes it down; slots whose row has ended write nothing."""
        slots, job = self.slots, self.job
        row, step, alive = slots.row[:count], slots.step[:count], ~slots.ended[:count]
        draw = draw_tokens(self.logits(count), job.sampling, job.uniforms[row, step])
        where = (row, step) if bool(alive.all()) else (row[alive], step[alive])
        for column, value in zip(job.record, (draw.token, torch.ones_like(draw.logp), draw.logp, draw.entropy), strict=True):
            column[where] = value if len(where[0]) == count else value[alive]
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
        weights, slots = self.weights, self.slots
        body, step, prompt = weights.body, slots.step[:count], slots.prompt[:count]
        place = self.prompts.length[prompt] + step
        turn = (weights.cos[place].unsqueeze(1), weights.sin[place].unsqueeze(1))
        at = place if self._copies else step
        look = self._look_at_all if self._copies else self._look_twice
        if not self._copies and (self._grid is None or self._grid.count != count):
            self._grid = _Grid(prompt, self.prompts.length, weights.dtype)
        latest = int(at.max()) + 1
        hidden = None  # keys behind a row's own last one
        if bool((at != latest - 1).any()):
            hidden = (torch.arange(latest, device=at.device) > at.unsqueeze(1)).view(count, 1, 1, latest)
        slot = torch.arange(count, device=at.device)
        x = weights.embedding[slots.token[:count]].to(torch.promote_types(weights.dtype, torch.float32))
        delta, turning = None, body.heads + body.kv_heads
        for number, block in enumerate(weights.blocks):
            x, packed = projected(body, block, x, delta)
            packed = turned(packed, *turn, turning)
            said = packed[:, body.heads :].unflatten(1, (2, body.kv_heads)).transpose(0, 1)
            keys, values = cache = self.cache[number]
            if hidden is None:  # all rows are equally far
                cache[:, :count, :, latest - 1] = said
            else:
                cache[:, slot, :, at] = said.transpose(0, 1)
            q = packed[:, : body.heads].unflatten(1, (body.kv_heads, -1))
            out = look(q, keys[:count, :, :latest], values[:count, :, :latest], hidden, number)
            x, delta = after(body, block, x, out.reshape(count, -1))
        x = x if delta is None else x + delta
        last = F.rms_norm(x, x.shape[-1:], weights.last_norm, body.eps).to(weights.dtype)
        return head_logits(last, weights.head)

    def _look_at_all(self, q: Tensor, k: Tensor, v: Tensor, hidden: Tensor | None, number: int) -> Tensor:
        """Attention ``[B, kv_heads, repeat, width]`` over the cache, which holds the prompts too."""
        shown = None if hidden is None else ~hidden
        return F.scaled_dot_product_attention(q, k, v, attn_mask=shown, scale=self.weights.body.scale)

    def _look_twice(self, q: Tensor, k: Tensor, v: Tensor, hidden: Tensor | None, number: int) -> Tensor:
        """The same over the cache and, all rows of a prompt together, over the prompt; two softmaxes made one."""
        grid, scale = self._grid, self.weights.body.scale
        assert grid is not None
        keys, values = (part if grid.used is None else part[grid.used] for part in self._padded[number])
        own, own_mass = attend_with_mass(q, k, v, scale, None if hidden is None else hiding(hidden, q.dtype))
        there, mass = attend_with_mass(grid.spread(q), keys, values, scale, grid.absent)
        there, mass = grid.gather(there, q.shape[2]), grid.gather(mass.unsqueeze(-1), q.shape[2])
        share = torch.sigmoid(mass - own_mass.unsqueeze(-1))
        return torch.lerp(own, there, share.to(own.dtype))


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
