"""What a run works with, whatever its kind of task."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from upslope.errors import UserError
from upslope.learners.base import Learner
from upslope.plain_data import JsonDict, Knobs
from upslope.policies.control.networks import in_domains
from upslope.runtime.checkpoint_files import CheckpointWriter
from upslope.runtime.run_folder import RunFolder
from upslope.runtime.seeding import mix
from upslope.runtime.settings import Device, Settings
from upslope.sizes.card import Card
from upslope.sizes.estimate import Estimate
from upslope.types import Method

Progress = Callable[[int, int], None]


class Components(ABC):
    """What a run works with."""

    score_name: str
    task: Any
    test_task: Any
    """Of control: where the policy is judged."""
    policy: Any
    rollout: Any

    def __init__(self, method: Method, settings: Settings):
        self.method, self.settings = method, settings
        self.stage_rollouts: dict[str, Any] = {}
        """The rollouts of the method's stages, by their names."""

    @abstractmethod
    def estimate(self, out: Path | None = None) -> Estimate:
        """What a run in this folder, which need not be there, takes and writes, and whether it fits."""

    @abstractmethod
    def warm_start(self, progress: Callable[[int, float], None]) -> None:
        """Brings an untrained policy to where rewards can be earned, if the settings ask for it."""

    @abstractmethod
    def evaluate(self, progress: Progress | None = None) -> JsonDict:
        """``score`` on problems or episodes never learned from, with its 95% interval ``low`` and ``high``."""

    @abstractmethod
    def record_step(self, folder: RunFolder, learner: Learner, step: int, seconds: float) -> None:
        """Keeps what a step, which took so many seconds, can show for the inspector, if the settings ask for it."""

    @abstractmethod
    def record_evaluation(self, folder: RunFolder, step: int) -> None:
        """Keeps what an evaluation can show for the inspector, if the settings ask for it."""

    def keep_in(self, folder: RunFolder) -> None:
        """The run's folder, for components that write to it themselves; most do not."""
        return

    @contextmanager
    def with_workers(self, folder: RunFolder, trusted: bool) -> Iterator[None]:
        """Whoever samples beside this process is there as long as the block lasts; most runs have nobody."""
        yield

    def allocate(self, learner: Learner) -> None:
        """Takes the memory of the first step before it begins, where that can fail: on a GPU."""
        return

    def faults(self) -> Counter[str]:
        """What went wrong beside this process and was mended, by kind, since it began."""
        return Counter()

    def save_start(self, files: CheckpointWriter) -> None:
        """The policy as the run begins."""
        self.policy.save(files)

    def settle_reward(self, given: tuple[str, ...]) -> tuple[str, ...]:
        """The rewards of a run that begins: those given, or the one chosen for data that were given none."""
        return given

    def check_given(self, given: Settings) -> None:
        """Refuses settings, as a user gave them, that this method would ignore here."""
        return

    def give_heads(self) -> None:
        """What the method's learned models put on the policy."""
        for name, model in self.method.heads:
            self.policy.add_head(name, model.head(), mix(self.settings.seed, f"{name} head"))


@dataclass(frozen=True)
class DryRun:
    """That nothing is loaded, sampled or written: only what it would take is asked.

    Fields:
        memory: of a device that need not be here, as in ``80GB``; left out, the one of this machine.
    """

    memory: str = ""

    def card(self, device: str) -> Card:
        """The device to fit on."""
        if self.memory:
            return Card.supposed(device, self.memory)
        if device == "cuda" and not torch.cuda.is_available():
            raise UserError("--device cuda, but torch sees no GPU here. Say how much memory it has: --memory 80GB.")
        return Card.here(device)


def pick_device(asked: Device, model: str, dry: bool = False) -> Device:
    """The device a language model goes to; asking for a GPU where there is none is refused, unless the run is a ``dry`` one."""
    available = torch.cuda.is_available()
    if asked == "cuda" and not available and not dry:
        raise UserError(
            "--device cuda, but torch sees no GPU here. Leave it out, or install a CUDA build: make install TORCH=torch."
        )
    if asked == "auto":
        return "cuda" if available and model.split(":")[0] != "tiny" else "cpu"
    return asked


def settled_method(method: Method, domains: tuple[str, ...], knobs: Knobs) -> Method:
    """The method with its knobs for these kinds of task and the user's, in this order."""
    settled = in_domains(method, *domains).with_knobs(knobs).derive(on=())
    return in_domains(settled, *domains)  # --set policy=none is the usual network too
