"""Scores, counts and times as people say them."""

from __future__ import annotations

from collections.abc import Mapping

from upslope.types import Method


def measured(result: Mapping[str, object]) -> str:
    """A score with its interval: ``0.93 [0.90, 0.95]``."""
    digits = 2 if "problems" in result else 1
    return f"{result['score']:.{digits}f} [{result['low']:.{digits}f}, {result['high']:.{digits}f}]"


def counted(result: Mapping[str, object]) -> str:
    """On how much it was measured: ``500 problems``."""
    return f"{result['problems']} problems" if "problems" in result else f"{result.get('episodes', '?')} episodes"


def phase_name(method: Method, stage: float) -> str:
    """What the metric ``stage`` means: ``stage 1 of 2, cpt``, and behind the stages ``poro itself``."""
    number, count = round(stage), len(method.stages)
    return f"stage {number} of {count}, {method.stages[number - 1].name}" if 0 < number <= count else f"{method.name} itself"


def amount(count: float) -> str:
    """A count as people say it: ``0.9 M``."""
    for size, unit in ((1e9, "G"), (1e5, "M"), (1e3, "k")):
        if count >= size:
            return f"{count / (1e6 if unit == 'M' else size):.{1 if unit != 'k' else 0}f} {unit}"
    return f"{count:.0f}"


def clock(seconds: float) -> str:
    """``1:05``, or ``2:03:00`` from an hour on."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def in_bytes(size: float) -> str:
    """``12.3 MiB``."""
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if size < 1024 or unit == "GiB":
            break
        size /= 1024
    return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"
