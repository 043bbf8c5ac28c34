"""Which choices environments allow, wherever they say so.

Three conventions are read, the first that is there: ``info["action_mask"]`` of gymnasium, the method ``action_masks()`` that
sb3-contrib's MaskablePPO asks, and PettingZoo's observation ``{"observation": ..., "action_mask": ...}``. A mask has an entry for
each choice, 1 or True where it is allowed; those of a MultiDiscrete stand one behind the other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import Any

import numpy as np

MASK = "action_mask"
METHOD = "action_masks"


class ActionMasks:
    """Reads and keeps the masks of several environments.

    Whether there are any is seen at the first reset: environments without them cost nothing afterwards.

    Args:
        envs: As gymnasium has them.
        choices: Entries of a mask; 0 where actions are vectors, which are never masked.
        components: Choices of each component of an action that consists of several.
        in_observation: Whether observations have a part ``action_mask``.
    """

    def __init__(self, envs: Sequence[Any], choices: int, components: tuple[int, ...] = (), in_observation: bool = False) -> None:
        self._count, self._choices, self._components, self._in_observation = len(envs), choices, components, in_observation
        self._methods = [mask_method(env) if choices else None for env in envs]
        self.allowed: np.ndarray | None = None
        """``[envs, choices]`` booleans, of the observation that each environment showed last; none where nothing is masked."""

    def look(self, which: int, observation: Any, info: Any) -> None:
        """Takes the mask of a first observation, if there is one.

        Raises:
            ValueError: saying what is wrong with it.
        """
        if not self._choices:
            return
        given = self._find(which, observation, info)
        if self.allowed is None and given is not None:
            self.allowed = np.ones((self._count, self._choices), bool)
        if self.allowed is not None:
            self.take(which, observation, info, False)

    def take(self, which: int, observation: Any, info: Any, ended: bool) -> None:
        """Takes the mask of an observation; only where an episode has ended it may allow nothing.

        Raises:
            ValueError: saying what is wrong with it.
        """
        assert self.allowed is not None
        given = self._find(which, observation, info)
        if given is None:
            raise ValueError("there was an action mask before, and here is none")
        mask = as_mask(given, self._choices)
        if not leaves_a_choice(mask, self._components):
            if not ended:
                raise ValueError(f"the action mask {_short(mask)} allows no action")
            mask[:] = True
        self.allowed[which] = mask

    def came_late(self, info: Any) -> bool:
        """Whether a step shows a mask though no reset did."""
        return bool(self._choices) and isinstance(info, Mapping) and MASK in info

    def _find(self, which: int, observation: Any, info: Any) -> Any:
        if isinstance(info, Mapping) and MASK in info:
            return info[MASK]
        if (method := self._methods[which]) is not None:
            return method()
        return observation.get(MASK) if self._in_observation else None


def mask_method(env: Any) -> Callable[[], Any] | None:
    """The environment's own ``action_masks``, in whichever wrapper it is."""
    try:
        found = env.get_wrapper_attr(METHOD)
    except AttributeError:
        return None
    return found if callable(found) else None


def mask_shown(env: Any, info: Mapping[str, Any]) -> Any:
    """The mask of the observation that an environment has just shown, by its info or its method; none if there is none."""
    if MASK in info:
        return info[MASK]
    method = mask_method(env)
    return None if method is None else method()


def as_mask(given: Any, choices: int, rows: int | None = None) -> np.ndarray:
    """A mask as booleans ``[choices]``, or ``[rows, choices]``; components may come as a tuple of one each.

    Raises:
        ValueError: saying what is wrong with it.
    """
    if isinstance(given, tuple) and rows in (None, 1):
        given = np.concatenate([np.ravel(each) for each in given]) if given else given
    mask = np.asarray(given)
    if mask.dtype.kind not in "biuf" or not ((mask == 0) | (mask == 1)).all():
        raise ValueError(f"the action mask {_short(given)} is not of 0 and 1")
    shape = (choices,) if rows is None else (rows, choices)
    if mask.size != np.prod(shape):
        raise ValueError(f"the action mask has {mask.size} entries, and there are {int(np.prod(shape))} choices")
    return mask.reshape(shape).astype(bool)


def leaves_a_choice(mask: np.ndarray, components: tuple[int, ...]) -> bool:
    """Whether masks ``[..., choices]`` allow something, in every component."""
    return bool(np.logical_or.reduceat(mask, [0, *accumulate(components[:-1])], axis=-1).all())


def _short(value: object) -> str:
    text = " ".join(repr(value.astype(int).tolist() if isinstance(value, np.ndarray) and value.dtype == bool else value).split())
    return text if len(text) <= 60 else f"{text[:57]}..."
