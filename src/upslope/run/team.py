"""The team of a run: the run alone, or with the learners it starts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from upslope.plain_data import JsonDict
from upslope.runtime.team import ALONE, Team
from upslope.runtime.team_lead import LeadingTeam, TeamPlan
from upslope.types import State

if TYPE_CHECKING:
    from upslope.run import Run
    from upslope.setting_up.base import Components


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


def bring_learners(
    team: Team, components: Components, make: Callable[[Any, Any], Any], start: Any, state: State | None, sharded: bool
) -> Any:  # fmt: skip
    """The run's own learner, with the others beside it that know the policy and all that it remembers.

    Args:
        make: The learner of a policy, and of the policy as the run began.
        start: The policy as the run began, if it is kept.
        state: What the learner remembers; None at the beginning.
        sharded: Whether each of the team holds a part of the policy.
    """
    if isinstance(team, LeadingTeam) and sharded:
        return _in_parts(team, components, make, start, state)
    learner = make(components.policy, start)
    if state is not None:
        learner.load_state(state)
    if isinstance(team, LeadingTeam):
        team.meet()
        team.tell("begin", lambda: _told(components, start, learner.state()))
    return learner


def _in_parts(
    team: LeadingTeam, components: Components, make: Callable[[Any, Any], Any], start: Any, state: State | None
) -> Any:  # fmt: skip
    """The same where the learner begins with its own part: moments that are whole nowhere need no room."""
    from upslope.policies.sharded import shard

    team.meet()
    team.tell("begin", lambda: _told(components, start, state))
    with team.together():
        learning, first = shard(components.policy, keep=True), None
        if start is not None:
            first = learning.frozen_copy()
            first.load_weights(start.weights())
        learner = make(learning, first)
    if state is not None:
        learner.load_state(state)
    return learner


def _told(components: Components, start: Any, state: State | None) -> JsonDict:
    if state is not None:
        state = state | {"rollout": {}}
        if "stage" in state:
            state["stage"] = state["stage"] | {"rollout": {}}
    return {
        "weights": components.policy.weights(),
        "start": None if start is None else start.weights(),
        "state": state,
        "keeps_references": getattr(components.rollout, "reference_cache", None) is not None,
    }
