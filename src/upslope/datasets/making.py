"""Making a dataset: who acts, how many steps, what random actions and an expert return there; and the folder that keeps it."""

from __future__ import annotations

import dataclasses
import math
import re
import warnings
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from upslope.datasets.behaviours import Behaviour, RandomActions, Sometimes, Within
from upslope.datasets.collecting import Collected, Progress, collect, quiet, returns
from upslope.datasets.controllers import demand_scripted, scripted
from upslope.datasets.from_run import SEED, ActingRun
from upslope.datasets.recipe import Recipe
from upslope.errors import Remark, UserError
from upslope.experience import Card, Dataset, Episode, load_dataset
from upslope.experience.card import spaces_of
from upslope.experience.dataset import CARD, HOME, read_card
from upslope.experience.shapes import check_columns
from upslope.plain_data import JsonDict
from upslope.tasks import load_task
from upslope.tasks.gym import GymTask
from upslope.tasks.levels import LEVELS
from upslope.tasks.physics import PARAMS
from upslope.types import Ended

STEPS = 20_000
REFERENCE_EPISODES = 20
"""Over which the returns of random actions and of the expert are measured."""
SPLIT_STEPS = 1_000
"""Of random actions, whose median cuts the states into two halves."""


def make_data(
    name: str,
    task: str | GymTask = "",
    recipe: str = "random",
    steps: int | None = None,
    seed: int = 0,
    from_run: str | Path = "",
    out: str | Path = HOME,
    progress: Progress = quiet,
) -> Dataset:
    """Makes a dataset and writes it to the folder ``out/name``. The same call gives the same bits, and finds what is there.

    Args:
        name: Of the folder.
        task: An environment, as for ``--task``; left out, the run's own.
        recipe: As in ``--recipe``: ``"random"``, ``"mixed:expert=0.1"``; `upslope.datasets.recipe.KINDS` lists all.
        steps: Decisions, exactly; left out, 20,000, and of ``replay`` all there are.
        from_run: The folder of a run whose policy acts.

    Raises:
        UserError: before anything is played, if the recipe is none, lacks what it needs, or the name is taken by other data.
    """
    folder = _new_folder(name, out)
    if steps is not None and steps < 1:
        raise UserError(f"--steps {steps}: data need at least 1.")
    chosen = Recipe.parse(recipe)
    steps = STEPS if steps is None and chosen.kind != "replay" else steps
    bench = _Bench.set_up(chosen, task, from_run, seed, progress)
    known: JsonDict = dict(env=env_text(bench.task), recipe=str(chosen), seed=seed, steps=steps, origin=bench.origin)
    if (found := _already_there(folder, known)) is not None:
        return found
    collected = bench.experience(steps) if steps is None or chosen.kind == "replay" else bench.collect(steps)
    observation, action = spaces_of(bench.task)
    made = Dataset.of(
        collected.episodes, name, observation=observation, action=action, unfinished=collected.unfinished,
        random=bench.random_return, expert=bench.expert_return, reference_episodes=REFERENCE_EPISODES, **known,
    )  # fmt: skip
    made.save(folder)
    return made


def env_text(task: GymTask) -> str:
    """The task as ``--task`` takes it, with what it was made with."""
    options = [f"{key}={value}" for key, value in task.options.items() if not key.startswith((PARAMS, LEVELS))]
    if not options:
        return task.name
    return f"{task.name}{',' if task.physics.changes or task.levels else ':'}{','.join(options)}"


def _new_folder(name: str, out: str | Path) -> Path:
    if not re.fullmatch(r"[\w+-][\w.+-]*", name):
        raise UserError(f"{name!r} cannot be the name of a dataset: letters, digits and - _ . + only, as in hopper-medium.")
    folder = Path(out).expanduser() / name
    if folder.exists() and not (folder / CARD).is_file():
        raise UserError(f"{folder} is there already, and is no dataset. Choose another name.")
    return folder


def _already_there(folder: Path, known: JsonDict) -> Dataset | None:
    """What was made by the very same recipe.

    Raises:
        UserError: if other data have the name.
    """
    if not folder.exists():
        return None
    card = read_card(folder)
    if all(getattr(card, key) == value for key, value in known.items()):
        return load_dataset(folder)
    made = _in_words(card)
    raise UserError(f"{folder} is there already, and was made otherwise: {made}. Choose another name, or delete the folder.")


def _in_words(card: Card) -> str:
    origin = f" from {card.origin}" if card.origin else ""
    return f"{card.recipe or 'given data'} on {card.env or 'no environment'}{origin}, {card.decisions:,} steps, seed {card.seed}"


@dataclass(frozen=True)
class _Bench:
    """All that a recipe needs, made when it is first asked for."""

    recipe: Recipe
    task: GymTask
    run: ActingRun | None
    seed: int
    progress: Progress

    @classmethod
    def set_up(cls, recipe: Recipe, task: str | GymTask, from_run: str | Path, seed: int, progress: Progress) -> _Bench:
        run = ActingRun.open(from_run) if str(from_run) else None
        if run is None and recipe.base in ("medium", "replay"):
            raise UserError(f"--recipe {recipe} needs a trained run: --from RUN.")
        if not task and run is None:
            raise UserError("--task is missing: say which environment, as in --task gym:Pendulum-v1, or give a run, --from RUN.")
        found = load_task(task) if task else run.task  # type: ignore[union-attr]
        if not isinstance(found, GymTask):
            raise UserError(f"--task {task}: data are made in environments, and this is text.")
        space = spaces_of(found)  # refuses those that stored experience cannot hold
        if run is not None and space != spaces_of(run.task):
            raise UserError(f"--from {from_run} acts in {run.task.name}, whose spaces are not those of {found.name}.")
        bench = cls(recipe, found, run, seed, progress)
        bench.actor  # noqa: B018  (whatever is missing is said here)
        return bench

    # -- who acts --------------------------------------------------------------------------------------------------------------

    @cached_property
    def random(self) -> RandomActions:
        return RandomActions(self.task)

    @cached_property
    def expert(self) -> Behaviour:
        if self.run is not None:
            return self.run.at(self.run.last())
        return self.oracle if self.recipe.base == "oracle" else demand_scripted(self.task)

    @cached_property
    def oracle(self) -> Behaviour:
        from upslope.datasets.oracle import cube_oracle

        kind = self.recipe["kind"] if self.recipe.kind == "oracle" else "plan"
        return cube_oracle(self.task, kind)

    @cached_property
    def medium(self) -> Path:
        assert self.run is not None
        return self.run.medium(self.task, self.random_return, self.progress)

    @cached_property
    def actor(self) -> Behaviour:
        """Who acts, before the recipe changes it."""
        base = self.recipe.base
        if base == "random":
            return self.random
        if base == "scripted":
            return demand_scripted(self.task)
        if base == "medium":
            assert self.run is not None
            return self.run.at(self.medium)
        return self.oracle if base == "oracle" else self.expert

    @property
    def origin(self) -> str:
        """The run and its checkpoint, if one acts."""
        if self.run is None:
            return ""
        return self.run.origin(self.medium if self.recipe.base == "medium" else self.run.last())

    # -- what it returns -------------------------------------------------------------------------------------------------------

    @cached_property
    def random_return(self) -> float:
        return self._mean_return(self.random, "measuring random actions")

    @cached_property
    def expert_return(self) -> float:
        known = self.run is not None or self.recipe.base == "oracle" or scripted(self.task) is not None
        if not known:
            told = f"{self.task.name} has no scripted controller: what an expert returns there is not known"
            warnings.warn(Remark(f"{told}, and scores cannot be normalised. --from RUN gives an expert."), stacklevel=2)
            return math.nan
        return self._mean_return(self.expert, "measuring the expert")

    def _mean_return(self, who: Behaviour, what: str) -> float:
        return float(np.mean(returns(self.task, who, REFERENCE_EPISODES, SEED, what, self.progress)))

    def experience(self, steps: int | None) -> Collected:
        """What the run itself has seen."""
        assert self.run is not None
        found = self.run.experience(steps)
        check_columns(found, f"the experience of {self.run.run.path}")
        return Collected(found, False)

    # -- recipes ---------------------------------------------------------------------------------------------------------------

    def collect(self, steps: int) -> Collected:
        """Plays the recipe."""
        kind = self.recipe.kind
        if kind == "mixed":
            share = self.recipe["expert"]

            def turns(number: int) -> Behaviour:
                """The expert's turn comes as often as its share says, evenly spread."""
                return self.actor if math.floor((number + 1) * share) > math.floor(number * share) else self.random

            played = collect(self.task, turns, steps, self.seed, self.progress)
            # The expert's own chances are not those with which the data came about: some actions only the others could take.
            return dataclasses.replace(played, episodes=dataclasses.replace(played.episodes, propensity=None))
        varied = self._varied(kind)
        return collect(self.task, lambda _: varied, steps, self.seed, self.progress, half if kind == "segments" else None)

    def _varied(self, kind: str) -> Behaviour:
        if kind == "noisy":
            eps = self.recipe["eps"]
            return Sometimes(self.actor, self.random, lambda _: eps)
        if kind == "two_quality":
            axis, middle = self._split()
            return Sometimes(self.actor, self.random, lambda seen: _place(seen, axis) < middle)
        if kind == "narrow_action":
            narrow = RandomActions(self.task, self.recipe["share"])
            return narrow if self.recipe.base == "random" else Within(self.actor, narrow)
        return self.actor

    def _split(self) -> tuple[int | None, float]:
        """The number of an observation that cuts the states into two halves, and where: at its median under random actions."""
        layout = self.task.layout
        axis = None if layout.parts[0].first is not None and not layout.is_tree else self.recipe["axis"]
        rows = collect(self.task, lambda _: self.random, SPLIT_STEPS, SEED).episodes.observation
        if layout.has_images or (axis is not None and axis >= rows.shape[1]):
            seen = f"an observation of {self.task.name} is {layout}"
            raise UserError(f"--recipe {self.recipe}: {seen}; axis={axis} must be one of a vector's numbers, from 0.")
        return axis, float(np.median([_place(row, axis) for row in rows]))


def _place(seen: np.ndarray, axis: int | None) -> float:
    """Where a state is: one of its numbers, or which of several it is."""
    return float(seen.argmax() if axis is None else seen[axis])


def half(number: int, episode: Episode) -> Episode | None:
    """The way to the middle of an episode, or of every second one the way from there; nothing of a single step."""
    middle = len(episode) // 2
    if not middle:
        return None
    if number % 2 == 0:
        return episode.part(0, middle, Ended.TRUNCATED)
    return episode.part(middle, len(episode), episode.ended)
