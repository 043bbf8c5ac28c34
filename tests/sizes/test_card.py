"""Devices: their memory as people write it, and what they cannot compute."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from upslope.errors import UserError
from upslope.sizes.card import Card, gibibytes, gigabytes, parse_memory


@pytest.mark.parametrize(
    ("text", "size"),
    [("80GB", 80 * 10**9), ("24 GiB", 24 * 2**30), ("1.5gb", 1_500_000_000), ("512MiB", 2**29), ("2tb", 2 * 10**12)],
)
def test_memory_is_read_as_it_is_written(text: str, size: int):
    assert parse_memory(text) == size


@pytest.mark.parametrize("text", ["80", "GB", "-8GB", "0GB", "80 gigabytes", "nanGB", ""])
def test_what_is_no_size_is_refused(text: str):
    with pytest.raises(UserError, match="it must be a size such as 80GB"):
        parse_memory(text)


def test_sizes_for_people():
    assert (gibibytes(3 * 2**29), gibibytes(5 * 2**20)) == ("1.5 GiB", "5 MiB")
    assert (gigabytes(1.5e9), gigabytes(2.5e6)) == ("1.5 GB", "2.5 MB")


def test_a_gpu_before_ampere_is_refused_with_what_works(monkeypatch):
    found = SimpleNamespace(total_memory=16 * 2**30, name="Tesla T4", major=7, minor=5)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: found)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    card = Card.here("cuda")
    assert (card.total, card.on_gpu) == (16 * 2**30, True)
    with pytest.raises(UserError, match=r"Tesla T4 \(compute capability 7\.5\) is older than Ampere .* --precision float32"):
        card.check_precision("auto")
    card.check_precision("float32")
    Card("cuda", 1, "an A100", (8, 0)).check_precision("auto")
    Card.supposed("cuda", "16GB").check_precision("auto")
    Card.here("cpu").check_precision("auto")
