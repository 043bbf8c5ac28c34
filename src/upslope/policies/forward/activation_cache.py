"""The activation cache: what a model computed while it sampled, kept so that learning does not compute it again.

Learning from fresh samples looks at the same tokens with the same weights as sampling did: its forward pass would give the same
products once more. They are written down as they come, packed as `packing` packs tokens, and given to the decoder as ``known``;
the backward pass begins at once. Whatever differs, a token or a weight, and the pass is made anew.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor

from upslope.policies.forward.architecture import Architecture
from upslope.policies.forward.blocks import Products
from upslope.policies.forward.packing import Layout
from upslope.runtime import torch_private

_passes = itertools.count()


class ActivationCache:
    """The products of prompts and of rows that continue them, on a CPU.

    Args:
        prompts: Shared tokens of each distinct prompt: all but its last.
        owner: The prompt of each row ``[R]``.
        room: The most own tokens of a row.
        former: A pass that nobody needs any more: its memory is taken over if it fits, as new memory costs time.
    """

    def __init__(
        self,
        body: Architecture,
        dtype: torch.dtype,
        prompts: Sequence[int],
        owner: Tensor,
        room: int,
        former: ActivationCache | None = None,
    ):
        self.shared, self.rows = sum(prompts), len(owner)
        self.numbers = torch.arange(self.rows) + (next(_passes) << 32)
        """What to call the rows: no two passes have the same."""
        self._weights = _Weights(body)
        lengths = torch.tensor(prompts)
        self._prompt = (lengths.cumsum(0) - lengths)[owner]
        """Where the prompt of each row begins."""
        self._length = lengths[owner]
        needed = _needed(body, dtype, self.shared, self.rows * room)
        self.layers: list[list[Tensor]] = [] if former is None else former.layers
        if [[(tensor.shape, tensor.dtype) for tensor in layer] for layer in self.layers] != needed:
            self.layers = [[torch.empty(shape, dtype=kind) for shape, kind in layer] for layer in needed]
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
        return sum(shape.numel() * kind.itemsize for layer in _needed(body, dtype, shared, own) for shape, kind in layer)

    def write_prompts(self, number: int, ids: Tensor, products: Sequence[Tensor]) -> None:
        """What a layer computed of the prompts' shared tokens; of the last one only the heads are."""
        self.ids[: self.shared] = ids
        for place, found in zip(self.layers[number], products, strict=False):
            place[: self.shared] = found

    def fresh(self, body: Architecture) -> bool:
        """Whether the weights are still those it was made with."""
        return self._weights == _Weights(body)

    def holds(self, numbers: Tensor) -> bool:
        """Whether rows with these numbers are its own."""
        return bool(((numbers >= self.numbers[0]) & (numbers <= self.numbers[-1])).all())

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


def _needed(body: Architecture, dtype: torch.dtype, shared: int, own: int) -> list[list[tuple[torch.Size, torch.dtype]]]:
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
        parameters = list(body.model.parameters())
        self.versions = [(parameter.data_ptr(), torch_private.version_of(parameter)) for parameter in parameters]
        self.lengths = [float(length) for length in torch_private.foreach_norm([parameter.detach() for parameter in parameters])]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Weights) and (self.versions, self.lengths) == (other.versions, other.lengths)
