"""Interfaces: what a learner asks of a policy and of a rollout, and a rollout of an engine.

A learner knows a `Policy`, a `Rollout` and a method, and nothing about language models or environments. What only some of them
can do is an interface of its own (`DecisionPolicy`, `TaskRollout`); a method that needs it is refused where it is missing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from torch import Tensor, nn

from upslope.types.assignment import Assignment, RolloutRequest
from upslope.types.batch import Trajectories, View
from upslope.types.part import Metrics
from upslope.types.sampling import Completions, Sampling

if TYPE_CHECKING:
    from upslope.types.probes import Probe
    from upslope.types.slots import ModelView, State


class Policy(Protocol):
    """What is trained, and what it is compared with: it says how likely recorded decisions are."""

    independent_decisions: bool
    """Whether a decision's columns depend on no other decision of its row: then it is a `DecisionPolicy`."""

    sized_in_decisions: bool
    """Whether the size of an update is given in decisions, though rows are learned from whole: what controllers with memory do.
    A policy that does not say it is, if its decisions are independent."""

    plain: bool
    """Take no fast path of ours: whatever is slower and surely right."""

    @property
    def pads(self) -> bool:
        """Whether a slice costs as much as its longest row in each row."""

    def evaluate(self, rows: Trajectories, needs: frozenset[str] = ..., *, view: ModelView | None = None,
                 probes: tuple[Probe, ...] = ()) -> View:  # fmt: skip
        """Columns ``[N, T]`` of the rows, with gradient where it is enabled; ``logp`` always comes.

        Args:
            needs: Further columns: ``"entropy"``, names of heads (``"value"``) and of ``probes``.
            view: The method's view of the model, if it has one.
            probes: What else to compute inside the forward pass.
        """

    def slice_tokens(self, rows: Trajectories) -> Tensor:
        """What each row costs of the `token_budget` ``[N]``."""

    def token_budget(self) -> int:
        """What a slice may cost, so that it fits into memory with its gradient."""

    def trainable(self) -> dict[str, list[nn.Parameter]]:
        """Parameters by what they belong to: ``policy``, and each head by its name."""

    def frozen_copy(self) -> Policy:
        """The policy as it is now, without gradient."""

    def weights(self) -> dict[str, Tensor]:
        """All weights that training may change, by name, not copied and without gradient."""

    def load_weights(self, weights: dict[str, Tensor]) -> None:
        """Takes what `weights` gave, in place."""


class ForwardPass(Protocol):
    """A forward pass that can be followed by a backward pass."""

    @property
    def columns(self) -> Mapping[str, np.ndarray]:
        """Of each decision: what `Policy.evaluate` gives."""


class DecisionPolicy(Policy, Protocol):
    """A policy whose decisions do not depend on one another, such as a feed-forward network.

    Its updates are many and small, so it goes forward and backward on arrays, without torch's graph.
    """

    def forward_pass(self, rows: Trajectories, needs: frozenset[str]) -> ForwardPass:
        """The columns of `evaluate`, as arrays."""

    def backward_pass(self, done: object, grads: Mapping[str, np.ndarray]) -> float:
        """Sets the parameters' gradients, given those of a forward pass's columns, and returns the norm of all together."""


class Rollout(Protocol):
    """Where rows come from."""

    provides: frozenset[str]
    """Columns its rows have beyond the basic ones."""
    resumes_anywhere: bool
    """Whether a run can go on after any step; otherwise only from one at which the rollout restarts."""
    traced: bool
    """Whether single decisions are worth recording, for people to look at."""

    def assign(self, request: RolloutRequest) -> list[Assignment]:
        """Decides what is sampled for a request, with the states and weights as they are now, and has it done; what is handed out
        for that, if anything is."""

    def assigned(self, step: int, attempt: int = 0) -> bool:
        """Whether a step's rows were assigned and not taken yet."""

    def take(self, step: int, attempt: int = 0) -> Trajectories:
        """The rows that were assigned, groups in order, once all are there."""

    def metrics(self) -> Metrics:
        """Of what was sampled since the last call. ``tokens`` and ``samples`` replace the counts of decisions and of rows."""

    def sync(self) -> None:
        """The policy's weights have changed: sample with them from now on."""

    def restart(self, step: int) -> None:
        """Begin afresh at this step, in the same way whatever ran before."""

    def state(self) -> State:
        """What a checkpoint keeps."""

    def load_state(self, state: State) -> None:
        """Go on from a saved state; `restart` must follow."""


class TaskRollout(Rollout, Protocol):
    """A rollout over many tasks, which can be asked for certain ones: what filters that refill, curricula and data parts need."""

    def teacher(self, rows: Trajectories) -> Trajectories:
        """A reference answer to the task of each group, scored, with nobody's log-probabilities."""

    def join(self, batches: list[Trajectories]) -> Trajectories:
        """Several batches as one."""

    def sample(self, turns: Sequence[Any], numbers: Any, by: Any = None) -> Trajectories:
        """Answers to further turns of the step; ``numbers`` counts what they are drawn with, ``by`` samples in place of the
        policy."""

    def written(self, turns: Sequence[Any], texts: Sequence[str], numbers: Any) -> Trajectories:
        """Rows as if these turns had been answered so."""

    def problems(self, rows: Trajectories) -> list[Any]:
        """The problem of each row."""


class Engine(Protocol):
    """Whatever continues prompts: the torch engine, vLLM, a server."""

    def generate(
        self,
        prompts: Sequence[list[int]],
        n: int | Sequence[int],
        sampling: Sampling,
        uniforms: Tensor,
        limits: Sequence[int] | None = None,
        keep: bool = False,
    ) -> Completions:
        """Continues each prompt ``n`` times, or each as often as ``n`` says of it.

        Args:
            prompts: Ids to continue, of any lengths. The same prompt twice is computed once.
            n: Completions per prompt; a sequence has the number of each.
            sampling: How tokens are drawn.
            uniforms: ``[R, max_tokens]`` numbers in [0, 1), a row for each completion: the only randomness there is.
            limits: The most tokens the completions of each prompt may have, where some have less room than ``max_tokens``.
            keep: The policy will learn from these answers as they are: activations may be kept for that.
        """

    def sync(self, policy: Any) -> None:
        """Continue with this policy's weights from now on."""
