"""Weights in four bits: codes and numbers worked out by hand, and beside those of bitsandbytes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

from upslope.policies.forward import nf4
from upslope.policies.forward.dynamic_map import dynamic_map
from upslope.policies.forward.nf4 import BLOCK, GROUP, VALUES, Codes, dequantize, quantize

FURTHER = 2**-15
"""By how much the value may be further from a scale's share that bitsandbytes' build for a CPU takes: it looks at 16 bits of it."""


def block(*first: float) -> Tensor:
    return torch.nn.functional.pad(torch.tensor(first), (0, BLOCK - len(first)))


def numbers(held: Codes, count: int) -> Tensor:
    return dequantize(held, torch.empty(count))


def test_two_blocks_by_hand():
    """2, -1, 0.5 and zeros; 4, 1 and zeros.

    The largest magnitudes are 2 and 4. Shares of 2: 1 (code 15), -0.5, between -0.5251 (code 2) and -0.3949 (code 3) nearer to the
    former, 0.25, between 0.2461 (code 10) and 0.3379, and zero (code 7). A byte holds two codes, the first in its upper half:
    15 * 16 + 2 = 242, 10 * 16 + 7 = 167, 7 * 16 + 7 = 119; of the second block 15 * 16 + 10 = 250.

    The magnitudes' mean is 3, which leaves -1 and 1; the larger of them is the group's scale, 1. The value nearest to -1 is
    -0.99296875, the first: there is no minus one. So the first block's scale becomes 3 - 0.99296875 = 2.00703125, the second's 4.
    """
    held = quantize(torch.stack([block(2.0, -1.0, 0.5), block(4.0, 1.0)]))
    assert held.codes.tolist() == [242, 167] + [119] * 30 + [250] + [119] * 31
    assert held.scales.tolist() == [0, 255] and held.tops.tolist() == [1.0] and float(held.offset) == 3.0
    expected = torch.stack([
        block(2.00703125, -0.5250730514526367 * 2.00703125, 0.24611230194568634 * 2.00703125),
        block(4.0, 4 * 0.24611230194568634),
    ])  # fmt: skip
    torch.testing.assert_close(numbers(held, 2 * BLOCK).view(2, BLOCK), expected, atol=3e-7, rtol=0.0)


def test_every_value_has_its_code_and_of_two_equally_near_it_is_the_lower_one():
    values = torch.tensor(VALUES)
    middles = (values[:-1] + values[1:]) / 2
    above = torch.nextafter(middles, torch.tensor(2.0))
    held = quantize(torch.nn.functional.pad(torch.cat([values, middles, above]), (0, BLOCK - 46)))
    codes = torch.stack([held.codes >> 4, held.codes & 15], 1).view(-1)[:46].tolist()
    assert codes == [*range(16), *range(15), *range(1, 16)]
    assert held.tops.tolist() == [0.0] and float(held.offset) == 1.0, "one block has the mean's magnitude"
    assert torch.equal(numbers(held, BLOCK)[:16], values)


def test_zeros_stay_zero_and_a_short_last_block_is_one():
    x = torch.cat([torch.zeros(BLOCK), torch.linspace(-1, 1, 37)])
    held = quantize(x)
    found = numbers(held, len(x))
    assert len(held.codes) == BLOCK and not found[:BLOCK].any() and float((found - x).abs().max()) < 0.16
    assert [len(each) for each in quantize(torch.zeros(BLOCK * GROUP + 1))[:3]] == [BLOCK * (GROUP + 1) // 2, GROUP + 1, 2]


def test_it_does_not_matter_how_many_are_looked_at_together(monkeypatch):
    x = torch.randn(41, 130, generator=torch.Generator().manual_seed(0))
    whole = quantize(x)
    monkeypatch.setattr(nf4, "CHUNK", 3 * BLOCK)
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(quantize(x), whole, strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_numbers_are_rounded_once(dtype):
    held = quantize(torch.randn(500, generator=torch.Generator().manual_seed(0)))
    assert torch.equal(dequantize(held, torch.empty(500, dtype=dtype)), numbers(held, 500).to(dtype))


@pytest.mark.oracle("bitsandbytes")
def test_codes_are_those_of_bitsandbytes(tmp_path):
    """To the bit, with sizes that fill no block or group. Only codes of scales may be others, where two values are about equally
    near; numbers are compared with what is made of their codes here."""
    random = torch.Generator().manual_seed(0)
    weights = [
        scale * torch.randn(shape, generator=random).to(dtype)
        for shape, scale, dtype in [
            ((256, 512), 0.02, torch.bfloat16), ((77, 130), 1.0, torch.bfloat16), ((384, 256), 0.3, torch.float32),
            ((1000, 33), 5.0, torch.float16), ((64, 64), 1.0, torch.float32),
        ]
    ]  # fmt: skip
    weights[0][3] = 0.0
    weights[2][:, :64] *= 100  # some blocks are a hundred times larger than others
    given, found = tmp_path / "given.pt", tmp_path / "found.pt"
    torch.save(weights, given)
    subprocess.run([sys.executable, Path(__file__).parents[2] / "beside_bitsandbytes.py", given, found], check=True)
    theirs = torch.load(found)
    assert theirs["maps"][0].tolist() == list(VALUES) and torch.equal(theirs["maps"][1], dynamic_map(signed=True))
    for weight, (codes, scales, tops, offset, rounded, precise) in zip(weights, theirs["told"], strict=True):
        held = quantize(weight)
        assert torch.equal(held.codes[: len(codes)], codes), tuple(weight.shape)
        assert torch.equal(held.tops, tops) and torch.equal(held.offset, offset)
        other = held.scales != scales
        assert float(other.float().mean()) < 0.05
        _check_near(weight, held, scales, other)
        count = weight.numel()
        mine = dequantize(held._replace(scales=scales), torch.empty(count))
        assert torch.equal(mine.view_as(weight), precise) and torch.equal(mine.to(weight.dtype).view_as(weight), rounded)


def _check_near(weight: Tensor, held: Codes, scales: Tensor, other: Tensor) -> None:
    rows = torch.nn.functional.pad(weight.float().flatten(), (0, -weight.numel() % BLOCK)).view(-1, BLOCK)
    shares = (rows.abs().amax(1) - held.offset) / held.tops.repeat_interleave(GROUP)[: len(rows)]
    values = dynamic_map(signed=True)
    ours, theirs = held.scales[other].long(), scales[other].long()
    further = (values[theirs] - shares[other]).abs() - (values[ours] - shares[other]).abs()
    assert bool((further >= 0).all() and (further <= FURTHER).all())
