"""The team of a run: the run alone, or with the learners it starts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from upslope.plain_data import JsonDict
from upslope.runtime.team import ALONE, Team
from upslope.runtime.team_lead import LeadingTeam, TeamPlan

if TYPE_CHECKING:
    from upslope.run import Run


@contextmanager
def team_of(run: Run) -> Iterator[Team]:
    """The learners that the run's settings ask for, as long as the block lasts."""
    settings = run.plan.settings
    if settings.learners == 1:
        yield ALONE
        return
    assert run.components is not None
    device = getattr(run.components.policy, "device", "cpu")
    team = LeadingTeam(TeamPlan(run.path, settings.learners, settings.threads or 1, run.trust, device))
    try:
        yield team
    finally:
        team.close()


def bring_learners(team: Team, learner: Any, start: Any) -> None:
    """Gives the others the policy and all that the run's own learner remembers.

    Args:
        start: the policy as the run began, if it is kept.
    """
    if isinstance(team, LeadingTeam):
        team.meet()
        team.tell("begin", lambda: _told(learner, start))


def _told(learner: Any, start: Any) -> JsonDict:
    state = learner.state() | {"rollout": {}}
    if "stage" in state:
        state["stage"] = state["stage"] | {"rollout": {}}
    return {
        "weights": learner.policy.weights(),
        "start": None if start is None else start.weights(),
        "state": state,
        "keeps_references": getattr(learner.rollout, "reference_cache", None) is not None,
    }
