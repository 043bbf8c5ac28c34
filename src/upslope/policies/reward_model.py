"""Reward models: a language model's trunk with a head that scores answers, or tells which of two is better."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from upslope.errors import UserError
from upslope.objective.functional.last_decision import last_decision
from upslope.plain_data import Prompt
from upslope.policies.language_model import LanguageModel
from upslope.policies.written_rows import two_answer_rows, written_rows
from upslope.types import Trajectories

ROWS_AT_ONCE = 512
"""Texts that are encoded together; the policy cuts them further to what fits into memory."""


@dataclass(frozen=True)
class RewardModel:
    """What scores answers.

    Fields:
        name: what messages call it.
        policy: trunk and head, read with the policy's own tokenizer and prompt format.
        head: name of the head.
        pairs: it reads two answers at a time, and says how far the first is better.
    """

    name: str
    policy: LanguageModel
    head: str
    pairs: bool

    def scores(self, prompts: Sequence[Prompt], texts: Sequence[str]) -> list[float]:
        """What each text is worth as an answer to its prompt.

        Of a model that compares two answers this is the tournament's score: the mean over the other answers to the same prompt of
        how far it is better, 0 where there is no other.
        """
        if not self.pairs:
            return self._outputs(prompts, texts)
        found, places = [0.0] * len(texts), _by_prompt(prompts)
        wanted = [(prompts[mine[0]], tuple(texts[place] for place in mine)) for mine in places]
        for mine, logits in zip(places, self.logits(wanted), strict=True):
            for place, row in zip(mine, logits, strict=True):
                found[place] = float(row.sum()) / max(len(mine) - 1, 1)
        return found

    def logits(self, contests: Sequence[tuple[Prompt, tuple[str, ...]]]) -> list[np.ndarray]:
        """Of the answers to each prompt ``[K, K]``, how far each is better than each other: antisymmetric, sigma of it a chance."""
        distinct = [(prompt, tuple(dict.fromkeys(texts))) for prompt, texts in contests]
        if self.pairs:
            matrices = self._compared(distinct)
        else:
            flat = iter(self._outputs([prompt for prompt, texts in distinct for _ in texts],
                                      [text for _, texts in distinct for text in texts]))  # fmt: skip
            scores = [np.array([next(flat) for _ in texts]) for _, texts in distinct]
            matrices = [score[:, None] - score[None, :] for score in scores]
        found = []
        for (_, texts), (_, known), matrix in zip(contests, distinct, matrices, strict=True):
            which = [known.index(text) for text in texts]
            found.append(matrix[np.ix_(which, which)])
        return found

    def _compared(self, contests: Sequence[tuple[Prompt, tuple[str, ...]]]) -> list[np.ndarray]:
        """Both orders of every two different answers, each read once: ``s(x, a, b) - s(x, b, a)``."""
        asked = [(prompt, pair) for prompt, texts in contests for pair in itertools.permutations(texts, 2)]
        said = iter(self._outputs([prompt for prompt, _ in asked], [pair for _, pair in asked]))
        found = []
        for _, texts in contests:
            matrix = np.zeros((len(texts), len(texts)))
            for one, other in itertools.permutations(range(len(texts)), 2):
                matrix[one, other] = next(said)
            found.append(matrix - matrix.T)
        return found

    def _outputs(self, prompts: Sequence[Prompt], texts: Sequence[str] | Sequence[tuple[str, str]]) -> list[float]:
        """What the head says of each row; texts that are asked about twice are read once."""
        keys = [(repr(prompt), text) for prompt, text in zip(prompts, texts, strict=True)]
        place = {key: number for number, key in reversed(list(enumerate(keys)))}
        # Neighbours with the same prompt share the reading of it.
        wanted = sorted(place.values(), key=lambda number: (keys[number][0], number))
        known: dict[object, float] = {}
        for begin in range(0, len(wanted), ROWS_AT_ONCE):
            some = wanted[begin : begin + ROWS_AT_ONCE]
            told = self._read([prompts[number] for number in some], [texts[number] for number in some])
            known |= {keys[number]: value for number, value in zip(some, told.tolist(), strict=True)}
        found = [known[key] for key in keys]
        for text, value in zip(texts, found, strict=True):
            if not math.isfinite(value):
                raise UserError(f"the reward model {self.name} gives {str(text)[:60]!r} the score {value}. Its weights are spoilt: "
                                "train it again, with a lower --lr.")  # fmt: skip
        return found

    def _read(self, prompts: Sequence[Prompt], texts: Sequence) -> Tensor:
        rows = (two_answer_rows if self.pairs else written_rows)(self.policy, prompts, texts)
        check_room(self.policy, rows)
        with torch.no_grad():
            output = self.policy.evaluate(rows, frozenset({self.head}))[self.head]
        return torch.where(last_decision(rows.sampled), output, 0.0).sum(1).float().cpu()


def check_room(policy: LanguageModel, rows: Trajectories) -> None:
    """Refuses rows that are longer than the model can read."""
    longest = int(getattr(policy.model.config.get_text_config(), "max_position_embeddings", 0) or 0)
    tokens = int((rows.inputs.prompt_mask.sum(1) + (last_decision(rows.sampled).float().argmax(1) + 1)).max())
    if longest and tokens > longest:
        raise UserError(f"a prompt with what is to be scored behind it has {tokens} tokens, and {policy.name} reads at most "
                        f"{longest}. Leave such prompts out, or take a model that reads more.")  # fmt: skip


def _by_prompt(prompts: Sequence[Prompt]) -> list[list[int]]:
    found: dict[str, list[int]] = {}
    for number, prompt in enumerate(prompts):
        found.setdefault(repr(prompt), []).append(number)
    return list(found.values())
