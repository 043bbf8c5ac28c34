"""The learner on a table of logits: the real one, on a policy small enough to compute its gradient by hand."""

from __future__ import annotations

import sys
from typing import Any

from places import ROOT

from upslope.learners.policy_gradient import PolicyGradient
from upslope.runtime.settings import Settings
from upslope.types import Method

sys.path.insert(0, str(ROOT / "bench" / "claims"))

from beds import GoodArms, TableBed, TablePolicy, TableRollout

SAMPLES = 16


def table_learner(method: Method, **settings: Any) -> PolicyGradient:
    """One context with three arms of which the second earns 1; all logits and values begin at zero."""
    policy = TablePolicy(TableBed(GoodArms(good=1), contexts=1, vocabulary=3), seed=0)
    for name, model in method.models:
        policy.add_head(name, model.head(), 0)
    sizes = Settings(tasks_per_step=1, samples_per_task=SAMPLES, watch_kl=False, seed=3, **settings)
    return PolicyGradient(method, policy, TableRollout(policy, 1, SAMPLES, seed=3), sizes, policy.frozen_copy())
