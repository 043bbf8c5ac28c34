"""What is kept of each token where a surrogate notes one bound, the other, or none."""

from __future__ import annotations

import pytest
import torch
from part_values import steps

from upslope.learners.token_trace import TokenTrace
from upslope.methods import find
from upslope.objective.estimator import annotate, begin_update


@pytest.mark.parametrize(("noted", "expected"), [((), 0.0), (("clipped_high",), 1.0), (("clipped_low",), -1.0)])
def test_a_bound_that_is_not_noted_holds_nothing(noted: tuple[str, ...], expected: float):
    method, rows = find("dapo"), steps()[0][0]
    trace = TokenTrace(annotate(method, rows.replace(current=None)))
    piece = begin_update(method, trace.rows).replace(current=rows.current)
    trace.add(method, piece, {name: torch.ones_like(rows.sampled, dtype=torch.bool) for name in noted})
    clipped, on = trace.columns["clipped"], rows.sampled > 0
    assert (clipped[on] == expected).all() and clipped[~on].isnan().all()
    assert torch.equal(trace.columns["weight"][on], piece.signal["weight"][on])


def test_what_a_surrogate_notes_of_whole_rows_is_kept_and_later_updates_take_the_place_of_earlier_ones():
    method, rows = find("grpo"), steps()[0][0]
    trace = TokenTrace(annotate(method, rows.replace(current=None)))
    piece = begin_update(method, trace.rows).replace(current=rows.current)
    half = torch.arange(rows.rows // 2)
    margin = torch.arange(rows.rows, dtype=rows.sampled.dtype)
    trace.add(method, piece, {"margin": margin, "counted": torch.ones(rows.rows, dtype=torch.int64), "each": rows.sampled})
    trace.add(method, piece.take_rows(half), {"margin": -margin[half] - 1})
    assert set(trace.noted) == {"margin"}, "numbers of whole rows, nothing else"
    assert trace.noted["margin"].tolist() == [-float(row) - 1 if row < len(half) else float(row) for row in range(rows.rows)]
