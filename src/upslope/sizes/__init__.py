"""Sizes of a run, told before anything is loaded: parameters, memory by kind, disk, tokens of a step; and what fits.

One estimator serves ``--dry-run``, the lines at the start of every run, the refusal of what memory or disk cannot hold, and how a
run on a GPU is cut. It reads the shape of a model and the settings, never its weights.
"""

from __future__ import annotations
