"""How attention is cut on a GPU. Whether it fits into registers is looked at where Triton is (`compiled_kernels.py`)."""

from __future__ import annotations

import pytest
import torch

from upslope.policies.forward.triton.launch import PRECISE_WARPS, power, tiles
from upslope.rollout.decode.graph_stepper import LEAST_KEYS, attend_cut
from upslope.rollout.decode.pages import PAGE


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("width", [16, 64, 80, 128, 256, 512])
def test_tiles_are_no_larger_than_the_longest_row_needs(width, dtype):
    for longest in (1, 16, 20, 64, 65, 10_000):
        for tile in tiles(width, dtype, longest):
            for tokens in (tile.block, tile.other):
                assert tokens == power(tokens) and 16 <= tokens <= max(16, power(longest))


def test_in_float32_wider_heads_have_fewer_tokens_and_more_warps_share_them():
    found = [tiles(width, torch.float32, 1000)[0] for width in (64, 128, 256)]
    assert [tile.block * tile.other for tile in found] == [2048, 512, 256]
    assert {tile.warps for tile in found} == {PRECISE_WARPS}


@pytest.mark.parametrize("precise", [True, False])
@pytest.mark.parametrize("wide", [16, 64, 128, 256, 512])
def test_keys_that_are_looked_at_together_lie_within_a_page_and_a_part(wide, precise):
    block, _ = attend_cut(wide, precise)
    assert PAGE % block == 0 and LEAST_KEYS % block == 0
