"""Windowed rollouts, for truncated generation: a step extends every live answer a little instead of waiting for the longest.

Between steps an answer is kept as its tokens with what was recorded of them; caches are not kept, its beginning is read again.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import torch
from torch import Tensor

from upslope.errors import MethodError, UserError
from upslope.objective.base import RolloutPlan, State
from upslope.rollout.text import TextRollout
from upslope.rollout.text_rows import join_text, row_notes, sampled_rows
from upslope.runtime.seeding import numpy_generator, uniforms
from upslope.tasks.text import Problem, Scores
from upslope.types import Completions, Finish, Metrics, Trajectories


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


class WindowRollout(TextRollout):
    """Keeps ``tasks * samples`` answers alive; which problems and tokens come depends only on the seed, the step and the place."""

    provides = Windows.provides

    def __init__(self, *arguments: Any, window: int, **sizes: Any):
        super().__init__(*arguments, **sizes)
        self.window = window
        self.live: list[LiveAnswer | None] = [None] * (self.tasks * self.samples)
        self.told: Metrics = {}
        self.draw = lru_cache(maxsize=256)(self._draw)

    def _draw(self, step: int, count: int) -> list[Problem]:
        return self.task.sample(count, "train", numpy_generator(self.seed, "tasks", step, 0))

    def _problem(self, live: LiveAnswer) -> Problem:
        return self.draw(live.step, live.drawn)[live.number]

    # -- a step --------------------------------------------------------------------------------------------------------

    def collect(self, step: int) -> Trajectories:
        """A window of every live answer, new ones begun where one had ended."""
        answers = self._filled(step)
        problems = [self._problem(live) for live in answers]
        self.asked = {problem.id: problem for problem in problems}
        prompts = self.policy.encode_all([problem.model_input for problem in problems])
        self._extend(answers, prompts, step)
        rows = self._rows(answers, problems, prompts)
        names = sorted({(live.step, live.number) for live in answers})
        group = torch.tensor([names.index((live.step, live.number)) for live in answers], device=rows.group.device)
        self._tell(answers, rows)
        self.live = [live if live.finish == "paused" else None for live in answers]
        return rows.replace(group=group)

    def _filled(self, step: int) -> list[LiveAnswer]:
        """The live answers, with new problems in the free places."""
        free = self.live.count(None)
        drawn = -(-free // self.samples)
        begun = iter(LiveAnswer(step, drawn, place // self.samples, [], [], []) for place in range(free))
        return [next(begun) if live is None else dataclasses.replace(live, begun=len(live.tokens)) for live in self.live]

    def _extend(self, answers: list[LiveAnswer], prompts: list[list[int]], step: int) -> None:
        limit = self.sampling.max_tokens
        sampling = dataclasses.replace(self.sampling, max_tokens=self.window)
        numbers = uniforms((len(answers), self.window), self.seed, "tokens", step, 0)
        contexts = [prompt + live.tokens for prompt, live in zip(prompts, answers, strict=True)]
        written = self.engine.generate(contexts, 1, sampling, numbers, [limit - live.begun for live in answers])
        columns = [column.tolist() for column in (written.tokens, written.logp, written.entropy)]
        lengths = written.sampled.sum(1).long().tolist()
        for live, length, finish, tokens, logp, entropy in zip(answers, lengths, written.finish, *columns, strict=True):
            live.tokens, live.logp, live.entropy = (
                old + new[:length] for old, new in ((live.tokens, tokens), (live.logp, logp), (live.entropy, entropy))
            )
            live.finish = "paused" if finish == "length" and len(live.tokens) < limit else finish

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
        written = Completions(tokens, sampled, logp, entropy, [live.finish for live in answers])
        before = torch.tensor([[live.begun - start] for live, start in zip(answers, first, strict=True)])
        ago = -((torch.arange(tokens.shape[1]) - before).clamp_max(0) // self.window)
        return sampled_rows(self.policy, contexts, 1, written, self.sampling).replace(segment={"window": ago})

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
        ended = torch.tensor([live.finish != "paused" for live in answers], device=rows.reward.device)
        written = [len(live.tokens) - live.begun for live in answers]
        if bool(ended.any()):
            applies = {name: of[ended & ~of.isnan()] for name, of in rows.components.items() if name != "task"}
            further = {f"reward_{name}": float(of.mean()) for name, of in applies.items() if len(of)}
            lengths = [len(live.tokens) for live in answers if live.finish != "paused"]
            self.told = {"reward": float(rows.reward[ended].mean()), "length": sum(lengths) / len(lengths), **further}
        self.told |= {"tokens": float(sum(written)), "longest": float(max(written)), "ended": float(ended.float().mean())}

    def metrics(self) -> Metrics:
        """Of this step; a step in which nothing ended repeats what was last earned."""
        return super().metrics() | self.told

    # -- what it cannot do, and what it keeps --------------------------------------------------------------------------

    def refill(self, step: int, attempt: int, tasks: int) -> Trajectories:
        raise UserError("answers written window by window cannot be replaced within a step; take the filter's refill away.")

    def choose(self, *asked: Any, **further: Any) -> Trajectories:
        raise UserError("answers written window by window take their problems as they come; take the curriculum away.")

    def state(self) -> State:
        return {"live": [None if live is None else dataclasses.asdict(live) for live in self.live], "told": self.told}

    def load_state(self, state: State) -> None:
        self.live = [None if live is None else LiveAnswer(**live) for live in state["live"]]
        self.told = state["told"]


def padded(rows: Sequence[Sequence[float]], blank: float) -> Tensor:
    """Lists of different lengths as a matrix, blank behind each."""
    width = max(map(len, rows))
    return torch.tensor([[*row, *[blank] * (width - len(row))] for row in rows])


def _or_zero(column: Tensor | None, like: Tensor) -> Tensor:
    return torch.zeros_like(like) if column is None else column
