"""Kernels of decoding and of learning's attention, run on a CPU by Triton's interpreter."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "interpreted_kernels.py"


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton comes with torch's builds for GPUs")
def test_kernels_compute_what_plain_torch_computes():
    done = subprocess.run([sys.executable, str(SCRIPT)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [
        "attention_of_packed_tokens", "attention_of_a_newest_token", "products_of_few_rows", "draws",
        "answers_with_a_cache_in_stretches_and_in_pages", "an_update_with_moments_in_bfloat16",
        "updates_with_moments_in_eight_bits", "matrices_in_four_bits",
    ]  # fmt: skip
