"""What the benchmarks say of memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[1] / "bench"
HELD = """
import machine
before = machine.forget_peak("cpu")
held = bytearray(b"x") * (64 * 2**20)
print(machine.peak("cpu") - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_peak_of_a_process_is_its_own_and_not_that_of_who_began_it():
    large = bytearray(b"x") * (400 * 2**20)
    done = subprocess.run([sys.executable, "-c", HELD], capture_output=True, text=True, check=True, cwd=BENCH)
    assert len(large)
    assert 60 < float(done.stdout) < 200
