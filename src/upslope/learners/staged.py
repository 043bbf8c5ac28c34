"""Stages: a run in which several methods learn one after another, each by a `PolicyGradient` of its own.

They share the policy and the optimiser. A stage that is over leaves nothing else behind: the next one begins with states and
references of its own, from the policy as it is then. What is kept over a stop is therefore the phase under way.
"""

from __future__ import annotations

from collections.abc import Mapping

from upslope.learners.lessons import Lesson
from upslope.learners.nonfinite import NonFiniteUpdate
from upslope.learners.optimizer_step import make_optimizer
from upslope.learners.phases import Phase, last_steps
from upslope.learners.policy_gradient import PolicyGradient
from upslope.learners.token_trace import TracedStep
from upslope.runtime.settings import Settings
from upslope.runtime.team import ALONE, Team
from upslope.types import Method, Metrics, Policy, Rollout, State, Trajectories


class StagedLearner:
    """The stages of a method, then the method itself.

    Args:
        rollouts: of each stage, by its name.
        start: the policy as the run began, if it is kept. The method itself is compared with the one that the stages leave behind.
    """

    def __init__(self, method: Method, policy: Policy, rollout: Rollout, settings: Settings, rollouts: Mapping[str, Rollout],
                 start: Policy | None = None, team: Team = ALONE):  # fmt: skip
        self.method, self.policy, self.rollout, self.settings = method, policy, rollout, settings
        self.rollouts, self.start, self.team = rollouts, start, team
        self.optimizer = make_optimizer(method, policy, settings)
        self.ends = last_steps(method, settings.steps or 0)
        self.number, self.first = 0, 1
        """Which phase is under way, the first stage being 0, and the step it began with."""
        self.learner = self._phase_learner()
        self.last: Trajectories | None = None

    @property
    def traced(self) -> TracedStep | None:
        return self.learner.traced

    @property
    def nonfinite_update(self) -> NonFiniteUpdate | None:
        return self.learner.nonfinite_update

    @property
    def in_stage(self) -> bool:
        """Whether a stage is under way, and not yet the method itself."""
        return self.number < len(self.method.stages)

    def step(self, step: int) -> Metrics:
        """A step of the phase it belongs to; ``stage`` counts the phases from 1, the last being the method itself."""
        self._go_to(step)
        metrics = self.learner.step(step) | {"stage": self.number + 1.0}
        self.last = self.learner.last
        return metrics

    def follow(self, lesson: Lesson) -> None:
        """The same where another process of the team has gathered the rows."""
        self._go_to(lesson.step)
        self.learner.follow(lesson)

    def _go_to(self, step: int) -> None:
        while self.in_stage and step > self.ends[self.number]:
            self._begin_next(step)

    def _begin_next(self, step: int) -> None:
        if self.method.stages[self.number].fresh_optimizer:
            self.optimizer.state.clear()
        self.number, self.first = self.number + 1, step
        self.learner = self._phase_learner()
        self.learner.rollout.sync()  # rows that nobody sampled leave an engine behind

    def _phase_learner(self) -> PolicyGradient:
        """The learner of the phase under way, begun with the policy as it is now."""
        steps = self.ends[self.number] - self.first + 1
        if self.in_stage:
            stage = self.method.stages[self.number]
            phase = Phase(self.first, steps, stage.lr_scale, self.optimizer)
            own = stage.as_method(self.method)
            return PolicyGradient(own, self.policy, self.rollouts[stage.name], self.settings, self.start, phase, self.team)
        start, self.start = self.policy.frozen_copy() if self.start is not None else None, None
        phase = Phase(self.first, steps, optimizer=self.optimizer)
        method = self.method.without("stages")
        learner = PolicyGradient(method, self.policy, self.rollout, self.settings, start, phase, self.team)
        learner.references.first = None  # the run keeps another start beside its checkpoints: this one is in them
        return learner

    def before_checkpoint(self) -> None:
        self.learner.before_checkpoint()

    def state(self) -> State:
        """That of the phase under way. ``rollout`` is the method's own, with which a policy is loaded for use."""
        stage = {"number": self.number, "first": self.first, "rollout": self.learner.rollout.state() if self.in_stage else {}}
        return self.learner.state() | {"rollout": self.rollout.state(), "stage": stage}

    def load_state(self, state: State) -> None:
        stage = state["stage"]
        self.number, self.first = stage["number"], stage["first"]
        self.learner = self._phase_learner()
        self.learner.load_state(state | {"rollout": stage["rollout"]} if self.in_stage else state)
        self.rollout.load_state(state["rollout"])
