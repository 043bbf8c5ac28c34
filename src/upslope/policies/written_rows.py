"""Texts behind prompts as rows that nobody sampled."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from upslope.objective.functional.last_decision import last_decision
from upslope.plain_data import Prompt
from upslope.policies.language_model import LanguageModel
from upslope.policies.text_inputs import TextInputs
from upslope.types import Ended, Trajectories, View


def left_padded(prompts: Sequence[list[int]], pad: int) -> TextInputs:
    """Prompts as a matrix that ends where each prompt ends."""
    width = max(map(len, prompts))
    ids = torch.tensor([[pad] * (width - len(prompt)) + prompt for prompt in prompts])
    mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    return TextInputs(ids, mask)


def written_rows(policy: LanguageModel, prompts: Sequence[Prompt], texts: Sequence[str]) -> Trajectories:
    """Texts behind prompts, a stop token behind each, as rows that nobody sampled: `behavior` is NaN."""
    stop = min(policy.stop_ids)
    answers = [[*policy.tokenizer(text, add_special_tokens=False).input_ids, stop] for text in texts]
    return token_rows(policy, policy.encode_all(prompts), answers)


def token_rows(policy: LanguageModel, prompts: Sequence[list[int]], answers: Sequence[list[int]]) -> Trajectories:
    """Ids behind ids, as rows that nobody sampled."""
    width = max(map(len, answers))
    tokens = torch.tensor([answer + [policy.pad_id] * (width - len(answer)) for answer in answers])
    sampled = torch.tensor([[1.0] * len(answer) + [0.0] * (width - len(answer)) for answer in answers])
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
        horizon=width,
        inputs=left_padded(prompts, policy.pad_id),
    )
    return rows.to(policy.device)


def two_answer_rows(policy: LanguageModel, prompts: Sequence[Prompt], pairs: Sequence[tuple[str, str]]) -> Trajectories:
    """Two texts behind each prompt, a stop token behind each. The last one alone is a decision: a head read there has seen both."""
    stop, encode = min(policy.stop_ids), policy.tokenizer
    texts = list(dict.fromkeys(text for pair in pairs for text in pair))
    ids = {text: [*encode(text, add_special_tokens=False).input_ids, stop] for text in texts}
    rows = token_rows(policy, policy.encode_all(prompts), [ids[first] + ids[second] for first, second in pairs])
    return rows.replace(sampled=last_decision(rows.sampled).to(rows.sampled.dtype))
