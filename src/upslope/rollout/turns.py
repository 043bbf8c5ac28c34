"""Sampling further turns of a step: one call is one batch for the engine.

A turn is sampled in its prompt and learned from in the context it names, so its ``behavior`` columns are those of the first and
what the learner computes, ``proximal`` and ``current``, those of the second.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from upslope.errors import UserError
from upslope.plain_data import JsonDict
from upslope.rollout.engines.torch_engine import Speaker
from upslope.rollout.text import TextRollout
from upslope.rollout.text_rows import left_padded, sampled_ids, sampled_rows, written_rows
from upslope.runtime.seeding import mix, stable_hash, uniforms
from upslope.tasks.messages import readable
from upslope.tasks.turns import NEW, POLICY, Turn, TurnNumbers, speaker_label
from upslope.types import Sampling, Source, Trajectories, decision_keys


def sample_turns(rollout: TextRollout, turns: Sequence[Turn], numbers: TurnNumbers, by: Speaker | None = None) -> Trajectories:
    """The answers to these turns, turn by turn, scored.

    Args:
        by: who samples them, where it is not the policy.
    """
    _check(turns)
    spoken = _spoken(rollout, turns, by)
    policy, sampling, seed = rollout.policy, _until(rollout.sampling, turns), rollout.seed
    where = ("sample", numbers.step, numbers.path, numbers.calls)
    asked = policy.encode_all([turn.prompt for turn in turns])
    each = [turn for turn in turns for _ in range(turn.samples)]
    contexts = [ids + list(turn.begun) for ids, turn in zip(asked, turns, strict=True) for _ in range(turn.samples)]
    room = [min(sampling.max_tokens - len(turn.begun), turn.limit or sampling.max_tokens) for turn in each]
    drawn = uniforms((len(each), sampling.max_tokens), seed, *where)
    keep = rollout.reuse and any(turn.learn == "asked" for turn in turns)
    written = rollout.engine.generate(contexts, 1, sampling, drawn, room, keep=keep, **spoken)
    rows = sampled_rows(policy, contexts, 1, written, sampling)
    answers = [[*turn.begun, *ids] for turn, ids in zip(each, sampled_ids(written), strict=True)]
    rows = _scored(rollout, rows, each, answers, written.finish)
    rows = _in_context(rollout, rows, each).replace(
        group=_groups(turns, numbers).to(rows.group.device),
        key=_keys(rows, seed, *where),
    )
    numbers.calls += 1
    return rows


def written_turns(rollout: TextRollout, turns: Sequence[Turn], texts: Sequence[str], numbers: TurnNumbers) -> Trajectories:
    """Rows as if these turns, of one sample each, had been answered so. Nobody sampled them: ``behavior`` is NaN."""
    _check(turns)
    policy = rollout.policy
    rows = written_rows(policy, [turn.prompt for turn in turns], texts)
    assert rows.action is not None
    answers = [ids[: int(length)] for ids, length in zip(rows.action.tolist(), rows.lengths().tolist(), strict=True)]
    rows = _scored(rollout, rows, turns, answers, ["given"] * len(turns))
    label = {**rows.label, "source": torch.full_like(rows.group, int(Source.DEMONSTRATED))}
    rows = _in_context(rollout, rows, turns).replace(
        label=label,
        group=_groups(turns, numbers).to(rows.group.device),
        key=_keys(rows, rollout.seed, "written", numbers.step, numbers.path, numbers.calls),
    )
    numbers.calls += 1
    return rows


def _check(turns: Sequence[Turn]) -> None:
    for turn in turns:
        if turn.samples < 1:
            raise UserError(f"a further turn asks for {turn.samples} samples; at least 1. Leave it out where none is wanted.")


def _until(sampling: Sampling, turns: Sequence[Turn]) -> Sampling:
    """How these turns are sampled: as others are, and up to the text that ends them."""
    ends = {turn.until for turn in turns}
    if len(ends) > 1:
        raise UserError(f"turns of one call end with one text, not with {' and '.join(map(repr, sorted(ends)))}; sample those "
                        "that end with another in a call of their own.")  # fmt: skip
    text = "".join(ends)
    return replace(sampling, stop=(*sampling.stop, text)) if text else sampling


def _spoken(rollout: TextRollout, turns: Sequence[Turn], by: Speaker | None) -> dict[str, Any]:
    """What an engine is told of who samples: nothing where it is the policy."""
    names = {str(turn.by) for turn in turns}
    if len(names) > 1:
        raise UserError(f"turns of one call are sampled by one model, not by {' and '.join(sorted(names))}; sample those of "
                        "another in a call of their own.")  # fmt: skip
    if by is None and names == {POLICY}:
        return {}
    if by is None:
        raise UserError(f"a further turn is to be sampled by {names.pop()!r}; only data parts can ask for that (context.sample).")
    if not getattr(rollout.engine, "takes_speakers", False):
        raise UserError(f"a further turn is to be sampled by {names.pop()!r}, and {type(rollout.engine).__name__} holds only the "
                        "policy's weights. Take --engine torch.")  # fmt: skip
    return {"by": by}


def _scored(
    rollout: TextRollout, rows: Trajectories, each: Sequence[Turn], answers: Sequence[list[int]], finish: Sequence[str]
) -> Trajectories:
    """The rows with what each earned, by the task or by the scorer of their turn, and what people want to know of them."""
    scorers = {turn.scorer for turn in each}
    if len(scorers) > 1:
        raise UserError("turns of one call are scored alike; sample those with another scorer in a call of their own.")
    problems = [turn.problem for turn in each]
    rollout.asked |= {problem.id: problem for problem in problems}
    rows = rollout.scored(rows, problems, answers, finish, scorers.pop() or rollout.task.score)
    label = {**rows.label, "source": torch.full_like(rows.group, int(Source.FURTHER))}
    if any(turn.role for turn in each):
        label["role"] = torch.tensor([stable_hash(turn.role) for turn in each], device=rows.group.device)
    if any(turn.by != POLICY for turn in each):
        label["speaker"] = torch.tensor([speaker_label(turn.by) for turn in each], device=rows.group.device)
    for note, turn in zip(rows.info, each, strict=True):
        note |= _told(turn)
    return rows.replace(label=label)


def _told(turn: Turn) -> JsonDict:
    asked = turn.prompt if isinstance(turn.prompt, str) else readable(tuple(turn.prompt))
    told: JsonDict = {"turn": turn.learn} | ({"role": turn.role} if turn.role else {})
    told |= {"by": str(turn.by)} if turn.by != POLICY else {}
    return told | ({"asked": asked} if asked != turn.problem.prompt else {})


def _in_context(rollout: TextRollout, rows: Trajectories, each: Sequence[Turn]) -> Trajectories:
    """The rows with the context they are learned in as their inputs."""
    if all(turn.learn != "problem" for turn in each):
        return rows
    policy = rollout.policy
    prompts = policy.encode_all([turn.problem.model_input if turn.learn == "problem" else turn.prompt for turn in each])
    inputs = left_padded([ids + list(turn.begun) for ids, turn in zip(prompts, each, strict=True)], policy.pad_id)
    approximate = rows.approximate
    if approximate is not None:  # what was asked otherwise is another context's, and not only another precision's
        approximate = approximate & torch.tensor([turn.learn != "problem" for turn in each], device=approximate.device)
    return rows.replace(inputs=inputs.take(lambda column: column.to(policy.device)), approximate=approximate)


def _groups(turns: Sequence[Turn], numbers: TurnNumbers) -> Tensor:
    opened = iter(numbers.opened(sum(turn.group == NEW for turn in turns)))
    named = [next(opened) if turn.group == NEW else turn.group for turn in turns]
    return torch.tensor([name for name, turn in zip(named, turns, strict=True) for _ in range(turn.samples)], dtype=torch.int64)


def _keys(rows: Trajectories, seed: int, *where: int | str) -> Tensor:
    first = torch.arange(rows.rows, device=rows.sampled.device) * 0x2545F4914F6CDD1D
    return decision_keys(first + mix(seed, "keys", *where), rows.sampled.shape[1])
