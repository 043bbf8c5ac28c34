"""Draws docs/images/reverse.png from finished runs of the demo: ``python docs/plot_demo.py runs/dhpo-reverse-*``."""

import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

import upslope as up


def main(folders: list[str]) -> None:
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.4))
    for folder in folders:
        run = up.load(folder)
        steps = [record["step"] for record in run.metrics]
        line = left.plot(steps, [record["reward"] for record in run.metrics], alpha=0.7, label=f"seed {run.summary['seed']}")[0]
        ends = run.evaluations
        left.plot([r["step"] for r in ends], [r["score"] for r in ends], "o", color=line.get_color())
        right.plot(steps, [record["entropy"] for record in run.metrics], alpha=0.7, color=line.get_color())
    left.set(title="reward of samples; dots: greedy, held-out", xlabel="step", ylim=(0, 1))
    right.set(title="entropy per token", xlabel="step", ylim=(0, None))
    left.legend(loc="lower right")
    for axis in (left, right):
        axis.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(Path(__file__).parent / "images" / "reverse.png", dpi=110)


if __name__ == "__main__":
    main(sys.argv[1:])
