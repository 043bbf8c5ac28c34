"""Text rollouts: groups of answers to problems, sampled and scored, as trajectories."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from upslope.errors import UserError
from upslope.objective.base import State
from upslope.objective.functional.last_decision import last_decision
from upslope.plain_data import JsonDict, Prompt
from upslope.policies.language_model import LanguageModel
from upslope.policies.text_inputs import TextInputs
from upslope.policies.tokenization import encoded
from upslope.rollout.choosing import Asked, Candidate, Choices, Decide, beside, category_id, offered, others
from upslope.rollout.embeddings import EMBEDDINGS
from upslope.rollout.engines.torch_engine import TorchEngine
from upslope.runtime.seeding import mix, numpy_generator, stable_hash, uniforms
from upslope.tasks.text import Problem, Scores, TextTask
from upslope.tasks.turns import Scorer, Turn, TurnNumbers
from upslope.types import (
    NO_ANSWER,
    Completions,
    Ended,
    Engine,
    KeptProblems,
    Metrics,
    Sampling,
    Source,
    Trajectories,
    View,
    samples_each,
)

ENDS = {"stop": Ended.TERMINATED, "length": Ended.TRUNCATED, "paused": Ended.PAUSED}
ATTEMPT = 1_000_000
"""Group numbers of a step's further attempts begin at multiples of this."""


MADE = ("made_from", "made_by", "generation")
"""What a problem that was made in a step says of itself, and its answers tell."""


class TextRollout:
    """Samples a group of answers to each of a number of training problems.

    Which problems and which tokens depend only on the seed, the step, the attempt and the row.
    """

    domain = "text"
    provides = frozenset({"group", "label.answer", "label.category", "segment.item", *EMBEDDINGS})
    resumes_anywhere = True
    """Nothing is carried from one step to the next, so a checkpoint may be taken after any step."""
    traced = True

    def __init__(
        self, task: TextTask, policy: LanguageModel, *, tasks: int, samples: int, sampling: Sampling, seed: int,
        engine: Engine | None = None,
    ):  # fmt: skip
        self.task, self.policy, self.tasks, self.samples, self.sampling, self.seed = task, policy, tasks, samples, sampling, seed
        self.engine: Engine = engine or TorchEngine(policy)
        self.asked: dict[int, Problem] = {}
        """The problems of the step, by task."""
        self.choices = Choices()
        self.embed: Callable[[Sequence[str]], Tensor] | None = None
        """Makes vectors of answers, where the method reads them."""

    def collect(self, step: int) -> Trajectories:
        """The rows of a step, problem by problem."""
        self.asked = {}
        return self.refill(step, 0, self.tasks)

    def refill(self, step: int, attempt: int, tasks: int) -> Trajectories:
        """Rows of ``tasks`` other problems, in place of some that were dropped."""
        problems = self.task.sample(tasks, "train", numpy_generator(self.seed, "tasks", step, attempt))
        return self.answers(problems, step, attempt)

    def choose(
        self, step: int, attempt: int, tasks: int, candidates: int, decide: Decide, kept: KeptProblems | None = None
    ) -> Trajectories:
        """Rows of the problems that ``decide`` orders, of an offer of ``candidates`` times as many as the ``tasks`` wanted, and of
        those ``kept``."""
        self.asked = {} if attempt == 0 else self.asked
        rng = numpy_generator(self.seed, "tasks", step, attempt)
        found = self.task.sample(tasks * candidates, "train", rng)
        distinct = list({problem.id: problem for problem in found}.values())
        offer = replace(
            offered([candidate(problem) for problem in distinct], torch.from_numpy(rng.random(len(distinct))), tasks, self.samples),
            attempt=attempt,
            max_tokens=self.sampling.max_tokens,
            seed=mix(self.seed, "choose", step, attempt),
        )
        further = others(kept, {*offer.task.tolist(), *self.asked})
        if further is not None:
            offer = beside(offer, further, torch.from_numpy(rng.random(len(further))))

        def problem(place: int) -> Problem:
            return distinct[place] if place < len(distinct) or further is None else further.problem(place - len(distinct))

        order = decide(replace(offer, value=lambda head: self.prompt_values([problem(place) for place in range(len(offer))], head)))
        asked = replace(self.choices.add(offer, order), sampling=self.sampling).limited(order)
        return self.answers([problem(place) for place in order.chosen.tolist()], step, attempt, asked)

    def answers(self, problems: list[Problem], step: int, attempt: int, asked: Asked | None = None) -> Trajectories:
        """A group of sampled and scored answers to each of these problems."""
        self.asked |= {problem.id: problem for problem in problems}
        asked = asked or Asked([self.samples] * len(problems))
        each, sampling = asked.each, asked.sampling or self.sampling
        prompts = self.policy.encode_all([problem.model_input for problem in problems])
        numbers = uniforms((sum(each), self.sampling.max_tokens), self.seed, "tokens", step, attempt)[:, : sampling.max_tokens]
        completions = self.engine.generate(prompts, each, sampling, numbers, keep=True)
        repeated = [problem for problem, own in zip(problems, each, strict=True) for _ in range(own)]
        group = torch.arange(len(problems)).repeat_interleave(torch.tensor(each)) + attempt * ATTEMPT
        rows = sampled_rows(self.policy, prompts, each, completions, sampling).replace(group=group)
        if self.policy.kept is not None:
            rows = rows.replace(inputs=replace(rows.inputs, kept=self.policy.kept.numbers))
        rows = self.scored(rows, repeated, sampled_ids(completions), completions.finish)
        for note, why in zip(rows.info, asked.per_answer, strict=True):
            note |= {"chosen": why} if why else {}
        return rows

    def prompt_values(self, problems: Sequence[Problem], head: str) -> Tensor:
        """What a head of the policy says at the end of each problem's prompt ``[M]``, before anything is written."""
        inputs = left_padded(self.policy.encode_all([problem.model_input for problem in problems]), self.policy.pad_id)
        one = torch.ones(len(problems), 1)
        nobody = torch.zeros(len(problems), dtype=torch.int64)
        rows = Trajectories(one, nobody.float(), nobody, nobody, View(one), action=one.long(), temperature=one, inputs=inputs)
        with torch.no_grad():
            return self.policy.evaluate(rows.to(self.policy.device), frozenset({head}))[head][:, 0].cpu()

    def scored(
        self, rows: Trajectories, problems: Sequence[Problem], answers: Sequence[list[int]], finish: Sequence[str],
        score: Scorer | None = None,
    ) -> Trajectories:  # fmt: skip
        """Rows with what their answers earned.

        Args:
            answers: the ids of each whole answer. A row may hold only the end of it; what stands before is in its prompt.
            score: what scores them in place of the task.
        """
        responses = self.policy.decode_all(answers)
        scores = (score or self.task.score)(problems, responses)
        reward = torch.tensor(scores.reward, dtype=torch.float32)
        components = {name: torch.tensor(values) for name, values in scores.components.items() if name != "task"}
        rows = rows.replace(
            reward=reward,
            components={"task": reward, **components},
            task=torch.tensor([problem.id for problem in problems], dtype=torch.int64),
            label={"answer": self._answer_classes(problems, responses), "category": category_labels(problems)},
            segment={**rows.segment, "item": self.items(rows, answers)},
            info=row_notes(problems, responses, scores, finish),
            embedding=self.embed(responses) if self.embed is not None else None,
        )
        return pay_items(rows, scores.items).to(self.policy.device)

    def items(self, rows: Trajectories, answers: Sequence[list[int]]) -> Tensor:
        """The number ``[N, T]`` of the item each token belongs to, counted from the beginning of the whole answer."""
        assert rows.action is not None
        numbers = item_numbers(self.policy, rows.action, self.task.separator)
        begun = [ids[: len(ids) - length] for ids, length in zip(answers, rows.lengths().long().tolist(), strict=True)]
        if any(begun):
            before = left_padded(begun, self.policy.pad_id).prompt.to(numbers.device)
            numbers = numbers + item_ends(self.policy, before, self.task.separator).sum(1, keepdim=True)
        return numbers

    def _answer_classes(self, problems: Sequence[Problem], responses: Sequence[str]) -> Tensor:
        classes = [self.task.answer_class(problem, text) for problem, text in zip(problems, responses, strict=True)]
        return torch.tensor([stable_hash(text) if text else NO_ANSWER for text in classes], dtype=torch.int64)

    def join(self, batches: list[Trajectories]) -> Trajectories:
        return join_text(batches)

    def teacher(self, rows: Trajectories) -> Trajectories:
        """The reference answer to each group's problem, scored, as one more row of the group."""
        first = {int(group): row for row, group in reversed(list(enumerate(rows.group.tolist())))}
        problems = [self.asked[int(rows.task[row])] for row in first.values()]
        if missing := [problem.prompt for problem in problems if not problem.solution]:
            raise UserError(f"this method learns from reference answers, and the problem {missing[0]!r} has none.")
        taught = teacher_rows(self.policy, problems)
        device, answers = taught.sampled.device, [problem.solution for problem in problems]
        scores = self.task.score(problems, answers)
        reward = torch.tensor(scores.reward, dtype=torch.float32, device=device)
        source = torch.full((len(problems),), int(Source.DEMONSTRATED), device=device)
        assert taught.action is not None
        taught = taught.replace(
            reward=reward,
            components={name: torch.zeros_like(reward) for name in rows.components} | {"task": reward},
            group=torch.tensor(list(first), device=device),
            label={
                "source": source,
                "answer": self._answer_classes(problems, answers).to(device),
                "category": category_labels(problems).to(device),
            },
            segment={"item": item_numbers(self.policy, taught.action, self.task.separator)},
            horizon=rows.horizon,
            info=row_notes(problems, answers, scores, ["reference"] * len(problems)),
        )
        return pay_items(taught, scores.items)

    def sample(self, turns: Sequence[Turn], numbers: TurnNumbers) -> Trajectories:
        """Answers to further turns of the step, turn by turn, scored."""
        from upslope.rollout.turns import sample_turns  # it stands on this module

        return sample_turns(self, turns, numbers)

    def written(self, turns: Sequence[Turn], texts: Sequence[str], numbers: TurnNumbers) -> Trajectories:
        """Rows as if these turns had been answered so."""
        from upslope.rollout.turns import written_turns

        return written_turns(self, turns, texts, numbers)

    def problems(self, rows: Trajectories) -> list[Problem]:
        """The problem of each row."""
        return [self.asked[task] for task in rows.task.tolist()]

    def fits(self, prompts: Sequence[Prompt]) -> list[bool]:
        """Which prompts leave room for an answer, without being cut."""
        limit = self.policy.prompt_limit
        if limit is None:
            return [True] * len(prompts)
        return [len(ids) <= limit.tokens for ids in encoded(self.policy.tokenizer, prompts, self.policy.prompt_format)]

    def metrics(self) -> Metrics:
        """What the engine has to say of itself, if it does, and what was chosen, if somebody chose."""
        told = getattr(self.engine, "metrics", None)
        return (told() if told is not None else {}) | self.choices.metrics()

    def sync(self) -> None:
        self.engine.sync(self.policy)

    def restart(self, step: int) -> None:
        """Nothing goes on from step to step."""

    def state(self) -> State:
        return {}

    def load_state(self, state: State) -> None:
        """Nothing was kept."""


def candidate(problem: Problem) -> Candidate:
    """What a curriculum may know of a problem."""
    return Candidate(problem.id, problem.category, problem.difficulty)


def category_labels(problems: Sequence[Problem]) -> Tensor:
    """The category of each problem ``[N]``, as numbers."""
    names = [problem.category for problem in problems]
    number = {name: category_id(name) for name in set(names)}
    return torch.tensor([number[name] for name in names], dtype=torch.int64)


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


def row_notes(problems: Sequence[Problem], responses: Sequence[str], scores: Scores, finish: Sequence[str]) -> list[JsonDict]:
    """What people want to know of each row. A component that does not apply to it is none there."""
    notes: list[JsonDict] = [
        {"prompt": problem.prompt, "answer": problem.answer, "response": response, "reward": reward, "finish": how}
        for problem, response, reward, how in zip(problems, responses, scores.reward, finish, strict=True)
    ]
    for note, problem in zip(notes, problems, strict=True):
        note |= {name: problem.info[name] for name in MADE if name in problem.info}
    for row, note in enumerate(notes if scores.components else ()):
        values = {name: column[row] for name, column in scores.components.items()}
        note["components"] = {name: value if value == value else None for name, value in values.items()}
    return notes


def left_padded(prompts: Sequence[list[int]], pad: int) -> TextInputs:
    """Prompts as a matrix that ends where each prompt ends."""
    width = max(map(len, prompts))
    ids = torch.tensor([[pad] * (width - len(prompt)) + prompt for prompt in prompts])
    mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    return TextInputs(ids, mask)


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
        inputs=inputs,
    )


def teacher_rows(policy: LanguageModel, problems: Sequence[Problem]) -> Trajectories:
    """The reference answers as if they had been sampled, for supervised learning; nobody sampled them, so `behavior` is NaN."""
    return written_rows(policy, [problem.model_input for problem in problems], [problem.solution for problem in problems]).replace(
        task=torch.tensor([problem.id for problem in problems], dtype=torch.int64, device=policy.device)
    )


def written_rows(policy: LanguageModel, prompts: Sequence[Prompt], texts: Sequence[str]) -> Trajectories:
    """Texts behind prompts, a stop token behind each, as rows that nobody sampled: `behavior` is NaN."""
    stop = min(policy.stop_ids)
    answers = [[*policy.tokenizer(text, add_special_tokens=False).input_ids, stop] for text in texts]
    return token_rows(policy, policy.encode_all(prompts), answers)


def token_rows(policy: LanguageModel, prompts: Sequence[list[int]], answers: Sequence[list[int]]) -> Trajectories:
    """Ids behind ids, as rows that nobody sampled."""
    width = max(map(len, answers))
    tokens = torch.tensor([answer + [policy.pad_id] * (width - len(answer)) for answer in answers])
    sampled = torch.tensor([[1.0] * len(answer) + [0.0] * (width - len(answer)) for answer in answers])
    rows = Trajectories(
        sampled=sampled,
        reward=torch.ones(len(answers)),
        group=torch.arange(len(answers)),
        task=torch.zeros(len(answers), dtype=torch.int64),
        behavior=View(torch.full_like(sampled, torch.nan), torch.full_like(sampled, torch.nan)),
        action=tokens,
        temperature=torch.ones_like(sampled),
        ended=(last_decision(sampled) * int(Ended.TERMINATED)).to(torch.int8),
        bootstrap=torch.zeros_like(sampled),
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
