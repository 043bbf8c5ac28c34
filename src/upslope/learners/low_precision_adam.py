"""AdamW whose moments are held in bfloat16: four bytes a parameter where float32 takes eight.

A moment moves by a thousandth of itself in an update, which is less than bfloat16 can tell apart: rounded to the nearest it would
never move. It is rounded up or down at random instead, up the more often the closer it is to the upper neighbour, so that the mean
is right. The random bits follow from the seed, the number of the update and the parameter alone: a resumed run rounds alike.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from upslope.policies.forward.triton import launch
from upslope.runtime.seeding import generator, mix
from upslope.types import State

CHUNK = 2**22
"""Numbers that are worked on at once without a kernel: each takes some twenty bytes meanwhile."""


class LowPrecisionAdam(torch.optim.AdamW):
    """As torch's AdamW, with moments in bfloat16. Parameters and the arithmetic of an update stay in float32.

    Args:
        seed: of the random bits.
    """

    def __init__(self, groups: Any, *, seed: int, **how: Any):
        super().__init__(groups, **how)
        self.seed = seed

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        number = -1
        for group in self.param_groups:
            for parameter in group["params"]:
                number += 1
                if parameter.grad is None:
                    continue
                state = self.make_state(parameter)
                state["step"] += 1
                self._move(parameter, state, group, int(state["step"]), number)

    def make_state(self, parameter: Tensor) -> State:
        """What is held of a parameter; made if it is not there."""
        state = self.state[parameter]
        if not state:
            state["step"] = torch.zeros(())
            for name in ("exp_avg", "exp_avg_sq"):
                state[name] = torch.zeros_like(parameter, dtype=torch.bfloat16, memory_format=torch.contiguous_format)
        return state

    def _move(self, parameter: Tensor, state: State, group: State, step: int, number: int) -> None:
        beta1, beta2 = group["betas"]
        numbers = {
            "lr": group["lr"] / (1 - beta1**step), "beta1": beta1, "beta2": beta2, "correction": (1 - beta2**step) ** 0.5,
            "eps": group["eps"], "decay": 1 - group["lr"] * group["weight_decay"],
        }  # fmt: skip
        assert parameter.grad is not None
        several = (parameter, parameter.grad, state["exp_avg"], state["exp_avg_sq"])
        held, grad, mean, square = (tensor.view(-1) for tensor in several)
        if launch.helps(parameter):
            launch.adam(held, grad, mean, square, **numbers, seed=mix(self.seed, "adam", step, number) % 2**31)
            return
        random = generator(self.seed, "adam", step, number)
        for start in range(0, len(held), CHUNK):
            here = slice(start, start + CHUNK)
            bits = torch.randint(2**16, (2, len(held[here])), generator=random, dtype=torch.int32).to(held.device)
            move(held[here], grad[here], mean[here], square[here], **numbers, bits=bits)

    def load_state_dict(self, state_dict: State) -> None:
        """Torch casts what it loads to the parameters' precision; the way back loses nothing."""
        super().load_state_dict(state_dict)
        for state in self.state.values():
            for name in ("exp_avg", "exp_avg_sq"):
                if name in state:
                    state[name] = state[name].to(torch.bfloat16)


def move(
    parameter: Tensor, grad: Tensor, mean: Tensor, square: Tensor, lr: float, beta1: float, beta2: float, correction: float,
    eps: float, decay: float, bits: Tensor,
) -> None:  # fmt: skip
    """An update of some flat numbers, in place.

    Args:
        lr: divided by the first moment's bias correction; ``correction`` is the root of the second's.
        decay: what weight decay leaves of a parameter.
        bits: 16 random ones for each number, of the first and of the second moment ``[2, N]``.
    """
    grad = grad.to(torch.float32)
    first = mean.to(torch.float32).lerp_(grad, 1 - beta1)
    second = square.to(torch.float32).mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
    parameter.mul_(decay).addcdiv_(first, second.sqrt().div_(correction).add_(eps), value=-lr)
    mean.copy_(rounded(first, bits[0]))
    square.copy_(rounded(second, bits[1]))


def rounded(x: Tensor, bits: Tensor) -> Tensor:
    """Float32 numbers that bfloat16 can hold: each of the two next to ``x``, the closer the more often, by 16 random bits."""
    whole = x.view(torch.int32) + bits
    return (whole & -(2**16)).view(torch.float32)
