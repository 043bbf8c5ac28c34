"""Packing: rows of prompt and response as packed tokens, each distinct prompt once, no padding."""

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
    by_step: bool = False
    """The rows' own tokens stand step by step, not row by row; all rows have as many. For a CPU."""

    @cached_property
    def shared(self) -> int:
        """How many of the packed tokens belong to prompts."""
        return sum(self.prompts)

    @cached_property
    def prompt_places(self) -> Tensor | None:
        """Where the prompts' tokens stand in a padded ``[G * P]``; None if there is no padding."""
        return _padded_places(self.prompts, self.device)

    def rows(self, own: Tensor) -> Tensor:
        """Own tokens ``[S_own, ...]`` as rows ``[N, longest, ...]``, zero behind their ends."""
        if self.by_step:
            return own.view(-1, len(self.owns), *own.shape[1:]).transpose(0, 1)
        return pad(own, self.owns, self._own_places)

    def packed(self, rows: Tensor) -> Tensor:
        """The way back."""
        return rows.transpose(0, 1).flatten(0, 1) if self.by_step else unpad(rows, self._own_places)

    @cached_property
    def _own_places(self) -> Tensor | None:
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
    def longest(self) -> int:
        """Own tokens of the longest prompt or row."""
        return max([*self.prompts, *self.owns], default=0)

    @cached_property
    def spans(self) -> Tensor:
        """Prompts, then rows ``[G + N, 6]``: where own tokens begin and how many they are, the same of what they see before
        (a row's prompt), the same of what looks back at them (a prompt's rows). For the attention kernels."""
        prompt, which, own = (np.array(numbers, dtype=np.int64) for numbers in (self.prompts, self.which, self.owns))
        lengths = np.concatenate([prompt, own])
        first = lengths.cumsum() - lengths
        of_prompt, of_row = first[: len(prompt)], first[len(prompt) :]
        behind = np.bincount(which, own, len(prompt)).astype(np.int64)
        begin = behind.cumsum() - behind + self.shared
        prompts = np.stack([of_prompt, prompt, of_prompt, np.zeros_like(prompt), begin, behind], 1)
        rows = np.stack([of_row, own, of_prompt[which], prompt[which], of_row, np.zeros_like(own)], 1)
        return torch.from_numpy(np.concatenate([prompts, rows]).astype(np.int32)).to(self.device)

    def blocks(self, size: int) -> Tensor:
        """All spans in blocks of at most so many tokens ``[B, 2]``: which span, and the block's first token in it."""
        if size not in self._blocks:
            counts = -(-np.array([*self.prompts, *self.owns], dtype=np.int64) // size)
            span = np.arange(len(counts)).repeat(counts)
            begin = (np.arange(len(span)) - (counts.cumsum() - counts)[span]) * size
            self._blocks[size] = torch.from_numpy(np.stack([span, begin], 1).astype(np.int32)).to(self.device)
        return self._blocks[size]

    def prompt_blocks(self, size: int) -> int:
        """How many of the blocks belong to prompts; they come first."""
        return sum(-(-length // size) for length in self.prompts)

    def back_work(self, size: int, most: int) -> tuple[Tensor, Tensor, int]:
        """Who computes the gradients of which keys: the work of programs, what is to be added up, and how many shares there are.

        Args:
            size: keys of a block.
            most: queries that look back at one and are walked by one program; of more, others have a share.

        Returns:
            Work ``[B, 6]``: span, its first key, whether its own queries count, the first and last of those that look back, and
            the place of the share (-1: there is one, which is the gradient). Sums ``[D, 4]``: span, its first key, the place of
            its first share, and their number.
        """
        if (size, most) not in self._back_work:
            behind = np.bincount(np.array(self.which, dtype=np.int64), np.array(self.owns), len(self.prompts)).astype(np.int64)
            work: list[tuple[int, ...]] = []
            sums: list[tuple[int, ...]] = []
            shares = 0
            for span, length in enumerate([*self.prompts, *self.owns]):
                many = int(behind[span]) if span < len(self.prompts) else 0
                parts = max(1, -(-many // most))
                for begin in range(0, length, size):
                    if parts == 1:
                        work.append((span, begin, 1, 0, many, -1))
                        continue
                    sums.append((span, begin, shares, parts))
                    for part in range(parts):
                        work.append((span, begin, part == 0, part * most, min((part + 1) * most, many), shares + part))
                    shares += parts
            found = (np.array(each, dtype=np.int32).reshape(-1, wide) for each, wide in ((work, 6), (sums, 4)))
            entries, added = (torch.from_numpy(each).to(self.device) for each in found)
            self._back_work[size, most] = entries, added, shares
        return self._back_work[size, most]

    @cached_property
    def _blocks(self) -> dict[int, Tensor]:
        return {}

    @cached_property
    def _back_work(self) -> dict[tuple[int, int], tuple[Tensor, Tensor, int]]:
        return {}


def packed_tokens(prompt: Tensor, prompt_mask: Tensor, response: Tensor) -> Tensor:
    """Tokens of each row ``[N]``: so many of its response, and its share of a prompt that it has with its neighbours."""
    new = torch.ones(len(prompt), dtype=torch.long, device=prompt.device)
    new[1:] = (prompt[1:] != prompt[:-1]).any(1)
    which = new.cumsum(0) - 1
    return prompt_mask.sum(1) / which.bincount()[which] + response


def lay_out(prompt: Tensor, prompt_mask: Tensor, action: Tensor, extent: Tensor, by_step: bool = False) -> Layout:
    """The layout of rows.

    Args:
        prompt: ids ``[N, P]``, padded on the left.
        action: the response's ids ``[N, T]``.
        extent: how many positions of each row's response are wanted ``[N]``, at least 1.
        by_step: the own tokens step by step; only of rows with the same extent.
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
    if by_step:
        own, own_places, wanted = own.t(), own_places.t(), wanted.t()
    return Layout(
        torch.cat([prompt[first][inside], own[wanted]]),
        torch.cat([place[inside], own_places[wanted]]),
        distinct.tolist(),
        extent.tolist(),
        which.tolist(),
        device,
        by_step,
    )


def pad(packed: Tensor, lengths: list[int], places: Tensor | None) -> Tensor:
    """Packed tokens ``[S, ...]`` as rows ``[N, longest, ...]``, zero behind their ends."""
    longest = max(lengths, default=0)
    if places is None:
        return packed.reshape(len(lengths), longest, *packed.shape[1:])
    blank = packed.new_zeros(len(lengths) * longest, *packed.shape[1:])
    return blank.index_copy(0, places, packed).view(len(lengths), longest, *packed.shape[1:])


def unpad(rows: Tensor, places: Tensor | None) -> Tensor:
    flat = rows.flatten(0, 1)
    return flat if places is None else flat[places]


def _padded_places(lengths: list[int], device: torch.device) -> Tensor | None:
    longest = max(lengths, default=0)
    if all(length == longest for length in lengths):
        return None
    return torch.cat([torch.arange(row * longest, row * longest + length) for row, length in enumerate(lengths)]).to(device)
