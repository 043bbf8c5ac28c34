"""Answers that are written in several goes: what there is of each, with what was recorded of its tokens when they were drawn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from upslope.types import Completions, Finish


class Begun(Protocol):
    """An answer, as far as it is written."""

    tokens: list[int]
    logp: list[float]
    entropy: list[float]
    version: list[int]
    """Of the weights that drew each token."""
    finish: Finish
    """``paused`` while it goes on."""


@dataclass
class BegunAnswer:
    """An answer of a step that is still being written."""

    tokens: list[int] = field(default_factory=list)
    logp: list[float] = field(default_factory=list)
    entropy: list[float] = field(default_factory=list)
    version: list[int] = field(default_factory=list)
    finish: Finish = "paused"


def extend(answers: Sequence[Begun], written: Completions, limit: int, version: int) -> None:
    """Adds to each answer what was written of it now.

    Args:
        limit: The most tokens of an answer; one that is cut below it goes on.
        version: Of the weights that wrote it.
    """
    columns = [column.tolist() for column in (written.tokens, written.logp, written.entropy)]
    lengths = written.sampled.sum(1).long().tolist()
    for answer, length, finish, tokens, logp, entropy in zip(answers, lengths, written.finish, *columns, strict=True):
        answer.tokens, answer.logp, answer.entropy = (
            old + new[:length] for old, new in ((answer.tokens, tokens), (answer.logp, logp), (answer.entropy, entropy))
        )
        answer.version = answer.version + [version] * length
        answer.finish = "paused" if finish == "length" and len(answer.tokens) < limit else finish


def completed(answers: Sequence[Begun], pad_id: int) -> tuple[Completions, Tensor]:
    """Answers as if they had been written in one go, and the version ``[N, T]`` behind each token."""
    tokens = padded([answer.tokens for answer in answers], pad_id)
    sampled, logp, entropy = (
        padded(columns, 0.0)
        for columns in ([[1.0] * len(answer.tokens) for answer in answers], [answer.logp for answer in answers],
                        [answer.entropy for answer in answers])
    )  # fmt: skip
    versions = padded([answer.version for answer in answers], 0)
    return Completions(tokens, sampled, logp, entropy, [answer.finish for answer in answers]), versions


def padded(rows: Sequence[Sequence[float]], blank: float) -> Tensor:
    """Lists of different lengths as a matrix, blank behind each."""
    width = max(map(len, rows))
    return torch.tensor([[*row, *[blank] * (width - len(row))] for row in rows])
