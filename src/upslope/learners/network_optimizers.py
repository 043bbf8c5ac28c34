"""Optimisers of several networks: Adam for each of them, at its own share of the learning rate."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from upslope.learners.adam import Adam
from upslope.learners.optimizer_step import learning_rate
from upslope.objective.networks.layers import collect_gradients
from upslope.policies.control.network_policy import NetworkPolicy, flat_modules
from upslope.runtime.settings import Settings
from upslope.types import Method, State


class NetworkOptimizers:
    """Moves one network at a time along the gradient of its own loss."""

    def __init__(self, method: Method, policy: NetworkPolicy, settings: Settings):
        self.settings, self.policy = settings, policy
        scales = {name: model.lr_scale for name, model in method.learned}
        beta2, eps = settings.adam_beta2, settings.adam_eps
        betas = (0.9, 0.999 if beta2 is None else float(beta2))
        self.scales = {name: scales.get(name, 1.0) for name in policy.networks}
        solved = {name for name, _ in method.solved}
        self.modules = {name: flat_modules(network) for name, network in policy.networks.items() if name not in solved}
        self.optimizers = {
            name: Adam(
                [module.flat for module in modules],
                lr=torch.zeros((), dtype=None if policy.device.type == "cuda" else torch.float64, device=policy.device),
                betas=betas,
                eps=1e-8 if eps is None else float(eps),
                weight_decay=settings.weight_decay,
                fused=True,
            )
            for name, modules in self.modules.items()
        }

    def set_learning_rate(self, step: int) -> float:
        """The learning rate of a step, given to each network by its scale."""
        lr = learning_rate(self.settings, step)
        for name, optimizer in self.optimizers.items():
            optimizer.param_groups[0]["lr"].fill_(lr * self.scales[name])  # a recorded step reads it where it stands
        return lr

    def apply(self, name: str, loss: Tensor) -> None:
        """One step of a network down its loss."""
        collect_gradients(loss, self.modules[name])
        limit = self.settings.grad_clip
        if limit and math.isfinite(limit):
            gradients = [module.flat.grad for module in self.modules[name] if module.flat.grad is not None]
            norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(each) for each in gradients]))
            factor = (limit / (norm + 1e-6)).clamp_max(1.0)
            for each in gradients:
                each.mul_(factor)
        self.optimizers[name].step()

    def finite(self) -> bool:
        """Whether all weights are finite."""
        total = sum(module.flat.detach().sum() for modules in self.modules.values() for module in modules)
        return bool(torch.isfinite(torch.as_tensor(total)))

    def state(self) -> State:
        return {name: optimizer.state_dict() for name, optimizer in self.optimizers.items()}

    def load_state(self, saved: State) -> None:
        for name, optimizer in self.optimizers.items():
            moments: dict[int, Any] = {int(key): value for key, value in saved[name]["state"].items()}
            optimizer.load_state_dict({**optimizer.state_dict(), "state": moments})
