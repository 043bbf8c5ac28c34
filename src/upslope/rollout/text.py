"""Grouped sampling of answers to text problems, as trajectories."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from upslope.errors import UserError
from upslope.objective.base import State
from upslope.policies.language_model import LanguageModel, TextInputs
from upslope.rollout.engine import Completions, Sampling, TorchEngine
from upslope.runtime.seeding import numpy_generator, stable_hash, uniforms
from upslope.tasks.text import Problem, TextTask
from upslope.types import Ended, Metrics, Source, Trajectories, View


class TextRollout:
    """Samples a group of answers to each of a number of training problems.

    Which problems and which tokens depend only on the seed, the step, the attempt and the row.
    """

    domain = "text"
    provides = frozenset({"group", "label.answer", "segment.item"})
    resumes_anywhere = True
    """Nothing is carried from one step to the next, so a checkpoint may be taken after any step."""

    def __init__(self, task: TextTask, policy: LanguageModel, *, tasks: int, samples: int, sampling: Sampling, seed: int):
        self.task, self.policy, self.tasks, self.samples, self.sampling, self.seed = task, policy, tasks, samples, sampling, seed
        self.engine = TorchEngine(policy)
        self.asked: dict[int, Problem] = {}
        """The problems of the step, by task."""

    def collect(self, step: int) -> Trajectories:
        """The rows of a step, problem by problem."""
        self.asked = {}
        return self.refill(step, 0, self.tasks)

    def refill(self, step: int, attempt: int, tasks: int) -> Trajectories:
        """Rows of ``tasks`` other problems, in place of some that were dropped."""
        problems = self.task.sample(tasks, "train", numpy_generator(self.seed, "tasks", step, attempt))
        return self.answers(problems, step, attempt)

    def choose(self, step: int, attempt: int, tasks: int, candidates: int, weigh: Callable[[Tensor], Tensor]) -> Trajectories:
        """Rows of ``tasks`` problems drawn by weight, without replacement, among ``candidates`` times as many."""
        self.asked = {} if attempt == 0 else self.asked
        rng = numpy_generator(self.seed, "tasks", step, attempt)
        found = self.task.sample(tasks * candidates, "train", rng)
        distinct = list({problem.id: problem for problem in found}.values())
        weights = weigh(torch.tensor([problem.id for problem in distinct], dtype=torch.int64)).double().numpy()
        order = np.argsort(-(np.log(np.maximum(weights, 1e-300)) + rng.gumbel(size=len(distinct))), kind="stable")
        return self.answers([distinct[i] for i in order[:tasks]], step, attempt)

    def answers(self, problems: list[Problem], step: int, attempt: int) -> Trajectories:
        """A group of sampled and scored answers to each of these problems."""
        self.asked |= {problem.id: problem for problem in problems}
        prompts = [self.policy.encode(problem.prompt) for problem in problems]
        numbers = uniforms((len(prompts) * self.samples, self.sampling.max_tokens), self.seed, "tokens", step, attempt)
        completions = self.engine.generate(prompts, self.samples, self.sampling, numbers)
        repeated = [problem for problem in problems for _ in range(self.samples)]
        responses = [self.policy.decode(ids) for ids in sampled_ids(completions)]
        scores = self.task.score(repeated, responses)
        components = {name: torch.tensor(values) for name, values in scores.components.items() if name != "task"}
        rows = _rows(self.policy, prompts, self.samples, completions, self.sampling)
        rows = rows.replace(
            reward=torch.tensor(scores.reward, dtype=torch.float32),
            components={"task": torch.tensor(scores.reward, dtype=torch.float32), **components},
            group=torch.arange(len(problems)).repeat_interleave(self.samples) + attempt * 1_000_000,
            task=torch.tensor([problem.id for problem in repeated], dtype=torch.int64),
            label={"answer": self._answer_classes(repeated, responses)},
            segment={"item": item_numbers(self.policy, completions.tokens, self.task.separator)},
            info=[
                {
                    "prompt": problem.prompt,
                    "answer": problem.answer,
                    "response": response,
                    "reward": reward,
                    "finish": finish,
                }
                for problem, response, reward, finish in zip(repeated, responses, scores.reward, completions.finish, strict=True)
            ],
        )
        return rows.to(self.policy.device)

    def _answer_classes(self, problems: list[Problem], responses: list[str]) -> Tensor:
        classes = [self.task.answer_class(problem, text) for problem, text in zip(problems, responses, strict=True)]
        return torch.tensor([stable_hash(text) for text in classes], dtype=torch.int64)

    def join(self, batches: list[Trajectories]) -> Trajectories:
        return join_text(batches)

    def teacher(self, rows: Trajectories) -> Trajectories:
        """The reference answer to each group's problem, scored, as one more row of the group."""
        first = {int(group): row for row, group in reversed(list(enumerate(rows.group.tolist())))}
        problems = [self.asked[int(rows.task[row])] for row in first.values()]
        if missing := [problem.prompt for problem in problems if not problem.answer]:
            raise UserError(f"this method learns from reference answers, and the problem {missing[0]!r} has none.")
        taught = teacher_rows(self.policy, problems)
        scores = self.task.score(problems, [problem.answer for problem in problems])
        reward = torch.tensor(scores.reward, dtype=torch.float32, device=taught.sampled.device)
        return taught.replace(
            reward=reward,
            components={name: torch.zeros_like(reward) for name in rows.components} | {"task": reward},
            group=torch.tensor(list(first), device=taught.sampled.device),
            label={"source": torch.full((len(problems),), int(Source.DEMONSTRATED), device=taught.sampled.device)},
            horizon=rows.horizon,
        )

    def metrics(self) -> Metrics:
        return {}

    def sync(self) -> None:
        self.engine.sync(self.policy)

    def restart(self, step: int) -> None:
        """Nothing goes on from step to step."""

    def state(self) -> State:
        return {}

    def load_state(self, state: State) -> None:
        """Nothing was kept."""


def sampled_ids(completions: Completions) -> list[list[int]]:
    """The ids of each answer without padding."""
    lengths = completions.sampled.sum(1).long().tolist()
    return [row[:length] for row, length in zip(completions.tokens.tolist(), lengths, strict=True)]


def item_numbers(policy: LanguageModel, tokens: Tensor, separator: str) -> Tensor:
    """The number ``[N, T]`` of the item each token belongs to: how many separators stand before it."""
    if not separator:
        return torch.zeros_like(tokens)
    ids, where = torch.unique(tokens, return_inverse=True)
    ends = torch.tensor([separator in policy.decode([token]) for token in ids.tolist()], device=tokens.device)[where].long()
    return ends.cumsum(1) - ends


def left_padded(prompts: Sequence[list[int]], pad: int) -> TextInputs:
    """Prompts as a matrix that ends where each prompt ends."""
    width = max(map(len, prompts))
    ids = torch.tensor([[pad] * (width - len(prompt)) + prompt for prompt in prompts])
    mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    return TextInputs(ids, mask)


def _rows(
    policy: LanguageModel, prompts: list[list[int]], samples: int, completions: Completions, sampling: Sampling
) -> Trajectories:
    sampled = completions.sampled
    last = (sampled > 0) & (sampled.flip(1).cumsum(1).flip(1) == 1)
    ends = [Ended.TERMINATED if finish == "stop" else Ended.TRUNCATED for finish in completions.finish]
    how = torch.tensor(ends, dtype=torch.int8, device=sampled.device)
    inputs = left_padded(prompts, policy.pad_id).take(lambda column: column.repeat_interleave(samples, 0))
    return Trajectories(
        sampled=sampled,
        reward=torch.zeros(sampled.shape[0]),
        group=torch.zeros(sampled.shape[0], dtype=torch.int64),
        task=torch.zeros(sampled.shape[0], dtype=torch.int64),
        behavior=View(completions.logp, completions.entropy),
        action=completions.tokens,
        temperature=torch.full_like(sampled, sampling.temperature),
        # An answer cut at the limit gets what it earned and nothing behind it, so its bootstrap is zero.
        ended=last * how.unsqueeze(1),
        bootstrap=torch.zeros_like(sampled),
        horizon=sampling.max_tokens,
        inputs=inputs,
    )


def teacher_rows(policy: LanguageModel, problems: Sequence[Problem]) -> Trajectories:
    """The reference answers as if they had been sampled, for supervised learning; nobody sampled them, so `behavior` is NaN."""
    prompts = [policy.encode(problem.prompt) for problem in problems]
    stop = min(policy.stop_ids)
    answers = [[*policy.tokenizer(problem.answer, add_special_tokens=False).input_ids, stop] for problem in problems]
    width = max(map(len, answers))
    tokens = torch.tensor([answer + [policy.pad_id] * (width - len(answer)) for answer in answers])
    sampled = torch.tensor([[1.0] * len(answer) + [0.0] * (width - len(answer)) for answer in answers])
    rows = Trajectories(
        sampled=sampled,
        reward=torch.ones(len(answers)),
        group=torch.arange(len(answers)),
        task=torch.tensor([problem.id for problem in problems], dtype=torch.int64),
        behavior=View(torch.full_like(sampled, torch.nan)),
        action=tokens,
        temperature=torch.ones_like(sampled),
        horizon=width,
        inputs=left_padded(prompts, policy.pad_id),
    )
    return rows.to(policy.device)


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

    kept = ("inputs", "state")
    columns = {f.name: joined([getattr(b, f.name) for b in batches]) for f in fields(Trajectories) if f.name not in kept}
    inputs = TextInputs(left(lambda b: b.inputs.prompt), left(lambda b: b.inputs.prompt_mask))
    return batches[0].replace(**columns, inputs=inputs)
