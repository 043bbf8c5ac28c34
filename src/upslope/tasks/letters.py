"""Letters and digits, written and renamed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from upslope.tasks.text import Problem, split_of

DIGITS = "0123456789"
LETTERS = "abcdefghijklmnopqrstuvwxyz"


def renamed_letters(problem: Problem, letters: int, rng: np.random.Generator) -> Problem | None:
    """A problem of letters, and its answer, with the first ``letters`` of the alphabet exchanged for each other."""
    kind, text = problem.prompt[0], problem.prompt[1:]
    for _ in range(64):
        names = str.maketrans(LETTERS[:letters], spell(rng.permutation(letters), LETTERS))
        prompt = kind + text.translate(names)
        if prompt != problem.prompt and split_of(prompt) == "train":
            return replace(problem, prompt=prompt, answer=problem.answer.translate(names))
    return None


def spell(row: np.ndarray, letters: str) -> str:
    return "".join([letters[index] for index in row.tolist()])
