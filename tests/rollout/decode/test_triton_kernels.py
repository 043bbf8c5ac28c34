"""Kernels of decoding and of learning's attention, compiled, and run on a CPU by Triton's interpreter."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton comes with torch's builds for GPUs")


def test_kernels_of_attention_fit_into_registers():
    done = subprocess.run([sys.executable, str(SCRIPTS / "compiled_kernels.py")], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_kernels_compute_what_plain_torch_computes():
    done = subprocess.run([sys.executable, str(SCRIPTS / "interpreted_kernels.py")], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [
        "attention_of_packed_tokens", "attention_of_a_newest_token", "products_of_few_rows", "draws",
        "answers_with_a_cache_in_stretches_and_in_pages", "an_update_with_moments_in_bfloat16",
        "updates_with_moments_in_eight_bits", "matrices_in_four_bits",
    ]  # fmt: skip
