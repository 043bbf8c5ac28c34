"""AdamW whose moments are held in eight bits: two bytes a parameter where float32 takes eight.

Moments are cut into blocks of 256 numbers (Dettmers et al., 8-bit Optimizers via Block-wise Quantization, arXiv 2110.02861). Each
block has a scale in float32, its largest magnitude, and each of its numbers is held as the code of one of 256 values between -1 and
1, the nearest to its share of the scale; they lie the closer to each other the nearer they are to zero. An update takes the moments
before they are rounded. Nothing is drawn at random.

Values, rounding and what stays in float32 are those of torchao 0.18's ``AdamW8bit``, with three departures: a last block may be
short, bias corrections are computed in double precision, and **a second moment is never rounded to zero**. It would be, where a
gradient is two thousand times smaller than the largest of its block, while the first moment is still there: with the next gradient
that is zero, as of a token that is not in the batch, a weight would move by thousands of times the learning rate. Held as the
smallest value there is, it can only shorten steps.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.optim.adamw import adamw

from upslope.errors import UserError
from upslope.policies.forward.dynamic_map import dynamic_map
from upslope.policies.forward.triton import launch
from upslope.types import State

BLOCK = 256
"""Numbers with a scale of their own."""
FEWEST = 4096
"""Of a parameter; moments of a smaller one, such as a norm's weight, stay in float32."""
CHUNK = 2**20
"""Numbers that are worked on at once without a kernel, whole blocks: each takes some thirty bytes meanwhile."""
SMALLEST_SCALE = 1e-12


class Moment(NamedTuple):
    """Some numbers in eight bits: the codes of their values, and the scales of their blocks."""

    codes: Tensor
    scales: Tensor

    @staticmethod
    def of(state: State, name: str) -> Moment:
        return Moment(state[name].view(-1), state[f"{name}_scale"])

    def part(self, start: int) -> Moment:
        """The chunk that begins there."""
        blocks = slice(start // BLOCK, (start + CHUNK) // BLOCK)
        return Moment(self.codes[start : start + CHUNK], self.scales[blocks])


class EightBitAdam(torch.optim.AdamW):
    """As torch's AdamW, with moments in eight bits. Parameters and the arithmetic of an update stay in float32."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            learned = [parameter for parameter in group["params"] if parameter.grad is not None]
            small = [parameter for parameter in learned if not in_eight_bits(parameter)]
            if small:
                _move_in_float32(small, [self.make_state(parameter) for parameter in small], group)
            for parameter in learned:
                state = self.make_state(parameter)
                state["step"] += 1
                if in_eight_bits(parameter):
                    _move(parameter, state, group)

    def make_state(self, parameter: Tensor) -> State:
        """What is held of a parameter; made if it is not there."""
        state = self.state[parameter]
        if not state:
            low = in_eight_bits(parameter)
            state["step"] = torch.zeros(())
            for name in ("exp_avg", "exp_avg_sq"):
                dtype = torch.uint8 if low else torch.float32
                state[name] = torch.zeros_like(parameter, dtype=dtype, memory_format=torch.contiguous_format)
                if low:  # whatever value a code stands for, it is zero times
                    state[f"{name}_scale"] = torch.zeros(-(-parameter.numel() // BLOCK), device=parameter.device)
        return state

    def load_state_dict(self, state_dict: State) -> None:
        """Torch would cast codes to the parameters' precision."""
        super().load_state_dict({**state_dict, "state": {}})
        several = [parameter for group in self.param_groups for parameter in group["params"]]
        for number, saved in state_dict["state"].items():
            held = self.make_state(several[int(number)])
            if kinds(saved) != kinds(held):
                raise UserError(f"the saved moments of parameter {number} are not those of --adam-states 8bit: {kinds(saved)} in "
                                f"place of {kinds(held)}. Give the --adam-states they were saved with.")  # fmt: skip
            for name, value in saved.items():
                held[name].copy_(value)


def kinds(state: State) -> dict[str, str]:
    """What is held, in words."""
    return {name: f"{str(value.dtype)[6:]} {list(value.shape)}" for name, value in sorted(state.items())}


def in_eight_bits(parameter: Tensor) -> bool:
    """Whether a parameter is large enough for it."""
    return parameter.numel() >= FEWEST


def _move_in_float32(several: list[Tensor], states: list[State], group: State) -> None:
    """An update of parameters whose moments are float32, by torch's own kernel; their steps are still those before it."""
    beta1, beta2 = group["betas"]
    # Where the kernel reads them; it counts these up.
    steps = [torch.full((), float(state["step"]), device=each.device) for each, state in zip(several, states, strict=True)]
    grads = [each.grad for each in several if each.grad is not None]
    means, squares = ([state[name] for state in states] for name in ("exp_avg", "exp_avg_sq"))
    adamw(
        several, grads, means, squares, [], steps, fused=True, amsgrad=False, maximize=False, beta1=beta1, beta2=beta2,
        lr=group["lr"], weight_decay=group["weight_decay"], eps=group["eps"],
    )  # fmt: skip


def _move(parameter: Tensor, state: State, group: State) -> None:
    """An update of a parameter whose moments are in eight bits."""
    beta1, beta2 = group["betas"]
    step = int(state["step"])
    numbers = {
        "lr": group["lr"] / (1 - beta1**step), "first": 1 - beta1, "second": 1 - beta2, "correction": (1 - beta2**step) ** 0.5,
        "eps": group["eps"], "decay": 1 - group["lr"] * group["weight_decay"],
    }  # fmt: skip
    assert parameter.grad is not None
    held, grad = parameter.view(-1), parameter.grad.view(-1)
    mean, square = Moment.of(state, "exp_avg"), Moment.of(state, "exp_avg_sq")
    if launch.helps(parameter):
        launch.adam_8bit(held, grad, *mean, *square, tables(parameter.device), **numbers)
        return
    for start in range(0, len(held), CHUNK):
        here = slice(start, start + CHUNK)
        move(held[here], grad[here], mean.part(start), square.part(start), **numbers)


def move(
    parameter: Tensor, grad: Tensor, mean: Moment, square: Moment, lr: float, first: float, second: float, correction: float,
    eps: float, decay: float,
) -> None:  # fmt: skip
    """An update of some flat numbers, in place.

    Args:
        lr: divided by the first moment's bias correction; ``correction`` is the root of the second's.
        first, second: the weights of the gradient and of its square in their means.
        decay: what weight decay leaves of a parameter.
    """
    signed, unsigned = tables(parameter.device)
    grad = grad.to(torch.float32)
    average = dequantized(mean, signed).lerp_(grad, first)
    squares = dequantized(square, unsigned).lerp_(grad.square(), second)
    quantize(average, signed, mean)
    quantize(squares, unsigned, square)
    parameter.mul_(decay).addcdiv_(average, squares.sqrt_().div_(correction).add_(eps), value=-lr)


def dequantized(moment: Moment, table: Tensor) -> Tensor:
    """The numbers ``[N]`` that codes stand for."""
    found = table[0].index_select(0, moment.codes.int())
    whole = len(found) // BLOCK * BLOCK
    found[:whole].view(-1, BLOCK).mul_(moment.scales[: whole // BLOCK, None])
    found[whole:].mul_(moment.scales[whole // BLOCK :])  # one scale, or nothing at all
    return found


def quantize(x: Tensor, table: Tensor, moment: Moment) -> None:
    """Writes the codes and scales that stand for numbers ``[N]``.

    A number's code is that of the nearest value, of two that are equally near the larger one's; of second moments only zero is held
    as zero. What counts is the distance as float32 has it.
    """
    rows = F.pad(x, (0, -len(x) % BLOCK)).view(-1, BLOCK)
    scales = rows.abs().amax(1).clamp_min_(SMALLEST_SCALE)
    shares = (rows / scales[:, None]).view(-1)[: len(x)]
    values, halves = table
    # The largest value that is not above; of what is below all of them, the first.
    codes = torch.bucketize(shares, values, out_int32=True, right=True).sub_(1).clamp_min_(0)
    above = shares.sub_(values.index_select(0, codes)) >= halves.index_select(0, codes)
    moment.codes.copy_(codes.add_(above))
    moment.scales.copy_(scales)


@functools.cache
def tables(device: torch.device) -> Tensor:
    """For each code its value, and how far above it numbers are the next one's ``[2, 2, 256]``: from half way on, but from the zero
    of second moments at once. Of first moments, and of second ones."""
    values = torch.stack([dynamic_map(signed=True), dynamic_map(signed=False)])
    halves = F.pad(values.diff() * 0.5, (0, 1), value=torch.inf)
    halves[1, 0] = torch.finfo(torch.float32).tiny
    return torch.stack([values, halves], 1).contiguous().to(device)
