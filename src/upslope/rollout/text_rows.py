"""Rows of text: completions, written answers and items as trajectories, and several batches as one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from upslope.objective.functional.last_decision import last_decision
from upslope.plain_data import JsonDict
from upslope.policies.language_model import LanguageModel
from upslope.policies.text_inputs import TextInputs
from upslope.policies.written_rows import left_padded as left_padded
from upslope.policies.written_rows import token_rows as token_rows
from upslope.policies.written_rows import written_rows as written_rows
from upslope.tasks.text import Problem, Scores
from upslope.types import Completions, Ended, Sampling, Trajectories, View, samples_each

ENDS = {"stop": Ended.TERMINATED, "length": Ended.TRUNCATED, "paused": Ended.PAUSED}
MADE = ("made_from", "made_by", "generation")
"""What a problem that was made in a step says of itself, and its answers tell."""


def sampled_ids(completions: Completions) -> list[list[int]]:
    """The ids of each answer without padding."""
    lengths = completions.sampled.sum(1).long().tolist()
    return [row[:length] for row, length in zip(completions.tokens.tolist(), lengths, strict=True)]


def item_numbers(policy: LanguageModel, tokens: Tensor, separator: str) -> Tensor:
    """The number ``[N, T]`` of the item each token belongs to: how many separators stand before it."""
    ends = item_ends(policy, tokens, separator)
    return ends.cumsum(1) - ends


def item_ends(policy: LanguageModel, tokens: Tensor, separator: str) -> Tensor:
    """How many items each token ``[N, T]`` ends: a token may hold several separators, with nothing between them."""
    if not separator:
        return torch.zeros_like(tokens)
    ids, where = torch.unique(tokens, return_inverse=True)
    return torch.tensor([policy.decode([token]).count(separator) for token in ids.tolist()], device=tokens.device)[where]


def pay_items(rows: Trajectories, items: list[list[float]]) -> Trajectories:
    """The rows with what each of their items is worth at the item's last token, and how many were asked for; none: unchanged.

    Items without a token of their own, between two separators in one token, are paid at that token.
    """
    if not items:
        return rows
    item, on = rows.segment["item"], rows.sampled > 0
    worth = torch.zeros(len(items), max(map(len, items)), device=item.device)
    for row, values in enumerate(items):
        worth[row, : len(values)] = torch.tensor(values)
    asked = torch.tensor([len(values) for values in items], device=item.device)
    more = torch.cat([on[:, 1:], torch.zeros_like(on[:, :1])], 1)
    following = torch.where(more, torch.cat([item[:, 1:], item[:, -1:]], 1), item + 1)  # the last token ends whatever it belongs to
    paid = torch.zeros_like(rows.sampled)
    for empty in range(int((following - item).masked_fill(~on, 0).max())):
        ends = on & (item + empty < following) & (item + empty < asked.unsqueeze(1))
        paid += torch.where(ends, worth.gather(1, (item + empty).clamp_max(worth.shape[1] - 1)), 0.0)
    return rows.replace(step_reward=paid, label={**rows.label, "items": asked})


def paid(rows: Trajectories, scores: Scores, places: Sequence[int] | None = None) -> Trajectories:
    """The rows with what they earned, and with how long that took where it is known.

    Args:
        places: Which rows the scores are of; the others earn nothing. None: they are of all.
    """
    device, whole = rows.reward.device, places is None
    at = torch.arange(rows.rows, device=device) if places is None else torch.tensor(list(places), dtype=torch.int64, device=device)

    def spread(values: Tensor) -> Tensor:
        values = values.to(device)
        return values if whole else values.new_zeros(rows.rows, *values.shape[1:]).index_copy_(0, at, values)

    reward = spread(torch.tensor(scores.reward, dtype=torch.float32))
    components = {name: spread(torch.tensor(values)) for name, values in scores.components.items() if name != "task"}
    _note_scores([rows.info[place] for place in at.tolist()], scores)
    rows = rows.replace(reward=reward, components={"task": reward, **components})
    if scores.seconds:
        took = torch.full((rows.rows,), torch.nan, device=rows.sampled.device)
        took[at.to(took.device)] = torch.tensor(scores.seconds, dtype=torch.float32, device=took.device)
        rows = rows.replace(seconds=last_decision(rows.sampled) * took.unsqueeze(1))
    if whole or not scores.items:
        return pay_items(rows, scores.items)
    listed = pay_items(rows.take_rows(at), scores.items)
    assert listed.step_reward is not None
    return rows.replace(step_reward=spread(listed.step_reward))


def row_notes(
    problems: Sequence[Problem], responses: Sequence[str], scores: Scores | None, finish: Sequence[str]
) -> list[JsonDict]:
    """What people want to know of each row. A component that does not apply to it is none there; what is not scored yet earned
    nothing so far."""
    notes: list[JsonDict] = [
        {"prompt": problem.prompt, "answer": problem.answer, "response": response, "reward": 0.0, "finish": how}
        for problem, response, how in zip(problems, responses, finish, strict=True)
    ]
    for note, problem in zip(notes, problems, strict=True):
        note |= {name: problem.info[name] for name in MADE if name in problem.info}
    if scores is not None:
        _note_scores(notes, scores)
    return notes


def _note_scores(notes: Sequence[JsonDict], scores: Scores) -> None:
    for row, note in enumerate(notes):
        note["reward"] = scores.reward[row]
        if scores.components:
            values = {name: column[row] for name, column in scores.components.items()}
            note["components"] = {name: value if value == value else None for name, value in values.items()}


def sampled_rows(
    policy: LanguageModel, prompts: list[list[int]], samples: int | Sequence[int], completions: Completions, sampling: Sampling
) -> Trajectories:
    """Completions as rows, ``samples`` to a prompt, or to each its own number; what they earn, and whose they are, comes later."""
    sampled = completions.sampled
    last = last_decision(sampled)
    ends = [ENDS[finish] for finish in completions.finish]
    how = torch.tensor(ends, dtype=torch.int8, device=sampled.device)
    each = torch.tensor(samples_each(samples, len(prompts)))
    inputs = left_padded(prompts, policy.pad_id).take(lambda column: column.repeat_interleave(each, 0))
    return Trajectories(
        sampled=sampled,
        reward=torch.zeros(sampled.shape[0]),
        group=torch.zeros(sampled.shape[0], dtype=torch.int64),
        task=torch.zeros(sampled.shape[0], dtype=torch.int64),
        # An engine that records no entropy gives NaN: a column of it would only spoil means.
        behavior=View(completions.logp, None if bool(completions.entropy.isnan().any()) else completions.entropy),
        action=completions.tokens,
        temperature=torch.full_like(sampled, sampling.temperature),
        # An answer cut at the limit gets what it earned and nothing behind it, so its bootstrap is zero.
        ended=last * how.unsqueeze(1),
        bootstrap=torch.zeros_like(sampled),
        horizon=sampling.max_tokens,
        approximate=torch.ones(sampled.shape[0], dtype=torch.bool) if completions.approximate else None,
        inputs=replace(inputs, kept=completions.kept),
    )


def teacher_rows(policy: LanguageModel, problems: Sequence[Problem]) -> Trajectories:
    """The reference answers as if they had been sampled, for supervised learning; nobody sampled them, so `behavior` is NaN."""
    return written_rows(policy, [problem.model_input for problem in problems], [problem.solution for problem in problems]).replace(
        task=torch.tensor([problem.id for problem in problems], dtype=torch.int64, device=policy.device)
    )


def _of_now(batch: Trajectories, batches: list[Trajectories]) -> Tensor:
    return torch.full_like(batch.sampled, max(each.now for each in batches), dtype=torch.int64)


def _unmeasured(batch: Trajectories) -> Tensor:
    return torch.full_like(batch.sampled, torch.nan)


def _none_of(batch: Trajectories) -> Tensor:
    return torch.zeros_like(batch.group, dtype=torch.bool)


def _kept(batch: Trajectories) -> Tensor:
    return torch.full_like(batch.group, -1) if batch.inputs.kept is None else batch.inputs.kept


def join_text(batches: list[Trajectories]) -> Trajectories:
    """Several batches as one: answers padded on the right, prompts on the left. Columns that not all of them have are left out."""
    width = max(batch.sampled.shape[1] for batch in batches)
    prompt = max(batch.inputs.prompt.shape[1] for batch in batches)

    def joined(values: list[Any]) -> Any:
        first = values[0]
        if any(value is None for value in values):
            return None
        if isinstance(first, Tensor):
            return torch.cat(values if first.dim() == 1 else [F.pad(value, (0, width - value.shape[1])) for value in values])
        if isinstance(first, View):
            return View.of(joined([value.columns() for value in values]))
        if isinstance(first, Mapping):
            names = [name for name in first if all(name in value for value in values)]
            return {name: joined([value[name] for value in values]) for name in names}
        if isinstance(first, list):
            return [item for value in values for item in value]
        return first

    def left(pick: Any) -> Tensor:
        columns = [pick(batch) for batch in batches]
        return torch.cat([F.pad(column, (prompt - column.shape[1], 0)) for column in columns])

    if any(batch.version is not None for batch in batches):  # whoever says nothing of it was drawn with the weights of now
        batches = [batch if batch.version is not None else batch.replace(version=_of_now(batch, batches)) for batch in batches]
    if any(batch.seconds is not None for batch in batches):  # of the others nobody knows
        batches = [batch.replace(seconds=_unmeasured(batch)) if batch.seconds is None else batch for batch in batches]
    if any(batch.approximate is not None for batch in batches):
        batches = [batch if batch.approximate is not None else batch.replace(approximate=_none_of(batch)) for batch in batches]
    kept = ("inputs", "state", "embedding")
    columns = {f.name: joined([getattr(b, f.name) for b in batches]) for f in fields(Trajectories) if f.name not in kept}
    passes = torch.cat([_kept(batch) for batch in batches]) if any(batch.inputs.kept is not None for batch in batches) else None
    inputs = TextInputs(left(lambda b: b.inputs.prompt), left(lambda b: b.inputs.prompt_mask), kept=passes)
    return batches[0].replace(**columns, inputs=inputs, embedding=None)
