"""DQN learns Pong from pixels, on a GPU: the score of greedy episodes as training goes on.

    python bench/pong.py --run /tmp/pong --out bench/results/pong.json --minutes 24
    python bench/pong.py --run /tmp/pong --out bench/results/pong.json --minutes 24      (again: it goes on)

``dqn`` with its settings for images, in 16 environments over 6 processes: an update of 32 rows for every second step (in the zoo
every fourth), 10,000 random steps, exploration falling from 1 to 0.01 over a tenth of the run, the copy of the critic renewed every
1000 updates. An action is held for four frames, four are stacked, 84 x 84 and grey; actions are not sticky, as in the DQN paper.
Judged by five greedy episodes, and by the training episodes of each step. One seed, no interval. Where OpenCV is not installed,
numpy averages the frames (``bench/no_opencv``).
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
import time
from pathlib import Path
from typing import Any

from curve_file import CurveFile

TASK = "gym:ALE/Pong-v5:repeat_action_probability=0.0"
ENVS, HORIZON = 16, 250
SETTINGS = {"envs": ENVS, "horizon": HORIZON, "updates_per_step": ENVS * HORIZON // 2, "eval_problems": 5}
STEPS_BETWEEN_CHECKPOINTS = 50
"""Behind each, episodes begin anew, and a long one has thousands of decisions."""
KNOBS = {"models.q.lag_every": 1000}
KEPT = ("env_steps", "episode_return", "episode_length", "q_loss", "q_value", "updates_per_second", "seconds", "seconds_sampling")


class Curve(CurveFile):
    """Writes down what comes out, and ends the run when its time is over."""

    def __init__(self, file: Path, minutes: float, about: dict[str, Any]):
        super().__init__(file, about)
        self.ends = self.began + 60 * minutes

    def on_step(self, step: int, metrics: dict[str, Any]) -> bool:
        self.take("training", {"step": step} | {key: metrics[key] for key in KEPT if key in metrics})
        if step % 10 == 0:
            print(step, {key: round(value, 3) for key, value in self.found["training"][-1].items()}, flush=True)
        return time.monotonic() < self.ends

    def on_evaluation(self, step: int, result: dict[str, Any]) -> None:
        point = {key: result[key] for key in ("score", "low", "high", "episodes", "spread")}
        self.take("evaluations", {"step": step, "env_steps": step * ENVS * HORIZON, "minutes": self.minutes} | point)
        print(f"score {result['score']:.1f} after {step * ENVS * HORIZON:,} steps, {self.minutes:.1f} minutes", flush=True)


def without_opencv() -> None:
    """Lets this process and those it starts shrink frames by numpy, if OpenCV is missing."""
    if importlib.util.find_spec("cv2") is None:
        folder = str(Path(__file__).resolve().parent / "no_opencv")
        sys.path.append(folder)
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), folder]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, required=True, help="folder of the run; one that is there goes on")
    parser.add_argument("--out", type=Path, required=True, help="JSON file of the curve")
    parser.add_argument("--minutes", type=float, default=24.0, help="after which the run is ended and judged")
    parser.add_argument("--steps", type=int, default=1_000_000, help="of all environments")
    parser.add_argument("--workers", type=int, default=6)
    parser.add_argument("--evaluations", type=int, default=10, help="of five greedy episodes each, beside the first")
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--adam-eps", type=float, help="added to Adam's divisor, as in upslope train")
    parser.add_argument("--set", nargs="*", default=[], metavar="KNOB=VALUE", help="knobs of the method, as in upslope train")
    asked = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    without_opencv()
    import upslope as up

    steps = max(asked.steps // (ENVS * HORIZON), 1)
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    settings = SETTINGS | ({} if asked.adam_eps is None else {"adam_eps": asked.adam_eps})
    knobs = KNOBS | dict(each.split("=", 1) for each in asked.set)
    about = {"method": "dqn", "task": TASK, "settings": settings, "knobs": knobs, "planned_steps": asked.steps, "seed": asked.seed}
    curve = Curve(asked.out, asked.minutes, about)
    if (asked.run / "run.toml").exists():
        up.resume(asked.run, steps=steps, callbacks=[curve])
        return
    up.train("dqn", TASK, knobs=knobs, out=asked.run, callbacks=[curve], steps=steps, seed=asked.seed, device=asked.device,
             env_workers=asked.workers, eval_every=max(steps // asked.evaluations, 1), record="none",
             checkpoint_every=STEPS_BETWEEN_CHECKPOINTS, **settings)  # fmt: skip


if __name__ == "__main__":
    main()
