"""The batch: only the fields that it has, and rows that keep what belongs to them."""

from __future__ import annotations

import pytest
import torch
from batches import random_batch
from part_values import steps


def test_a_batch_has_no_field_that_it_does_not_have():
    with pytest.raises(TypeError, match="advantag"):
        random_batch(0).replace(advantag=None)


def test_rows_are_kept_with_their_notes():
    batch = steps()[0][0]
    keep = torch.arange(12) % 5 == 1
    found = batch.keep_rows(keep)
    assert found.rows == 3 and found.info == [{"row": 1}, {"row": 6}, {"row": 11}]
    assert torch.equal(found.reward, batch.reward[[1, 6, 11]])
    assert batch.keep_rows(torch.ones(12, dtype=torch.bool)) is batch
    assert batch.replace(info=[]).keep_rows(keep).info == []
