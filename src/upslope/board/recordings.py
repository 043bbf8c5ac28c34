"""Recorded rollouts and episodes of a run. What is in them was written by models: it is passed on as text and never trusted."""

from __future__ import annotations

import json
import os
import re
import threading
import zlib
from pathlib import Path
from typing import Any

from upslope.board import inside
from upslope.board.glance import whole_lines

MOST = 64 * inside.MIB
"""Bytes of a recorded step, unpacked."""
MOST_JUMPS = 8 * inside.MIB
"""Bytes at the end of ``rollouts.jsonl`` that are read."""
_ONE_AT_A_TIME = threading.Lock()


class Unreadable(Exception):
    """A recording that is there and cannot be shown."""


def rollouts(root: Path, parts: tuple[str, ...]) -> dict[str, Any]:
    """The recorded steps, and where in them something stands out."""
    try:
        with inside.folder(root, *parts) as at, inside.open_file(at, "rollouts.jsonl") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - MOST_JUMPS))
            lines = whole_lines(file.read(MOST_JUMPS))[int(size > MOST_JUMPS) :]
    except OSError:
        lines = []
    jumps = [found for line in lines if isinstance(found := _json_or_none(line), dict)]
    return {"steps": _steps(root, (*parts, "rollouts"), r"step-(\d{6,12})\.json\.gz"), "jumps": jumps}


def rollout(root: Path, parts: tuple[str, ...], step: int) -> dict[str, Any]:
    """One recorded step."""
    name = f"step-{step:06d}.json.gz"
    with _ONE_AT_A_TIME, inside.folder(root, *parts, "rollouts") as at:
        return _json(_unpacked(inside.read(at, name, MOST), name), name)


def episodes(root: Path, parts: tuple[str, ...]) -> list[int]:
    """The steps at which an episode was recorded."""
    return _steps(root, (*parts, "episodes"), r"step-(\d{6,12})\.json")


def episode(root: Path, parts: tuple[str, ...], step: int) -> dict[str, Any]:
    """One recorded episode."""
    name = f"step-{step:06d}.json"
    with inside.folder(root, *parts, "episodes") as at:
        return _json(inside.read(at, name, MOST), name)


def _steps(root: Path, parts: tuple[str, ...], pattern: str) -> list[int]:
    try:
        with inside.folder(root, *parts) as at:
            names = [entry.name for entry in os.scandir(at) if entry.is_file(follow_symlinks=False)]
    except OSError:
        return []
    return sorted(int(found[1]) for name in names if (found := re.fullmatch(pattern, name, re.ASCII)))


def _unpacked(data: bytes, name: str) -> bytes:
    """Stops at the limit, so that a small file cannot fill the memory."""
    unpacker = zlib.decompressobj(wbits=31)
    try:
        found = unpacker.decompress(data, MOST + 1)
    except zlib.error as problem:
        raise Unreadable(f"{name} cannot be unpacked: {problem}.") from None
    if len(found) > MOST:
        raise inside.TooLarge(f"{name} unpacks to more than {MOST // inside.MIB} MiB; that is too much to show.")
    if not unpacker.eof:
        raise Unreadable(f"{name} ends in the middle.")
    return found


def _json(data: bytes, name: str) -> dict[str, Any]:
    try:
        found = json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as problem:
        raise Unreadable(f"{name} is not JSON: {type(problem).__name__}.") from None
    if not isinstance(found, dict):
        raise Unreadable(f"{name} is no JSON object.")
    return found


def _json_or_none(line: bytes) -> Any:
    try:
        return json.loads(line.decode("utf-8"))
    except (ValueError, RecursionError):
        return None
