"""Experience for learners that draw: environments acted in tick by tick, everything kept, rows drawn from what is kept.

The run's own experience and a dataset are two stores; which of them an update's rows come from is the method's business
(`DrawnData`). Observations are stored raw, images as bytes, and normalised when they are looked at.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from upslope.errors import MethodError, UserError
from upslope.experience.episodes import Episodes
from upslope.experience.log import ExperienceLog
from upslope.experience.sampler import DrawnRows, draw, joined, returns_to_go
from upslope.experience.search_tree import SearchTree
from upslope.experience.store import DatasetRows, ReplayStore, Rows
from upslope.objective.data.stored import DEMONSTRATED, REPLAYED
from upslope.plain_data import JsonDict
from upslope.policies.control.bound_networks import ExperienceInputs
from upslope.policies.control.network import forbid
from upslope.policies.control.network_policy import NetworkPolicy
from upslope.rollout.cut_episodes import CutEpisodes
from upslope.rollout.device_frames import DeviceFrames
from upslope.rollout.environments import EpisodeStats
from upslope.rollout.level_draws import LevelDraws
from upslope.rollout.normalise import Stored, observation_normaliser
from upslope.runtime.seeding import mix, numpy_generator, stable_hash
from upslope.tasks.gym import GymTask
from upslope.types import Acting, ActingContext, DrawnData, Ended, Metrics, Source, Trajectories, View, World

FLUSH = 4096
"""Rows after which what happened is written to the log, between checkpoints too."""


class ReplayRollout:
    """Acts, remembers and draws.

    Running episodes cannot be saved. They are cut at every checkpoint, and `restart` begins fresh ones from a counter: an
    interrupted run and one that was not see the same. Environments that are never reset go on where they are, and a resumed run
    puts them there again, if they can be (`Environments.states`).

    Args:
        data: How rows are drawn, and how much is remembered.
        acting: What changes the policy's actions while it gathers experience.
        episodes: The dataset, if there is one.
        planned_steps: Steps of all environments that the run will make.
        normalise: Show networks observations with mean 0 and spread 1: by the dataset's statistics, or, without one, by those of
            what was acted on.
    """

    domain = "control"
    provides = frozenset({"step_reward", "ended", "signal.discount", "signal.return_to_go", "signal.online", "label.source"})
    resumes_anywhere = False
    traced = False

    def __init__(self, task: GymTask, policy: NetworkPolicy, data: DrawnData, acting: tuple[Acting, ...], *, envs: int, seed: int,
                 planned_steps: int, episodes: Episodes | None = None, normalise: bool = False, workers: int = 1,
                 with_returns: bool = False) -> None:  # fmt: skip
        self.task, self.policy, self.data, self.acting, self.seed = task, policy, data, acting, seed
        if getattr(data.augment, "for_images", False) and not policy.space.has_images:
            raise UserError(f"data.augment={data.augment} changes images, and {task.name} shows vectors. Leave it out.")
        self.planned_steps, self.env_steps = planned_steps, 0
        self.observations = observation_normaliser(task.layout) if normalise else None
        action = (task.action_size,) if task.continuous else ()
        kept = (task.observation_shape, task.observation_dtype)
        self.store = ReplayStore(kept, action, not task.continuous, data.capacity, envs, task.frames)
        self.dataset = None if episodes is None else DatasetRows(episodes)
        self.returns = returns_to_go(episodes, data.gamma) if episodes is not None and with_returns else None
        if self.observations is not None and episodes is not None:
            self.observations.update(episodes.observation.reshape(len(episodes.observation), -1))
        self.log: ExperienceLog | None = None
        self.largest_reward = 0.0 if episodes is None else float(np.abs(episodes.reward).max())
        """Of all rewards that were seen, by size: what values must be explained by."""
        self._count, self._workers = envs, workers
        self._envs: Any = None
        self._levels = LevelDraws(task.levels, seed, envs)
        self._raw: Any = None
        self._restart = 1
        self._carried: list[JsonDict] | None = None
        """Where environments that are never reset were when the run was saved, until somebody acts."""
        self._return, self._length = np.zeros(envs), np.zeros(envs, np.int64)
        self._finished: list[EpisodeStats] = []
        self._cut = CutEpisodes(task.name, told=task.is_pair)
        self._actor = policy.acting()
        self._random = torch.Generator()
        self._columns: Trajectories | None = None
        changed = getattr(data.augment, "for_images", False) or normalise
        by_place = task.observation_dtype == np.uint8 and episodes is None and not changed and not policy.plain
        self.frames = DeviceFrames.where_they_fit(self.store, policy.device) if by_place else None
        """Stored images on the GPU, where updates ask for them by place."""

    # -- acting --------------------------------------------------------------------------------------------------------

    def restart(self, step: int) -> None:
        """Fresh episodes, the same ones whatever ran before; they begin when somebody acts."""
        self._raw, self._restart = None, step

    def _begin(self) -> None:
        self._cut.begin_anew()
        if self._envs is None:
            self._envs = self.task.make(self._count, self._workers)
        for env, state in enumerate(self._carried or ()):
            self._envs.restore(env, state)
        self._carried = None
        self._levels.restart(self._restart)
        seeds = [mix(self.seed, "reset", self._restart, env) >> 32 for env in range(self._count)]
        self._raw = np.stack([self._envs.reset(env, seed, self._levels.next(env)) for env, seed in enumerate(seeds)])
        self._check_masks()
        for env, lane in enumerate(self.store.lanes):
            lane.begin(self._raw[env], self._mask(env))
        self._return[:], self._length[:] = 0.0, 0

    def _mask(self, env: int) -> np.ndarray | None:
        """What the environment's last observation allows."""
        masks = self._envs.action_masks
        return None if masks is None else masks[env]

    def _check_masks(self) -> None:
        """The environment and the dataset must both have masks or neither: a target must know what is forbidden."""
        masks, dataset = self._envs.action_masks, self.dataset
        if dataset is not None and (dataset.columns.action_mask is None) != (masks is None):
            kinds = ("no action masks", "action masks")
            ours, theirs = kinds[masks is not None], kinds[dataset.columns.action_mask is not None]
            raise UserError(f"{self.task.name} gives {ours}, and the dataset has {theirs}. Give data with action_masks where the "
                            "environment forbids choices, and without where it does not.")  # fmt: skip

    def act(self) -> None:
        """One step in every environment."""
        if self._raw is None:
            self._begin()
        if self.observations is not None and self.dataset is None:
            self.observations.update(self._raw)
        seen = self._seen(self._raw)
        taken = self._actions(seen, self._envs.action_masks)
        stepped = self._envs.step(taken, range(self._count))
        self.env_steps += self._count
        self._return += stepped.reward
        self._length += 1
        ended = stepped.terminated * np.int8(Ended.TERMINATED) + stepped.truncated * np.int8(Ended.TRUNCATED)
        self.largest_reward = max(self.largest_reward, float(np.abs(stepped.reward).max()))
        self._cut.stepped(bool(ended.any()))
        self._raw = stepped.observation
        for env, lane in enumerate(self.store.lanes):
            lane.add(taken[env], float(stepped.reward[env]), int(ended[env]), stepped.observation[env], self._mask(env))
            if ended[env]:
                self._finished.append(EpisodeStats(float(self._return[env]), int(self._length[env])))
                self._return[env], self._length[env] = 0.0, 0
                self._raw[env] = self._envs.reset(env, None, self._levels.next(env))
                lane.begin(self._raw[env], self._mask(env))
        if self.log is not None and self.store.lanes[0].rows - self.log.written[0] > FLUSH:
            self.log.flush()

    def _actions(self, seen: np.ndarray, mask: np.ndarray | None) -> np.ndarray:
        """What is done, as the environment takes it: what the policy draws, as the acting parts change it."""
        random = numpy_generator(self.seed, "act", self.env_steps)
        noise: np.ndarray
        if self.task.continuous:
            noise = random.standard_normal((self._count, self.task.action_size)).astype(np.float32)
        else:
            noise = random.random(self._count)
        self._actor.refresh()
        action = self._actor.unit(forbid(self._actor.output(seen), mask), noise)
        for number, part in enumerate(self.acting):
            own = numpy_generator(self.seed, "acting", number, self.env_steps)
            context = ActingContext(
                seen, self.env_steps, self.planned_steps, own, not self.task.continuous, self.task.action_size, mask
            )  # fmt: skip
            action = part(action, context)
            if mask is not None and not mask[np.arange(len(action)), action].all():
                raise MethodError(f"{part} of acting took a choice that {self.task.name} forbids. Let it keep to action_mask.")
        return action if self.policy.box is None else self.policy.box.from_unit(action)

    def warmed_up(self) -> bool:
        """Whether enough was gathered to learn from."""
        first = max((part.warm_up() for part in self.acting), default=0)
        return self.dataset is not None or (self.env_steps >= first and self.store.decision_count > 0)

    def _seen(self, raw: np.ndarray) -> np.ndarray:
        return raw if self.observations is None else self.observations(raw)

    # -- drawing -------------------------------------------------------------------------------------------------------

    def bring_frames(self) -> bool:
        """Brings what was seen to where updates look at it. True if all of it lies elsewhere from now on."""
        return self.frames is not None and self.frames.follow()

    def shown(self, rows: Trajectories) -> Trajectories:
        """The rows of an update with what was seen, if they were drawn with its places alone."""
        return rows if self.frames is None else rows.replace(inputs=self.frames.shown(rows.inputs))

    def draw(self, rows: int, step: int, updates: Sequence[int], data: DrawnData) -> Trajectories:
        """Rows for some updates ``[updates * rows, 1]``, one behind the other, each drawn by its own number.

        Args:
            rows: Of an update.
        """
        stored = {REPLAYED: self.store.decision_count, DEMONSTRATED: self.dataset.decision_count if self.dataset else 0}
        numbers: dict[str, list[np.ndarray]] = {name: [] for name in stored}
        order: list[np.ndarray] = []
        for update in updates:
            random = self._random.manual_seed(mix(self.seed, "draw", step, update))
            chance = float(torch.rand((), generator=random))
            if data.together > 1:
                chance = float(numpy_generator(self.seed, "together", (update - 1) // data.together).random())
            counts = data.counts(rows, stored, chance)
            for name, count in counts.items():
                if count and not stored[name]:
                    raise UserError(f"{count} rows of an update are to come from what is {name}, and there is none of it.")
                if count:
                    numbers[name].append(torch.randint(stored[name], (count,), generator=random).numpy())
                    order.append(np.full(count, 2 * update + (name == DEMONSTRATED)))
        found = self._from_stores({name: np.concatenate(each) for name, each in numbers.items() if each}, order, data)
        return self._augmented(found, step, updates, data) if getattr(data.augment, "for_images", False) else found

    def _augmented(self, found: Trajectories, step: int, updates: Sequence[int], data: DrawnData) -> Trajectories:
        """The rows with changed images: those of an update by its own number."""
        space, each = self.policy.space, found.rows // len(updates)

        def changed(column: torch.Tensor, name: str) -> torch.Tensor:
            several = [
                data.augment.of_observations(seen, space, self._random.manual_seed(mix(self.seed, name, step, update)))
                for seen, update in zip(column.squeeze(1).split(each), updates, strict=True)
            ]
            return torch.cat(several).unsqueeze(1)

        inputs = found.inputs
        return found.replace(
            inputs=ExperienceInputs(changed(inputs.observation, "augment now"), changed(inputs.following, "augment next"))
        )

    def _from_stores(self, numbers: dict[str, np.ndarray], order: list[np.ndarray], data: DrawnData) -> Trajectories:
        """Decisions of each store, put into the order in which updates want them."""
        pieces, sources, returns = [], [], []
        for name, chosen in numbers.items():
            dataset = self.dataset if name == DEMONSTRATED else None
            found = draw(dataset, chosen, data.gamma, data.n_steps) if dataset else self._drawn(chosen, data)
            pieces.append(found)
            sources.append(np.full(len(chosen), int(Source.DEMONSTRATED if dataset else Source.REPLAYED)))
            known = self.returns if dataset else None
            returns.append(np.full(len(chosen), -np.inf, np.float32) if known is None else known[found.rows])
        rows, source, to_go = joined(pieces), np.concatenate(sources), np.concatenate(returns)
        if len(numbers) > 1:  # store by store so far; an update's rows belong together
            wanted = np.concatenate(order)
            by_store = np.concatenate([wanted[wanted % 2 == parity] for parity in (0, 1)])
            place = np.argsort(by_store, kind="stable")
            rows, source, to_go = rows.take(place), source[place], to_go[place]
        return self._trajectories(rows, source, to_go)

    def world(self) -> World:
        """All decisions of the dataset, as networks see them."""
        if self.dataset is None:
            raise UserError("a model of this method looks at a whole dataset, and there is none. Give --data.")
        rows = self.dataset.decision_rows(np.arange(self.dataset.decision_count))
        observation, action = self.dataset.columns.observation[rows], self.dataset.columns.action[rows]
        action = action if self.policy.box is None else self.policy.box.to_unit(action)
        return World(torch.from_numpy(self._seen(observation)), torch.from_numpy(np.ascontiguousarray(action)), SearchTree)

    def _drawn(self, numbers: np.ndarray, data: DrawnData) -> DrawnRows:
        held = self.frames
        lanes: Sequence[Rows] = self.store.lanes if held is None else [held.lane(each) for each in range(self._count)]
        if len(lanes) == 1:
            return draw(lanes[0], numbers, data.gamma, data.n_steps)
        ends = np.cumsum([lane.decision_count for lane in lanes])
        lane_of = np.searchsorted(ends, numbers, side="right")
        first = ends - [lane.decision_count for lane in lanes]
        places = [np.flatnonzero(lane_of == index) for index in range(len(lanes))]
        found = [
            draw(lane, numbers[place] - start, data.gamma, data.n_steps)
            for lane, place, start in zip(lanes, places, first, strict=True)
            if len(place)
        ]
        # Lane by lane so far; the rows of several updates are told apart by their order.
        wanted = [each for each in places if len(each)]
        columns = zip(*found, strict=True)
        return DrawnRows(*(None if column[0] is None else _placed(column, wanted) for column in columns))  # type: ignore[arg-type]

    def _trajectories(self, found: DrawnRows, source: np.ndarray, returns: np.ndarray) -> Trajectories:
        def column(values: np.ndarray) -> torch.Tensor:
            return torch.from_numpy(np.ascontiguousarray(values)).unsqueeze(1)

        action = found.action if self.policy.box is None else self.policy.box.to_unit(found.action)
        same = self._same(len(found.reward))
        return same.replace(
            action=column(action),
            step_reward=column(found.reward),
            ended=column(found.ended),
            signal={
                "discount": column(found.discount),
                "return_to_go": column(returns),
                "online": torch.full_like(same.sampled, float(self.env_steps > 0)),
            },
            label={"source": torch.from_numpy(source)},
            inputs=ExperienceInputs(
                column(self._seen(found.observation)),
                column(self._seen(found.following)),
                None if found.action_mask is None else column(found.action_mask),
                None if found.following_mask is None else column(found.following_mask),
            ),
        )

    def _same(self, rows: int) -> Trajectories:
        """The columns that are the same in every draw of so many rows."""
        if self._columns is None or self._columns.rows != rows:
            zeros = torch.zeros(rows, 1)
            self._columns = Trajectories(
                sampled=torch.ones(rows, 1),
                reward=zeros[:, 0],
                group=torch.arange(rows),
                task=torch.full((rows,), stable_hash(self.task.name)),
                behavior=View(zeros),
                horizon=1,
            )
        return self._columns

    # -- metrics and stops ---------------------------------------------------------------------------------------------

    def metrics(self) -> Metrics:
        """Of the episodes that ended since the last call."""
        episodes, self._finished = self._finished, []
        counts = {"env_steps": float(self.env_steps), "stored": float(self.store.decision_count)}
        if not episodes:
            return counts
        returns, lengths = zip(*episodes, strict=True)
        return counts | {"episode_return": float(np.mean(returns)), "episode_length": float(np.mean(lengths))}

    def sync(self) -> None:
        """Acting reads the weights where they are."""

    def keep_in(self, folder: Path) -> None:
        """Write what happens to files in this folder from now on."""
        self.log = ExperienceLog(folder, self.store, 0 if self.task.continuous else self.task.action_size)

    def settle(self) -> None:
        """A checkpoint comes: running episodes end here, and all that happened is in the files."""
        for lane in self.store.lanes:
            lane.settle()
        self._raw = None
        if self.log is not None:
            self.log.flush(settled=True)

    def state(self) -> dict[str, Any]:
        """Statistics, counts, and how long the files were when they were last settled."""
        state: dict[str, Any] = {"env_steps": self.env_steps, "largest_reward": self.largest_reward}
        state["logged"] = list(self.log.written) if self.log is not None else [0] * self._count
        if self.observations is not None:
            state.update({f"observation.{key}": value for key, value in self.observations.state().items()})
        places = self._carried if self._envs is None else self._envs.states()
        return state | ({} if places is None else {"environments": places})

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state; `restart` must follow. Without files to write to, nothing is remembered."""
        self.env_steps, self.largest_reward = int(state["env_steps"]), float(state["largest_reward"])
        if self.observations is not None:
            found: dict[str, Stored] = {key[12:]: value for key, value in state.items() if key.startswith("observation.")}
            self.observations.load_state(found)
        if self.log is not None:
            self.log.restore([int(length) for length in state["logged"]])
        if self.frames is not None:
            self.frames.forget()
        self._raw, self._finished = None, []
        self._carried = state.get("environments")

    def close(self) -> None:
        if self._envs is not None:
            self._envs.close()
        if self.log is not None:
            self.log.close()


def _placed(columns: Sequence[np.ndarray], places: Sequence[np.ndarray]) -> np.ndarray:
    """Rows of several lanes, each put where it was asked for: images are moved once."""
    made = np.empty((sum(map(len, places)), *columns[0].shape[1:]), columns[0].dtype)
    for column, place in zip(columns, places, strict=True):
        made[place] = column
    return made
