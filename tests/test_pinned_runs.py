"""Short runs end in the weights they always had: whoever changes the core learns at once whether results moved.

On the build the pins were made with (processor, torch, Python) the weights are the same to the last bit; elsewhere they are near a
saved copy. ``python tests/test_pinned_runs.py`` makes the pins anew, for a change that is meant to move numbers.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from pathlib import Path

import pytest
import torch
from pinned_build import build
from safetensors.torch import load_file, save_file

import upslope as up

PINS = Path(__file__).parent / "pinned"
TEXT = {
    "task": "reverse:length=2", "model": "tiny:layers=1,width=16", "steps": 4, "tasks_per_step": 4, "samples_per_task": 4,
    "updates_per_step": 2, "warm_start": 0.1, "eval_problems": 8, "lr": 1e-3, "warmup": 0, "threads": 1, "record": "none",
}  # fmt: skip
CONTROL = {"task": "gym:CartPole-v1", "steps": 3, "envs": 2, "horizon": 32, "passes": 2, "eval_problems": 2, "threads": 1}
CHOSEN = TEXT | {"tasks_per_step": 8, "samples_per_task": 2}
"""For a method that chooses its problems: few answers to each, so that many come back."""
RUNS = {"grpo": TEXT, "dhpo": TEXT, "t-ppo": TEXT, "spo-single-stream": CHOSEN, "ppo": CONTROL}


def final_weights(method: str, out: Path) -> dict[str, torch.Tensor]:
    run = up.train(method, **RUNS[method], out=out)
    last = run.folder.latest()
    files = sorted(file for file in last.glob("*.safetensors") if file.name != "learner.safetensors")
    return {f"{file.stem}.{name}": tensor for file in files for name, tensor in sorted(load_file(file).items())}


def fingerprint(weights: dict[str, torch.Tensor]) -> str:
    found = hashlib.sha256()
    for name, tensor in sorted(weights.items()):
        found.update(f"{name} {list(tensor.shape)} {tensor.dtype}".encode() + tensor.contiguous().numpy().tobytes())
    return found.hexdigest()


@pytest.mark.parametrize("method", [pytest.param(name, marks=() if name in ("grpo", "ppo") else pytest.mark.slow) for name in RUNS])
def test_a_short_run_ends_in_its_pinned_weights(method, tmp_path):
    pins = json.loads((PINS / "weights.json").read_text())
    weights = final_weights(method, tmp_path / "run")
    if build() == pins["build"]:
        assert fingerprint(weights) == pins["sha256"][method]
        return
    saved = load_file(PINS / f"{method}.safetensors")
    assert weights.keys() == saved.keys()
    for name, tensor in weights.items():
        torch.testing.assert_close(tensor, saved[name], rtol=0, atol=1e-5, msg=lambda text, name=name: f"{name}: {text}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    sums = {}
    for each in RUNS:
        with tempfile.TemporaryDirectory() as folder:
            made = final_weights(each, Path(folder) / "run")
        save_file({name: tensor.contiguous() for name, tensor in made.items()}, PINS / f"{each}.safetensors")
        sums[each] = fingerprint(made)
    (PINS / "weights.json").write_text(json.dumps({"build": build(), "sha256": sums}, indent=1) + "\n")
