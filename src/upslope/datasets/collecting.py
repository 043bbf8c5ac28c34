"""Playing episodes and writing them down. Every episode has a number, and all that is drawn in it depends on that alone."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass

import numpy as np

from upslope.datasets.behaviours import Behaviour, propensity
from upslope.errors import UserError
from upslope.experience import Episode, Episodes
from upslope.runtime.seeding import mix, numpy_generator
from upslope.tasks.gym import MOST_WATCHED, Environments, GymTask
from upslope.tasks.spaces import actions_taken
from upslope.types import Ended

MOST_IN_VAIN = 1_000
"""Episodes of which nothing is kept, before it is said that nothing can be."""
Progress = Callable[[str, int, int], None]
"""Is told what is done, how much of it, and of how much."""


def quiet(what: str, done: int, of: int) -> None:
    """Tells nobody."""


@dataclass(frozen=True)
class Collected:
    """Episodes, and whether the last of them merely stops because there were steps enough."""

    episodes: Episodes
    unfinished: bool


def collect(task: GymTask, who: Callable[[int], Behaviour], steps: int, seed: int, progress: Progress = quiet,
            shorten: Callable[[int, Episode], Episode | None] | None = None) -> Collected:  # fmt: skip
    """Plays until there are exactly so many decisions.

    Args:
        who: Acts in the episode with this number.
        shorten: What is kept of an episode, ``None`` for nothing of it; left out, all.
    """
    kept: list[Episode] = []
    total, left = 0, False
    with closing(Environments(task, 1)) as place:
        for number in itertools.count():
            played = play(task, place, who(number), seed, number, MOST_WATCHED if shorten else steps - total)
            part = shorten(number, played.episode) if shorten else played.episode
            if part is None:
                if not kept and number >= MOST_IN_VAIN:
                    raise UserError(f"of {number} episodes of {task.name} none was long enough to keep a part of it.")
                continue
            kept.append(_at_most(part, steps - total))
            left = len(kept[-1]) < len(part) or (shorten is None and played.unfinished)
            total += len(kept[-1])
            progress("playing", total, steps)
            if total >= steps:
                break
    return Collected(Episodes.of(kept), left)


def returns(task: GymTask, who: Behaviour, episodes: int, seed: int, what: str, progress: Progress = quiet) -> list[float]:
    """Of so many episodes from their beginning to their end."""
    found = []
    with closing(Environments(task, 1)) as place:
        for number in range(episodes):
            found.append(play(task, place, who, seed, number, MOST_WATCHED).episode.return_)
            progress(what, number + 1, episodes)
    return found


@dataclass(frozen=True)
class Played:
    """An episode, and whether it was left before its end."""

    episode: Episode
    unfinished: bool


def play(task: GymTask, place: Environments, who: Behaviour, seed: int, number: int, steps: int) -> Played:
    """One episode, of so many steps at the most."""
    with global_numpy(mix(seed, "data", "global", number) >> 32):
        return _play(task, place, who, seed, number, steps)


@contextmanager
def global_numpy(seed: int) -> Iterator[None]:
    """Lets code that draws from numpy's global numbers, as some simulators do, draw the same ones; puts the old ones back."""
    before = np.random.get_state()
    np.random.seed(seed)
    try:
        yield
    finally:
        np.random.set_state(before)


def _play(task: GymTask, place: Environments, who: Behaviour, seed: int, number: int, steps: int) -> Played:
    seen = [place.reset(0, mix(seed, "data", number) >> 32)]
    who.begin(place.simulator(0), seen[0], numpy_generator(seed, "data", "act", number))
    keeps = getattr(place.simulator(0), "keeps_propensities", False)
    actions: list[np.ndarray] = []
    rewards: list[float] = []
    masks = [] if place.action_masks is None else [place.action_masks[0].copy()]
    chances: list[float | None] = []
    longest = steps if task.max_episode_steps else min(steps, MOST_WATCHED)
    ended = Ended.NO
    while ended == Ended.NO and len(rewards) < longest:
        chosen = np.asarray(who.act(seen[-1], *masks[-1:]))[None]
        stepped = place.step(chosen, [0])
        # As the environment took it, which clips; choices are counted from 0 all the same.
        actions.append(actions_taken(task.action_space, chosen)[0].reshape(-1) if task.continuous else chosen[0])
        chances.append(propensity(who, seen[-1], int(chosen[0])) if keeps else None)
        rewards.append(float(stepped.reward[0]))
        seen.append(stepped.observation[0])
        masks += [] if place.action_masks is None else [place.action_masks[0].copy()]
        ended = Ended.TERMINATED if stepped.terminated[0] else Ended.TRUNCATED if stepped.truncated[0] else Ended.NO
    left = ended == Ended.NO and not (len(rewards) >= MOST_WATCHED and not task.max_episode_steps)
    ended, allowed = ended if ended else Ended.TRUNCATED, np.stack(masks) if masks else None
    known = np.array(chances, np.float32) if None not in chances else None
    episode = Episode(np.stack(seen), np.stack(actions), np.array(rewards), ended, known, allowed, task.layout.pieces)
    return Played(episode, left)


def first_decisions(episodes: Episodes, steps: int) -> Episodes:
    """So many of them, the last episode cut where it must be."""
    kept: list[Episode] = []
    for episode in episodes:
        if steps <= 0:
            break
        kept.append(_at_most(episode, steps))
        steps -= len(episode)
    return Episodes.of(kept)


def _at_most(episode: Episode, steps: int) -> Episode:
    """The beginning of an episode."""
    if len(episode) <= steps:
        return episode
    return episode.part(0, steps, Ended.TRUNCATED)
