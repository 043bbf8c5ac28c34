"""Hashes of texts. No torch here: a file of problems is read without it."""

from __future__ import annotations

import hashlib


def stable_hash(text: str) -> int:
    """A 63-bit hash that is the same in every process and on every machine (Python's own is not)."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1
