"""Memory of each learner with `--shard` and without: bytes of weights, moments and copies that it holds, and its resident memory.

Run it as ``python bench/shard_memory.py [--learners 2] [--model tiny:layers=8,width=512]``. On a CPU; it says nothing of a GPU. The
other learners tell what they hold through their logs.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path

import upslope as up
from upslope.runtime.tensor_parts import held_here

TOLD = "UPSLOPE_BENCH_HELD"


def held(learner) -> dict[str, int]:
    """Bytes of what a learner's optimiser and references hold, and of the whole set beside parts."""
    step = learner.optimizer_step
    moments = [tensor for state in step.optimizer.state.values() for name, tensor in state.items() if name != "step"]
    copies = [weight for kept in learner.references.kept.values() for copy in kept for weight in copy.model.parameters()]
    whole = getattr(learner.policy, "whole", None)
    kinds = {"weights": step.parameters(), "gradients": step.grads(), "moments": moments, "references": copies,
             "the whole to sample with": [] if whole is None else list(whole.model.parameters())}  # fmt: skip
    return {name: sum(held_here(each).numel() * each.element_size() for each in some) for name, some in kinds.items()}


def resident(pid: int) -> int:
    """Bytes of a process in memory now."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS"))


class Looks:
    """Notes the resident memory of all learners behind each step."""

    def __init__(self, folder: Path):
        self.folder, self.found = folder, list[int]()

    def on_step(self, step: int, metrics: dict) -> None:
        self.found = [resident(pid) for pid in json.loads((self.folder / "process.json").read_text())["learners"]]


def note_held(folder: Path) -> None:
    """Has every learner that is made in this process write what it holds behind each step."""
    from upslope.learners.policy_gradient import PolicyGradient

    learn = PolicyGradient._learn_from

    def noted(self, *arguments):
        found = learn(self, *arguments)
        (folder / f"held-{self.team.rank}.json").write_text(json.dumps(held(self)))
        return found

    PolicyGradient._learn_from = noted


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--learners", type=int, default=2)
    parser.add_argument("--model", default="tiny:layers=8,width=512")
    flags = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        # The learners beside this process import this file first, and so note what they hold too.
        (Path(place) / "sitecustomize.py").write_text(
            f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
            "if 'upslope.run.learner' in sys.orig_argv:\n"
            f"    import shard_memory, pathlib, os; shard_memory.note_held(pathlib.Path(os.environ[{TOLD!r}]))\n"
        )
        os.environ["PYTHONPATH"] = os.pathsep.join([place, *filter(None, [os.environ.get("PYTHONPATH")])])
        for shard in (False, True):
            told = Path(place) / f"held-{shard}"
            told.mkdir()
            os.environ[TOLD] = str(told)
            note_held(told)
            out = Path(place) / f"run-{shard}"
            looks = Looks(out)
            up.train(
                "grpo", "reverse:length=2", model=flags.model, steps=3, tasks_per_step=4, samples_per_task=4, warm_start=0.0,
                eval_problems=4, learners=flags.learners, shard=shard, threads=1, record="none", checkpoint_every="none",
                audit="off", out=out, callbacks=[looks],
            )  # fmt: skip
            for rank in range(flags.learners):
                kinds = json.loads((told / f"held-{rank}.json").read_text())
                parts = ", ".join(f"{name} {size / 2**20:.1f}" for name, size in kinds.items())
                total = f"= {sum(kinds.values()) / 2**20:.1f} MiB; resident {looks.found[rank] / 2**20:.0f} MiB"
                print(f"shard={shard} learner {rank}: {parts} {total}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
