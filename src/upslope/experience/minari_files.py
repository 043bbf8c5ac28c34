"""Minari's datasets on this machine as ours, and the other way round. Nothing is downloaded."""

from __future__ import annotations

import copy
import json
import math
import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from upslope.errors import MissingExtra, Remark, UserError, did_you_mean, install_extra
from upslope.experience.card import Card, Space
from upslope.experience.dataset import Dataset, digest_of
from upslope.experience.episodes import Episode, Episodes
from upslope.experience.formats import CARD_KEY
from upslope.packed import arrays_of
from upslope.plain_data import JsonDict
from upslope.tasks import domain_of, parse_spec
from upslope.tasks.env_packages import register
from upslope.tasks.levels import LEVELS
from upslope.tasks.physics import PARAMS
from upslope.tasks.spaces import ObservationLayout, action_size, observation_layout
from upslope.types import Ended

MINARI = "minari:"
REFERENCES = {"random": "ref_min_score", "expert": "ref_max_score"}
"""Our name of a reference score, and Minari's."""


def minari_module() -> Any:
    """The package, or the command that installs it."""
    try:
        import h5py  # noqa: F401  (in which Minari keeps episodes)
        import minari
    except ImportError:
        raise MissingExtra("minari is", install_extra("offline")) from None
    return minari


def local_minari() -> JsonDict:
    """What Minari says of its datasets on this machine, by id; none where it is not installed, or never kept any."""
    # Asked, it would make its folder.
    if not Path(os.environ.get("MINARI_DATASETS_PATH", "~/.minari/datasets")).expanduser().is_dir():
        return {}
    try:
        return dict(minari_module().list_local_datasets())
    except MissingExtra:
        return {}


def read_minari(spec: str) -> Dataset:
    """A dataset on this machine, ``minari:ID``. Nothing is downloaded."""
    minari, name = minari_module(), spec.removeprefix(MINARI)
    known = sorted(minari.list_local_datasets())
    if name not in known:
        there = f" There are {', '.join(known[:10])}." if known else " There are none."
        raise UserError(f"Minari has no dataset {name!r} on this machine.{did_you_mean(name, known)}{there}")
    found = minari.load_dataset(name)
    layout, start = observation_layout(spec, found.observation_space), int(getattr(found.action_space, "start", 0))
    action_size(spec, found.action_space)  # refuses those that cannot be used
    Space.of_actions(found.action_space)
    episodes = Episodes.of(_from_minari(each, layout, start) for each in found.iterate_episodes())
    metadata = found.storage.metadata
    if told := metadata.get(CARD_KEY):
        card = Card.from_record(json.loads(told), spec)
        if card.digest == digest_of(episodes):
            return Dataset(episodes, card)
    scores = {ours: float(metadata.get(theirs, math.nan)) for ours, theirs in REFERENCES.items()}
    return Dataset.of(
        episodes, name.replace("/", "-"), env=_env_of(found), origin=spec, observation=Space.of(layout),
        action=Space.of_actions(found.action_space), **scores,
    )  # fmt: skip


def _from_minari(episode: Any, layout: ObservationLayout, start: int) -> Episode:
    count = len(episode.rewards)
    seen = layout.rows(episode.observations, count + 1)
    actions = np.asarray(episode.actions)
    discrete = np.issubdtype(actions.dtype, np.integer) and actions.ndim == 1
    actions = actions.astype(np.int64) - start if discrete else actions.reshape(count, -1).astype(np.float32)
    over = bool(count and episode.terminations[-1])
    ended = Ended.TERMINATED if over else Ended.TRUNCATED
    return Episode(seen, actions, episode.rewards.astype(np.float32), ended, pieces=layout.pieces)


def _env_of(found: Any) -> str:
    """The task, as we write it, of the environment that Minari describes: its id and what it was made with beyond the defaults."""
    described = found.env_spec
    if described is None:
        return ""
    import gymnasium

    known = gymnasium.registry.get(described.id)
    defaults = {} if known is None else known.kwargs
    given = {name: value for name, value in described.kwargs.items() if isinstance(value, (int, float, str))}
    options = [f"{name}={value}" for name, value in given.items() if value != defaults.get(name) and name != "render_mode"]
    return ":".join([f"gym:{described.id}", *([",".join(options)] if options else [])])


def write_minari(dataset: Dataset, spec: str) -> None:
    """Makes a dataset of Minari's on this machine. Images are kept to the bit."""
    minari, name, card = minari_module(), spec.removeprefix(MINARI), dataset.card
    if not name or not name.rpartition("-v")[2].isdigit():
        raise UserError(f"{spec!r}: an id of Minari's ends in its version, as in minari:me/{name or 'hopper'}-v0.")
    if name in minari.list_local_datasets():
        raise UserError(f"Minari has a dataset {name!r} already. Choose another id, or: minari delete {name}.")
    if dataset.episodes.action_mask is not None:
        raise UserError(f"{card.name!r} has action masks, for which Minari has no place. Convert it to .npz or .hdf5.")
    if dataset.episodes.propensity is not None:
        warnings.warn(
            Remark(f"{spec}: Minari has no place for propensities; they are left out. FILE.npz keeps them."), stacklevel=2
        )
    about = f"Made by upslope {card.version}: {card.recipe or 'given data'} on {card.env or 'an environment not named'}."
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that nobody gave an author, a link, another environment to judge in
        made = minari.create_dataset_from_buffers(
            name, [_buffer(number, each) for number, each in enumerate(dataset.episodes)], env=_spec_of(card.env),
            observation_space=_gym_space(card.observation), action_space=_gym_space(card.action),
            algorithm_name=card.recipe or "unknown", description=about, jpeg_encoding=False,
        )  # fmt: skip
    scores = {theirs: getattr(card, ours) for ours, theirs in REFERENCES.items()}
    known = scores if all(map(math.isfinite, scores.values())) else {}
    made.storage.update_metadata({CARD_KEY: json.dumps(card.record()), **known})


def _buffer(number: int, episode: Episode) -> Any:
    from minari.data_collector import EpisodeBuffer

    ends = {kind: np.zeros(len(episode), bool) for kind in (Ended.TERMINATED, Ended.TRUNCATED)}
    ends[episode.ended][-1] = True
    seen = arrays_of(episode.observations, episode.pieces) if episode.pieces else episode.observations
    return EpisodeBuffer(
        id=number, observations=seen, actions=episode.actions, rewards=episode.rewards,  # type: ignore[arg-type]
        terminations=ends[Ended.TERMINATED], truncations=ends[Ended.TRUNCATED], infos={},  # type: ignore[arg-type]
    )  # fmt: skip


def _gym_space(space: Space) -> Any:
    from gymnasium import spaces

    if space.n is not None:
        return spaces.Discrete(space.n)
    if space.pieces:
        return spaces.Dict(
            {
                each.name: spaces.Box(0, 255, each.shape, np.uint8) if each.is_image else spaces.Box(-np.inf, np.inf, each.shape)
                for each in space.pieces
            }
        )
    low, high = (end.reshape(space.shape) for end in space.bounds)
    if space.dtype == "uint8":
        return spaces.Box(0, 255, space.shape, np.uint8)
    return spaces.Box(low, high, space.shape, np.float32)


def _spec_of(env: str) -> Any:
    """What gymnasium knows under a task's id, with the task's options, so that Minari can make the environment again; none where
    there is no such id, or the task has another physics or levels."""
    if not env or domain_of(env) != "control":
        return None
    import gymnasium

    name, options = parse_spec(env)
    env_id = name.partition(":")[2]
    register(env_id)
    known = copy.deepcopy(gymnasium.registry.get(env_id))
    if known is None or any(option.startswith((PARAMS, LEVELS)) for option in options):
        return None
    known.max_episode_steps = options.pop("max_episode_steps", known.max_episode_steps)
    known.kwargs = {**known.kwargs, **options}
    return known
