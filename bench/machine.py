"""The machine a figure was measured on: what it is, what is installed, and whether anything else was running on it."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import resource
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

QUIET = 0.04
"""Share of all cores that others may keep busy on a machine that counts as idle."""
PACKAGES = (
    "upslope",
    "torch",
    "transformers",
    "trl",
    "stable-baselines3",
    "gymnasium",
    "mujoco",
    "accelerate",
    "datasets",
    "numpy",
)


def describe(device: str = "cpu") -> dict[str, Any]:
    """Processor, cores, memory, system and, on request, the GPU."""
    told: dict[str, Any] = {
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "system": f"{platform.system()} {platform.machine()}",
    }
    if device == "cuda":
        import torch

        told["gpu"] = torch.cuda.get_device_name()
        told["cuda"] = torch.version.cuda
    return told


def in_words(machine: dict[str, Any]) -> str:
    """A machine in one line."""
    cores = "1 core" if machine["cores"] == 1 else f"{machine['cores']} cores"
    host = f"{cores} {machine['cpu']}, {machine['memory_gib']} GiB, {machine['system']}"
    return f"{machine['gpu']} (CUDA {machine['cuda']}), {host}" if "gpu" in machine else host


def versions() -> dict[str, str]:
    """Python and the packages that matter, where they are installed."""
    found = {"python": sys.version.split()[0]}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _cpu_model() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    # ARM kernels give numbers for a part's name; the common servers' are worth knowing.
    parts = {"0xd0c": "Neoverse-N1", "0xd40": "Neoverse-V1", "0xd49": "Neoverse-N2", "0xd4f": "Neoverse-V2"}
    try:
        found = [line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "CPU part" in line]
    except OSError:
        found = []
    return parts.get(found[0], f"ARM part {found[0]}") if found else platform.processor() or platform.machine()


# -- whether it is idle ----------------------------------------------------------------------------------------------------


@dataclass
class Company:
    """Processor time spent by processes that are not ours, as cores kept busy on average."""

    seconds: float = 0.0
    others: float = 0.0
    worst: float = 0.0
    """Cores busy with others in the worst of the spans watched."""

    def add(self, seconds: float, busy: float, own: float) -> None:
        """One span: its length, what all processors did in it, and what of that was ours."""
        others = max(busy - own, 0.0)
        self.seconds, self.others = self.seconds + seconds, self.others + others
        # A span of milliseconds is measured in ticks of ten: its share says nothing.
        if seconds >= 0.5:
            self.worst = max(self.worst, others / seconds)

    @property
    def cores(self) -> float:
        return self.others / self.seconds if self.seconds else 0.0


@dataclass(frozen=True)
class Instant:
    """Clock and processor times at one moment."""

    at: float
    busy: float
    own: float


def instant(pids: list[int]) -> Instant:
    """Now, with ``own`` the processor time of this process and of those, their children included."""
    return Instant(time.perf_counter(), _busy_seconds(), sum(map(_cpu_seconds, [os.getpid(), *pids])))


def watch(before: Instant, after: Instant, company: Company) -> None:
    """Adds what others did between two moments."""
    company.add(after.at - before.at, after.busy - before.busy, after.own - before.own)


def busy_before(seconds: float = 2.0) -> float:
    """Cores kept busy by others while we do nothing for a while."""
    company, before = Company(), instant([])
    time.sleep(seconds)
    watch(before, instant([]), company)
    return company.cores


def is_quiet(*cores: float) -> bool:
    """Whether so many cores kept busy by others are few enough to measure beside."""
    return max(cores) <= QUIET * (os.cpu_count() or 1)


def _busy_seconds() -> float:
    times = psutil.cpu_times()
    return float(sum(times) - times.idle - getattr(times, "iowait", 0.0) - getattr(times, "guest", 0.0))


def _cpu_seconds(pid: int) -> float:
    """Of a process and its living descendants; one that has ended counts nothing."""
    try:
        process = psutil.Process(pid)
        family = [process, *process.children(recursive=True)] if pid != os.getpid() else [process]
        return sum(times.user + times.system for times in (member.cpu_times() for member in family))
    except psutil.NoSuchProcess:
        return 0.0


# -- memory of this process ------------------------------------------------------------------------------------------------


def forget_peak(device: str) -> float:
    """Starts the peak anew and gives what is held now, in MiB."""
    if device == "cuda":
        import torch

        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        return torch.cuda.memory_allocated() / 2**20
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:  # the peak then includes what importing took, on both sides alike
        return _high_water()
    return psutil.Process().memory_info().rss / 2**20


def peak(device: str) -> float:
    """The most that was held at once since `forget_peak`, in MiB: resident memory, or what torch allocated on the GPU."""
    if device == "cuda":
        import torch

        return torch.cuda.max_memory_allocated() / 2**20
    return _high_water()


def _high_water() -> float:
    """The most that was resident, in MiB. What `getrusage` says is never less than its parent held as it began the process."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024
    except (OSError, StopIteration):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
