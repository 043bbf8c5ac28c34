"""Versions of an answer, as ``label["version"]`` numbers them, and which of them are compared."""

from __future__ import annotations

TRUTH, REVISED, GENERATED, TRUTH_HIDDEN, REVISED_HIDDEN = range(5)
"""What is true, what a model said as somebody revised it, what it said, and the first two where part of the evidence is hidden."""
