from __future__ import annotations

import pytest

from upslope.rollout.decode.thin_products import CUTS, MOST_SHARES, PROGRAMS, shares_of

CUT = CUTS[(9, 0)]["plain"]


@pytest.mark.parametrize(
    "features, inner, shares",
    [(2048, 1536, 4), (1536, 1536, 4), (1536, 8960, 4), (896, 4864, 8), (18944, 3584, 1), (64, 256, 1), (64, 1024, 4)],
)
def test_the_inner_dimension_is_shared_out_until_there_are_enough_programs(features, inner, shares):
    """1.5B: 32 and 24 blocks of features in 4 shares; 0.5B: 14 blocks in 8. A gate has enough blocks; short rows stay whole."""
    assert shares_of(features, inner, CUT) == shares
    tiles = -(-features // CUT.block)
    assert tiles * shares >= PROGRAMS or shares == MOST_SHARES or inner // (2 * shares) < 2 * CUT.inner
