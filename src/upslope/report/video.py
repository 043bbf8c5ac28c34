"""An episode as a film: ``.mp4`` by ffmpeg, ``.gif`` by Pillow."""

from __future__ import annotations

import importlib
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from upslope.errors import MissingExtra, UserError, did_you_mean, install_extra
from upslope.report.checkup import episode
from upslope.run import Run
from upslope.tasks.rendering import drawn, is_mujoco, picture, use_no_display

PACKAGES = {".mp4": ("imageio_ffmpeg", "imageio-ffmpeg", "video"), ".gif": ("PIL.Image", "pillow", "control")}
"""By the kind of file: the module that writes it, its package and our extra."""
FRAMES_PER_SECOND = 30
"""Where an environment does not say it."""


def film(run: Run, path: Path, seed: int = 0) -> str:
    """Plays an episode with the likeliest action each time, writes it to ``path``, and says how it went.

    Raises:
        UserError: for another kind of file, or where nothing can be drawn.
    """
    path = path.expanduser()
    if path.suffix not in PACKAGES:
        near = did_you_mean(path.suffix, PACKAGES) if path.suffix else ""
        raise UserError(f"--video {str(path)!r}: a film is written as .mp4 or .gif.{near}")
    module, package, extra = PACKAGES[path.suffix]
    try:
        writer = importlib.import_module(module)
    except ImportError:
        raise MissingExtra(f"{package} is", install_extra(extra)) from None
    use_no_display()
    run.policy  # noqa: B018  (loads what is needed)
    assert run.components is not None
    task = run.components.test_task
    draft = path.with_name(f".{path.stem}.{os.getpid()}{path.suffix}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        film = _Film(draft, writer)
        said = episode(run, seed, task=drawn(task), watch=film.take)
        film.close()
        draft.replace(path)
    except UserError:
        raise
    except OSError as problem:
        raise UserError(f"{path} cannot be written: {problem.strerror or problem}.") from problem
    except Exception as error:  # whatever a renderer may raise
        raise UserError(_not_drawn(task, error)) from error
    finally:
        with suppress(OSError):
            draft.unlink()
    return f"{said}\n{film.count} pictures at {film.rate} a second"


def _not_drawn(task: Any, error: Exception) -> str:
    told = " ".join(f"{type(error).__name__}: {error}".split())[:200]
    cure = (
        " MuJoCo draws by OpenGL: set MUJOCO_GL=egl (a graphics driver or Mesa's libegl1) or MUJOCO_GL=osmesa (libosmesa6) before "
        "the command."
        if is_mujoco(task)
        else " Its render_mode 'rgb_array' must give a picture."
    )
    return f"{task.name} cannot be drawn here ({told}).{cure}"


class _Film:
    """A film under way; the first picture says how large it is."""

    def __init__(self, path: Path, writer: Any) -> None:
        self.path, self.writer, self.count, self.rate = path, writer, 0, FRAMES_PER_SECOND
        self._stream: Any = None
        self._pictures: list[Any] = []

    def take(self, place: Any) -> None:
        """One more picture."""
        frame = np.ascontiguousarray(picture(place))
        if not self.count:
            self.rate = int(place.metadata.get("render_fps") or FRAMES_PER_SECOND)
        self.count += 1
        if self.path.suffix == ".gif":
            self._pictures.append(self.writer.fromarray(frame).quantize(64))
            return
        if self._stream is None:
            size = (frame.shape[1], frame.shape[0])
            # Sides must be even; a picture that is not is made so, by no more than a pixel.
            self._stream = self.writer.write_frames(
                str(self.path), size, fps=self.rate, macro_block_size=2, ffmpeg_log_level="error"
            )
            self._stream.send(None)
        self._stream.send(frame.tobytes())

    def close(self) -> None:
        if self._stream is not None:
            self._stream.close()
        if self._pictures:
            first, *rest = self._pictures
            first.save(self.path, save_all=True, append_images=rest, duration=max(20, round(1000 / self.rate)), loop=0)
