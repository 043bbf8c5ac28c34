"""Windowed rollouts, for truncated generation: a step extends every live answer a little instead of waiting for the longest.

Between steps an answer is kept as its tokens with what was recorded of them; caches are not kept, its beginning is read again.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, ClassVar

import torch
from torch import Tensor

from upslope.errors import MethodError, UserError
from upslope.objective.base import RolloutPlan, State
from upslope.rollout.begun_answers import extend, padded
from upslope.rollout.engine_report import approximates
from upslope.rollout.text import UNSCORED, TextRollout
from upslope.rollout.text_rows import join_text, row_notes, sampled_rows
from upslope.runtime.seeding import numpy_generator, uniforms
from upslope.tasks.text import Problem, Scores
from upslope.types import Assignment, Completions, Finish, Metrics, RolloutRequest, Trajectories


@dataclass(frozen=True)
class Windows(RolloutPlan):
    """A constant number of live answers, each extended by a window of tokens a step; one that ends makes room for another (T-PPO).

    A row of an answer that goes on holds this window, with all before it in the prompt, and its last decision is ``PAUSED``. A row
    of an answer that ended holds all of it. ``segment["window"]`` says how many windows ago a token was written: 0 is this step's.
    As the answers to one task end at different times, there are no groups to compare in.

    Fields:
        windows: an answer of the run's token limit takes so many steps. More makes a step shorter and its length steadier; the
            policy learns from answers before it knows what they earn. 1 is plain sampling.
        least: tokens of a window, whatever ``windows`` says. With the value held behind a pause the last token of a window has no
            signal, and windows always end at the same places: in short ones too few tokens learn.
    """

    provides: ClassVar[frozenset[str]] = frozenset({"label.answer", "segment.item", "segment.window"})

    windows: int = 4
    least: int = 8

    def __post_init__(self) -> None:
        if self.windows < 1 or self.least < 1:
            raise MethodError(
                f"Windows has windows={self.windows} and least={self.least}; an answer takes at least one window of one token."
            )

    def build(self, task: Any, policy: Any, **sizes: Any) -> WindowRollout:
        most = sizes["sampling"].max_tokens
        return WindowRollout(task, policy, window=min(max(-(-most // self.windows), self.least), most), **sizes)


@dataclass
class LiveAnswer:
    """An answer under way."""

    step: int
    """When its problem was drawn, ..."""
    drawn: int
    """... among how many, ..."""
    number: int
    """... and which of them it is."""
    tokens: list[int]
    logp: list[float]
    entropy: list[float]
    finish: Finish = "paused"
    begun: int = 0
    """Tokens that were there before this window."""
    version: list[int] = field(default_factory=list)
    """Of the weights that drew each token."""

    def __post_init__(self) -> None:
        if len(self.version) < len(self.tokens):  # of a run from before versions were kept
            self.version = [0] * (len(self.tokens) - len(self.version)) + self.version


class WindowRollout(TextRollout):
    """Keeps ``tasks * samples`` answers alive; which problems and tokens come depends only on the seed, the step and the place."""

    provides = Windows.provides

    def __init__(self, *arguments: Any, window: int, **sizes: Any):
        super().__init__(*arguments, **sizes)
        self.window = window
        self.crews = 1
        """Sets of live answers, taken up in turn."""
        self.live: dict[int, list[LiveAnswer | None]] = defaultdict(lambda: [None] * (self.tasks * self.samples))
        """Of each set, the answers that go on, by place."""
        self.told: Metrics = {}
        self.draw = lru_cache(maxsize=256)(self._draw)

    def _draw(self, step: int, count: int) -> list[Problem]:
        return self.task.sample(count, "train", numpy_generator(self.seed, "tasks", step, 0))

    def _problem(self, live: LiveAnswer) -> Problem:
        return self.draw(live.step, live.drawn)[live.number]

    # -- a step --------------------------------------------------------------------------------------------------------

    def _decided(self, request: RolloutRequest) -> Assignment:
        """A window of every live answer, new ones begun where one had ended."""
        if request.attempt:
            raise UserError("answers written window by window cannot be replaced within a step; take the filter's refill away.")
        if request.choosing is not None:
            raise UserError("answers written window by window take their problems as they come; take the curriculum away.")
        live = self._filled(self.live[self._crew(request.step)], request.step)
        return Assignment(
            request.step, version=request.version, stage=self.stage, numbers=tuple(range(len(live))), samples=(1,) * len(live),
            begun=tuple(dataclasses.asdict(each) for each in live),
        )  # fmt: skip

    def _crew(self, step: int) -> int:
        """Which of the live answers a step extends: while a step's windows are under way the next ones cannot follow them, so that
        a run which samples ahead keeps as many sets of live answers as there are steps under way."""
        return step % self.crews

    def problems_of(self, assignment: Assignment) -> list[Problem]:
        return [self._problem(LiveAnswer(**live)) for live in assignment.begun]

    def fulfil(self, assignment: Assignment) -> Trajectories:
        """A window more of each of its answers."""
        answers, problems = [LiveAnswer(**live) for live in assignment.begun], self.problems_of(assignment)
        prompts = self.policy.encode_all([problem.model_input for problem in problems])
        self._extend(answers, prompts, assignment)
        return self._rows(answers, problems, prompts)

    def take(self, step: int, attempt: int = 0) -> Trajectories:
        assignments = self.under_way.assigned(step, attempt)
        rows = self.all_of(step, attempt)
        before = [LiveAnswer(**live) for each in assignments for live in each.begun]
        answers = [self._after(live, rows, place) for place, live in enumerate(before)]
        names = sorted({(live.step, live.number) for live in answers})
        group = torch.tensor([names.index((live.step, live.number)) for live in answers], device=rows.group.device)
        self._tell(answers, rows)
        self.live[self._crew(step)] = [live if live.finish == "paused" else None for live in answers]
        return self.only_scored(rows.replace(group=group), step, attempt)

    def _after(self, live: LiveAnswer, rows: Trajectories, place: int) -> LiveAnswer:
        """An answer as its row says that it is now: a row holds this window, or of an answer that ended all of it."""
        assert rows.action is not None
        entropies = rows.behavior.entropy if rows.behavior.entropy is not None else torch.full_like(rows.sampled, torch.nan)
        finish, length = rows.info[place]["finish"], int(rows.sampled[place].sum())
        kept = live.begun if finish == "paused" else 0
        version = rows.version[place, :length].tolist() if rows.version is not None else [0] * length
        written = (rows.action, rows.behavior.logp, entropies)
        columns: list[list[Any]] = [*(column[place, :length].tolist() for column in written), version]
        told: tuple[list[Any], ...] = (live.tokens, live.logp, live.entropy, live.version)
        tokens, logp, entropy, version = ([*old[:kept], *new] for old, new in zip(told, columns, strict=True))
        return dataclasses.replace(live, tokens=tokens, logp=logp, entropy=entropy, version=version, finish=finish)

    def _filled(self, live: list[LiveAnswer | None], step: int) -> list[LiveAnswer]:
        """The live answers, with new problems in the free places."""
        free = live.count(None)
        drawn = -(-free // self.samples)
        begun = iter(LiveAnswer(step, drawn, place // self.samples, [], [], []) for place in range(free))
        return [next(begun) if each is None else dataclasses.replace(each, begun=len(each.tokens)) for each in live]

    def _extend(self, answers: list[LiveAnswer], prompts: list[list[int]], assignment: Assignment) -> None:
        limit, first = self.sampling.max_tokens, assignment.first_row
        sampling = dataclasses.replace(self.sampling, max_tokens=self.window)
        numbers = uniforms((assignment.rows, self.window), self.seed, "tokens", assignment.step, 0)[first : first + len(answers)]
        contexts = [prompt + live.tokens for prompt, live in zip(prompts, answers, strict=True)]
        written = self.engine.generate(contexts, 1, sampling, numbers, [limit - live.begun for live in answers])
        extend(answers, written, limit, assignment.version)

    def _rows(self, answers: list[LiveAnswer], problems: list[Problem], prompts: list[list[int]]) -> Trajectories:
        """A row for each answer, in their order: all of one that ended, this window of one that goes on."""
        over = [live.finish != "paused" for live in answers]
        ended, paused = ([place for place, done in enumerate(over) if done == want] for want in (True, False))
        pieces: list[Trajectories] = []
        if ended:
            rows = self._columns([answers[i] for i in ended], [prompts[i] for i in ended], whole=True)
            finish = [answers[i].finish for i in ended]
            pieces.append(self.scored(rows, [problems[i] for i in ended], [answers[i].tokens for i in ended], finish))
        if paused:
            rows = self._columns([answers[i] for i in paused], [prompts[i] for i in paused], whole=False)
            names = pieces[0].components if pieces else {"task": rows.reward}
            pieces.append(self._unscored(rows, [problems[i] for i in paused], [answers[i].tokens for i in paused], names))
        if pieces[0].step_reward is not None:
            pieces = [piece.replace(step_reward=_or_zero(piece.step_reward, piece.sampled)) for piece in pieces]
        joined = join_text(pieces) if len(pieces) > 1 else pieces[0]
        order = torch.tensor([*ended, *paused]).argsort()
        return joined.take_rows(order.to(joined.sampled.device)).replace(info=[joined.info[i] for i in order.tolist()])

    def _columns(self, answers: list[LiveAnswer], prompts: list[list[int]], *, whole: bool) -> Trajectories:
        first = [0 if whole else live.begun for live in answers]
        contexts = [prompt + live.tokens[:start] for prompt, live, start in zip(prompts, answers, first, strict=True)]
        tokens = padded([live.tokens[start:] for live, start in zip(answers, first, strict=True)], self.policy.pad_id)
        sampled, logp, entropy = (
            padded([column[start:] for column, start in zip(columns, first, strict=True)], 0.0)
            for columns in ([[1.0] * len(live.tokens) for live in answers], [live.logp for live in answers],
                            [live.entropy for live in answers])
        )  # fmt: skip
        finish = [live.finish for live in answers]
        written = Completions(tokens, sampled, logp, entropy, finish, approximate=approximates(self.engine))
        before = torch.tensor([[live.begun - start] for live, start in zip(answers, first, strict=True)])
        ago = -((torch.arange(tokens.shape[1]) - before).clamp_max(0) // self.window)
        rows = sampled_rows(self.policy, contexts, 1, written, self.sampling).replace(segment={"window": ago})
        if not self.under_way.dates_rows:
            return rows
        version = padded([live.version[start:] for live, start in zip(answers, first, strict=True)], 0)
        return rows.replace(version=version)

    def _unscored(self, rows: Trajectories, problems: Sequence[Problem], answers: Sequence[list[int]], names: Any) -> Trajectories:
        """Rows of answers that go on: nothing is earned yet."""
        nothing = torch.zeros(rows.rows)
        responses = self.policy.decode_all(answers)
        return rows.replace(
            components=dict.fromkeys(names, nothing),
            task=torch.tensor([problem.id for problem in problems], dtype=torch.int64),
            label={"answer": torch.zeros(rows.rows, dtype=torch.int64)},
            segment={**rows.segment, "item": self.items(rows, answers)},
            info=row_notes(problems, responses, Scores([0.0] * rows.rows, [False] * rows.rows), ["paused"] * rows.rows),
        ).to(self.policy.device)

    def _tell(self, answers: list[LiveAnswer], rows: Trajectories) -> None:
        """What the learner cannot see from rows that are not all answers: earnings and lengths are of those that ended."""
        over = [live.finish != "paused" and UNSCORED not in note for live, note in zip(answers, rows.info, strict=True)]
        ended = torch.tensor(over, device=rows.reward.device)
        written = [len(live.tokens) - live.begun for live in answers]
        if bool(ended.any()):
            applies = {name: of[ended & ~of.isnan()] for name, of in rows.components.items() if name != "task"}
            further = {f"reward_{name}": float(of.mean()) for name, of in applies.items() if len(of)}
            lengths = [len(live.tokens) for live, done in zip(answers, over, strict=True) if done]
            self.told = {"reward": float(rows.reward[ended].mean()), "length": sum(lengths) / len(lengths), **further}
        self.told |= {"tokens": float(sum(written)), "longest": float(max(written)), "ended": float(ended.float().mean())}

    def metrics(self) -> Metrics:
        """Of this step; a step in which nothing ended repeats what was last earned."""
        return super().metrics() | self.told

    # -- what it keeps --------------------------------------------------------------------------

    def state(self) -> State:
        live = {str(crew): [each and dataclasses.asdict(each) for each in answers] for crew, answers in self.live.items()}
        return super().state() | {"live": live, "told": self.told}

    def load_state(self, state: State) -> None:
        super().load_state(state)
        saved = state["live"] if isinstance(state["live"], dict) else {"0": state["live"]}  # older runs have one set
        self.live.clear()
        self.live |= {int(crew): [each and LiveAnswer(**each) for each in answers] for crew, answers in saved.items()}
        self.told = state["told"]


def _or_zero(column: Tensor | None, like: Tensor) -> Tensor:
    return torch.zeros_like(like) if column is None else column
