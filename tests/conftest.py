"""What all tests share: one torch thread, and a few ready batches."""

from __future__ import annotations

import os
import signal
import tempfile

import pytest
import torch
from batches import random_batch
from slow_tests import listed

from upslope.policies.forward.activation_cache import ActivationCache
from upslope.types import Batch

collect_ignore = ["plugin_package"]  # its tests run where it is installed
torch.set_num_threads(1)
# What tests trust is forgotten with them, and processes they start inherit it.
os.environ["XDG_STATE_HOME"] = tempfile.mkdtemp(prefix="upslope-tests-")
# A shell that starts the tests in the background has them and their processes ignore interrupts; some tests send one.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--torture", action="store_true", help="also the tests that take minutes each")


@pytest.hookimpl(tryfirst=True)  # before -m chooses by marks
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out what `make torture` runs, and marks what was measured to be slow. Tests on Ray come first: xdist deals out
    neighbours together and steals from the end, so that one process has them all, and one Ray is started."""
    slow = listed()
    for item in items:
        if item.nodeid.partition("[")[0] in slow:
            item.add_marker("slow")
    left_out = [item for item in items if item.get_closest_marker("torture") and not config.getoption("--torture")]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]
    items.sort(key=lambda item: item.path.name != "test_places.py")


@pytest.fixture
def own_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Learning makes forward passes of its own: what sampling has computed is rounded differently."""
    monkeypatch.setattr(ActivationCache, "serves", staticmethod(lambda body: False))


@pytest.fixture
def ragged_batch() -> Batch:
    """Rows of different lengths with tool tokens in the middle, far enough from the proximal policy that some decisions clip."""
    return random_batch(seed=0, groups=3, samples=4)


@pytest.fixture
def near_batch() -> Batch:
    """The same, so near to the proximal policy that no usual bound is reached."""
    return random_batch(seed=0, groups=3, samples=4, drift=0.02)
