"""The contests of a recorded step, the matrix of a group and the trees of a search, for the page.

Answers come from files and models, and so does whatever a judge was asked and said: text, never trusted.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from upslope.board import recordings, search_trees
from upslope.board.chances import Chances, matrix_of, read_chances
from upslope.board.run_summary import number
from upslope.plain_data import JsonDict

MOST_CONTESTS, MOST_ANSWERS, MOST_JUDGED = 64, 16, 16
"""Contests of a step, answers of one, and questions to a judge that are passed on."""
LONGEST = 4000
"""Characters of an answer, and of a judge's prompt, that are passed on."""
LIKELIHOODS = ("logp_chosen", "logp_rejected")
"""Notes of a row that say how likely it is."""


class Answer(NamedTuple):
    """A sample as an answer in a contest."""

    sample: JsonDict
    text: str
    side: int
    """1 if it won, -1 if it lost, 0 if it took no part."""


def contests(root: Path, parts: tuple[str, ...], step: int | None) -> JsonDict:
    """The recorded steps, and of one of them (the last, unless asked) its contests, search trees and what a judge was asked.

    A group is a contest if its answers were given sides, were compared, or were learned from by a loss of preferences. Its answers
    stand with winners first, then losers; ``shared`` is how a text begins like its rivals', ``own`` what follows. ``chance`` is
    what the oracle gives the winner against the loser, ``sure`` the chance by which the loss takes it to have won.
    """
    steps = recordings.rollout_steps(root, parts)
    at = step if step is not None else steps[-1] if steps else None
    if at is None:
        return {"steps": steps, "step": None, "contests": [], "contests_in_all": 0, "trees": [], "judged": []}
    record = recordings.rollout(root, parts, at)
    groups = [group for group in record.get("groups", []) if any(map(_in_contest, group["samples"]))]
    found = [_answers(group) for group in groups[:MOST_CONTESTS]]
    known = read_chances(root, parts, map(_prompt, groups))
    return {
        "steps": steps,
        "step": at,
        "contests": [_contest(group, own, known) for group, own in zip(groups, found, strict=False)],
        "contests_in_all": len(groups),
        "trees": search_trees.trees(record),
        "judged": _judged(record.get("judged")),
    }


def _in_contest(sample: JsonDict) -> bool:
    noted = _table(sample.get("noted"))
    return "side" in sample or bool(_table(sample.get("compared"))) or any(name in noted for name in ("margin", *LIKELIHOODS))


def _answers(group: JsonDict) -> list[Answer]:
    """Winners first, then losers, then the others."""
    found = [Answer(sample, _response(sample), side_of(sample)) for sample in group["samples"]]
    return sorted(found, key=lambda each: {1: 0, -1: 1, 0: 2}[each.side])[:MOST_ANSWERS]


def _response(sample: JsonDict) -> str:
    said = sample.get("response")
    return said if isinstance(said, str) else ""


def side_of(sample: JsonDict) -> int:
    """The side a sample was given, or else the sign of its advantage."""
    side = number(sample.get("side"))
    if side is None and sample.get("kept") is not False:
        side = number(sample.get("advantage"))
    return 0 if not side else 1 if side > 0 else -1


def _contest(group: JsonDict, answers: list[Answer], known: Chances) -> JsonDict:
    size = number(group.get("size"))
    compared = [_table(each.sample.get("compared")) for each in answers]
    matrix = matrix_of(_prompt(group), [each.text for each in answers], compared, known, whole=size == len(answers))
    sides = [each.side for each in answers]
    margins = [value for each in answers if (value := _noted(each.sample, "margin")) is not None]
    sure = number(answers[0].sample.get("advantage")) if margins and sides[0] == 1 else None
    decided = 1 in sides and -1 in sides
    return {
        "group": number(group.get("group")),
        "prompt": text_of(group.get("prompt")),
        "answer": None if group.get("answer") is None else text_of(str(group["answer"])),
        "answers": [_shown(each, shared) for each, shared in zip(answers, _shared(answers), strict=True)],
        "answers_in_all": size or len(group["samples"]),
        "margin": margins[0] if margins else None,
        "chance": matrix[sides.index(1)][sides.index(-1)] if decided and matrix else None,
        "sure": None if sure is None else (1 + min(max(sure, -1), 1)) / 2,
        "matrix": matrix,
    }


def _shown(each: Answer, shared: int) -> JsonDict:
    sample = each.sample
    likely = [value for name in LIKELIHOODS if (value := _noted(sample, name)) is not None]
    return {
        "row": number(sample.get("row")),
        "side": each.side,
        "given": sample.get("side") is not None,
        "shared": each.text[:shared] if shared <= LONGEST else f"…{each.text[shared - LONGEST : shared]}",
        "own": text_of(each.text[shared:]),
        "reward": number(sample.get("reward")),
        "win_rate": number(_table(sample.get("compared")).get("win_rate")),
        "logp": likely[0] if likely else None,
        "kept": sample.get("kept") is not False,
    }


def _shared(answers: list[Answer]) -> list[int]:
    """How many characters of each text are its rivals' too: of a loser the first winner's, of a winner those of every loser."""
    won, lost = ([each.text for each in answers if each.side == side] for side in (1, -1))
    found = []
    for each in answers:
        rivals = lost if each.side == 1 else won[:1] if each.side == -1 else []
        found.append(min((_common(each.text, rival) for rival in rivals), default=len(each.text)))
    return found


def _common(one: str, other: str) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (mine, theirs) in pairs if mine != theirs), min(len(one), len(other)))


def _judged(value: object) -> list[JsonDict]:
    tables = [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []
    return [{"asked": text_of(each.get("asked")), "said": text_of(each.get("said"))} for each in tables[:MOST_JUDGED]]


def text_of(value: object) -> str:
    """The beginning of a text; nothing else is one."""
    if not isinstance(value, str):
        return ""
    return value if len(value) <= LONGEST else f"{value[:LONGEST]}…"


def _noted(sample: JsonDict, name: str) -> float | None:
    return number(_table(sample.get("noted")).get(name))


def _prompt(group: JsonDict) -> str:
    return group["prompt"] if isinstance(group.get("prompt"), str) else ""


def _table(value: Any) -> JsonDict:
    return value if isinstance(value, dict) else {}
