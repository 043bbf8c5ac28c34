"""Atari games as they are learned from: small grey frames, every fourth one, four of them stacked (Mnih et al. 2015).

All of it is gymnasium's own wrappers, in the order of Machado et al. (2018, "Revisiting the Arcade Learning Environment"). Imported
when the first game is made.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, ClassVar

from upslope.errors import MissingExtra, TaskError, install_extra
from upslope.fields import hints, problem, shown
from upslope.plain_data import JsonDict
from upslope.tasks.gym_make import gymnasium_module, make_env

GAMES_OWN = ("frameskip", "obs_type")
"""Options of the emulator that the preprocessing sets itself."""


@dataclass(frozen=True)
class AtariView:
    """What a policy sees of a game, and how often it acts. The names are those of gymnasium's ``AtariPreprocessing``.

    Fields:
        raw: the game as ale-py gives it, colour frames of 210 x 160; nothing of the rest applies.
        frame_skip: frames for which an action is held, the last two of them merged (sprites flicker). More is faster and coarser.
        noop_max: an episode begins after a random number of idle frames, at most so many; 0 begins each alike.
        screen_size: width and height that frames are shrunk to.
        grayscale_obs: grey frames; colour needs ``frame_stack=1``.
        terminal_on_life_loss: a lost life ends the episode. It helps some games and is not what scores are reported on.
        frame_stack: frames in an observation, the newest last, so that it shows motion.
        clip_rewards: rewards are cut to [-1, 1], in evaluations too unless ``--test-task`` names the game without it.
    """

    ranges: ClassVar = {"frame_skip": "[1, 1000]", "noop_max": "[0, 10000]", "screen_size": "[1, 210]", "frame_stack": "[1, 100]"}

    raw: bool = False
    frame_skip: int = 4
    noop_max: int = 30
    screen_size: int = 84
    grayscale_obs: bool = True
    terminal_on_life_loss: bool = False
    frame_stack: int = 4
    clip_rewards: bool = False

    @classmethod
    def parse(cls, options: JsonDict, name: str) -> tuple[AtariView, JsonDict]:
        """The view that a task's options ask for, and those left for the game itself."""
        known = {f.name for f in dataclasses.fields(cls)}
        own = {key: value for key, value in options.items() if key in known}
        rest = {key: value for key, value in options.items() if key not in known}
        for key, value in own.items():
            if wrong := problem(value, hints(cls)[key], cls.ranges.get(key, "")):
                raise TaskError(f"{name}: {key} is {shown(value)}; {wrong}")
        view = cls(**own)
        if view.raw and len(own) > 1:
            raise TaskError(f"{name}: raw=true is the game as it is; leave {next(key for key in own if key != 'raw')} out.")
        if not view.raw and (taken := [key for key in GAMES_OWN if key in rest]):
            instead = "frame_skip" if taken[0] == "frameskip" else "grayscale_obs"
            raise TaskError(f"{name}: {taken[0]} is set by the preprocessing; give {instead}, or raw=true for the game as it is.")
        if not view.grayscale_obs and view.frame_stack > 1:
            raise TaskError(f"{name}: colour frames are not stacked; give grayscale_obs=false,frame_stack=1.")
        return view, rest


def make_game(env_id: str, options: JsonDict, name: str) -> Any:
    """A game behind the preprocessing that the options ask for."""
    import ale_py

    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)  # no banner for every game that is made
    view, rest = AtariView.parse(options, name)
    if view.raw:
        return make_env(env_id, rest, name)
    limit = rest.pop("max_episode_steps", None)  # in steps of the policy, not in frames
    # The preprocessing asks the emulator for its frames itself; what the game returns besides is made in vain; grey takes less.
    kind = {"obs_type": "grayscale"} if view.grayscale_obs else {}
    return _wrapped(make_env(env_id, {**rest, **kind, "frameskip": 1}, name), view, limit)


def _wrapped(env: Any, view: AtariView, limit: int | None) -> Any:
    gymnasium = gymnasium_module()
    wrappers = gymnasium.wrappers
    try:
        env = wrappers.AtariPreprocessing(
            env,
            noop_max=view.noop_max,
            frame_skip=view.frame_skip,
            screen_size=view.screen_size,
            terminal_on_life_loss=view.terminal_on_life_loss,
            grayscale_obs=view.grayscale_obs,
        )
    except gymnasium.error.DependencyNotInstalled as error:
        raise MissingExtra("opencv-python-headless, which shrinks the frames of Atari games, is", install_extra("atari")) from error
    if view.frame_stack > 1:
        env = wrappers.FrameStackObservation(env, view.frame_stack)
    if view.clip_rewards:
        env = wrappers.ClipReward(env, -1.0, 1.0)
    return env if limit is None or limit < 0 else wrappers.TimeLimit(env, limit)


def frame_limit(env: Any) -> int | None:
    """Steps after which the emulator itself cuts an episode."""
    frames = (getattr(env.spec, "kwargs", None) or {}).get("max_num_frames_per_episode")
    skip, wrapped = 0, env
    while wrapped is not None and not skip:
        skip = getattr(wrapped, "__dict__", {}).get("frame_skip", 0)
        wrapped = getattr(wrapped, "env", None)
    skip = skip or getattr(env.unwrapped, "_frameskip", 1)
    return frames // skip if isinstance(frames, int) and isinstance(skip, int) else None
