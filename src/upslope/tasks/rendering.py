"""Pictures of environments where there may be no display, and quickly where MuJoCo is drawn without a graphics card."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from upslope.errors import TaskError
from upslope.plain_data import JsonDict

if TYPE_CHECKING:
    from upslope.tasks.gym import Environments, GymTask


def use_no_display() -> None:
    """Lets pygame and MuJoCo draw into memory where no display is there. It must be said before either is imported."""
    if not os.environ.get("DISPLAY"):
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
        os.environ.setdefault("MUJOCO_GL", "egl")


def drawn(task: GymTask, size: int = 0) -> GymTask:
    """The same task, giving pictures; MuJoCo's of ``size`` pixels each way, if that is said."""
    sized: JsonDict = {"width": size, "height": size} if size and is_mujoco(task) and "width" not in task.options else {}
    return task.shown("rgb_array", **sized)


def is_mujoco(task: GymTask) -> bool:
    """Whether MuJoCo simulates it."""
    return "mujoco" in str(getattr(getattr(task.source, "spec", None), "entry_point", ""))


def simplify(env: Any) -> None:
    """Leaves shadows and smoothed edges out of MuJoCo's pictures: without a graphics card they take most of the time."""
    mujoco = sys.modules.get("mujoco")
    model = getattr(getattr(env, "unwrapped", None), "model", None)
    if mujoco is not None and isinstance(model, mujoco.MjModel):
        model.vis.quality.shadowsize = model.vis.quality.offsamples = 0


def picture(place: Environments) -> np.ndarray:
    """What the first environment shows now, ``[height, width, 3]``."""
    frame = place.render(0)
    if not isinstance(frame, np.ndarray) or frame.ndim != 3:
        raise TaskError(f"{place.task.name} gives no picture in the mode rgb_array.")
    return frame
