"""Whole episodes in groups: what methods without a critic compare. A row is an episode, and those of a group begin alike.

All that an episode depends on, its level, the seed it begins with and the noise of its actions, is a function of the run's seed,
the step, the attempt and its place in them; nothing is carried from one step to the next but the statistics of observations.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from upslope.objective.base import RolloutPlan
from upslope.plain_data import JsonDict
from upslope.policies.control.mlp import Actor, ControlInputs, MLPPolicy
from upslope.policies.control.network import forbid
from upslope.policies.control.torch_policy import TorchPolicy
from upslope.rollout.choosing import Asked, Candidate, Choices, category_id, offered
from upslope.rollout.environments import action_noise
from upslope.rollout.local import LocalRollout
from upslope.rollout.normalise import Stored, observation_normaliser
from upslope.runtime.seeding import generator, mix, numpy_generator
from upslope.tasks.gym import MOST_WATCHED, GymTask
from upslope.tasks.levels import Level
from upslope.types import ATTEMPT, Choosing, Ended, Metrics, RolloutRequest, Trajectories, View

BLOCK = 64
"""Steps of all episodes whose noise is drawn at once."""


@dataclass(frozen=True)
class Episodes(RolloutPlan):
    """Whole episodes in control, ``--samples-per-task`` from each of ``--tasks-per-step`` beginnings: what a group compares.

    The episodes of a group are played in the same level from the same reset seed; only the noise of their actions differs. A
    row's reward is its return, undiscounted and raw. Methods without a critic take this by themselves.
    """

    domain: ClassVar[Literal["text", "control"]] = "control"
    provides: ClassVar[frozenset[str]] = frozenset({"group", "label.category", "signal.return_to_go"})

    def build(self, task: Any, policy: Any, **sizes: Any) -> EpisodeRollout:
        return EpisodeRollout(task, policy, **sizes)


class Beginning(NamedTuple):
    """Where the episodes of a group begin."""

    level: Level | None
    seed: int
    task: int
    """The hash of the level, or of the task where there are none."""

    @property
    def category(self) -> str:
        """The level in words, without the seed; empty where there are none."""
        values = {} if self.level is None else Level(self.level.changes).values()
        return " ".join(f"{name}={value}" for name, value in values.items())


class EpisodeRollout(LocalRollout):
    """Plays groups of whole episodes. Where there is no time limit, an episode is cut after `MOST_WATCHED` steps.

    Args:
        tasks: Groups in a step, each with a beginning of its own.
        samples: Episodes of a group.
        envs: Environments stepped side by side. It changes the time taken, not which episodes are played.
        normalise_observations: By the mean and spread of all that was seen before this step.
        workers: Processes that step the environments, this one included.
    """

    domain = "control"
    provides = Episodes.provides
    resumes_anywhere = True
    traced = False
    rewards = None
    """Returns are compared as they are."""

    def __init__(self, task: GymTask, policy: MLPPolicy | TorchPolicy, *, tasks: int, samples: int, seed: int, envs: int,
                 normalise_observations: bool = False, workers: int = 1) -> None:  # fmt: skip
        self.task, self.policy, self.tasks, self.samples, self.seed = task, policy, tasks, samples, seed
        self.env_steps = 0
        self.observations = observation_normaliser(task.layout) if normalise_observations else None
        self._envs = task.make(min(envs, tasks * samples), workers)
        self._played: list[tuple[float, int]] = []
        self.choices = Choices()

    # -- what is played --------------------------------------------------------------------------------------------------

    def rows_of(self, request: RolloutRequest) -> Trajectories:
        """The rows of a step, group by group."""
        tasks = self.tasks if request.tasks is None else request.tasks
        if request.choosing is not None:
            return self._chosen(request.step, request.attempt, tasks, request.choosing)
        beginnings = [self._beginning(request.step, request.attempt, number) for number in range(tasks)]
        return self.episodes(beginnings, request.step, request.attempt)

    def _chosen(self, step: int, attempt: int, tasks: int, choosing: Choosing) -> Trajectories:
        """Rows of the beginnings that a curriculum orders, of an offer of ``candidates`` times as many as the ``tasks`` wanted. A
        level is a category of its own."""
        found = [self._beginning(step, attempt, number) for number in range(tasks * choosing.candidates)]
        distinct = list(dict.fromkeys(found))  # a level may come several times, with other seeds
        uniform = torch.from_numpy(numpy_generator(self.seed, "choose", step, attempt).random(len(distinct)))
        told = [Candidate(beginning.task, beginning.category) for beginning in distinct]
        seed = mix(self.seed, "choose", step, attempt)
        offer = replace(offered(told, uniform, tasks, self.samples), attempt=attempt, seed=seed)
        order = choosing.decide(offer)
        asked = self.choices.add(offer, order)
        return self.episodes([distinct[place] for place in order.chosen.tolist()], step, attempt, asked)

    def _beginning(self, step: int, attempt: int, number: int) -> Beginning:
        level = self.task.levels.draw(mix(self.seed, "level", step, attempt, number)) if self.task.levels else None
        own = None if level is None else level.seed
        seed = mix(self.seed, "reset", step, attempt, number) >> 32 if own is None else own
        return Beginning(level, seed, (level or Level()).task_id(self.task.name))

    def episodes(self, beginnings: list[Beginning], step: int, attempt: int, asked: Asked | None = None) -> Trajectories:
        """A group of episodes from each of these beginnings."""
        asked = asked or Asked([self.samples] * len(beginnings))
        actor, each = self.policy.acting(), [which for which, own in zip(beginnings, asked.each, strict=True) for _ in range(own)]
        noise = _Noise(self.task, len(each), (self.seed, "act", step, attempt))
        tape = self._play(actor, each, noise)
        if self.observations is not None:
            self.observations.update(np.concatenate(tape.raw))
        self.env_steps += int(tape.length.sum())
        rows = self._rows(actor, tape, each)
        group = torch.arange(len(beginnings)).repeat_interleave(torch.tensor(asked.each)) + attempt * ATTEMPT
        for note, why in zip(rows.info, asked.per_answer, strict=True):
            note |= {"chosen": why} if why else {}
        return rows.replace(group=group)

    def _play(self, actor: Actor, each: list[Beginning], noise: _Noise) -> _Tape:
        """All episodes from beginning to end; an environment that is free takes the next one."""
        tape = _Tape(len(each))
        playing = np.arange(min(len(self._envs), len(each)))  # the row each environment plays
        raw = np.stack([self._begin(place, each[place]) for place in range(len(playing))])
        memory = np.zeros((len(playing), actor.memory_size), np.float32)
        active, following = playing.copy(), len(playing)
        longest = self.task.max_episode_steps or MOST_WATCHED
        while len(active):
            row = playing[active]
            at = tape.length[row]
            seen = raw[active]
            if self.observations is not None:
                tape.raw.append(seen)
                seen = self.observations(seen)
            output, memory[active] = actor.step(seen, memory[active])
            masks = self._envs.action_masks
            allowed = None if masks is None else masks[active]
            action = actor.choose(forbid(output, allowed), noise(row, at))
            stepped = self._envs.step(action, active.tolist())
            tape.write(row, at, (seen, output, action, stepped.reward, *([] if allowed is None else [allowed])))
            cut = ~stepped.terminated & (stepped.truncated | (tape.length[row] >= longest))
            tape.ended[row] = stepped.terminated * np.int8(Ended.TERMINATED) + cut * np.int8(Ended.TRUNCATED)
            raw[active] = stepped.observation
            over = stepped.terminated | cut
            for place in active[over]:
                playing[place], memory[place] = following, 0.0
                if following < len(each):
                    raw[place] = self._begin(int(place), each[following])
                following += 1
            active = active[playing[active] < len(each)]
        return tape

    def _begin(self, place: int, beginning: Beginning) -> np.ndarray:
        return self._envs.reset(place, beginning.seed, beginning.level)

    # -- the columns -------------------------------------------------------------------------------------------------------

    def _rows(self, actor: Actor, tape: _Tape, each: list[Beginning]) -> Trajectories:
        """The tape as rows ``[N, T]``, T the steps of the longest episode; what lies behind an episode is not sampled."""
        width = int(tape.length.max())
        seen, output, action, reward, *masks = (column[:, :width] for column in tape.columns)
        sampled = torch.from_numpy(np.arange(width) < tape.length[:, None]).float()
        allowed = torch.from_numpy(masks[0]) | (sampled == 0).unsqueeze(-1) if masks else None  # behind an episode all is allowed
        view = actor.view(output, action).map(Tensor.contiguous)
        remembered = torch.zeros(len(each), actor.memory_size) if actor.memory_size else None
        inputs = ControlInputs(torch.from_numpy(seen), remembered, allowed)
        last = sampled * (torch.arange(width) == torch.from_numpy(tape.length - 1).unsqueeze(1))
        returned = torch.from_numpy(reward.sum(1)).float()
        to_go = torch.from_numpy(np.cumsum(reward[:, ::-1], 1)[:, ::-1].copy()).float() * sampled
        self._played += zip(returned.tolist(), tape.length.tolist(), strict=True)
        rows = Trajectories(
            sampled=sampled,
            reward=returned,
            group=torch.arange(len(each)),
            task=torch.tensor([beginning.task for beginning in each], dtype=torch.int64),
            behavior=view,
            proximal=view,  # the weights have not moved since: no second pass is needed
            action=torch.from_numpy(action),
            temperature=torch.ones_like(sampled),
            components={"task": returned},
            ended=(last * torch.from_numpy(tape.ended).unsqueeze(1)).to(torch.int8),
            bootstrap=torch.zeros_like(sampled),
            label={"category": torch.tensor([category_id(beginning.category) for beginning in each], dtype=torch.int64)},
            signal={"return_to_go": to_go},
            horizon=self.task.max_episode_steps or MOST_WATCHED,
            inputs=inputs.take(lambda column: column.to(self.policy.device)),
        )
        return rows.replace(info=self._notes(each, tape, returned.tolist()))

    def _notes(self, each: list[Beginning], tape: _Tape, returned: list[float]) -> list[JsonDict]:
        """Each episode, for people."""
        notes: list[JsonDict] = []
        for beginning, value, length, ended in zip(each, returned, tape.length.tolist(), tape.ended.tolist(), strict=True):
            level = {} if beginning.level is None else {"level": beginning.level.values()}
            how = "terminated" if ended == Ended.TERMINATED else "truncated"
            told = {"task": self.task.name, **level, "seed": beginning.seed, "length": length, "ended": how}
            notes.append(told | {"episode_returns": [value]})
        return notes

    def join(self, batches: list[Trajectories]) -> Trajectories:
        """Several batches as one, padded to the longest episode. Columns that not all of them have are left out."""
        width = max(batch.sampled.shape[1] for batch in batches)

        def joined(values: list[Any]) -> Any:
            first = values[0]
            if any(value is None for value in values):
                return None
            if isinstance(first, Tensor):
                return torch.cat(values if first.dim() == 1 else [_padded(value, width) for value in values])
            if isinstance(first, View):
                return View.of(joined([value.columns() for value in values]))
            if isinstance(first, ControlInputs):
                masks = [None if value.action_mask is None else _padded(value.action_mask, width, True) for value in values]
                return ControlInputs(
                    joined([value.observation for value in values]), _stacked([value.memory for value in values]), _stacked(masks)
                )
            if isinstance(first, Mapping):
                return {name: joined([value[name] for value in values]) for name in first if all(name in each for each in values)}
            return [item for value in values for item in value] if isinstance(first, list) else first

        found = {f.name: joined([getattr(batch, f.name) for batch in batches]) for f in fields(Trajectories) if f.name != "state"}
        return batches[0].replace(**found)

    # -- metrics and stops -------------------------------------------------------------------------------------------------

    def metrics(self) -> Metrics:
        """Of the episodes since the last call; a sample is a step of an environment."""
        episodes, self._played = self._played, []
        chosen = self.choices.metrics()
        if not episodes:
            return {"env_steps": float(self.env_steps)} | chosen
        returns, lengths = zip(*episodes, strict=True)
        return {
            "env_steps": float(self.env_steps),
            "samples": float(sum(lengths)),
            "episode_return": float(np.mean(returns)),
            "episode_length": float(np.mean(lengths)),
        } | chosen

    def sync(self) -> None:
        """Acting takes the weights anew in each rollout."""

    def restart(self, step: int) -> None:
        """Nothing goes on from step to step."""

    def state(self) -> dict[str, Stored]:
        """The statistics and the steps taken."""
        state: dict[str, Stored] = {"env_steps": self.env_steps}
        if self.observations is not None:
            state.update({f"observation.{key}": value for key, value in self.observations.state().items()})
        return state

    def load_state(self, state: Mapping[str, Any]) -> None:
        self.env_steps = int(state["env_steps"])
        if self.observations is not None:
            found = {key.partition(".")[2]: value for key, value in state.items() if key.startswith("observation.")}
            self.observations.load_state(found)

    def close(self) -> None:
        self._envs.close()


class _Noise:
    """What turns a policy's output into actions, for each row and step: a function of the counters, the row and the step alone."""

    def __init__(self, task: GymTask, rows: int, counters: tuple[Any, ...]) -> None:
        self.task, self.rows, self.counters = task, rows, counters
        self._blocks: list[np.ndarray] = []

    def __call__(self, row: np.ndarray, at: np.ndarray) -> np.ndarray:
        while len(self._blocks) * BLOCK <= at.max():
            self._blocks.append(self._block(len(self._blocks)))
        if len(set((at // BLOCK).tolist())) == 1:
            return self._blocks[at[0] // BLOCK][row, at % BLOCK]
        return np.stack([self._blocks[step // BLOCK][place, step % BLOCK] for place, step in zip(row, at, strict=True)])

    def _block(self, number: int) -> np.ndarray:
        random = generator(self.counters[0], *self.counters[1:], number)
        return action_noise(self.task, (self.rows, BLOCK), random)


class _Tape:
    """What is written down of all episodes as they go, ``[N, T, ...]``, T growing with the longest."""

    def __init__(self, rows: int) -> None:
        self.length, self.ended = np.zeros(rows, np.int64), np.zeros(rows, np.int8)
        self.columns: list[np.ndarray] = []
        """What the policy saw, what it gave, the actions, the rewards; and where choices may be forbidden, those that were not."""
        self.raw: list[np.ndarray] = []
        """Observations as the environment gave them, where they are normalised."""

    def write(self, row: np.ndarray, at: np.ndarray, values: tuple[np.ndarray, ...]) -> None:
        """A step of some of the episodes."""
        room = self.columns[0].shape[1] if self.columns else 0
        if at.max() >= room:
            shapes = [(len(self.length), max(room, BLOCK), *value.shape[1:]) for value in values]
            more = [np.zeros(shape, value.dtype) for shape, value in zip(shapes, values, strict=True)]
            joined = [np.concatenate(pair, 1) for pair in zip(self.columns, more, strict=True)] if self.columns else more
            self.columns = joined
        for column, value in zip(self.columns, values, strict=True):
            column[row, at] = value
        self.length[row] += 1


def _stacked(columns: list[Tensor | None]) -> Tensor | None:
    """A column that either all batches have or none."""
    there = [column for column in columns if column is not None]
    return torch.cat(there) if there else None


def _padded(column: Tensor, width: int, filling: float = 0.0) -> Tensor:
    rows, steps = column.shape[:2]
    if steps == width:
        return column
    return torch.cat([column, column.new_full((rows, width - steps, *column.shape[2:]), filling)], 1)
