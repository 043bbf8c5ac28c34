"""Folders of the repository, for tests at any depth."""

from __future__ import annotations

from pathlib import Path

TESTS = Path(__file__).resolve().parent
ROOT = TESTS.parent
SOURCE = ROOT / "src" / "upslope"
FIXTURES = TESTS / "fixtures"
