"""Log-probabilities of given texts: what ``echo`` with ``logprobs`` asks for, as other evaluation tools do for multiple choice."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from upslope.policies.forward.decoder import hidden_states
from upslope.policies.forward.logprobs import head_logits, vocabulary_pieces
from upslope.policies.forward.packing import lay_out
from upslope.policies.language_model import LanguageModel
from upslope.serving.jobs import RequestJob, RequestRow, TokenScore

SLICE = 0.05
"""Seconds a call scores before it is the next one's turn; texts that are computed together are finished."""


class ScoreCall:
    """Rows of some jobs whose texts are complete, scored a few at a time; it takes turns with the calls of the engine."""

    place = -1
    """It keeps no memory with the engine."""
    may_rest = False
    ran_seconds = 0.0

    def __init__(self, policy: LanguageModel, jobs: Sequence[RequestJob]):
        self.policy, self.jobs = policy, list(jobs)
        self.kind, self.size = self.jobs[0].kind, self.jobs[0].size
        self._left = [(job, row) for job in self.jobs for row in job.rows if row.scored is None]

    def run(self) -> bool:
        """One turn; whether the call goes on."""
        began = time.monotonic()
        while self._left and time.monotonic() - began < SLICE:
            self._left = [(job, row) for job, row in self._left if not job.dropped]
            some = self._left[: self._fitting()]
            self._left = self._left[len(some) :]
            self._score(some)
        for job in self.jobs:
            if not job.dropped and not job.to_score:
                job.tell()
        self.jobs = [job for job in self.jobs if job.to_score]
        return bool(self._left)

    def _fitting(self) -> int:
        """How many of the rows fit the memory together, at least one."""
        budget, longest, total = self.policy.token_budget(), 0, 0
        for count, (_, row) in enumerate(self._left):
            own = len(row.prompt) + len(row.tokens)
            longest, total = max(longest, own), total + own
            if count and ((count + 1) * longest if self.policy.pads else total) > budget:
                return count
        return len(self._left)

    def _score(self, some: list[tuple[RequestJob, RequestRow]]) -> None:
        if some:
            texts, tops = [row.prompt + row.tokens for _, row in some], max(job.asked.tops for job, _ in some)
            for (job, row), scores in zip(some, score_texts(self.policy, texts, tops), strict=True):
                row.scored = [TokenScore(each.logp, _with_own(each, token, job.asked.tops))
                              for each, token in zip(scores, (row.prompt + row.tokens)[1:], strict=True)]  # fmt: skip

    def rest(self) -> list[RequestJob]:
        """It is never interrupted (`may_rest`)."""
        return []

    def close(self, free: bool) -> None:
        """There is nothing to give back."""


def _with_own(score: TokenScore, token: int, tops: int) -> list[tuple[int, float]]:
    """The likeliest tokens, the given one at the end if it is none of them."""
    found = score.top[:tops]
    return found if any(each == token for each, _ in found) else [*found, (token, score.logp)]


def score_texts(policy: LanguageModel, texts: Sequence[list[int]], tops: int) -> list[list[TokenScore]]:
    """Of each text the model's own log-probabilities of its tokens but the first, and the ``tops`` likeliest at each place.

    The distribution is the model's, at temperature 1 and untruncated.
    """
    lengths = [len(text) - 1 for text in texts]
    found: list[list[TokenScore]] = [[] for _ in texts]
    scored = [number for number, length in enumerate(lengths) if length]
    if not scored:
        return found
    ids = torch.zeros(len(scored), max(lengths) + 1, dtype=torch.long)
    for row, number in enumerate(scored):
        ids[row, : len(texts[number])] = torch.tensor(texts[number])
    ids, extent = ids.to(policy.device), torch.tensor([lengths[number] for number in scored], device=policy.device)
    with torch.no_grad():
        flat = [each for piece in _logit_pieces(policy, ids, extent, tops) for each in piece]
    begin = 0
    for number in scored:
        found[number] = flat[begin : begin + lengths[number]]
        begin += lengths[number]
    return found


def _logit_pieces(policy: LanguageModel, ids: Tensor, extent: Tensor, tops: int) -> Iterator[list[TokenScore]]:
    """Scores of all rows' tokens one after another, in pieces: few copies of a vocabulary live at once."""
    body, dtype = policy.body, policy.compute_dtype
    step = torch.arange(ids.shape[1] - 1, device=ids.device)
    wanted = step < extent.unsqueeze(1)
    chosen = ids[:, 1:][wanted]
    if body is None:
        seen = torch.cat([torch.ones_like(wanted[:, :1]), wanted], 1).long()
        logits = policy.model(input_ids=ids, attention_mask=seen, use_cache=False).logits[:, :-1][wanted]
        for piece in vocabulary_pieces(len(chosen), logits.shape[1], logits.is_cuda):
            yield _scores(logits[piece].float(), chosen[piece], tops)
        return
    layout = lay_out(ids[:, :1], torch.ones_like(ids[:, :1]), ids[:, 1:], extent)
    hidden, matrix = hidden_states(body, layout, dtype).to(dtype), body.head.weight.to(dtype)
    for piece in vocabulary_pieces(len(chosen), len(matrix), hidden.is_cuda):
        yield _scores(head_logits(hidden[piece], matrix), chosen[piece], tops)


def _scores(logits: Tensor, chosen: Tensor, tops: int) -> list[TokenScore]:
    logp = logits.log_softmax(1)
    own = logp.gather(1, chosen.unsqueeze(1)).squeeze(1).tolist()
    values, tokens = logp.topk(min(tops, logp.shape[1]), 1)
    likeliest = zip(tokens.tolist(), values.tolist(), strict=True)
    return [TokenScore(value, list(zip(*top, strict=True))) for value, top in zip(own, likeliest, strict=True)]
