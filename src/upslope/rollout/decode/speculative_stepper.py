"""Decoding with drafts: a pass computes what rows may say next behind what they said last, and keeps what is right of it."""

from __future__ import annotations

import torch
from torch import Tensor

from upslope.rollout.decode.draw import Draw, draw_tokens
from upslope.rollout.decode.record import DecodeJob
from upslope.rollout.decode.speculation import HEARD, DraftCounts, Drafting, Ngrams, Speculate, drafting
from upslope.rollout.decode.stepper import Prompts, Stepper
from upslope.rollout.decode.weights import Weights

NONE = -1
"""Where a row's draft has no token: nothing that is drawn equals it."""


def drafting_with(speculate: Speculate, weights: Weights) -> Drafting | None:
    """When to draft with these weights: on a CPU alone, as recorded graphs have one token of each row."""
    if weights.device.type != "cpu":
        return None
    parameters = sum(parameter.numel() for parameter in weights.body.model.parameters())
    measured = weights.dtype == torch.float32 and not weights.body.apart
    return drafting(speculate, parameters, torch.get_num_threads(), measured)


class SpeculativeStepper(Stepper):
    """As `Stepper`, several tokens of a row at a time where drafts of them turn out right. Answers are the same to rounding.

    Nothing is known of a call before it: counts and n-grams begin anew with each. There are no pages (``pages`` is None): how many
    tokens a row says in a step is not known before, and so neither is the room it needs.
    """

    drafting: Drafting

    def __init__(self, weights: Weights, count: int, room: int, drafting: Drafting):
        super().__init__(weights, count, room)
        self.drafting = drafting

    def begin(self, prompts: Prompts, job: DecodeJob | None = None) -> None:
        super().begin(prompts, job)
        self.counts = DraftCounts(self.drafting)
        self._ngrams: dict[int, Ngrams] = {}
        """By prompt, of those that were drafted for."""
        self._rows: dict[int, list[int]] = {}
        """By prompt, rows that have begun, and may have said something that is not among its n-grams."""

    def _seat(self, slots: Tensor, rows: Tensor, prompts: Tensor) -> None:
        super()._seat(slots, rows, prompts)
        for row, prompt in zip(rows.tolist(), prompts.tolist(), strict=True):
            self._rows.setdefault(prompt, []).append(row)

    def advance(self, count: int) -> None:
        """Draws a token in each of the first ``count`` slots, and those behind it that were drafted right."""
        drafts = self._drafts(count)
        if drafts is None:
            super().advance(count)
            return
        slots, job, each = self.slots, self.job, drafts.shape[1] + 1
        row, alive = slots.row[:count].unsqueeze(1), ~slots.ended[:count].unsqueeze(1)
        real = torch.cat([alive, drafts != NONE], 1)
        steps = (slots.step[:count].unsqueeze(1) + torch.arange(each, device=drafts.device)).clamp_max(self.room - 1)
        ids = torch.cat([slots.token[:count].unsqueeze(1), drafts.clamp_min(0)], 1)
        logits = self._read(ids, steps, real)
        draw = draw_tokens(logits, job.sampling, job.uniforms[row, steps].flatten())
        draw = Draw(*(column.view(count, each) for column in draw))
        # A token is said if all before it were, are those that were drafted, and end nothing.
        goes_on = (draw.token[:, :-1] == drafts) & ~torch.isin(draw.token[:, :-1], job.stops)
        said = torch.cat([alive, alive & goes_on.cumprod(1).bool()], 1)
        if self.prompts.kept is not None:
            self.prompts.kept.forget(row.expand_as(real)[real & ~said], steps[real & ~said])
        self._write(draw, said, row.expand_as(said), steps)
        self._count(drafts, said[:, :-1] & (draw.token[:, :-1] == drafts))

    def _write(self, draw: Draw, said: Tensor, row: Tensor, steps: Tensor) -> None:
        """Into the record and the slots, what the rows said."""
        slots, job, count = self.slots, self.job, len(said)
        written = (draw.token, torch.ones_like(draw.logp), draw.logp, draw.entropy)
        for column, value in zip(job.record, written, strict=True):
            column[row[said], steps[said]] = value[said]
        number = said.sum(1)
        slots.token[:count] = draw.token.gather(1, (number - 1).clamp_min(0).unsqueeze(1)).squeeze(1)
        slots.step[:count] += number
        slots.ended[:count] |= torch.isin(slots.token[:count], job.stops) | (slots.step[:count] >= job.limits[row[:, 0]])
        slots.step[:count].clamp_max_(self.room - 1)

    def _count(self, drafts: Tensor, right: Tensor) -> None:
        for drafted, accepted in zip((drafts != NONE).sum(1).tolist(), right.sum(1).tolist(), strict=True):
            if drafted:
                self.counts.count(drafted, accepted)

    # -- what is drafted -----------------------------------------------------------------------------------------------

    def _drafts(self, count: int) -> Tensor | None:
        """Of each of the first ``count`` slots the tokens it may say next ``[count, N]``; None where it does not pay to try."""
        slots = self.slots
        if count > self.drafting.rows or not self.counts.tries():
            return None
        ended, prompts, rows, steps = (column[:count].tolist() for column in (slots.ended, slots.prompt, slots.row, slots.step))
        for prompt in dict.fromkeys(prompts):
            self._hear(prompt)
        # The last token of a limit is never drafted: it is drawn behind the draft.
        left = [0 if done else limit - step - 1 for done, limit, step in
                zip(ended, self.job.limits[slots.row[:count]].tolist(), steps, strict=True)]  # fmt: skip
        found = [
            self._ngrams[prompt].draft(row, min(self.drafting.most, most)) if most else []
            for prompt, row, most in zip(prompts, rows, left, strict=True)
        ]
        length = self.counts.length([*map(len, found)])
        if not length:
            return None
        filled = [[*draft[:length], *[NONE] * (length - len(draft))] for draft in found]
        return torch.tensor(filled, device=slots.row.device)

    def _hear(self, prompt: int) -> None:
        """What the rows of a prompt have said since it was last drafted for; of many that have ended since, the last."""
        rows, record, ended = self._rows[prompt], self.record, self.job.progress.ended
        if prompt not in self._ngrams:
            self._ngrams[prompt] = Ngrams(self.prompts.texts[prompt])
        ngrams = self._ngrams[prompt]
        lengths = dict(zip(rows, record.sampled[rows].sum(1).long().tolist(), strict=True))
        new = {row: lengths[row] - ngrams.said(row) for row in rows}
        left, heard = HEARD, {row for row in rows if not ended[row]}
        for row in reversed(rows):
            if ended[row] and new[row] <= left:
                left -= new[row]
                heard.add(row)
        for row in rows:
            if row in heard and new[row]:
                ngrams.hear(row, record.tokens[row, ngrams.said(row) : lengths[row]].tolist())
        self._rows[prompt] = [row for row in rows if not ended[row]]
