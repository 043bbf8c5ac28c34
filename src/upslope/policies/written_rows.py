"""Texts behind prompts as rows that nobody sampled."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from upslope.objective.functional.last_decision import last_decision
from upslope.plain_data import Prompt
from upslope.policies.language_model import LanguageModel
from upslope.policies.text_inputs import TextInputs
from upslope.policies.tokenization import encoded_answers
from upslope.types import Ended, Trajectories, View


def left_padded(prompts: Sequence[list[int]], pad: int) -> TextInputs:
    """Prompts as a matrix that ends where each prompt ends."""
    return TextInputs(*_padded(prompts, pad, left=True))


def _padded(rows: Sequence[list[int]], pad: int, left: bool = False) -> tuple[Tensor, Tensor]:
    """Ids as a matrix, and where it holds them; filled row by row, as torch takes ten times as long to read lists of lists."""
    width = max(map(len, rows))
    ids, mask = np.full((len(rows), width), pad, np.int64), np.zeros((len(rows), width), np.int64)
    for number, row in enumerate(rows):
        place = slice(width - len(row), width) if left else slice(len(row))
        ids[number, place], mask[number, place] = row, 1
    return torch.from_numpy(ids), torch.from_numpy(mask)


def written_rows(policy: LanguageModel, prompts: Sequence[Prompt], texts: Sequence[str]) -> Trajectories:
    """Texts behind prompts, a stop token behind each, as rows that nobody sampled: `behavior` is NaN."""
    stop = min(policy.stop_ids)
    answers = [[*ids, stop] for ids in encoded_answers(policy.tokenizer, texts)]
    return token_rows(policy, policy.encode_all(prompts), answers)


def token_rows(policy: LanguageModel, prompts: Sequence[list[int]], answers: Sequence[list[int]]) -> Trajectories:
    """Ids behind ids, as rows that nobody sampled."""
    tokens, written = _padded(answers, policy.pad_id)
    sampled = written.float()
    rows = Trajectories(
        sampled=sampled,
        reward=torch.ones(len(answers)),
        group=torch.arange(len(answers)),
        task=torch.zeros(len(answers), dtype=torch.int64),
        behavior=View(torch.full_like(sampled, torch.nan), torch.full_like(sampled, torch.nan)),
        action=tokens,
        temperature=torch.ones_like(sampled),
        ended=(last_decision(sampled) * int(Ended.TERMINATED)).to(torch.int8),
        bootstrap=torch.zeros_like(sampled),
        horizon=tokens.shape[1],
        inputs=left_padded(prompts, policy.pad_id),
    )
    return rows.to(policy.device)


def two_answer_rows(policy: LanguageModel, prompts: Sequence[Prompt], pairs: Sequence[tuple[str, str]]) -> Trajectories:
    """Two texts behind each prompt, a stop token behind each. The last one alone is a decision: a head read there has seen both."""
    stop, texts = min(policy.stop_ids), list(dict.fromkeys(text for pair in pairs for text in pair))
    ids = {text: [*ids, stop] for text, ids in zip(texts, encoded_answers(policy.tokenizer, texts), strict=True)}
    rows = token_rows(policy, policy.encode_all(prompts), [ids[first] + ids[second] for first, second in pairs])
    return rows.replace(sampled=last_decision(rows.sampled).to(rows.sampled.dtype))
