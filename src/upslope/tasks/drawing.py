"""Draws a recorded episode: ``python -m upslope.tasks.drawing TASK EPISODE.json SHEET.png``.

The episode is played again from its seed and actions, and some of its frames are put on one sheet. This runs in a process of its
own: a renderer that cannot open a display may take its whole process down. The layout of the sheet is printed as JSON.
"""

from __future__ import annotations

import json
import math
import os
import sys
from pathlib import Path

import numpy as np

from upslope.errors import UserError
from upslope.plain_data import JsonDict
from upslope.tasks.gym import Environments, GymTask
from upslope.tasks.rendering import drawn, picture, use_no_display

MOST_FRAMES, COLUMNS, WIDTH = 60, 8, 240


def draw(task: GymTask, record: JsonDict, path: Path) -> JsonDict:
    """Writes the sheet, row by row, and gives its layout; whoever shows it looks for nothing else."""
    from PIL import Image

    every = max(1, math.ceil(record["length"] / MOST_FRAMES))
    frames = [Image.fromarray(frame) for frame in _frames(task, record, every)]
    width, height = WIDTH, max(1, round(WIDTH * frames[0].height / frames[0].width))
    sheet = Image.new("RGB", (width * COLUMNS, height * math.ceil(len(frames) / COLUMNS)), "white")
    for number, frame in enumerate(frames):
        small = frame.convert("RGB").resize((width, height), Image.Resampling.LANCZOS)
        sheet.paste(small, (number % COLUMNS * width, number // COLUMNS * height))
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    # Few colours are enough for a small picture, and a quarter of the bytes.
    sheet.quantize(128).save(draft, format="PNG", optimize=True)
    draft.replace(path)
    return {"file": path.name, "count": len(frames), "every": every, "columns": COLUMNS, "width": width, "height": height}


def _frames(task: GymTask, record: JsonDict, every: int) -> list[np.ndarray]:
    """The pictures before every so many steps, and the last one."""
    place = Environments(drawn(task, WIDTH), 1)
    try:
        place.reset(0, record["seed"])
        frames = []
        for number, action in enumerate(record["actions"]):
            if number % every == 0:
                frames.append(picture(place))
            place.step(np.array([action], dtype=np.float32 if task.continuous else np.int64), [0])
        return [*frames, picture(place)]
    finally:
        place.close()


def main(arguments: list[str]) -> int:
    """Draws, prints the layout; or says in one line why it cannot be done, and gives 1."""
    use_no_display()
    from upslope.tasks import load_task

    name, episode, sheet = arguments
    try:
        print(json.dumps(draw(load_task(name), json.loads(Path(episode).read_text()), Path(sheet))))  # type: ignore[arg-type]
        return 0
    except UserError as error:
        print(error)
    except Exception as error:  # whatever a renderer may raise: the reader wants a reason, not a stack
        print(f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else 'no reason given'}")
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
