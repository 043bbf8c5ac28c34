"""The device that a run is to fit on: the memory of a GPU, or of the machine."""

from __future__ import annotations

import re
from dataclasses import dataclass

import torch

from upslope.errors import UserError
from upslope.runtime.memory import free_bytes

UNITS = {"mb": 10**6, "gb": 10**9, "tb": 10**12, "mib": 2**20, "gib": 2**30, "tib": 2**40}
BFLOAT16_FROM = (8, 0)
"""The compute capability of Ampere, the first with bfloat16."""


@dataclass(frozen=True)
class Card:
    """A device.

    Fields:
        total: of a GPU all its memory, whatever is free of it now; of a machine what can be had without swapping.
        capability: of a GPU that is here.
    """

    kind: str
    total: int
    name: str
    capability: tuple[int, int] | None = None

    @property
    def on_gpu(self) -> bool:
        return self.kind == "cuda"

    @staticmethod
    def here(kind: str, loaded: int = 0) -> Card:
        """The device of this machine.

        Args:
            loaded: bytes of the machine's memory that the run has taken already.
        """
        if kind != "cuda":
            return Card("cpu", free_bytes() + loaded, "this machine's free memory")
        found = torch.cuda.get_device_properties(torch.cuda.current_device())
        return Card("cuda", found.total_memory, found.name, (found.major, found.minor))

    @staticmethod
    def supposed(kind: str, memory: str) -> Card:
        """A device that need not be here, by its memory as in ``80GB``."""
        return Card(kind, parse_memory(memory), f"a {'GPU' if kind == 'cuda' else 'machine'} with {memory}")

    def check_precision(self, precision: str) -> None:
        """Refuses bfloat16 on a GPU that does not have it.

        Raises:
            UserError: with what to do.
        """
        if self.on_gpu and precision != "float32" and self.capability is not None and self.capability < BFLOAT16_FROM:
            major, minor = self.capability
            raise UserError(
                f"the {self.name} (compute capability {major}.{minor}) is older than Ampere and computes no bfloat16, in which "
                "products are on a GPU. Give --precision float32, or --device cpu."
            )


def parse_memory(text: str) -> int:
    """Bytes of ``80GB`` (of 10^9) or ``80GiB`` (of 2^30)."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([mgt]i?b)\s*", str(text).lower())
    if found is None or float(found[1]) <= 0:
        raise UserError(f"--memory is {text!r}; it must be a size such as 80GB or 24GiB.")
    return int(float(found[1]) * UNITS[found[2]])


def gibibytes(count: float) -> str:
    """Memory for people: ``12.3 GiB``."""
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.0f} MiB"


def gigabytes(count: float) -> str:
    """Disk for people, as disks are sold: ``12.3 GB``."""
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"
