"""The site, built once for all tests and all processes that run them."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest
from places import ROOT, SOURCE

WEBSITE = ROOT / "docs" / "website"


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the built site. A build with a warning fails here, and says which."""
    if there := os.environ.get("UPSLOPE_SITE"):  # one that was built a minute ago
        return Path(there).resolve()
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    out, done = shared / "site", shared / "site.done"
    with (shared / "site.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            paths = os.pathsep.join([str(SOURCE.parent), os.environ.get("PYTHONPATH", "")])
            words = [sys.executable, str(WEBSITE / "make_site.py"), str(out)]
            made = subprocess.run(words, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True, timeout=900)
            assert made.returncode == 0, made.stdout + made.stderr
            done.touch()
    return out
