"""Self-evaluation: how likely the policy finds it that an answer is right so far."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from upslope.rollout.text import TextRollout
from upslope.rollout.text_rows import token_rows
from upslope.tasks.text import Problem

QUESTION = (
    "Here are a problem, its solution, and the beginning of an answer.\n\nProblem:\n{problem}\n\nSolution:\n{solution}\n\n"
    "Answer so far:\n{answer}\n\nIs the answer correct so far? Say yes or no and nothing else.\n"
)
UNSOLVED = QUESTION.replace("\n\nSolution:\n{solution}", "").replace("a problem, its solution, and", "a problem and")
YES, NO = "yes", "no"
AT_ONCE = 128
"""Questions that are read in one pass."""


def chance_of_right(rollout: TextRollout, problems: Sequence[Problem], texts: Sequence[str]) -> list[float]:
    """How likely the policy says *yes* rather than *no*, asked whether each text is right as the beginning of an answer.

    Where the question leaves no room for an answer it is 1/2. Nothing is sampled.
    """
    asked = [
        (QUESTION if problem.solution else UNSOLVED).format(problem=problem.prompt, solution=problem.solution, answer=text)
        for problem, text in zip(problems, texts, strict=True)
    ]
    found = [0.5] * len(asked)
    fitting = [place for place, fits in enumerate(rollout.fits(asked)) if fits]
    for first in range(0, len(fitting), AT_ONCE):
        some = fitting[first : first + AT_ONCE]
        for place, chance in zip(some, _chances(rollout, [asked[place] for place in some]), strict=True):
            found[place] = chance
    return found


def _chances(rollout: TextRollout, asked: Sequence[str]) -> list[float]:
    policy = rollout.policy
    yes, no = (policy.tokenizer(word, add_special_tokens=False).input_ids for word in (YES, NO))
    prompts = policy.encode_all(asked)
    rows = token_rows(policy, [*prompts, *prompts], [yes] * len(asked) + [no] * len(asked))
    with torch.no_grad():
        logp = torch.where(rows.sampled > 0, policy.evaluate(rows).logp, 0.0).sum(1)
    return (logp[: len(asked)] - logp[len(asked) :]).sigmoid().tolist()
