"""The package's own tests: every check that upslope's methods pass, and its knob turned off."""

import pytest
from acme_rl.methods import acme_grpo

from upslope.testing import CHECKS, check_method


@pytest.mark.parametrize("check", CHECKS)
def test_acme_grpo_passes_the_checks_of_every_method(check: str):
    check_method(acme_grpo, only=[check], off={"shape.factor": 1.0})
