"""Recorded rollouts and episodes of a run. What is in them was written by models: it is passed on as text and never trusted."""

from __future__ import annotations

import json
import os
import re
import threading
import zlib
from pathlib import Path
from typing import Any

from upslope.board import safe_files
from upslope.board.run_summary import whole_lines
from upslope.plain_data import JsonDict

MOST = 64 * safe_files.MIB
"""Bytes of a recorded step, unpacked."""
MOST_JUMPS = 8 * safe_files.MIB
"""Bytes at the end of ``rollouts.jsonl`` that are read."""
LONGEST_TOKEN, LONGEST_TEXT = 200, 20_000
"""Characters of a token, and of a prompt or any other text, that are passed on: a page that had to set more would stand still."""
MOST_TOKENS = 32_768
"""Of a sample, that are passed on."""
PER_TOKEN = ("pieces", "ids", "sampled", "turn", "logp", "entropy", "ratio", "advantages", "weight", "clipped")
_ONE_AT_A_TIME = threading.Lock()


class Unreadable(Exception):
    """A recording that is there and cannot be shown."""


def rollouts(root: Path, parts: tuple[str, ...]) -> JsonDict:
    """The recorded steps, and where in them something stands out."""
    try:
        with safe_files.folder(root, *parts) as at, safe_files.open_file(at, "rollouts.jsonl") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - MOST_JUMPS))
            lines = whole_lines(file.read(MOST_JUMPS))[int(size > MOST_JUMPS) :]
    except OSError:
        lines = []
    jumps = [found for line in lines if isinstance(found := _json_or_none(line), dict)]
    return {"steps": rollout_steps(root, parts), "jumps": jumps}


def rollout_steps(root: Path, parts: tuple[str, ...]) -> list[int]:
    """The steps of which rollouts were recorded."""
    return _steps(root, (*parts, "rollouts"), r"step-(\d{6,12})\.json\.gz")


def rollout(root: Path, parts: tuple[str, ...], step: int) -> JsonDict:
    """One recorded step, as far as a page can show it."""
    name = f"step-{step:06d}.json.gz"
    with _ONE_AT_A_TIME, safe_files.folder(root, *parts, "rollouts") as at:
        record = _json(_unpacked(safe_files.read(at, name, MOST), name), name)
        _shorten(record, name)
        return record


def episodes(root: Path, parts: tuple[str, ...]) -> list[int]:
    """The steps at which an episode was recorded."""
    return _steps(root, (*parts, "episodes"), r"step-(\d{6,12})\.json")


def episode(root: Path, parts: tuple[str, ...], step: int) -> JsonDict:
    """One recorded episode."""
    name = f"step-{step:06d}.json"
    with safe_files.folder(root, *parts, "episodes") as at:
        return _json(safe_files.read(at, name, MOST), name)


def _shorten(record: JsonDict, name: str) -> None:
    """Cuts what is too long in place, and says of each sample how much of it is left out."""
    groups = record.get("groups", [])
    if not isinstance(groups, list) or not all(isinstance(group, dict) for group in groups):
        raise Unreadable(f"{name} has groups that are none of ours.")
    for group in groups:
        samples = group.setdefault("samples", [])
        if not isinstance(samples, list) or not all(isinstance(sample, dict) for sample in samples):
            raise Unreadable(f"{name} has samples that are none of ours.")
        _shorten_texts(group)
        for sample in samples:
            _shorten_sample(sample, name)


def _shorten_sample(sample: JsonDict, name: str) -> None:
    tokens = sample.get("pieces")
    if tokens is not None:
        if not isinstance(tokens, list) or not all(isinstance(token, str) for token in tokens):
            raise Unreadable(f"{name} has tokens that are no texts.")
        if len(tokens) > MOST_TOKENS:
            sample["tokens_left_out"] = len(tokens) - MOST_TOKENS
            for key in PER_TOKEN:
                if isinstance(values := sample.get(key), list):
                    sample[key] = values[:MOST_TOKENS]
        sample["pieces"] = [_cut(token, LONGEST_TOKEN) for token in sample["pieces"]]
    _shorten_texts(sample)


def _shorten_texts(table: JsonDict) -> None:
    for key, value in table.items():
        if isinstance(value, str):
            table[key] = _cut(value, LONGEST_TEXT)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most]}… ({len(text):,} characters)"


def _steps(root: Path, parts: tuple[str, ...], pattern: str) -> list[int]:
    try:
        with safe_files.folder(root, *parts) as at:
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
        raise safe_files.TooLarge(f"{name} unpacks to more than {MOST // safe_files.MIB} MiB; that is too much to show.")
    if not unpacker.eof:
        raise Unreadable(f"{name} ends in the middle.")
    return found


def _json(data: bytes, name: str) -> JsonDict:
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
