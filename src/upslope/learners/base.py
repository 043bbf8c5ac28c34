"""Learners: what a run asks of them, and which one a method names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from upslope.errors import MethodError, did_you_mean
from upslope.learners.adam import Adam
from upslope.runtime.settings import Settings
from upslope.runtime.team import ALONE, Team
from upslope.types import Method, Metrics, State, Trajectories

if TYPE_CHECKING:
    from upslope.learners.nonfinite import NonFiniteUpdate
    from upslope.learners.token_trace import TracedStep

LEARNERS = ("policy-gradient", "actor-critic")
"""Names of the learners, as a method's ``learner`` has them."""
MEASURE = "measure"
"""In place of a learner: a method that measures data and trains nothing."""


class Learner(Protocol):
    """One method, one policy, one rollout, step by step."""

    rollout: Any
    last: Trajectories | None
    """The rows the last step learned from, annotated: for logs."""

    @property
    def traced(self) -> TracedStep | None:
        """The last step token by token, if it was recorded."""

    @property
    def nonfinite_update(self) -> NonFiniteUpdate | None:
        """Rows of the last step whose gradient was not finite, if they are worth keeping."""

    def step(self, step: int) -> Metrics:
        """Gathers, learns, remembers; the metrics of the step."""

    def before_checkpoint(self) -> None:
        """A checkpoint comes: what cannot be saved ends here."""

    def state(self) -> State:
        """All that a run needs to go on but the policy's weights."""

    def load_state(self, state: State) -> None:
        """Takes what `state` gave."""


def needs_start(method: Method, settings: Settings) -> bool:
    """Whether a copy of the first policy must be kept."""
    from upslope.learners.references import compares_with_start

    return bool(settings.watch_kl) or compares_with_start(method)


def check_learner(method: Method) -> None:
    """Refuses a method whose learner there is not, or that trains nothing."""
    if method.learner == MEASURE:
        raise MethodError(f"{method.name} measures data and trains nothing. 'upslope data describe NAME' gives its numbers.")
    if method.learner not in LEARNERS:
        near = did_you_mean(method.learner, LEARNERS)
        raise MethodError(f"{method.name} names the learner {method.learner!r}.{near} There are {', '.join(LEARNERS)}.")


def make_learner(
    method: Method,
    policy: Any,
    rollout: Any,
    settings: Settings,
    start: Any = None,
    stage_rollouts: Mapping[str, Any] | None = None,
    team: Team = ALONE,
) -> Learner:
    """The learner that a method names.

    Args:
        stage_rollouts: the rollouts of its stages, by their names.
        team: the processes that learn together, where the learner can be one of several.
    """
    check_learner(method)
    if method.learner == "actor-critic":
        from upslope.learners.actor_critic import ActorCritic

        return ActorCritic(method, policy, rollout, settings, start)
    if method.stages:
        from upslope.learners.staged import StagedLearner

        return StagedLearner(method, policy, rollout, settings, stage_rollouts or {}, start, team)
    from upslope.learners.policy_gradient import PolicyGradient

    return PolicyGradient(method, policy, rollout, settings, start, team=team)


def hold_updates(learner: Learner, until: Callable[[], None]) -> Callable[[], list[Tensor]]:
    """Has every update of a learner call ``until`` before it moves anything.

    Returns:
        What gives the tensors that nothing but an update moves: weights and the optimiser's moments. Of learners whose updates are
        many and small there are none, and they wait for nothing.
    """
    optimizer = getattr(learner, "optimizer", None)
    if not isinstance(optimizer, torch.optim.Optimizer) or isinstance(optimizer, Adam):
        return list
    optimizer.register_step_pre_hook(lambda *_: until())

    def still() -> list[Tensor]:
        weights = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        held = [value for state in optimizer.state.values() for value in state.values()]
        return weights + [value for value in held if isinstance(value, Tensor)]

    return still
