"""A fused AdamW with few calls, for networks so small that torch's own step costs more than its kernel."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from upslope.runtime import torch_private


class Adam(torch.optim.AdamW):
    """Torch's fused AdamW, with the same state, for parameters of one device and kind; its step calls the kernel and no more.

    Torch's own step sorts parameters by device and kind, opens a profiler range and looks for compilers each time: on a network of
    a few thousand weights that is several times the kernel's work.
    """

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        fused, init_group = torch_private.fused_adamw_, torch_private.adamw_init_group
        if fused is None or init_group is None:
            super().step(closure)
            return
        with torch.no_grad():
            alike: dict[tuple[float, ...], tuple[list[Tensor], ...]] = {}
            for group in self.param_groups:
                key = (group["lr"], *group["betas"], group["weight_decay"], group["eps"])
                parameters, grads, means, squares, steps = alike.setdefault(key, ([], [], [], [], []))
                init_group(self, group, parameters, grads, means, squares, [], steps)
            for (lr, beta1, beta2, weight_decay, eps), (parameters, grads, means, squares, steps) in alike.items():
                if parameters:
                    torch_private.foreach_add_(steps, 1)
                    fused(
                        parameters,
                        grads,
                        means,
                        squares,
                        [],
                        steps,
                        lr=lr,
                        beta1=beta1,
                        beta2=beta2,
                        weight_decay=weight_decay,
                        eps=eps,
                        amsgrad=False,
                        maximize=False,
                    )

    step.hooked = True  # type: ignore[attr-defined]  # torch's sign that there is no profiler range left to wrap around it
