"""The activation cache: what a model computed while it sampled, kept so that learning does not compute it again.

Learning from fresh samples looks at the same tokens with the same weights as sampling did: its forward pass would give the same
products once more. They are written down as they come, packed as `packing` packs tokens, and given to the decoder as ``known``;
the backward pass begins at once. Whatever differs, a token or a weight, and the pass is made anew.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from upslope.policies.forward.architecture import Architecture
from upslope.policies.forward.blocks import Products
from upslope.policies.forward.packed_matrix import stands_in
from upslope.policies.forward.packing import Layout, packed_tokens
from upslope.policies.text_inputs import TextInputs
from upslope.runtime import torch_private

_passes = itertools.count()
BACKWARD = 2 / 3
"""The share of a pass and its gradient that is left where the pass was kept."""
CALLS = 128
"""Tokens that take as long as the calls of a pass by themselves, of a small model: rows of a few tokens are not worth one."""
ROWS = 32
"""Bits of a row's number that say which of its pass it is; those above say which pass."""
Memory = list[list[Tensor]]
"""Of each layer the tensors that `Products.tensors` are written to, of all tokens."""


class ActivationCache:
    """The products of prompts and of rows that continue them, on a CPU.

    Args:
        prompts: Shared tokens of each distinct prompt: all but its last.
        owner: The prompt of each row ``[R]``.
        room: The most own tokens of a row.
        memory: Of a pass that nobody needs any more, at least as large: it is taken over, as new memory costs time.
    """

    def __init__(
        self,
        body: Architecture,
        dtype: torch.dtype,
        prompts: Sequence[int],
        owner: Tensor,
        room: int,
        memory: Memory | None = None,
    ):
        self.shared, self.rows = sum(prompts), len(owner)
        self.name = next(_passes)
        self.numbers = torch.arange(self.rows) + (self.name << ROWS)
        """What to call the rows: no two passes have the same."""
        self.weights = _Weights(body)
        lengths = torch.tensor(prompts)
        self._prompt = (lengths.cumsum(0) - lengths)[owner]
        """Where the prompt of each row begins."""
        self._length = lengths[owner]
        needed = _needed(body, dtype, self.shared, self.rows * room)
        self.bytes = _bytes(needed)
        """Its memory, without what it was given beyond its need."""
        self.memory: Memory = memory or [[torch.empty(shape, dtype=kind) for shape, kind in layer] for layer in needed]
        self.layers = [
            [tensor[: shape[0]] for tensor, (shape, _) in zip(*both, strict=True)] for both in zip(self.memory, needed, strict=True)
        ]
        """Of each layer `Products.tensors`, of all tokens: the prompts' first, then the rows' own, step by step."""
        self.own = [[tensor[-self.rows * room :] for tensor in layer] for layer in self.layers]
        """The rows' own tokens of it."""
        self.steps = [[tensor.view(room, self.rows, *tensor.shape[1:]) for tensor in layer] for layer in self.own]
        """The same ``[room, R, ...]``."""
        self.ids = torch.full((self.shared + self.rows * room,), -1)

    @staticmethod
    def serves(body: Architecture) -> bool:
        """Whether the products of a model can stand for its pass: norms of heads would lie between a product and what is kept."""
        return body.head.weight.device.type == "cpu" and not hasattr(body.layers[0].self_attn, "q_norm")

    @staticmethod
    def size(body: Architecture, dtype: torch.dtype, shared: int, own: int) -> int:
        """Memory in bytes of so many tokens."""
        return _bytes(_needed(body, dtype, shared, own))

    def write_prompts(self, number: int, ids: Tensor, products: Sequence[Tensor]) -> None:
        """What a layer computed of the prompts' shared tokens; of the last one only the heads are."""
        self.ids[: self.shared] = ids
        for place, found in zip(self.layers[number], products, strict=False):
            place[: self.shared] = found

    def forget(self, rows: Tensor, steps: Tensor) -> None:
        """Tokens that were computed and are none of these rows: drafts that were wrong."""
        self.ids[self.shared + steps * self.rows + rows] = -1

    def fresh(self, body: Architecture) -> bool:
        """Whether the weights are still those it was made with."""
        return self.weights == _Weights(body)

    def whole(self, numbers: Tensor, extent: Tensor) -> bool:
        """Whether these are all its rows, equally long: then nothing need be moved to read them step by step."""
        return torch.equal(numbers, self.numbers) and bool((extent == extent[0]).all())

    def products(self, numbers: Tensor, layout: Layout) -> list[Products] | None:
        """What the layers computed of the tokens of some rows; None if these are not the tokens it has seen."""
        rows, own = numbers - self.numbers[0], layout.shared
        first = torch.searchsorted(torch.tensor(layout.which), torch.arange(len(layout.prompts)))  # row of each prompt
        of_prompts = self._prompt[rows[first]].repeat_interleave(torch.tensor(layout.prompts)) + layout.places[:own]
        row = rows.repeat(layout.owns[0]) if layout.by_step else rows.repeat_interleave(torch.tensor(layout.owns))
        of_rows = self.shared + (layout.places[own:] - self._length[row]) * self.rows + row
        index = torch.cat([of_prompts, of_rows])
        if int(index.max()) >= len(self.ids) or not torch.equal(self.ids[index], layout.ids):
            return None
        count = len(index)
        if torch.equal(index, torch.arange(count)):
            return [Products.of(x[: count if len(x) == len(self.ids) else count - own] for x in layer) for layer in self.layers]
        of_rows -= self.shared
        return [Products.of(x[index if len(x) == len(self.ids) else of_rows] for x in layer) for layer in self.layers]


class SampledTogether(NamedTuple):
    """Rows ``[n]`` and the pass that has sampled them; None where there is none, or none any more."""

    rows: Tensor
    kept: ActivationCache | None

    def of(self, column: Tensor) -> Tensor:
        """These rows of a column."""
        return column[self.rows]


class KeptPasses:
    """The passes of a step's sampling calls, one for each call, until the weights change or the next step begins."""

    def __init__(self) -> None:
        self.passes: dict[int, ActivationCache] = {}
        """By name, the oldest first."""
        self._spare: list[Memory] = []

    def forget(self) -> None:
        """Nobody will learn from these rows with these weights. The memory stays, to be written again."""
        self._spare = [kept.memory for kept in self.passes.values()] or self._spare
        self.passes = {}

    def begin(
        self, body: Architecture, dtype: torch.dtype, prompts: Sequence[int], owner: Tensor, room: int, most: int
    ) -> ActivationCache | None:
        """One more pass, where that is no more than ``most`` bytes; so that all are no more, the oldest make room."""
        own = sum(prompts), len(owner) * room
        size = ActivationCache.size(body, dtype, *own)
        if size > most:
            return None
        while sum(kept.bytes for kept in self.passes.values()) + size > most:
            self._spare = [self.passes.pop(next(iter(self.passes))).memory]
        made = ActivationCache(body, dtype, prompts, owner, room, self._memory(_needed(body, dtype, *own)))
        self.passes = {name: kept for name, kept in self.passes.items() if kept.weights == made.weights} | {made.name: made}
        return made

    def of(self, body: Architecture, inputs: TextInputs, extent: Tensor) -> list[SampledTogether]:
        """Rows by the pass that has computed them; those of none, or of one with other weights, together.

        All are together as rows of none where that is less work: whoever is looked at apart shares no prompt with the others, and
        each part is a pass of its own.
        """
        every = torch.arange(len(extent))
        if self.passes and inputs.kept is not None and not next(iter(self.passes.values())).fresh(body):
            self.forget()
        if not self.passes or inputs.kept is None:
            return [SampledTogether(every, None)]
        names = inputs.kept >> ROWS
        known = [SampledTogether((names == name).nonzero().squeeze(1), kept) for name, kept in self.passes.items()]
        rest = torch.isin(names, torch.tensor([*self.passes]), invert=True).nonzero().squeeze(1)
        parts = [part for part in (*known, SampledTogether(rest, None)) if len(part.rows)]
        if len(parts) == 1:
            return parts
        work = [packed_tokens(part.of(inputs.prompt), part.of(inputs.prompt_mask), part.of(extent)).sum() for part in parts]
        apart = sum(CALLS + own * (1 if part.kept is None else BACKWARD) for own, part in zip(work, parts, strict=True))
        together = CALLS + packed_tokens(inputs.prompt, inputs.prompt_mask, extent).sum()
        return parts if apart < together else [SampledTogether(every, None)]

    def _memory(self, needed: _Shapes) -> Memory | None:
        """The smallest that is free and large enough."""
        fitting = [memory for memory in self._spare if _holds(memory, needed)]
        if not fitting:
            return None
        chosen = min(fitting, key=lambda memory: memory[0][0].numel())
        self._spare = [memory for memory in self._spare if memory is not chosen]
        return chosen


class CacheWriter:
    """Where what is computed of one token of some rows is written.

    Args:
        rows, steps: which rows, and the number of the token in each ``[B]``.
        ids: the tokens.
        alive: the others are not written.
    """

    def __init__(self, kept: ActivationCache, rows: Tensor, steps: Tensor, ids: Tensor, alive: Tensor):
        self.kept, self.alive = kept, None if bool(alive.all()) else alive
        index = steps * kept.rows + rows
        step = int(steps[0])
        every = self.alive is None and torch.equal(index, torch.arange(step * kept.rows, (step + 1) * kept.rows))
        self.step = step if every else None
        """Of all rows, if none is missing and they are equally far."""
        self.index = self._written(index)
        kept.ids[kept.shared :].index_copy_(0, self.index, self._written(ids))

    def into(self, number: int) -> Products | None:
        """Where a layer may compute its products to begin with, if that is one stretch."""
        return None if self.step is None else Products.of([tensor[self.step] for tensor in self.kept.steps[number]])

    def write(self, number: int, products: Products, into: Products | None) -> None:
        """What a layer computed of all rows; if it did so ``into`` where that belongs, only the rest."""
        if into is not None:
            for there, found in zip(into.attended, products.attended, strict=True):
                there.copy_(found)
            return
        for place, found in zip(self.kept.own[number], products.tensors(), strict=True):
            place.index_copy_(0, self.index, self._written(found))

    def _written(self, found: Tensor) -> Tensor:
        return found if self.alive is None else found[self.alive]


_Shapes = list[list[tuple[torch.Size, torch.dtype]]]


def _bytes(shapes: _Shapes) -> int:
    return sum(shape.numel() * kind.itemsize for layer in shapes for shape, kind in layer)


def _holds(memory: Memory, needed: _Shapes) -> bool:
    """Whether tensors are as those needed, or longer."""
    if len(memory) != len(needed):
        return False
    pairs = [pair for layers in zip(memory, needed, strict=True) for pair in zip(*layers, strict=True)]
    return all(
        tensor.dtype == kind and tensor.shape[1:] == shape[1:] and len(tensor) >= shape[0] for tensor, (shape, kind) in pairs
    )


def _needed(body: Architecture, dtype: torch.dtype, shared: int, own: int) -> _Shapes:
    """Shape and precision of each layer's `Products.tensors`; of prompts the last layer computes only heads."""
    features, inner = body.head.in_features, body.layers[0].mlp.gate_proj.out_features
    heads = (body.heads + 2 * body.kv_heads, body.width)
    others = ((body.heads, body.width), (body.heads,), (features,), (2 * inner,), (inner,), (features,))
    kinds = [dtype, torch.promote_types(dtype, torch.float32), dtype, dtype, dtype, dtype]  # logsumexps are never in half precision
    found = []
    for count in [shared + own] * (len(body.layers) - 1) + [own]:
        sizes = [(torch.Size((count, *shape)), kind) for shape, kind in zip(others, kinds, strict=True)]
        found.append([(torch.Size((shared + own, *heads)), dtype), *sizes])
    return found


class _Weights:
    """The weights of a model at some time: whether they are still the same.

    Optimisers that are fused into one kernel change weights without counting it, hence their lengths are compared as well.
    """

    def __init__(self, body: Architecture):
        parameters = [each for each in body.model.parameters() if not stands_in(each)]  # packed weights never move
        self.versions = [(parameter.data_ptr(), torch_private.version_of(parameter)) for parameter in parameters]
        self.lengths = [float(length) for length in torch_private.foreach_norm([parameter.detach() for parameter in parameters])]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Weights) and (self.versions, self.lengths) == (other.versions, other.lengths)
