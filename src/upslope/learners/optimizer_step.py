"""The optimiser step: Adam with a learning rate per group, the gradient norm clipped, and nothing that is not finite let in."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from upslope.errors import UserError
from upslope.learners.adam import Adam
from upslope.learners.eight_bit_adam import EightBitAdam
from upslope.learners.low_precision_adam import LowPrecisionAdam
from upslope.learners.metrics import MetricSums
from upslope.learners.nonfinite import IN_A_ROW, NonFinite, NonFiniteUpdate, broken_weights, nonfinite_update, norm_of
from upslope.learners.offloaded_adam import OffloadedAdam
from upslope.learners.parts import divided_moments, gathered_moments, in_parts, norm_of_all
from upslope.learners.phases import Phase
from upslope.learners.policy_views import PolicyViews
from upslope.runtime import torch_private
from upslope.runtime.settings import Settings
from upslope.runtime.shared_weights import checksum
from upslope.runtime.team import Team
from upslope.runtime.tensor_parts import held_here, is_part
from upslope.types import Method, Policy, State, Trajectories


class OptimizerStep:
    """Moves the policy's parameters along their gradients, and watches over both.

    Args:
        views: evaluates the rows of an update once more, where its gradient was not finite.
        phase: the steps it is for, with the optimiser if others share it.
    """

    def __init__(self, method: Method, policy: Policy, views: PolicyViews, settings: Settings, phase: Phase):
        self.policy, self.views, self.settings, self.lr_scale = policy, views, settings, phase.lr_scale
        self.optimizer = phase.optimizer or make_optimizer(method, policy, settings)
        self.step, self.skipped = 0, 0
        """The step under way, and updates in a row whose gradient was not finite, up to now."""
        self.nonfinite_update: NonFiniteUpdate | None = None
        """Rows of the step that began or ended such a series."""
        self.check_weights(None)

    def begin(self, step: int) -> None:
        """A step begins."""
        self.step, self.nonfinite_update = step, None

    def set_learning_rate(self) -> float:
        """The learning rate of the step under way, given to all groups of parameters by their scale."""
        lr = learning_rate(self.settings, self.step) * self.lr_scale
        for group in self.optimizer.param_groups:
            group["lr"] = lr * group["scale"]
        return lr

    def parameters(self) -> list[Tensor]:
        return [parameter for group in self.optimizer.param_groups for parameter in group["params"]]

    def grads(self) -> list[Tensor]:
        """Gradients of the parameters that have one."""
        return [parameter.grad for parameter in self.parameters() if parameter.grad is not None]

    def sum_grads(self) -> None:
        """Adds gradients up over the team. Those of a policy in parts are sums already, but for its heads."""
        parameters = [parameter for parameter in self.parameters() if not is_part(parameter)]
        if parameters:
            self.views.team.sum_grads(parameters)

    def norm(self, tensors: list[Tensor]) -> float:
        """The norm of gradients, or of weights, all together: the same in every process of the team."""
        return norm_of_all(tensors, self.views.team) if in_parts(self.policy) else norm_of(tensors)

    def apply(self, norm: float, sums: MetricSums) -> bool:
        """Moves the parameters along their gradients, whose norm is given; not if that is not finite."""
        finite = math.isfinite(norm)
        sums.add("skipped_updates", float(not finite), 1.0)
        if not finite:  # one infinite gradient would destroy the policy for good
            self.skipped += 1
            return False
        self.skipped = 0
        sums.add("grad_norm", norm, 1.0)
        limit = self.settings.grad_clip or math.inf
        if norm > limit:  # the small number is torch's, in `clip_grad_norm_`
            torch_private.foreach_mul_([held_here(grad) for grad in self.grads()], limit / (norm + 1e-6))
        self.optimizer.step()
        return True

    def report_skipped(self, method: Method, rows: Trajectories, needs: frozenset[str]) -> None:
        """An update was skipped: the rows of the first and of the last of a series are kept, and the last is the end."""
        if self.skipped in (1, IN_A_ROW):
            self.nonfinite_update = nonfinite_update(method, self.views, self.policy, rows, needs, self.step)
        self.check_weights(rows)
        if self.skipped >= IN_A_ROW:
            what = f"step {self.step}: the gradient was not finite in {IN_A_ROW} updates in a row, so none of them was made."
            raise NonFinite(what, "start anew with a lower --lr or --grad-clip, or look for what overflows in reward and method.")

    def check_weights(self, rows: Trajectories | None) -> None:
        """Refuses to go on with weights that are not finite: no later update mends them, and no checkpoint may hold them."""
        if rows is None:  # by each process for itself: the others may not be here yet
            whole = getattr(self.policy, "whole", None)
            held = self.parameters() if whole is None else [each for group in whole.trainable().values() for each in group]
            if math.isfinite(norm_of([held_here(each) for each in held])):
                return
            raise NonFinite("the weights are not finite before the first step.", "Give another --model or checkpoint.")
        if math.isfinite(self.norm(self.parameters())):
            return
        self.nonfinite_update = broken_weights(self.policy, rows, self.step, self.views.team)
        lr = learning_rate(self.settings, self.step) * self.lr_scale
        raise NonFinite(
            f"step {self.step}: an update at learning rate {lr:g} left weights that are not finite or about to overflow.",
            f"start anew with a lower --lr than {self.settings.lr:g}.",
        )

    def check_agreement(self, team: Team) -> None:
        """Refuses to go on where the learners of a team have come apart."""
        if team.size > 1:
            held = getattr(self.policy, "weights_in_all", self.policy.weights)()  # a part is in one process only
            found = [each["weights"] for each in team.gathered({"weights": checksum(held)})]
            if len({*found}) > 1:
                other = next(rank for rank, each in enumerate(found) if each != found[0])
                raise UserError(f"step {self.step}: learner {other} holds other weights than learner 0 after the same updates, so "
                                "that neither can be trusted. Resuming goes on from the last checkpoint.")  # fmt: skip

    def state(self) -> State:
        found = self.optimizer.state_dict()
        return gathered_moments(found, self.parameters(), self.views.team) if in_parts(self.policy) else found

    def load_state(self, saved: State) -> None:
        moments = {int(key): value for key, value in saved["state"].items()}
        if in_parts(self.policy):
            moments = divided_moments(moments, self.parameters())
        self.optimizer.load_state_dict({**self.optimizer.state_dict(), "state": moments})


def make_optimizer(method: Method, policy: Policy, settings: Settings) -> torch.optim.Optimizer:
    """AdamW over the policy's parameters, a group for each of the method's models with its own scale of the learning rate."""
    scales = {name: getattr(model, "lr_scale", 1.0) for name, model in method.models}
    groups = [
        {"params": parameters, "name": name, "scale": scales.get(name, 1.0)}
        for name, parameters in policy.trainable().items()
        if parameters
    ]
    if not groups:
        raise UserError("the policy has no parameters that could learn.")
    beta2, eps = settings.adam_beta2, settings.adam_eps
    betas, eps = (0.9, 0.999 if beta2 is None else float(beta2)), 1e-8 if eps is None else float(eps)
    how: dict[str, Any] = {"lr": 0.0, "betas": betas, "eps": eps, "weight_decay": settings.weight_decay}
    if settings.adam_states == "bfloat16":
        return LowPrecisionAdam(groups, seed=settings.seed, **how)
    if settings.adam_states == "8bit":
        return EightBitAdam(groups, **how)
    if settings.adam_states == "offload":
        return OffloadedAdam(groups, **how)
    # Updates on single decisions are many and small, and torch's own step costs more than its kernel there.
    make = Adam if policy.independent_decisions and not policy.plain else torch.optim.AdamW
    return make(groups, **how, fused=True)


def learning_rate(settings: Settings, step: int) -> float:
    """Learning rate of a step (the first is 1): a linear rise over the warm-up, then the schedule down to the floor."""
    lr, steps, warmup = settings.lr or 0.0, settings.steps or 1, settings.warmup or 0
    if step <= warmup:
        return lr * step / warmup
    floor = settings.lr_floor or 0.0
    left = 1 - (step - 1 - warmup) / max(steps - warmup, 1)
    shape = {"constant": 1.0, "linear": left, "cosine": 0.5 * (1 - math.cos(math.pi * left))}[settings.schedule or "linear"]
    return lr * (1.0 if settings.schedule == "constant" else floor + (1 - floor) * shape)
