"""Answers that somebody revised: what was said, what it should say, how bad each mistake is, and what it depends on."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

PERCEPTION = "perception"
"""The kind of mistake (``error``) that more or better evidence would have prevented."""
CORRECT = 4
"""The severity of a piece that is right; 1 is the worst."""


class RevisedPiece(NamedTuple):
    """A piece of an answer, such as a sentence, as it was generated and as it was revised; either may be empty."""

    generated: str
    revised: str
    severity: int = CORRECT
    perceptual: bool = False
    """Whether it misreads the evidence, rather than reasons wrongly from it."""


class Revision(NamedTuple):
    """An answer of a model, its minimal revision in pieces, and the true answer."""

    truth: str
    pieces: tuple[RevisedPiece, ...]
    evidence: str = ""
    """The part of the prompt that answers depend on; empty: all of it."""

    @property
    def generated(self) -> str:
        return "".join(piece.generated for piece in self.pieces)

    @property
    def revised(self) -> str:
        return "".join(piece.revised for piece in self.pieces)


def as_pieces(value: Any) -> tuple[RevisedPiece, ...] | None:
    """A revision as tables hold it, also one written as JSON; nothing for anything else."""
    if isinstance(value, str) and value.lstrip().startswith("["):
        try:
            value = json.loads(value)
        except json.JSONDecodeError:
            return None
    if not isinstance(value, (list, tuple)) or not value:
        return None
    found = [_as_piece(each) for each in value]
    pieces = tuple(each for each in found if each is not None)
    whole = ["".join(texts).strip() for texts in zip(*((each.generated, each.revised) for each in pieces), strict=True)]
    return pieces if len(pieces) == len(found) and all(whole) else None


def _as_piece(value: Any) -> RevisedPiece | None:
    if not isinstance(value, dict) or value.keys() - {"generated", "revised", "severity", "error"}:
        return None
    generated, revised, error = (value.get(name, "") or "" for name in ("generated", "revised", "error"))
    severity = value.get("severity", CORRECT)
    if not all(isinstance(each, str) for each in (generated, revised, error)):
        return None
    if isinstance(severity, bool) or severity not in (1, 2, 3, 4):
        return None
    return RevisedPiece(generated, revised, int(severity), error.strip().lower() == PERCEPTION)


def problem_with_revision(revision: Revision, prompt: str) -> str:
    """What is wrong with a revision beside its prompt, in words; nothing if it can be used."""
    if not revision.truth.strip():
        return 'has "revisions" and no "answer". Give it the true answer, as "answer" or "solution"'
    if revision.truth == revision.generated:
        return f"has a generated answer that equals the true one, {revision.truth[:40]!r}. Leave the line out, or mend one of them"
    if revision.evidence and not (isinstance(revision.evidence, str) and revision.evidence in prompt):
        return f'has "evidence": {str(revision.evidence)[:40]!r}, which is not in its prompt. Copy it from there, or leave it out'
    return ""


def corrected(generated: str, truth: str, severity: int) -> tuple[RevisedPiece, ...]:
    """The pieces in which two texts of one length agree and differ, letter by letter; those that differ misread the evidence."""
    pieces: list[RevisedPiece] = []
    for said, right in zip(generated, truth, strict=True):
        kind = (CORRECT, False) if said == right else (severity, True)
        if pieces and pieces[-1][2:] == kind:
            last = pieces.pop()
            said, right = last.generated + said, last.revised + right
        pieces.append(RevisedPiece(said, right, *kind))
    return tuple(pieces)
