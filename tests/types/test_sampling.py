"""How tokens are sampled: nonsense is refused."""

from __future__ import annotations

import pytest

from upslope.errors import UserError
from upslope.types import Sampling


def test_an_empty_stop_string_is_refused():
    with pytest.raises(UserError, match="stop"):
        Sampling(4, stop=("",))
