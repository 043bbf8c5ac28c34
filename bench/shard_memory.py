"""Memory of each learner with `--shard` and without: bytes of weights, moments and copies that it holds, and its resident memory.

Run it as ``python bench/shard_memory.py [--learners 2] [--model tiny:layers=8,width=512]``. On a CPU (Linux); it says nothing of a
GPU.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
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


def resident() -> int:
    """Bytes of this process in memory now."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS"))


def note_held() -> None:
    """Has every learner that is made in this process write what it holds behind each step."""
    from upslope.learners.policy_gradient import PolicyGradient

    learn = PolicyGradient._learn_from

    def noted(self, *arguments):
        found, before = learn(self, *arguments), resident()
        gc.collect()
        ctypes.CDLL("libc.so.6").malloc_trim(0)  # what was freed and kept for later, which is not held
        told = {"held": held(self), "resident": before, "trimmed": resident()}
        (Path(os.environ[TOLD]) / f"held-{self.team.rank}.json").write_text(json.dumps(told))
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
            "if 'upslope.run.learner' in sys.orig_argv:\n    import shard_memory; shard_memory.note_held()\n"
        )
        os.environ["PYTHONPATH"] = os.pathsep.join([place, *filter(None, [os.environ.get("PYTHONPATH")])])
        note_held()
        for shard in (False, True):
            told = Path(place) / f"held-{shard}"
            told.mkdir()
            os.environ[TOLD] = str(told)
            up.train(
                "grpo", "reverse:length=2", model=flags.model, steps=3, tasks_per_step=4, samples_per_task=4, warm_start=0.0,
                eval_problems=4, learners=flags.learners, shard=shard, threads=1, record="none", checkpoint_every="none",
                audit="off", out=Path(place) / f"run-{shard}",
            )  # fmt: skip
            for rank in range(flags.learners):
                found = json.loads((told / f"held-{rank}.json").read_text())
                kinds = ", ".join(f"{name} {size / 2**20:.1f}" for name, size in found["held"].items())
                total = f"{sum(found['held'].values()) / 2**20:.1f} MiB"
                memory = f"resident {found['resident'] / 2**20:.0f}, trimmed {found['trimmed'] / 2**20:.0f} MiB"
                print(f"shard={shard} learner {rank}: {kinds} = {total}; {memory}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
