"""Rows in eight bits: the codes are torchao's, and products of them are torch's own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from upslope.policies.forward import fp8
from upslope.policies.forward.fp8 import LARGEST, Fp8Rows

TESTS = Path(__file__).parents[2]
APART = Path(sys.prefix) / "apart"


def rows_of_all_sizes() -> torch.Tensor:
    random = torch.Generator().manual_seed(0)
    return torch.randn(6, 200, generator=random) * torch.logspace(-6, 4, 6).unsqueeze(1) * torch.logspace(-6, 0, 200)


def test_a_worked_example():
    """The largest of the first row, 7, becomes 448 = 7 x 64: 0.11 x 64 = 7.04 is 7 there, as e4m3 has halves from 4 to 8."""
    rows = fp8.quantize(torch.tensor([[7.0, 0.11, -1.0, 0.0], [0.0, 0.0, 0.0, 0.0], [-896.0, 2.0, 4.2, 0.001]]))
    assert rows.codes.float().tolist() == [[448, 7, -64, 0], [0, 0, 0, 0], [-448, 1, 2, 0]]
    assert rows.scales[[0, 2]].tolist() == [1 / 64, 2.0] and rows.scales[1] > 0
    assert fp8.dequantize(rows, torch.float32)[0].tolist() == [7, 7 / 64, -1, 0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_numbers_move_by_a_sixteenth_at_the_most(dtype):
    x = rows_of_all_sizes().to(dtype)
    found, exact = fp8.dequantize(fp8.quantize(x), torch.float32), x.float()
    smallest = exact.abs().amax(1, keepdim=True) / LARGEST * 2**-6
    """From here on e4m3 has all three bits; below its numbers are a fixed step apart."""
    normal = exact.abs() >= smallest
    assert ((found - exact).abs() <= exact.abs() / 16 * 1.0001)[normal].all() and 0.2 < normal.float().mean() < 0.9
    assert ((found - exact).abs() <= smallest * 2**-4 * 1.0001)[~normal].all()
    assert fp8.rounded(x).dtype == dtype and torch.equal(fp8.quantize(x).codes.float().abs().amax(1), torch.full((6,), LARGEST))


def test_what_is_no_number_stays_none():
    codes = fp8.quantize(torch.tensor([[1.0, torch.nan], [1.0, 2.0]])).codes.float()
    assert codes[0].isnan().any() and codes[1].tolist() == [224, 448]


@pytest.mark.skipif(not (APART / "torchao").is_dir(), reason="torchao is installed apart: requirements-apart.txt")
def test_codes_and_scales_are_torchaos_to_the_bit(tmp_path):
    halves = torch.randn(40, 9000, generator=torch.Generator().manual_seed(1)).bfloat16()  # many lie just between two codes
    several = [rows_of_all_sizes(), rows_of_all_sizes().bfloat16(), halves, torch.full((1, 16), 3.0)]
    given, found = tmp_path / "given.pt", tmp_path / "found.pt"
    torch.save({"rows": several}, given)
    subprocess.run([sys.executable, TESTS / "beside_torchao.py", given, found], check=True, capture_output=True)
    for rows, (codes, scales) in zip(several, torch.load(found), strict=True):
        ours = fp8.quantize(rows)
        assert torch.equal(ours.codes.view(torch.uint8), codes.view(torch.uint8))
        torch.testing.assert_close(ours.scales, scales, rtol=1e-6, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_torchs_product_of_codes_is_that_of_what_they_stand_for(dtype):
    x, matrix = fp8.quantize(rows_of_all_sizes()[1:4, :160]), fp8.quantize(torch.randn(48, 160))
    expected = fp8.dequantize(x, torch.float64) @ fp8.dequantize(matrix, torch.float64).t()
    found = fp8.product(x, matrix, dtype)
    assert found.dtype == dtype
    rounding = 1e-5 if dtype == torch.float32 else 2**-8
    torch.testing.assert_close(found.double(), expected, rtol=rounding, atol=rounding * float(expected.abs().max()))


def test_rows_can_be_written_to_where_they_are():
    place = Fp8Rows.blank(6, 200, torch.device("cpu"))
    fp8.quantize(rows_of_all_sizes(), place)
    whole = fp8.quantize(rows_of_all_sizes())
    assert torch.equal(place.codes.float(), whole.codes.float()) and torch.equal(place.first(2).scales, whole.scales[:2])
