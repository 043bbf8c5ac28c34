"""How rows of prompt and response become packed tokens: each distinct prompt once, no padding."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Layout:
    """Packed tokens: those of all prompts but their last, then each row's own.

    A row's own tokens are the last one of its prompt and all of its response but the last: each predicts the next.
    """

    ids: Tensor
    """``[S]``."""
    places: Tensor
    """``[S]``: the position of each token in its text."""
    prompts: list[int]
    """Shared tokens of each prompt; may be 0."""
    owns: list[int]
    """Own tokens of each row."""
    which: list[int]
    """The prompt of each row; rows of one prompt stand together."""
    device: torch.device

    @cached_property
    def shared(self) -> int:
        """How many of the packed tokens belong to prompts."""
        return sum(self.prompts)

    @cached_property
    def prompt_places(self) -> Tensor | None:
        """Where the prompts' tokens stand in a padded ``[G * P]``; None if there is no padding."""
        return _padded_places(self.prompts, self.device)

    @cached_property
    def own_places(self) -> Tensor | None:
        """Where the own tokens stand in a padded ``[N * T]``; None if there is no padding."""
        return _padded_places(self.owns, self.device)

    @cached_property
    def group_sizes(self) -> list[int]:
        """Rows of each prompt."""
        sizes = [0] * len(self.prompts)
        for prompt in self.which:
            sizes[prompt] += 1
        return sizes

    @cached_property
    def row_bounds(self) -> Bounds:
        """Rows alone: each looks at its prompt and at itself."""
        seen = [self.prompts[prompt] + own for prompt, own in zip(self.which, self.owns, strict=True)]
        return Bounds.of(self._row_keys, self.owns, seen, self.device)

    @cached_property
    def all_bounds(self) -> Bounds:
        """Prompts, each looking at itself, and rows."""
        seen = [self.prompts[prompt] + own for prompt, own in zip(self.which, self.owns, strict=True)]
        keys = torch.cat([torch.arange(self.shared), self._row_keys])
        return Bounds.of(keys, [*self.prompts, *self.owns], [*self.prompts, *seen], self.device)

    @cached_property
    def _row_keys(self) -> Tensor:
        """Which packed tokens each row looks at, row after row."""
        prompt, which, own = (np.array(numbers, dtype=np.int64) for numbers in (self.prompts, self.which, self.owns))
        there = prompt[which]
        lengths = there + own
        row = np.arange(len(lengths)).repeat(lengths)
        place = np.arange(lengths.sum()) - (lengths.cumsum() - lengths)[row]
        of_prompt = (prompt.cumsum() - prompt)[which][row] + place
        of_row = (own.cumsum() - own + self.shared - there)[row] + place
        return torch.from_numpy(np.where(place < there[row], of_prompt, of_row))


@dataclass(frozen=True, eq=False)
class Bounds:
    """Packed sequences for a kernel: which tokens are keys, and where queries and keys of each sequence begin and end."""

    keys: Tensor
    q: Tensor
    k: Tensor
    q_longest: int
    k_longest: int

    @staticmethod
    def of(keys: Tensor, queries: list[int], seen: list[int], device: torch.device) -> Bounds:
        pairs = [(q, k) for q, k in zip(queries, seen, strict=True) if q]
        q, k = ([length for length, _ in pairs], [length for _, length in pairs])
        return Bounds(keys.to(device), _bounds(q, device), _bounds(k, device), max(q, default=0), max(k, default=0))


def lay_out(prompt: Tensor, prompt_mask: Tensor, action: Tensor, extent: Tensor) -> Layout:
    """The layout of rows.

    Args:
        prompt: ids ``[N, P]``, padded on the left.
        action: the response's ids ``[N, T]``.
        extent: how many positions of each row's response are wanted ``[N]``, at least 1.
    """
    device, rows, width = prompt.device, *prompt.shape
    new = torch.ones(rows, dtype=torch.bool, device=device)
    new[1:] = ((prompt[1:] != prompt[:-1]) | (prompt_mask[1:] != prompt_mask[:-1])).any(1)
    which = new.cumsum(0) - 1
    first = new.nonzero().squeeze(1)
    lengths = prompt_mask.sum(1).long()
    distinct = lengths[first] - 1
    place = torch.arange(width, device=device) - (width - lengths[first]).unsqueeze(1)
    inside = place >= 0
    inside[:, -1] = False  # the last token of a prompt belongs to the rows
    own = torch.cat([prompt[:, -1:], action[:, :-1]], 1)
    step = torch.arange(own.shape[1], device=device)
    wanted = step < extent.unsqueeze(1)
    own_places = (lengths - 1).unsqueeze(1) + step
    return Layout(
        torch.cat([prompt[first][inside], own[wanted]]),
        torch.cat([place[inside], own_places[wanted]]),
        distinct.tolist(),
        extent.tolist(),
        which.tolist(),
        device,
    )


def _padded_places(lengths: list[int], device: torch.device) -> Tensor | None:
    longest = max(lengths, default=0)
    if all(length == longest for length in lengths):
        return None
    return torch.cat([torch.arange(row * longest, row * longest + length) for row, length in enumerate(lengths)]).to(device)


def _bounds(lengths: list[int], device: torch.device) -> Tensor:
    total = torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0, dtype=torch.int32)
    return total.to(device)
