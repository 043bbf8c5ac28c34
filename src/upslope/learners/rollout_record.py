"""Recorded rollouts: a step's answers as plain data, some groups of it, token by token, and where to look first."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from upslope.learners.token_trace import TracedStep
from upslope.plain_data import JsonDict
from upslope.types import Source, Trajectories

FORMAT = 1
GROUPS, SAMPLES, TOKENS = 4, 8, 20_000
"""What is recorded of a step unless all is: so many groups, samples of each, and tokens in all (but always one group)."""
JUDGED = 8
"""Questions to the policy as its own judge that are recorded of a step."""
NODES = 400
"""Nodes of a search tree that are recorded: of the trees that recorded groups stand in."""
DIGITS = 6

OF_GROUP = ("gate", "chosen", "made_from", "generation")
"""Notes of a row that hold for its whole group: what a gate said of it, why its problem was chosen, what that was made from."""
OF_SAMPLE = ("asked", "turn", "role", "hint_level", "search")
"""Notes of a row sampled in a further turn: the prompt it was sampled in, the context it was learned in, its hint; and of one
found by search its node: ``{"tree": 0, "path": [0, 2], "visits": 5, "value": 0.4}``."""
COMPARED = ("win_rate", "win_rate_with_self", "beats_best", "beats_worst")
"""Columns of ``signal`` in which a row carries its chances against the other answers of its group."""

Spell = Callable[[Sequence[int]], list[str]]
"""The text of each token of a list."""


class _Row(NamedTuple):
    """Where a row stands, and what it is picked by."""

    number: int
    """Within the step."""
    kept: bool
    place: int
    """Within the rows learned from, or within those sampled if it was dropped."""
    group: int
    clipped: float
    advantage: float
    length: float
    reward: float


def rollout_record(traced: TracedStep, spell: Spell, step: int, everything: bool = False) -> tuple[JsonDict, JsonDict]:
    """A step's rollouts as plain data, and a line on where to look first.

    Args:
        everything: all rows; otherwise the groups with the most clipped, the best and the longest answer, one whose answers all
            earned the same, and others from all over the step up to `GROUPS`.
    """
    rows = _overview(traced)
    groups: dict[int, list[_Row]] = {}
    for row in rows:
        groups.setdefault(row.group, []).append(row)
    constant = [group for group, members in groups.items() if _constant(traced, members)]
    clipped = [row for row in rows if row.clipped > 0]
    extremes = {
        "most_clipped": max(clipped, key=lambda row: row.clipped, default=None),
        "highest_advantage": max((row for row in rows if row.kept), key=lambda row: row.advantage, default=None),
        "longest": max(rows, key=lambda row: row.length, default=None),
    }
    chosen = groups if everything else _some(groups, constant, [row for row in extremes.values() if row is not None])
    samples = _samples(traced, spell, [row for members in chosen.values() for row in members])
    record = {
        "version": FORMAT,
        "step": step,
        "rows": len(rows),
        "tasks": len(groups),
        "recorded": "all" if everything else "some",
        "groups": [_group(traced, members, len(groups[group]), group in constant, samples) for group, members in chosen.items()],
    }
    if judged := _judged(traced):
        record["judged"] = judged
    if trees := _trees(traced, chosen):
        record["trees"] = trees
    values = {"most_clipped": "clipped", "highest_advantage": "advantage", "longest": "length"}
    look: JsonDict = {"step": step}
    for name, best in extremes.items():
        there = best is not None and best.number in samples
        look[name] = {"row": best.number, "group": best.group, "value": _short(getattr(best, values[name]))} if there else None  # type: ignore[union-attr]
    return record, look | {"constant": [group for group in chosen if group in constant]}


def _constant(traced: TracedStep, members: list[_Row]) -> bool:
    """Whether the answers all earned the same. Given sides earn nothing, and are no group without differences for that."""
    return "side" not in traced.learned.label and len(members) > 1 and len({row.reward for row in members}) == 1


def _judged(traced: TracedStep) -> list[JsonDict]:
    """What the policy was asked as its own judge, and what it said."""
    further = traced.sampled.aside.get("further")
    notes = [] if further is None else [note for note in further.info if note.get("role") == "judge"]
    return [{"asked": note.get("asked", ""), "said": note.get("response", "")} for note in notes[:JUDGED]]


def _trees(traced: TracedStep, chosen: dict[int, list[_Row]]) -> list[JsonDict]:
    """The search trees that the recorded rows stand in: where each node is, what was said there, and what the search found."""
    found: dict[tuple[str, Any], list[JsonDict]] = {}
    for row in (row for members in chosen.values() for row in members):
        info = (traced.learned if row.kept else traced.sampled).info
        if row.place < len(info) and "search" in info[row.place]:
            found.setdefault(_tree_key(info[row.place]), [])
    for note in traced.sampled.info if found else ():
        nodes = found.get(_tree_key(note)) if "search" in note else None
        if nodes is not None and len(nodes) < NODES:
            nodes.append({**note["search"], "text": note.get("response", "")})
    return [{"prompt": prompt, "tree": tree, "nodes": nodes} for (prompt, tree), nodes in found.items()]


def _tree_key(note: JsonDict) -> tuple[str, Any]:
    return note.get("prompt", ""), note["search"].get("tree")


def _some(groups: dict[int, list[_Row]], constant: list[int], extremes: list[_Row]) -> dict[int, list[_Row]]:
    """A few groups, and of each a few rows: those with the extremes, one without differences, others from all over the step."""
    telling = [group for group in groups if group not in constant] or list(groups)
    spread = [telling[place * len(telling) // GROUPS] for place in range(GROUPS)] if telling else []
    wanted = dict.fromkeys([*(row.group for row in extremes), *constant[:1], *spread, *telling, *groups])
    chosen: dict[int, list[_Row]] = {}
    left = TOKENS
    for group in list(wanted)[:GROUPS]:
        some = _thinned(groups[group], extremes)
        left -= int(sum(row.length for row in some))
        if chosen and left < 0:
            break
        chosen[group] = some
    return dict(sorted(chosen.items()))


def _thinned(members: list[_Row], first: list[_Row]) -> list[_Row]:
    """At most `SAMPLES` of a group: those asked for, where some were dropped those learned from, and others evenly."""
    if len(members) <= SAMPLES:
        return members
    evenly = [members[place * len(members) // SAMPLES] for place in range(SAMPLES)]
    learned = [row for row in members if row.kept]
    learned = learned if len(learned) < len(members) else []
    keep = list(dict.fromkeys([*(row for row in first if row in members), *learned, *evenly]))[:SAMPLES]
    return sorted(keep)


def _overview(traced: TracedStep) -> list[_Row]:
    """Every row of the step, those learned from first."""
    learned, sampled = traced.learned, traced.sampled
    clipped = torch.nan_to_num(traced.columns["clipped"]).abs().sum(1) / learned.lengths().clamp_min(1)
    advantage = torch.zeros_like(clipped) if learned.advantage is None else learned.row_mean(learned.advantage)
    rows = _facts(learned, clipped, advantage, range(learned.rows), first=0, kept=True)
    dropped = _dropped(sampled, learned)
    if len(dropped):
        rest = sampled.take_rows(dropped)
        none = torch.zeros_like(rest.reward)
        rows += _facts(rest, none, none, dropped.tolist(), first=len(rows), kept=False)
    return rows


def _facts(batch: Trajectories, clipped: Tensor, advantage: Tensor, index: Iterable[int], *, first: int, kept: bool) -> list[_Row]:
    facts = torch.stack([each.double() for each in (clipped, advantage, batch.lengths(), _task_reward(batch))], 1).tolist()
    found = zip(index, batch.group.tolist(), facts, strict=True)
    return [_Row(first + place, kept, where, group, *values) for place, (where, group, values) in enumerate(found)]


def _task_reward(batch: Trajectories) -> Tensor:
    return batch.components.get("task", batch.reward)


def _dropped(sampled: Trajectories, learned: Trajectories) -> Tensor:
    """Numbers of the sampled rows that were not learned from."""
    if sampled.key is None or learned.key is None or int(learned.fresh().sum()) == sampled.rows:
        return torch.arange(0)
    return (~torch.isin(sampled.key[:, 0], learned.key[:, 0])).nonzero().squeeze(1)


def _samples(traced: TracedStep, spell: Spell, rows: list[_Row]) -> dict[int, JsonDict]:
    """The record of each row, by its number; the columns of all rows cross from the device at once."""
    found: dict[int, JsonDict] = {}
    for kept, batch in ((True, traced.learned), (False, traced.sampled)):
        here = [row for row in rows if row.kept == kept]
        if not here:
            continue
        index = torch.tensor([row.place for row in here], device=batch.sampled.device)
        lists = _lists(batch, traced.columns if kept else {}, index)
        source = batch.label["source"][index].tolist() if "source" in batch.label else [int(Source.FRESH)] * len(here)
        components = {name: values[index].tolist() for name, values in batch.components.items()}
        further = _further(batch, traced.noted if kept else {}, index)
        for order, row in enumerate(here):
            own = {name: values[order] for name, values in lists.items()}
            pieces = spell(own["ids"])
            note = batch.info[row.place] if row.place < len(batch.info) else {}
            found[row.number] = {
                "row": row.number,
                "reward": _short(row.reward),
                "components": {name: _short(values[order]) for name, values in components.items()},
                "advantage": _short(row.advantage) if kept else None,
                "finish": note.get("finish", ""),
                "kept": kept,
                "source": Source(source[order]).name.lower(),
                "response": note.get("response", "".join(pieces)),
                **{name: note[name] for name in OF_SAMPLE if name in note},
                **further[order],
                "pieces": pieces,
                **own,
            }
    return found


def _further(batch: Trajectories, noted: dict[str, Tensor], index: Tensor) -> list[JsonDict]:
    """What each of these rows has besides, where it has it: the side it was given, its chances, what the surrogate noted of it."""
    found: list[JsonDict] = [{} for _ in range(len(index))]
    if "side" in batch.label:
        for own, side in zip(found, batch.label["side"][index].tolist(), strict=True):
            own["side"] = side
    for key, columns in (("compared", {name: batch.signal[name] for name in COMPARED if name in batch.signal}), ("noted", noted)):
        for name, column in columns.items():
            for own, value in zip(found, column[index].tolist(), strict=True):
                if math.isfinite(value):
                    own.setdefault(key, {})[name] = _short(value)
    return found


def _lists(batch: Trajectories, update: dict[str, Tensor], index: Tensor) -> dict[str, list[list[Any]]]:
    """What there is of each token of these rows, by name, each row as long as its answer."""
    assert batch.action is not None
    on = batch.sampled[index].cpu().numpy() > 0
    lengths = (on * np.arange(1, on.shape[1] + 1)).max(1, initial=0).tolist()
    whole: dict[str, list[list[Any]]] = {"ids": batch.action[index].tolist(), "sampled": on.astype(int).tolist()}
    if "turn" in batch.segment:
        whole["turn"] = batch.segment["turn"][index].tolist()
    for name, values in _columns(batch, update, index).items():
        whole[name] = np.where(np.isnan(values), None, values).tolist()  # type: ignore[call-overload]
    return {name: [row[:length] for row, length in zip(rows, lengths, strict=True)] for name, rows in whole.items()}


def _columns(batch: Trajectories, update: dict[str, Tensor], index: Tensor) -> dict[str, np.ndarray]:
    """Columns of these rows as rounded numbers, NaN where there is none."""
    tensors = {"logp": batch.behavior.logp}
    if batch.behavior.entropy is not None:
        tensors["entropy"] = batch.behavior.entropy
    tensors |= update
    stacked = torch.stack([column[index].float() for column in tensors.values()]).cpu().numpy().astype(np.float64)
    stacked[:, batch.sampled[index].cpu().numpy() == 0] = np.nan
    return dict(zip(tensors, rounded(stacked), strict=True))


def rounded(values: np.ndarray, digits: int = DIGITS) -> np.ndarray:
    """Numbers to so many significant digits; what is not finite becomes NaN."""
    finite = np.where(np.isfinite(values), values, np.nan)
    with np.errstate(divide="ignore", invalid="ignore"):
        scale = 10.0 ** (digits - 1 - np.floor(np.log10(np.abs(finite))))
        return np.where(finite == 0, 0.0, np.round(finite * scale) / scale)


def _short(value: float) -> float | None:
    return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None


def _group(traced: TracedStep, members: list[_Row], size: int, constant: bool, samples: dict[int, JsonDict]) -> JsonDict:
    first = members[0]
    batch = traced.learned if first.kept else traced.sampled
    note = batch.info[first.place] if first.place < len(batch.info) else {}
    return {
        "group": first.group,
        "prompt": note.get("prompt", ""),
        "answer": note.get("answer"),
        "constant": constant,
        "size": size,
        **{name: note[name] for name in OF_GROUP if name in note},
        "samples": [samples[row.number] for row in members],
    }
