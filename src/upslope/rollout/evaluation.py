"""Evaluation: how good the policy is on problems it never learned from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from upslope.plain_data import JsonDict, Prompt
from upslope.policies.language_model import LanguageModel
from upslope.rollout.engines.torch_engine import TorchEngine
from upslope.rollout.text_rows import sampled_ids, token_rows
from upslope.runtime.data_files import shown_name
from upslope.runtime.seeding import numpy_generator, uniforms
from upslope.runtime.statistics import pass_at_k, share_interval
from upslope.tasks.text import Problem, Split, TextTask
from upslope.types import Engine, Sampling

EVALUATION_SEED = 20_000
"""Every run of a task is judged on the same problems or episodes, whatever its own seed."""

PROBLEMS_AT_ONCE = 128
MOST_CATEGORIES = 20
"""Whose scores an evaluation tells one by one."""

Answerer = Callable[[Sequence[Prompt], int, Sampling, Tensor], tuple[list[str], int]]
"""Answers prompts, so many samples of each side by side, drawn with numbers ``[rows, max_tokens]``; and the tokens that took."""


@dataclass(frozen=True)
class TextEvaluation:
    """Answers to held-out problems: ``correct[problem][sample]``."""

    problems: list[Problem]
    responses: list[list[str]]
    reward: list[list[float]]
    correct: list[list[bool]]
    tokens: int

    @property
    def accuracy(self) -> float:
        """Share of answers that are right: pass@1."""
        return sum(map(sum, self.correct)) / max(sum(map(len, self.correct)), 1)

    def interval(self) -> tuple[float, float]:
        """95% interval of the accuracy over problems."""
        return share_interval([sum(row) / len(row) for row in self.correct])

    def by_category(self) -> dict[str, float]:
        """The accuracy in each category; nothing where the problems have fewer than two, or too many to tell apart."""
        found: dict[str, list[bool]] = {}
        for problem, row in zip(self.problems, self.correct, strict=True):
            found.setdefault(problem.category, []).extend(row)
        return {name: sum(row) / len(row) for name, row in sorted(found.items())} if 2 <= len(found) <= MOST_CATEGORIES else {}

    def pass_at(self, k: int) -> tuple[float, tuple[float, float]]:
        """Unbiased chance that one of k answers is right, with a 95% interval over problems."""
        chances = [pass_at_k(len(row), sum(row), k) for row in self.correct]
        return sum(chances) / len(chances), share_interval(chances)


def answer_chances(
    policy: LanguageModel, problems: Sequence[Problem], texts: Sequence[str], *, max_tokens: int, temperature: float = 1.0
) -> np.ndarray:
    """The policy's exact chance of each of some answers to each problem ``[M, K]``."""
    stop = min(policy.stop_ids)
    ids = [[*each, stop][:max_tokens] for each in policy.tokenizer(list(texts), add_special_tokens=False).input_ids]
    prompts = policy.encode_all([problem.model_input for problem in problems])
    rows = token_rows(policy, [prompt for prompt in prompts for _ in ids], ids * len(prompts))
    assert rows.temperature is not None
    with torch.no_grad():
        logp = policy.evaluate(rows.replace(temperature=rows.temperature * temperature)).logp
    return (logp * rows.sampled).sum(1).double().exp().reshape(len(prompts), len(ids)).cpu().numpy()


def evaluate_choices(
    task: TextTask, policy: LanguageModel, *, problems: int, max_tokens: int, temperature: float = 1.0, split: Split = "test"
) -> JsonDict:
    """An evaluation of a task with `Choices`, from the policy's exact chances: nothing is sampled, so it has no interval."""
    choices = task.choices
    assert choices is not None
    chosen = distinct_problems(task, problems, split, EVALUATION_SEED)
    chances = answer_chances(policy, chosen, choices.texts, max_tokens=max_tokens, temperature=temperature)
    measured = [choices.measured(row) for row in chances]
    found = {name: sum(each[name] for each in measured) / len(measured) for name in measured[0]}
    said = {f"chance_{text}": float(column.mean()) for text, column in zip(choices.texts, chances.T, strict=True)}
    return found | {"low": found["score"], "high": found["score"], "problems": len(chosen)} | said


def distinct_problems(task: TextTask, count: int, split: Split, seed: int) -> list[Problem]:
    """Problems to be judged on. A small split has fewer than were asked for; asking one twice would only make an interval look
    narrower."""
    found = task.sample(count, split, numpy_generator(seed, "evaluation", split))
    return list({problem.id: problem for problem in found}.values())


def fewer_than_asked(task: TextTask, count: int) -> str:
    """What to tell somebody who asks to be judged on more held-out problems than there are; empty where there are enough."""
    found = len(distinct_problems(task, count, "test", EVALUATION_SEED))
    if found >= count:
        return ""
    told = f"{shown_name(task.name).rpartition('/')[2]} has {found} held-out problems that differ"
    return f"--eval-problems {count}: {told}, and the run is judged on those."


def evaluate_text(
    task: TextTask,
    policy: LanguageModel,
    *,
    problems: int,
    max_tokens: int,
    samples: int = 1,
    temperature: float = 0.0,
    stop: tuple[str, ...] = (),
    split: Split = "test",
    seed: int = EVALUATION_SEED,
    engine: Engine | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> TextEvaluation:
    """Answers to distinct held-out problems, one greedy answer each unless ``samples`` and ``temperature`` say otherwise."""
    return evaluate_answers(
        task, answers_of(engine or TorchEngine(policy), policy), problems=problems, max_tokens=max_tokens, samples=samples,
        temperature=temperature, stop=stop, split=split, seed=seed, progress=progress,
    )  # fmt: skip


def answers_of(engine: Engine, policy: LanguageModel) -> Answerer:
    """The answers of a policy through an engine."""

    def answer(prompts: Sequence[Prompt], samples: int, sampling: Sampling, numbers: Tensor) -> tuple[list[str], int]:
        completions = engine.generate(policy.encode_all(prompts), samples, sampling, numbers)
        return policy.decode_all(sampled_ids(completions)), int(completions.sampled.sum())

    return answer


def evaluate_answers(
    task: TextTask,
    answer: Answerer,
    *,
    problems: int,
    max_tokens: int,
    samples: int = 1,
    temperature: float = 0.0,
    stop: tuple[str, ...] = (),
    split: Split = "test",
    seed: int = EVALUATION_SEED,
    progress: Callable[[int, int], None] | None = None,
) -> TextEvaluation:
    """As `evaluate_text`, whoever answers."""
    sampling = Sampling(max_tokens=max_tokens, temperature=temperature, stop=stop)
    chosen = distinct_problems(task, problems, split, seed)
    responses: list[list[str]] = []
    reward: list[list[float]] = []
    correct: list[list[bool]] = []
    tokens = 0
    for begin in range(0, len(chosen), PROBLEMS_AT_ONCE):
        some = chosen[begin : begin + PROBLEMS_AT_ONCE]
        numbers = uniforms((len(some) * samples, max_tokens), seed, "answers", split, begin)
        said, written = answer([problem.model_input for problem in some], samples, sampling, numbers)
        tokens += written
        scores = task.score([problem for problem in some for _ in range(samples)], said)
        for start in range(0, len(said), samples):
            responses.append(said[start : start + samples])
            reward.append(scores.reward[start : start + samples])
            correct.append(scores.correct[start : start + samples])
        if progress is not None:
            progress(begin + len(some), len(chosen))
    return TextEvaluation(chosen, responses, reward, correct, tokens)
