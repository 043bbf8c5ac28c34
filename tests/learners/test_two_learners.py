"""Two processes learn what one learns: every method, to rounding, its metrics and what is recorded of its tokens too."""

from __future__ import annotations

import math

import pytest
import torch
from two_learners import ByCase, Case, gradients, made

from upslope.methods import catalogue
from upslope.objective.estimator import early_columns, slice_scope, stateful
from upslope.runtime.team_lead import LeadingTeam

METHODS = {name: method for name, method in catalogue().items() if method.learner == "policy-gradient"}
FEW = {"tasks_per_step": 1, "samples_per_task": 2}
CASES: list[Case] = [(name, {}) for name in METHODS] + [
    ("dmpo", FEW),  # one group, which stays whole: a learner without rows
    ("ppo", FEW | {"samples_per_task": 1}),
    ("safe", {"passes": 2, "updates_per_step": 2}),
    ("grpo", {"passes": 2, "updates_per_step": 2, "record": "all"}),
    ("srft", {"updates_per_step": 2}),
    ("dapo", {"watch_kl": False, "record": "none"}),
]


@pytest.fixture(scope="module")
def team(tmp_path_factory):
    team = LeadingTeam(ByCase(tmp_path_factory.mktemp("team"), size=2))
    try:
        team.meet()
        yield team
    finally:
        team.close()


def steps_of(name: str) -> int:
    """What parts remember, and references that are renewed, are told apart from the second step on."""
    return 2 if stateful(METHODS[name]) or METHODS[name].references else 1


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join([case[0], *map(str, case[1])]))
def test_two_learners_learn_what_one_learns(team: LeadingTeam, case: Case):
    alone = made(case)
    team.tell("begin", lambda: {"method": case[0], "settings": case[1]})
    together = made(case, team)
    for step in range(1, steps_of(case[0]) + 1):
        metrics, shared = alone.step(step), together.step(step)
        compare_gradients(gradients(together), gradients(alone))
        assert shared.keys() == metrics.keys()
        for name, value in metrics.items():
            near = math.isclose(shared[name], value, rel_tol=1e-3, abs_tol=1e-5)
            assert "second" in name or near, f"{name} of step {step}: {shared[name]} together, {value} alone"
    assert (alone.traced is None) == (together.traced is None)
    if alone.traced is not None:
        for one, other in ((together.traced.columns, alone.traced.columns), (together.traced.noted, alone.traced.noted)):
            assert one.keys() == other.keys()
            for name, column in other.items():
                torch.testing.assert_close(one[name], column, rtol=1e-3, atol=1e-4, equal_nan=True)


def compare_gradients(found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> None:
    assert found.keys() == wanted.keys()
    largest = max((float(grad.abs().max()) for grad in wanted.values()), default=0.0)
    for name, grad in wanted.items():
        torch.testing.assert_close(found[name], grad, rtol=1e-3, atol=2e-5 * largest + 2e-7)  # what cancels out rounds all the same


def test_the_cases_are_of_every_kind():
    names = [name for name, _ in CASES]
    assert any(early_columns(METHODS[name]) for name in names) and any(METHODS[name].references for name in names)
    assert {"group", "sequence", "decision"} <= {slice_scope(METHODS[name]) for name in names}
    assert any(METHODS[name].stages for name in names) and any(METHODS[name].terms for name in names)
