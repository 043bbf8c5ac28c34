"""Text rollouts: groups of answers to problems, sampled and scored, as trajectories."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace

import numpy as np
import torch
from torch import Tensor

from upslope.errors import UserError
from upslope.objective.base import State
from upslope.plain_data import JsonDict, Prompt
from upslope.policies.language_model import LanguageModel
from upslope.policies.tokenization import encoded
from upslope.rewards.judging import Judge
from upslope.rollout.begun_answers import BegunAnswer, completed, extend
from upslope.rollout.choosing import Candidate, Choices, beside, category_id, offered, others
from upslope.rollout.decode.speculation import drafts_of
from upslope.rollout.embeddings import EMBEDDINGS
from upslope.rollout.engine_report import EngineReport, approximates, told_since
from upslope.rollout.engines.torch_engine import Speaker, TorchEngine
from upslope.rollout.pool import Fulfilled, Here
from upslope.rollout.reference_cache import ReferenceCache
from upslope.rollout.text_rows import (
    item_ends,
    item_numbers,
    join_text,
    left_padded,
    paid,
    pay_items,
    row_notes,
    sampled_ids,
    sampled_rows,
    teacher_rows,
)
from upslope.rollout.under_way import UnderWay
from upslope.runtime.seeding import mix, numpy_generator, stable_hash, uniforms
from upslope.tasks.problem_text import problem_of, text_of
from upslope.tasks.scoring import timed_scores
from upslope.tasks.text import Problem, TextTask
from upslope.tasks.turns import Scorer, Turn, TurnNumbers
from upslope.types import (
    NO_ANSWER,
    Assignment,
    Choosing,
    Engine,
    Metrics,
    RolloutRequest,
    Sampling,
    Source,
    Trajectories,
    View,
)

TO_SCORE, UNSCORED = "to_score", "unscored"
"""In the notes of a row: the problem to score it by, where that is still to be done, and why it could not be done."""
DRAWS = 16
"""Draws of problems that are remembered, so that what was just decided here need not be drawn again."""


class TextRollout:
    """Samples a group of answers to each of a number of training problems.

    What is sampled is decided here, beside the learner, and may be sampled anywhere: `fulfil` is a function of an assignment and of
    the policy's weights. Which problems and which tokens come depends only on the seed, the step, the attempt and the row.
    """

    domain = "text"
    provides = frozenset({"group", "label.answer", "label.category", "segment.item", "seconds", *EMBEDDINGS})
    resumes_anywhere = True
    """Nothing is carried from one step to the next, so a checkpoint may be taken after any step."""
    traced = True

    def __init__(
        self, task: TextTask, policy: LanguageModel, *, tasks: int, samples: int, sampling: Sampling, seed: int,
        engine: Engine | None = None,
    ):  # fmt: skip
        self.task, self.policy, self.tasks, self.samples, self.sampling, self.seed = task, policy, tasks, samples, sampling, seed
        self.engine: Engine = engine or TorchEngine(policy)
        self.under_way = UnderWay(Here(self.fulfilled))
        """What was assigned and not taken yet."""
        self.stage = ""
        """Of a method in stages, which one this is the rollout of."""
        self.scored_apart = False
        """Whether what it samples is scored elsewhere, behind it: rows then come without reward, with what there is to score."""
        self.timed = False
        """Whether the method wants to know how long each answer's score took."""
        self.report = EngineReport()
        """Of the answers that were taken since the last `metrics`."""
        self.unscored = 0
        """Answers of the step that nobody could score, and nobody learns from."""
        self.reuse = True
        """Whether the policy may learn from what sampling has computed."""
        self.interrupt_every = 0
        """Tokens of an answer after which whoever writes it may take newer weights; 0 writes answers in one go."""
        self.asked: dict[int, Problem] = {}
        """The problems of the step, by task."""
        self.choices = Choices()
        self.embed: Callable[[Sequence[str]], Tensor] | None = None
        """Makes vectors of answers, where the method reads them."""
        self.judge: Judge | None = None
        """Who compares answers, where the run has somebody for it."""
        self.reference_cache: ReferenceCache | None = None
        self._draws: OrderedDict[tuple[int, int, int], list[Problem]] = OrderedDict()

    # -- decided beside the learner ------------------------------------------------------------------------------------

    def assign(self, request: RolloutRequest) -> list[Assignment]:
        """Decides what the rows of a step will be of, and has them sampled; `take` gives them."""
        return self.under_way.assign(self._decided(request), self.policy)

    def _decided(self, request: RolloutRequest) -> Assignment:
        """What a request asks for, as one assignment."""
        step, attempt = request.step, request.attempt
        whole = Assignment(step, attempt, version=request.version, stage=self.stage)
        tasks = self.tasks if request.tasks is None else request.tasks
        if request.choosing is not None:
            return self._chosen(whole, tasks, request.choosing)
        drawn, numbers = self._numbers(step, attempt, tasks)
        return replace(whole, drawn=drawn, numbers=tuple(numbers), samples=(self.samples,) * len(numbers))

    def _numbers(self, step: int, attempt: int, tasks: int) -> tuple[int, list[int]]:
        """How many problems are drawn for so many tasks, and which of them are taken."""
        self._drawn(step, attempt, tasks)
        return tasks, list(range(tasks))

    def _drawn(self, step: int, attempt: int, count: int) -> tuple[list[Problem], np.random.Generator]:
        """The problems drawn for an attempt, and the generator as it is behind them."""
        rng = numpy_generator(self.seed, "tasks", step, attempt)
        found = self._draws[step, attempt, count] = self.task.sample(count, "train", rng)
        while len(self._draws) > DRAWS:
            self._draws.popitem(last=False)
        return found, rng

    def _chosen(self, whole: Assignment, tasks: int, choosing: Choosing) -> Assignment:
        """What a curriculum orders of an offer of ``candidates`` times as many tasks as are wanted, and of those kept."""
        step, attempt = whole.step, whole.attempt
        found, rng = self._drawn(step, attempt, tasks * choosing.candidates)
        number = {problem.id: place for place, problem in enumerate(found)}
        distinct = [found[place] for place in number.values()]
        offer = replace(
            offered([candidate(problem) for problem in distinct], torch.from_numpy(rng.random(len(distinct))), tasks, self.samples),
            attempt=attempt,
            max_tokens=self.sampling.max_tokens,
            seed=mix(self.seed, "choose", step, attempt),
        )
        further = others(choosing.kept, {*offer.task.tolist(), *(self.asked if attempt else ())})
        if further is not None:
            offer = beside(offer, further, torch.from_numpy(rng.random(len(further))))

        def problem(place: int) -> Problem:
            return distinct[place] if place < len(distinct) or further is None else further.problem(place - len(distinct))

        order = choosing.decide(
            replace(offer, value=lambda head: self.prompt_values([problem(place) for place in range(len(offer))], head))
        )
        asked, places = self.choices.add(offer, order), order.chosen.tolist()
        kept = [place for place in places if place >= len(distinct)]
        drawn = [*number.values()]
        return replace(
            whole,
            drawn=len(found),
            numbers=tuple(drawn[place] if place < len(distinct) else -1 - kept.index(place) for place in places),
            made=tuple(text_of(problem(place)) for place in kept),
            samples=tuple(asked.each),
            notes=tuple(asked.notes or ()),
            limit=min(order.limit or self.sampling.max_tokens, self.sampling.max_tokens),
            temperature=order.temperature or self.sampling.temperature,
        )

    def assigned(self, step: int, attempt: int = 0) -> bool:
        """Whether the rows of a step are under way already."""
        return bool(self.under_way.assigned(step, attempt))

    def take(self, step: int, attempt: int = 0) -> Trajectories:
        """The rows of a step, problem by problem, once all are there; those that nobody could score are left out."""
        return self.only_scored(self.all_of(step, attempt), step, attempt)

    def all_of(self, step: int, attempt: int) -> Trajectories:
        """The rows of a step, scored or not, once all are there."""
        self.asked = {} if attempt == 0 else self.asked
        assignments, done = self.under_way.take(step, attempt)
        for each, found in zip(assignments, done, strict=True):
            self.asked |= {problem.id: problem for problem in self.problems_of(each)}
            self.heard(found.told)
        rows = [self.under_way.dated(each, found) for each, found in zip(assignments, done, strict=True)]
        return rows[0] if len(rows) == 1 else self.join(rows)

    def only_scored(self, rows: Trajectories, step: int, attempt: int) -> Trajectories:
        """The rows without those that nobody could score: their reward is unknown, so that nothing may be compared with it."""
        failed = [note.get(UNSCORED, "") for note in rows.info]
        self.unscored = sum(map(bool, failed)) + (self.unscored if attempt else 0)
        if not any(failed):
            return rows
        if all(failed) and not attempt:  # of the few that take the place of others all may fail
            raise UserError(f"none of the {len(failed)} answers of step {step} could be scored. Of the last one: {failed[-1]}")
        return rows.keep_rows(torch.tensor([not why for why in failed], device=rows.sampled.device))

    def heard(self, told: JsonDict) -> None:
        """What was told beside the rows of an assignment: of plain answers what the engine said of them."""
        self.report.heard(told)

    # -- done anywhere -------------------------------------------------------------------------------------------------

    def fulfilled(self, assignment: Assignment) -> Fulfilled:
        """The rows of an assignment, and what there is to tell of them."""
        before = drafts_of(self.engine)
        rows = self.fulfil(assignment)
        return Fulfilled(rows, told_since(self.engine, before), assignment.version)

    def problems_of(self, assignment: Assignment) -> list[Problem]:
        """The problems that an assignment is about: a function of it alone."""
        place = assignment.step, assignment.attempt, assignment.drawn
        found = self._draws.get(place)
        if found is None and assignment.drawn:
            found, _ = self._drawn(*place)
        made = [problem_of(text) for text in assignment.made]
        return [(found or [])[number] if number >= 0 else made[-1 - number] for number in assignment.numbers]

    def sampling_of(self, assignment: Assignment) -> Sampling:
        """How its answers are written: as the run's are, unless it says otherwise."""
        most, heat = assignment.limit or self.sampling.max_tokens, assignment.temperature or self.sampling.temperature
        if (most, heat) == (self.sampling.max_tokens, self.sampling.temperature):
            return self.sampling
        return replace(self.sampling, max_tokens=most, temperature=heat)

    def _prompts_of(self, assignment: Assignment) -> tuple[list[Problem], list[list[int]]]:
        """Its problems, and the ids of their prompts."""
        problems = self.problems_of(assignment)
        return problems, self.policy.encode_all([problem.model_input for problem in problems])

    def _numbers_of(self, assignment: Assignment) -> Tensor:
        """What decides on each token of its answers."""
        where = (self.seed, "tokens", assignment.step, assignment.attempt)
        numbers = uniforms((assignment.rows, self.sampling.max_tokens), *where)[:, : self.sampling_of(assignment).max_tokens]
        return numbers[assignment.first_row : assignment.first_row + sum(assignment.samples)]

    def extended(self, assignment: Assignment) -> Assignment:
        """The assignment with a window more of each of its answers: `fulfil` makes rows of it once none of them goes on."""
        _, prompts = self._prompts_of(assignment)
        repeated = [prompt for prompt, own in zip(prompts, assignment.samples, strict=True) for _ in range(own)]
        answers = [BegunAnswer(**each) for each in assignment.begun or ({},) * len(repeated)]
        going = [place for place, answer in enumerate(answers) if answer.finish == "paused"]
        there, sampling = len(answers[going[0]].tokens), self.sampling_of(assignment)  # those that go on are all as long
        window = replace(sampling, max_tokens=min(self.interrupt_every, sampling.max_tokens - there))
        numbers = self._numbers_of(assignment)[going, there : there + window.max_tokens]
        contexts = [repeated[place] + answers[place].tokens for place in going]
        written = self.engine.generate(contexts, 1, window, numbers)
        extend([answers[place] for place in going], written, sampling.max_tokens, assignment.version)
        return replace(assignment, begun=tuple(asdict(answer) for answer in answers))

    def fulfil(self, assignment: Assignment) -> Trajectories:
        """A group of sampled and scored answers to each of its problems."""
        (problems, prompts), each, sampling = self._prompts_of(assignment), list(assignment.samples), self.sampling_of(assignment)
        version: Tensor | None = None
        if assignment.begun:
            answers = [BegunAnswer(**answer) for answer in assignment.begun]
            completions, version = completed(answers, self.policy.pad_id)
            completions = replace(completions, approximate=approximates(self.engine))
        else:
            completions = self.engine.generate(prompts, each, sampling, self._numbers_of(assignment), keep=self.reuse)
        repeated = [problem for problem, own in zip(problems, each, strict=True) for _ in range(own)]
        group = torch.arange(len(problems)).repeat_interleave(torch.tensor(each)) + assignment.first_group
        rows = sampled_rows(self.policy, prompts, each, completions, sampling).replace(group=group, version=version)
        rows = self.scored(rows, repeated, sampled_ids(completions), completions.finish)
        for note, why in zip(rows.info, assignment.row_notes, strict=True):
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
            score: what scores them in place of the task, here and now.
        """
        responses = self.policy.decode_all(answers)
        apart = self.scored_apart and score is None
        each = self.timed and not apart and not getattr(self.task, "tells_seconds", False)
        scores = None if apart else timed_scores(score or self.task.score, problems, responses, each)
        rows = rows.replace(
            task=torch.tensor([problem.id for problem in problems], dtype=torch.int64),
            label={"answer": self._answer_classes(problems, responses), "category": category_labels(problems)},
            segment={**rows.segment, "item": self.items(rows, answers)},
            info=row_notes(problems, responses, scores, finish),
            embedding=self.embed(responses) if self.embed is not None else None,
        )
        if scores is None:
            for note, problem in zip(rows.info, problems, strict=True):
                note[TO_SCORE] = text_of(problem)
            return rows.to(self.policy.device)
        return paid(rows, scores).to(self.policy.device)

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

    def sample(self, turns: Sequence[Turn], numbers: TurnNumbers, by: Speaker | None = None) -> Trajectories:
        """Answers to further turns of the step, turn by turn, scored; ``by`` samples them, where it is not the policy."""
        from upslope.rollout.turns import sample_turns  # it stands on this module

        before = drafts_of(self.engine)
        rows = sample_turns(self, turns, numbers, by)
        self.report.heard(told_since(self.engine, before))
        return rows

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
        found = self.report.metrics(self.engine) | self.choices.metrics() | self.under_way.pool.metrics()
        return found | ({"unscored": float(self.unscored)} if self.scored_apart else {})

    def sync(self) -> None:
        self.engine.sync(self.policy)

    def restart(self, step: int) -> None:
        """Nothing goes on from step to step."""

    def state(self) -> State:
        """Rows that were sampled ahead of their step."""
        return self.under_way.state()

    def load_state(self, state: State) -> None:
        self.under_way.load_state(state, self.policy.device)


def candidate(problem: Problem) -> Candidate:
    """What a curriculum may know of a problem."""
    return Candidate(problem.id, problem.category, problem.difficulty)


def category_labels(problems: Sequence[Problem]) -> Tensor:
    """The category of each problem ``[N]``, as numbers."""
    names = [problem.category for problem in problems]
    number = {name: category_id(name) for name in set(names)}
    return torch.tensor([number[name] for name in names], dtype=torch.int64)
