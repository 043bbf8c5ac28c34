"""What numbers that are pinned to the last digits depend on beside the code."""

from __future__ import annotations

import platform
import sys
from pathlib import Path

import torch


def build() -> dict[str, str]:
    cpu = next((line for line in _cpu_lines() if line.startswith(("model name", "CPU part"))), "").partition(":")[2].strip()
    return {
        "cpu": f"{platform.machine()} {cpu}",
        "torch": torch.__version__,
        "python": ".".join(map(str, sys.version_info[:2])),
    }


def _cpu_lines() -> list[str]:
    file = Path("/proc/cpuinfo")
    return file.read_text().splitlines() if file.exists() else []
