"""Rollouts in environments: one row per environment, several episodes in a row, and where each of them ended.

A row is a fixed number of steps, not an episode. Its columns say what the advantage needs to know: ``ended`` whether an episode
ended of itself, was cut by its time limit, or merely goes on in the next rollout; ``bootstrap`` the value of what was still to come
in the last two cases. That value is of the episode's own final observation, never of the first one of the next episode.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from upslope.errors import TaskError
from upslope.plain_data import JsonDict
from upslope.policies.control.mlp import Actor, ControlInputs, MLPPolicy
from upslope.policies.control.network import forbid
from upslope.policies.control.torch_policy import TorchPolicy
from upslope.rollout.cut_episodes import CutEpisodes
from upslope.rollout.level_draws import LevelDraws
from upslope.rollout.local import LocalRollout
from upslope.rollout.normalise import ObservationNormaliser, RewardNormaliser, observation_normaliser
from upslope.runtime.seeding import generator, mix
from upslope.tasks.gym import MOST_WATCHED, GymTask, Stepped
from upslope.tasks.levels import Level
from upslope.types import Ended, Metrics, RolloutRequest, Trajectories, View


class EpisodeStats(NamedTuple):
    """A finished episode: the sum of its raw rewards, and its steps."""

    return_: float
    length: int


class EnvRollout(LocalRollout):
    """Samples a control policy in several environments at once.

    The inner state of an environment cannot be saved in general. `restart` therefore begins fresh episodes from a counter, and is
    called after every checkpoint as well as on resume: an interrupted run and one that was not see the same episodes. Environments
    that are never reset go on where they are, and a resumed run puts them there again, if they can be (`Environments.states`).

    Args:
        envs: Environments, and so rows. More lowers the variance of an update and makes acting cheaper per step.
        horizon: Steps of each environment in one rollout. Longer needs less bootstrapping.
        seed: Of actions and episodes, used by counter only.
        gamma: The method's discount, for the scale of rewards.
        normalise_observations: Show the policy observations with mean 0 and spread 1, by running statistics.
        normalise_rewards: Divide rewards by the running spread of the discounted return.
        workers: Processes that step the environments, this one included. They change the time taken, nothing else.
    """

    domain = "control"
    provides = frozenset({"step_reward", "behavior.value", "ended"})
    resumes_anywhere = False
    """Episodes are under way between rollouts, so a run can only go on from a step at which they begin afresh anyway."""
    traced = False

    def __init__(self, task: GymTask, policy: MLPPolicy | TorchPolicy, *, envs: int, horizon: int, seed: int, gamma: float,
                 normalise_observations: bool, normalise_rewards: bool, workers: int = 1) -> None:  # fmt: skip
        if horizon < 1:
            raise TaskError(f"horizon={horizon}: a rollout needs at least 1 step.")
        self.task, self.policy, self.horizon, self.seed = task, policy, horizon, seed
        self.env_steps = 0
        self.observations = observation_normaliser(task.layout) if normalise_observations else None
        self.rewards = RewardNormaliser(envs, gamma) if normalise_rewards else None
        self._envs = task.make(envs, workers)
        self._levels = LevelDraws(task.levels, seed, envs)
        self._raw: Any = None
        """Observations ``[envs, D]`` to act on next, as the environments gave them; none before the first restart."""
        self._memory: np.ndarray | None = None
        """What the policy remembers of each running episode ``[envs, S]``; none before it has acted in any."""
        self._carried: Sequence[JsonDict] = ()
        """Where environments that are never reset were when the run was saved, until they begin."""
        self._return, self._length = np.zeros(envs), np.zeros(envs, np.int64)
        self._finished: list[EpisodeStats] = []
        self._cut, self._anew = CutEpisodes(task.name, told=task.is_pair), False
        self._played: list[JsonDict] = []
        """Levels of the episodes that ended in this rollout."""

    def restart(self, step: int) -> None:
        """Begin a fresh episode in every environment, the same ones whatever ran before. Statistics stay."""
        for env, place in enumerate(self._carried):
            self._envs.restore(env, place)
        self._carried = ()
        self._levels.restart(step)
        seeds = [mix(self.seed, "reset", step, env) >> 32 for env in range(len(self._envs))]
        self._raw = np.stack([self._envs.reset(env, seed, self._levels.next(env)) for env, seed in enumerate(seeds)])
        self._return[:], self._length[:], self._memory, self._anew = 0.0, 0, None, True
        if self.rewards is not None:
            self.rewards.restart()

    def rows_of(self, request: RolloutRequest) -> Trajectories:
        """Act for ``horizon`` steps in every environment, going on where the last rollout stopped."""
        step = request.step
        if self._raw is None:
            self.restart(step)
        if self._anew:
            self._cut.begin_anew()
            self._anew = False
        finished_before, self._played = len(self._finished), []
        tasks = torch.tensor([self._levels.task_id(env, self.task.name) for env in range(len(self._envs))])
        actor = self.policy.acting()
        if self._memory is None:
            self._memory = np.zeros((len(self._envs), actor.memory_size), np.float32)
        before = self._memory.copy()
        noise = action_noise(self.task, (self.horizon, len(self._envs)), generator(self.seed, "act", step))
        tape = _Tape([], [], [], [], [], [], before, [])
        for position in range(self.horizon):
            self._step(actor, noise[position], tape)
        rows = self._rows(actor, tape, tasks)
        self.env_steps += self.horizon * len(self._envs)
        return rows.replace(info=[self._told(self._finished[finished_before:])] + [{}] * (len(self._envs) - 1))

    def _told(self, episodes: list[EpisodeStats]) -> JsonDict:
        """The episodes that ended, for people."""
        told: JsonDict = {"task": self.task.name, "episode_returns": [episode.return_ for episode in episodes]}
        return told | ({"episode_levels": self._played} if self.task.levels else {})

    def metrics(self) -> Metrics:
        """Of the episodes that ended since the last call; a sample is a step of an environment."""
        episodes = self.finished()
        counts = {"env_steps": float(self.env_steps), "samples": float(self.horizon * len(self._envs))}
        if not episodes:
            return counts
        returns, lengths = zip(*episodes, strict=True)
        return counts | {
            "episode_return": float(np.mean(returns)),
            "episode_length": float(np.mean(lengths)),
        }

    def sync(self) -> None:
        """Acting takes the weights anew in each rollout."""

    def finished(self) -> list[EpisodeStats]:
        """Episodes that ended since the last call, in the order of their ends."""
        episodes, self._finished = self._finished, []
        return episodes

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps: the statistics and the steps taken. Running episodes are not in it."""
        state: dict[str, Any] = {"env_steps": self.env_steps}
        for name, normaliser in (("observation", self.observations), ("reward", self.rewards)):
            if normaliser is not None:
                state.update({f"{name}.{key}": value for key, value in normaliser.state().items()})
        places = self._carried or self._envs.states()
        return state | ({"environments": places} if places else {})

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state; `restart` must follow."""
        self.env_steps = int(state["env_steps"])
        if self.observations is not None:
            self.observations.load_state(_under(state, "observation"))
        if self.rewards is not None:
            self.rewards.load_state(_under(state, "reward"))
        self._raw, self._memory, self._finished = None, None, []
        self._carried = state.get("environments", ())

    def close(self) -> None:
        self._envs.close()

    # -- one step ------------------------------------------------------------------------------------------------------

    def _policy_sees(self, raw: np.ndarray) -> np.ndarray:
        return raw if self.observations is None else self.observations(raw)

    def _step(self, actor: Actor, noise: np.ndarray, tape: _Tape) -> None:
        if self.observations is not None:
            self.observations.update(self._raw)  # here, not at the reset: an observation counts once, when it is acted on
        seen = self._policy_sees(self._raw)
        assert self._memory is not None
        output, memory = actor.step(seen, self._memory)
        mask = self._envs.action_masks
        if mask is not None:
            tape.mask.append(mask.copy())  # the environments write the next ones into the same place
            forbid(output, mask)
        action = actor.choose(output, noise)
        stepped = self._envs.step(action, range(len(seen)))
        ends = stepped.terminated | stepped.truncated
        self._cut.stepped(bool(ends.any()))
        reward = stepped.reward if self.rewards is None else self.rewards(stepped.reward, ends)
        self._return += stepped.reward
        self._length += 1
        cut = np.flatnonzero(stepped.truncated)
        if len(cut):
            tape.cuts.append((len(tape.seen), cut, self._policy_sees(stepped.observation[cut]), memory[cut]))
        ended = stepped.terminated * np.int8(Ended.TERMINATED) + stepped.truncated * np.int8(Ended.TRUNCATED)
        tape.seen.append(seen)
        tape.output.append(output)
        tape.action.append(action)
        tape.reward.append(reward)
        tape.ended.append(ended)
        if actor.memory_size:
            memory[ends] = 0.0
        self._raw, self._memory = self._begin_where_ended(stepped, ends), memory

    def _begin_where_ended(self, stepped: Stepped, ends: np.ndarray) -> np.ndarray:
        following = stepped.observation
        for env in np.flatnonzero(ends):
            self._finished.append(EpisodeStats(float(self._return[env]), int(self._length[env])))
            if (level := self._levels.playing[env]) is not None:
                self._played.append(level.values())
            self._return[env], self._length[env] = 0.0, 0
            following[env] = self._envs.reset(int(env), None, self._levels.next(int(env)))
        return following

    # -- the columns ---------------------------------------------------------------------------------------------------

    def _rows(self, actor: Actor, tape: _Tape, tasks: Tensor) -> Trajectories:
        """The tape, written down as rows ``[envs, horizon]``; what the policy looks at again is on its device."""

        def column(steps: list[np.ndarray]) -> Tensor:
            return torch.from_numpy(np.stack(steps, axis=1))

        observation, reward = column(tape.seen), column(tape.reward).float()
        if not (observation.isfinite().all() and reward.isfinite().all()):
            raise TaskError(f"{self.task.name} gave an observation or a reward that is not a finite number. "
                            "Its simulation has diverged, or the environment has a fault.")  # fmt: skip
        action = np.stack(tape.action, axis=1)
        view = actor.view(np.stack(tape.output, axis=1), action)
        ended, bootstrap = self._ends(actor, tape, column(tape.ended))
        mask = column(tape.mask) if tape.mask else None
        inputs = ControlInputs(observation, torch.from_numpy(tape.memory) if actor.memory_size else None, mask)
        return self._trajectories(inputs, torch.from_numpy(action), reward, ended, bootstrap, view, tasks)

    def _ends(self, actor: Actor, tape: _Tape, ended: Tensor) -> tuple[Tensor, Tensor]:
        """``ended`` with the pause at its last column, and the values behind cuts and pause."""
        bootstrap = torch.zeros(ended.shape)
        assert self._memory is not None
        for position, cut, seen, memory in tape.cuts:
            bootstrap[torch.from_numpy(cut), position] = torch.from_numpy(actor.value(seen, memory))
        goes_on = ended[:, -1] == Ended.NO
        bootstrap[goes_on, -1] = torch.from_numpy(actor.value(self._policy_sees(self._raw), self._memory))[goes_on]
        ended[goes_on, -1] = int(Ended.PAUSED)
        return ended, bootstrap

    def _trajectories(self, inputs: ControlInputs, action: Tensor, reward: Tensor, ended: Tensor, bootstrap: Tensor,
                      view: View, tasks: Tensor) -> Trajectories:  # fmt: skip
        rows, view = len(reward), view.map(Tensor.contiguous)
        return Trajectories(
            sampled=torch.ones_like(reward),
            reward=reward.new_zeros(rows),
            group=torch.arange(rows),
            task=tasks,  # the level a row begins in: others may follow
            behavior=view,
            proximal=view,  # the weights have not moved since: no second pass is needed
            action=action,
            temperature=torch.ones_like(reward),
            step_reward=reward,
            ended=ended,
            bootstrap=bootstrap,
            horizon=self.horizon,
            inputs=inputs.take(lambda column: column.to(self.policy.device)),
        )


class _Tape(NamedTuple):
    """What a rollout writes down as it goes, one entry per step; log-probabilities and values are worked out at its end."""

    seen: list[np.ndarray]
    output: list[np.ndarray]
    action: list[np.ndarray]
    reward: list[np.ndarray]
    ended: list[np.ndarray]
    cuts: list[tuple[int, np.ndarray, np.ndarray, np.ndarray]]
    """Where time limits struck: the position, the environments, their final observations as the policy sees them, and what it
    remembered then."""
    memory: np.ndarray
    """What it remembered before the first step ``[envs, S]``."""
    mask: list[np.ndarray]
    """The choices that were allowed; nothing where the environment forbids none."""


def evaluate_control(task: GymTask, policy: Any, normaliser_state: Mapping[str, Any] | None, *, episodes: int, seed: int,
                     greedy: bool = True, envs: int = 10, progress: Callable[[int], Any] | None = None) -> list[float]:  # fmt: skip
    """Raw returns of exactly ``episodes`` episodes, in the order of their seeds.

    Every episode has a number, a seed made from it and a place in an environment's queue before any is played. Taking the first
    ``episodes`` that end instead would favour short ones. Where there is no time limit, one is cut after `MOST_WATCHED` steps.
    Where the task has levels, the episodes are spread evenly over them.

    Args:
        normaliser_state: `EnvRollout.state`, of which the observation statistics are used as they stand; ``None`` or a state
            without them shows the policy raw observations.
        greedy: The likeliest action each time; otherwise actions are drawn, from a counter per episode.
        envs: Environments played side by side. It changes the time taken, not which episodes are played.
        progress: Called with the number of episodes finished, whenever it grows.
    """
    if episodes < 1:
        raise TaskError(f"episodes={episodes}: evaluation needs at least 1.")
    observations = _frozen_normaliser(task, normaliser_state)
    actor, places, returns = policy.acting(), task.make(min(envs, episodes)), np.zeros(episodes)
    playing = np.arange(len(places))  # the number of the episode in each place; episode e is played in place e modulo the places
    draws = [generator(seed, "evaluate", episode) for episode in playing.tolist()]
    raw = np.stack([places.reset(place, *_beginning(task, seed, place, episodes)) for place in range(len(places))])
    active, finished, lengths = playing.copy(), 0, np.zeros(len(places))
    memory = np.zeros((len(places), actor.memory_size), np.float32)
    longest = np.inf if task.max_episode_steps else MOST_WATCHED
    while len(active):
        output, memory[active] = actor.step(raw[active] if observations is None else observations(raw[active]), memory[active])
        forbid(output, None if places.action_masks is None else places.action_masks[active])
        noise = np.empty(0) if greedy else np.stack([action_noise(task, (), draws[place]) for place in active])
        stepped = places.step(actor.choose(output, noise, greedy), active.tolist())
        returns[playing[active]] += stepped.reward
        raw[active], lengths[active] = stepped.observation, lengths[active] + 1
        for place in active[stepped.terminated | stepped.truncated | (lengths[active] >= longest)]:
            finished, lengths[place], playing[place], memory[place] = finished + 1, 0, playing[place] + len(places), 0.0
            if playing[place] < episodes:
                raw[place] = places.reset(int(place), *_beginning(task, seed, int(playing[place]), episodes))
                draws[place] = generator(seed, "evaluate", int(playing[place]))
            if progress is not None:
                progress(finished)
        active = active[playing[active] < episodes]
    places.close()
    return returns.tolist()


def _beginning(task: GymTask, seed: int, episode: int, episodes: int) -> tuple[int, Level | None]:
    """Where an episode of an evaluation begins."""
    return _episode_seed(seed, episode), task.levels.spread(episode, episodes) if task.levels else None


def _episode_seed(seed: int, episode: int) -> int:
    return mix(seed, "episode", episode) >> 32


def action_noise(task: GymTask, shape: tuple[int, ...], random: torch.Generator) -> np.ndarray:
    """What turns a policy's output into actions: a uniform for a choice or each of its components, a normal for each dimension
    of a vector."""
    if task.continuous:
        return torch.randn((*shape, task.action_size), generator=random).numpy()
    return torch.rand((*shape, len(task.components)) if task.components else shape, generator=random).numpy()


def _under(state: Mapping[str, Any], name: str) -> JsonDict:
    return {key.partition(".")[2]: value for key, value in state.items() if key.startswith(f"{name}.")}


def _frozen_normaliser(task: GymTask, state: Mapping[str, Any] | None) -> ObservationNormaliser | None:
    found = _under(state or {}, "observation")
    if not found:
        return None
    normaliser = observation_normaliser(task.layout)
    normaliser.load_state(found)
    return normaliser
