"""Rows of revised answers: the true one, the revised one, the generated one, and the first two with part of the evidence hidden."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from upslope.errors import UserError
from upslope.objective.base import RolloutPlan
from upslope.objective.functional.versions import GENERATED, REVISED, REVISED_HIDDEN, TRUTH, TRUTH_HIDDEN
from upslope.policies.language_model import LanguageModel
from upslope.rollout.given import given
from upslope.rollout.pairs import CHOSEN, REJECTED
from upslope.rollout.text import TextRollout
from upslope.rollout.text_rows import token_rows
from upslope.runtime.seeding import numpy_generator
from upslope.tasks.revisions import CORRECT, RevisedPiece, Revision
from upslope.tasks.text import Problem
from upslope.types import Assignment, Trajectories

FINISH = {TRUTH: "true", REVISED: "revised", GENERATED: "generated", TRUTH_HIDDEN: "true, evidence hidden",
          REVISED_HIDDEN: "revised, evidence hidden"}  # fmt: skip


@dataclass(frozen=True)
class FromRevisions(RolloutPlan):
    """For each problem its true answer, the revised and the generated one, and the first two where evidence is hidden (OPA-DPO).

    Nobody sampled these rows. ``label["version"]`` says which of the five a row is, ``label["side"]`` 1 for true and revised
    answers to the whole prompt and -1 for the others; ``segment["severity"]`` is that of each token's piece, 1 (worst) to 4
    (right), and ``segment["perceptual"]`` 1 where the piece misread the evidence. Where nothing was revised there are no revised
    answers.

    Fields:
        hidden: share of the evidence's tokens that are hidden, drawn anew in each step; at least one is. 0 leaves those rows out.
        imitate: only what should be said: true and revised answers, for supervised fine-tuning.
        token: id that stands in place of a hidden token; 0 is the padding of most vocabularies.
    """

    provides: ClassVar[frozenset[str]] = frozenset(
        {"group", "label.side", "label.version", "segment.severity", "segment.perceptual"}
    )
    samples: ClassVar[bool] = False
    needs_of_task: ClassVar[frozenset[str]] = frozenset({"revisions"})
    ranges: ClassVar = {"hidden": "[0, 1]", "token": "[0, inf)"}

    hidden: float = 0.3
    imitate: bool = False
    token: int = 0

    def build(self, task: Any, policy: Any, **sizes: Any) -> RevisionRollout:
        return RevisionRollout(task, policy, plan=self, **sizes)


class Version(NamedTuple):
    """One version of the answer to a problem."""

    problem: Problem
    group: int
    version: int
    pieces: tuple[RevisedPiece, ...]
    """What it is made of; only the text of its own side is used."""
    evidence: str

    @property
    def texts(self) -> list[str]:
        return [piece.generated if self.version == GENERATED else piece.revised for piece in self.pieces]


class RevisionRollout(TextRollout):
    """Versions of the answers of drawn problems in place of sampled ones."""

    provides = FromRevisions.provides

    def __init__(self, *arguments: Any, plan: FromRevisions, **sizes: Any):
        super().__init__(*arguments, **sizes)
        self.plan = plan

    def fulfil(self, assignment: Assignment) -> Trajectories:
        """The versions of the answer to each of its problems."""
        problems = self.problems_of(assignment)
        found = [each for group, problem in enumerate(problems) for each in self._versions(problem, group)]
        rows = version_rows(self.policy, found, assignment.first_group)
        share = (assignment.share,) if assignment.share else ()
        return self._with_hidden(rows, found, numpy_generator(self.seed, "hidden", assignment.step, assignment.attempt, *share))

    def _versions(self, problem: Problem, group: int) -> list[Version]:
        revision = self.task.revision(problem)
        if revision is None:
            raise UserError(f"this method learns from revised answers, and the problem {problem.prompt[:60]!r} has none. Give it "
                            '"revisions".')  # fmt: skip
        wanted = [TRUTH, *([REVISED] if revision.revised != revision.generated else [])]
        if not self.plan.imitate:
            wanted.append(GENERATED)
            wanted += [TRUTH_HIDDEN if each == TRUTH else REVISED_HIDDEN for each in wanted[:-1]] if self.plan.hidden else []
        return [Version(problem, group, version, _pieces(revision, version), revision.evidence) for version in wanted]

    def _with_hidden(self, rows: Trajectories, versions: Sequence[Version], rng: np.random.Generator) -> Trajectories:
        """The rows with part of the evidence hidden where their version says so; both versions of a problem miss the same part."""
        inputs = rows.inputs
        where = torch.zeros_like(inputs.prompt_mask, dtype=torch.bool)
        luck = rng.random((len(versions), inputs.prompt.shape[1]))
        for row, each in enumerate(versions):
            if each.version in (TRUTH_HIDDEN, REVISED_HIDDEN):
                places = _evidence(self.policy, inputs.prompt[row], inputs.prompt_mask[row] > 0, each.evidence)
                order = places[np.argsort(luck[each.group, : len(places)], kind="stable")]
                where[row, order[: math.ceil(self.plan.hidden * len(order))]] = True
        return rows.replace(inputs=inputs.hidden(where, self.plan.token)) if bool(where.any()) else rows


def _pieces(revision: Revision, version: int) -> tuple[RevisedPiece, ...]:
    return (RevisedPiece("", revision.truth),) if version in (TRUTH, TRUTH_HIDDEN) else revision.pieces


def _evidence(policy: LanguageModel, prompt: Tensor, shown: Tensor, evidence: str) -> np.ndarray:
    """Places of a prompt whose tokens are evidence; without a text that says it all but the first and the last.

    A tokenizer may join the ends of a text with what stands around it: then what lies between them is looked for.
    """
    places = shown.nonzero().squeeze(1).cpu().numpy()
    ids = prompt.cpu().numpy()[places]
    said = policy.tokenizer(evidence, add_special_tokens=False).input_ids if evidence else []
    for wanted in (said, said[1:], said[:-1], said[1:-1]):
        for first in range(len(ids) - len(wanted) + 1) if wanted else ():
            if list(ids[first : first + len(wanted)]) == list(wanted):
                return places[first : first + len(wanted)]
    return places[1:-1] if len(places) > 2 else places


def version_rows(policy: LanguageModel, versions: Sequence[Version], first_group: int = 0) -> Trajectories:
    """These versions as rows, each token with the severity of its piece; the stop token has that of the last."""
    stop = min(policy.stop_ids)
    answers, severity, perceptual = [], [], []
    for each in versions:
        ids = list[int]()
        marks: list[tuple[int, int]] = []
        for text, piece in zip(each.texts, each.pieces, strict=True):
            more = policy.tokenizer(text, add_special_tokens=False).input_ids if text else []
            ids += more
            marks += [(piece.severity, int(piece.perceptual))] * len(more)
        answers.append([*ids, stop])
        marks.append(marks[-1] if marks else (CORRECT, 0))
        severity.append([mark for mark, _ in marks])
        perceptual.append([mark for _, mark in marks])
    rows = given(token_rows(policy, policy.encode_all([each.problem.model_input for each in versions]), answers), first_group)
    device, width = rows.sampled.device, rows.sampled.shape[1]

    def column(marks: list[list[int]], blank: int) -> Tensor:
        return torch.tensor([[*mark, *[blank] * (width - len(mark))] for mark in marks], device=device)

    side = [CHOSEN if each.version in (TRUTH, REVISED) else REJECTED for each in versions]
    return rows.replace(
        group=torch.tensor([each.group for each in versions], device=device) + first_group,
        task=torch.tensor([each.problem.id for each in versions], dtype=torch.int64, device=device),
        label={
            **rows.label,
            "side": torch.tensor(side, device=device),
            "version": torch.tensor([each.version for each in versions], device=device),
        },
        segment={**rows.segment, "severity": column(severity, CORRECT), "perceptual": column(perceptual, 0)},
        info=[
            {"prompt": each.problem.prompt, "answer": each.problem.answer, "response": "".join(each.texts),
             "finish": FINISH[each.version]}
            for each in versions
        ],
    )  # fmt: skip
