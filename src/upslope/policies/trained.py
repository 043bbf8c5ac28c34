"""The result of a run as a model: ``--model runs/grpo-reverse-0`` goes on from its weights, in a run of its own."""

from __future__ import annotations

import json
from pathlib import Path

from upslope.errors import UserError
from upslope.policies.adapter_files import holds_adapters, holds_model
from upslope.runtime.run_folder import RunFolder


def is_run(spec: str) -> bool:
    """Whether a model's name is the folder of a run."""
    return (Path(spec).expanduser() / "run.toml").is_file()


def is_users_folder(spec: str) -> bool:
    """Whether this names a folder of weights that the user keeps: no run, which deletes its checkpoints, and no adapters, which are
    merged when they are loaded."""
    folder = Path(spec).expanduser()
    return spec != "smollm2" and folder.is_dir() and not is_run(spec) and not holds_adapters(folder)


def trained_weights(spec: str) -> Path:
    """The checkpoint to take of a run: its best one where that was kept, else its last.

    Raises:
        UserError: if the run has none, or is of an environment.
    """
    folder = RunFolder.open(Path(spec).expanduser())
    chosen = folder.best if folder.best.is_dir() else folder.latest()
    if not holds_model(chosen):
        raise UserError(
            f"--model {spec} is a run in an environment, whose network answers no text. 'upslope resume' goes on with it."
        )
    return chosen


def what_was_taken(spec: str) -> str:
    """Of a run, for its user: which checkpoint."""
    chosen = trained_weights(spec)
    if chosen.name != "best":
        return f"{spec} is a run: its last checkpoint is taken, {chosen.name}, weights only."
    kept = json.loads((chosen / "best.json").read_text(encoding="utf-8"))
    said = f"step {kept['step']} ({kept['measure']} {kept[kept['measure']]:.4g})"
    return f"{spec} is a run: its best checkpoint is taken, of {said}, weights only."


def underlying_model(spec: str) -> str:
    """What a run's model was before it was trained: defaults depend on its size and kind."""
    seen: set[Path] = set()
    while is_run(spec) and (folder := Path(spec).expanduser().resolve()) not in seen:
        seen.add(folder)
        spec = str(RunFolder.open(folder).table().get("model", spec))
    return spec
