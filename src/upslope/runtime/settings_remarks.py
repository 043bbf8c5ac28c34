"""What is worth saying of settings that are allowed."""

from __future__ import annotations

from upslope.runtime.default_lr import default_lr
from upslope.runtime.settings import Settings


def remarks_on(settings: Settings, model: str = "tiny") -> list[str]:
    """What is allowed and probably not meant, with its cure, and defaults that surprise; of settings as they were `resolved`."""
    steps, warmup, found = settings.steps or 0, settings.warmup or 0, []
    if settings.lora and settings.lr:
        full, usual = default_lr(model, 0), default_lr(model, settings.lora)
        if settings.lr == usual:
            times = f"{usual / full:.3g} times that of full training"
            found.append(f"adapters of rank {settings.lora} learn at {usual:g}, {times}; --lr sets another.")
        elif settings.lr <= 2 * full:
            found.append(
                f"--lr {settings.lr:g} is a learning rate of full training: adapters of rank {settings.lora} will hardly move. "
                f"Leave it out, which is {usual:g}."
            )
    if settings.checkpoint_every == "none":
        found.append("--checkpoint-every none: no checkpoint is written, the last one neither. A run that is stopped cannot go on, "
                     "and its weights end with the process.")  # fmt: skip
    if steps and warmup >= steps:
        reached = f"the learning rate {'only just reaches' if warmup == steps else 'never reaches'} its {settings.lr:g}"
        found.append(f"the warm-up of {warmup} steps is as long as the run of {steps}: {reached}. Give --warmup {steps // 10}.")
    if (settings.keep or settings.stop_at or settings.patience) and settings.eval_every >= steps:
        found.append(
            f"no evaluation falls within the {steps} steps (--eval-every {settings.eval_every}): nothing can end them early."
        )
    return found
