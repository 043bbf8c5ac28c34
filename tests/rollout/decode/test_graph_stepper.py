from __future__ import annotations

import pytest

from upslope.rollout.decode.graph_stepper import MOST_PARTS, parts_of


@pytest.mark.parametrize(
    "room, key_heads, parts",
    [(64, 2, 1), (512, 2, 1), (1024, 2, 2), (2048, 2, 4), (2048, 4, 2), (2048, 16, 1), (16384, 2, MOST_PARTS), (16384, 8, 8)],
)
def test_long_rows_are_walked_in_parts(room, key_heads, parts):
    assert parts_of(room, key_heads) == parts
