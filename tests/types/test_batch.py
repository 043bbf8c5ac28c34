"""The batch: only the fields that it has."""

from __future__ import annotations

import pytest
from batches import random_batch


def test_a_batch_has_no_field_that_it_does_not_have():
    with pytest.raises(TypeError, match="advantag"):
        random_batch(0).replace(advantag=None)
