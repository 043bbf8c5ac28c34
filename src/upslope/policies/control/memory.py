"""The memory of a control policy: a recurrent cell over the steps of an episode."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from upslope.runtime.seeding import generator

CellName = Literal["gru", "lstm"]


class RecurrentMemory(nn.Module):
    """A GRU or an LSTM over the features of an episode's steps.

    Its state is one vector, zeros where an episode begins; of an LSTM what it puts out and its cell stand one behind the other.
    Weights begin orthogonal, biases at zero.

    Args:
        inputs: Features of a step.
        size: Numbers it puts out.
        seed: Of the weights.
    """

    def __init__(self, inputs: int, size: int, cell: CellName, seed: int) -> None:
        super().__init__()
        self.inputs, self.size, self.kind = inputs, size, cell
        kind = nn.GRU if cell == "gru" else nn.LSTM
        with torch.random.fork_rng(devices=[]):  # torch draws weights from its own generator
            self.cell: nn.RNNBase = kind(inputs, size, batch_first=True)
        random = generator(seed, "memory")
        for name, weight in self.cell.named_parameters():
            if name.startswith("bias"):
                nn.init.zeros_(weight)
            else:
                nn.init.orthogonal_(weight, generator=random)

    @property
    def state_size(self) -> int:
        return self.size * (2 if self.kind == "lstm" else 1)

    def step(self, features: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """What is remembered of one step more ``[B, size]`` and the new states, for features ``[B, F]`` and states ``[B, S]``."""
        output, behind = self.cell(features.unsqueeze(1), self._split(state))
        return output.squeeze(1), torch.cat([each.squeeze(0) for each in (behind if self.kind == "lstm" else (behind,))], -1)

    def forward(self, features: Tensor, state: Tensor, begins: Tensor) -> Tensor:
        """What is remembered at each step of whole rows, ``[N, T, size]``.

        A row is cut where an episode begins, and the pieces go through the cell side by side: the first of a row from the state
        it is given, the others from zeros.

        Args:
            features: ``[N, T, F]``.
            state: ``[N, S]`` in front of the rows.
            begins: ``[N, T]``, whether an episode begins with the step. The first step of a row goes by its ``state``.
        """
        rows, steps = begins.shape
        first = begins.clone()
        first[:, 0] = True
        starts = first.flatten().nonzero().squeeze(1)
        piece = first.flatten().cumsum(0) - 1  # of every step
        place = torch.arange(rows * steps, device=piece.device) - starts[piece]
        lengths = torch.bincount(piece)
        padded = features.new_zeros(len(starts), int(lengths.max()), self.inputs)
        padded = padded.index_put((piece, place), features.flatten(0, 1))
        begun = state.new_zeros(len(starts), self.state_size).index_put((piece.view(rows, steps)[:, 0],), state)
        packed = pack_padded_sequence(padded, lengths.cpu(), batch_first=True, enforce_sorted=False)
        output, _ = pad_packed_sequence(self.cell(packed, self._split(begun))[0], batch_first=True)
        return output[piece, place].view(rows, steps, self.size)

    def _split(self, state: Tensor) -> Tensor | tuple[Tensor, ...]:
        """A state ``[B, S]`` as the cell takes it."""
        parts = tuple(part.unsqueeze(0).contiguous() for part in state.split(self.size, -1))
        return parts if self.kind == "lstm" else parts[0]
