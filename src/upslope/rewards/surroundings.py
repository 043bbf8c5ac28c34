"""What belongs to the whole process and a function of the user's may change by the way: taken down before, put back after."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Surroundings:
    """As they stand at one moment. Random generators are not among them: nothing of ours draws from the global ones."""

    folder: str
    """The working folder; empty where it is gone."""
    dtype: Any
    device: Any
    grad: bool
    threads: int

    @classmethod
    def now(cls) -> Surroundings:
        import torch  # late: tasks are listed without it

        return cls(
            _folder(), torch.get_default_dtype(), torch.get_default_device(), torch.is_grad_enabled(), torch.get_num_threads()
        )

    def put_back(self) -> list[str]:
        """Makes everything as it was; what had changed, as ``the working folder to '/tmp'``."""
        now = Surroundings.now()
        if now == self:
            return []
        import torch

        changes = []
        if now.folder != self.folder:
            changes.append(f"the working folder to {now.folder!r}")
            with suppress(OSError):
                os.chdir(self.folder)
        if now.dtype != self.dtype:
            changes.append(f"torch's default dtype to {now.dtype}")
            torch.set_default_dtype(self.dtype)
        if now.device != self.device:
            changes.append(f"torch's default device to {now.device}")
            torch.set_default_device(None if self.device.type == "cpu" else self.device)
        if now.grad != self.grad:
            changes.append(f"torch's grad mode to {now.grad}")
            torch.set_grad_enabled(self.grad)
        if now.threads != self.threads:
            changes.append(f"torch's number of threads to {now.threads}")
            torch.set_num_threads(self.threads)
        return changes


def _folder() -> str:
    try:
        return os.getcwd()
    except OSError:
        return ""
