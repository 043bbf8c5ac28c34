"""Random batches, gradients and cuts, as `upslope.testing` has them."""

from upslope.testing.batches import (
    CUTS,
    Outcome,
    assert_same,
    at_proximal,
    cut,
    gradient,
    kept_rows,
    map_positions,
    random_batch,
    replace_view,
    right_pad,
    with_outlier,
)

__all__ = [
    "CUTS",
    "Outcome",
    "assert_same",
    "at_proximal",
    "cut",
    "gradient",
    "kept_rows",
    "map_positions",
    "random_batch",
    "replace_view",
    "right_pad",
    "with_outlier",
]
