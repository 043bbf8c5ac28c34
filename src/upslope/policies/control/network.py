"""Feed-forward networks of control policies: forward and backward written out in numpy, on weights that stand in one vector.

Learning is thousands of updates on 64 decisions each, where the calls cost more than the arithmetic: an operation on so little
takes numpy less than a fifth of torch's time, and torch's graph of them costs as much again. `NetworkPass` goes forward and
backward without it; `NetworkFunction` is the same as one node of a graph, for whoever has one. Weights stand in one vector for
each group that is optimised together, so that clipping and Adam are single operations too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

LOG_TWO_PI = math.log(2 * math.pi)


class Activation(NamedTuple):
    """A function and its derivative, the latter from what the former gave where that is enough, else from what it took too."""

    call: Callable[[np.ndarray], np.ndarray]
    derivative: Callable[[np.ndarray, np.ndarray], np.ndarray]
    """Of (taken, given)."""


def _sigmoid(hidden: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-hidden.clip(-80)))  # beyond that exp overflows


def _silu_derivative(taken: np.ndarray, given: np.ndarray) -> np.ndarray:
    gate = _sigmoid(taken)
    return gate + given * (1 - gate)


ACTIVATIONS = {
    "tanh": Activation(np.tanh, lambda taken, given: 1 - given * given),
    "relu": Activation(lambda hidden: np.maximum(hidden, 0), lambda taken, given: (given > 0).astype(given.dtype)),
    "silu": Activation(lambda hidden: hidden * _sigmoid(hidden), _silu_derivative),
}


class LinearLayer(NamedTuple):
    """Views of a stack's vector; writing to them changes the network."""

    weight: Tensor
    """``[out, in]``"""
    bias: Tensor


def stack_size(widths: tuple[int, ...]) -> int:
    """Numbers in the vector of a stack with these widths."""
    return sum(below * above + above for below, above in pairwise(widths))


class LayerStack:
    """Layers that share one vector of weights, from its beginning on.

    Args:
        widths: Of the input, the hidden layers and the output.
    """

    def __init__(self, flat: Tensor, widths: tuple[int, ...], activation: Activation) -> None:
        self.flat, self.widths, self.activation = flat.detach(), widths, activation
        self.layers = [LinearLayer(*pieces) for pieces in cut_vector(flat.detach(), widths)]
        self.gradient = np.zeros(len(flat), flat.detach().numpy().dtype)
        """Of the whole vector: where `backward` writes, every time anew."""
        self._arrays = [(layer.weight.numpy(), layer.bias.numpy()) for layer in self.layers]
        self._grads = list(cut_vector(self.gradient, widths))

    def __getitem__(self, position: int) -> LinearLayer:
        return self.layers[position]

    def __iter__(self) -> Iterator[LinearLayer]:
        return iter(self.layers)

    def initialise(self, head_gain: float, random: torch.Generator) -> None:
        """Orthogonal: gain sqrt(2) inside, ``head_gain`` for the last layer; biases zero."""
        for position, (weight, bias) in enumerate(self.layers):
            nn.init.orthogonal_(weight, head_gain if position == len(self.layers) - 1 else math.sqrt(2), generator=random)
            nn.init.zeros_(bias)

    def forward(self, observation: np.ndarray) -> tuple[np.ndarray, list[tuple[np.ndarray, np.ndarray]]]:
        """The output ``[M, O]`` for observations ``[M, D]``, and what `backward` needs: each inner layer's (taken, given)."""
        *inner, (head, head_bias) = self._arrays
        given, kept = observation, []
        for weight, bias in inner:
            taken = given @ weight.T
            taken += bias
            given = self.activation.call(taken)
            kept.append((taken, given))
        output = given @ head.T
        output += head_bias
        return output, kept

    def backward(self, observation: np.ndarray, kept: list[tuple[np.ndarray, np.ndarray]], grad: np.ndarray) -> None:
        """Writes to ``gradient``, given the output's own ``[M, O]``."""
        for position in reversed(range(len(self._grads))):
            weight_grad, bias_grad = self._grads[position]
            np.matmul(grad.T, kept[position - 1][1] if position else observation, out=weight_grad)
            np.add.reduce(grad, axis=0, out=bias_grad)
            if position:
                grad = grad @ self._arrays[position][0]
                grad *= self.activation.derivative(*kept[position - 1])


def cut_vector(flat: Any, widths: tuple[int, ...]) -> Iterator[tuple[Any, Any]]:
    """Weight and bias of each layer as views of a vector, of torch or of numpy."""
    begin = 0
    for below, above in pairwise(widths):
        middle, end = begin + below * above, begin + below * above + above
        yield flat[begin:middle].reshape(above, below), flat[middle:end]
        begin = end


def forbid(output: np.ndarray, mask: np.ndarray | None) -> np.ndarray:
    """Gives choices that a mask ``[M, A]`` does not allow a logit of minus infinity, in place: probability and gradient zero.

    Args:
        output: ``[M, ...]``: the logits, or values, and whatever else stands behind them.
    """
    if mask is not None:
        output[:, : mask.shape[-1]][~mask] = -np.inf
    return output


class Categorical:
    """A categorical distribution in logits ``[M, A]``, with log-probability and entropy at the actions ``[M]`` taken."""

    def __init__(self, logits: np.ndarray, action: np.ndarray) -> None:
        shifted = logits - np.maximum.reduce(logits, -1, keepdims=True)
        self.chances = np.exp(shifted)
        total = np.add.reduce(self.chances, -1, keepdims=True)
        self.chances /= total
        self.logs = shifted - np.log(total)
        self._taken = np.arange(0, logits.size, logits.shape[-1]) + action
        self.logp = self.logs.reshape(-1)[self._taken]
        np.maximum(self.logs, np.finfo(self.logs.dtype).min, out=self.logs)  # an impossible action adds nothing to the entropy
        self.entropy = -np.add.reduce(self.chances * self.logs, -1)

    def grad(self, logp: np.ndarray | None, entropy: np.ndarray | None) -> np.ndarray:
        """Gradient in the logits, given those of log-probability and entropy."""
        found = np.zeros_like(self.chances)
        if logp is not None:
            found.reshape(-1)[self._taken] = logp
            found -= logp[:, None] * self.chances
        if entropy is not None:
            found -= entropy[:, None] * self.chances * (self.logs + self.entropy[:, None])
        return found


class MultiCategorical:
    """Independent categorical distributions side by side, in logits ``[M, sum of components]``, at ids ``[M, K]``.

    An action is all components together: its log-probability and its entropy are the sums of theirs.
    """

    def __init__(self, logits: np.ndarray, action: np.ndarray, components: tuple[int, ...]) -> None:
        ends = [0, *accumulate(components)]
        self._each = [Categorical(logits[:, low:high], action[:, k]) for k, (low, high) in enumerate(pairwise(ends))]
        self.logp = np.add.reduce([each.logp for each in self._each])
        self.entropy = np.add.reduce([each.entropy for each in self._each])

    def grad(self, logp: np.ndarray | None, entropy: np.ndarray | None) -> np.ndarray:
        """Gradient in the logits, given those of log-probability and entropy."""
        return np.concatenate([each.grad(logp, entropy) for each in self._each], -1)


class Gaussian:
    """Independent normals with means ``[M, D]`` and one spread each, at the actions ``[M, D]`` taken."""

    def __init__(self, mean: np.ndarray, log_std: np.ndarray, action: np.ndarray) -> None:
        self._inverse, self.size = np.exp(-log_std), len(log_std)
        self._distance = (action - mean) * self._inverse
        self._squares = self._distance * self._distance
        spread = np.add.reduce(log_std)
        self.logp = -0.5 * np.add.reduce(self._squares, -1) - (spread + 0.5 * LOG_TWO_PI * self.size)
        self.entropy = np.full_like(self.logp, spread + 0.5 * (1 + LOG_TWO_PI) * self.size)
        """The same for every observation."""

    def grad(self, logp: np.ndarray | None, entropy: np.ndarray | None) -> np.ndarray:
        """Gradient in the means, given those of log-probability and entropy."""
        return np.zeros_like(self._distance) if logp is None else logp[:, None] * (self._distance * self._inverse)

    def log_std_grad(self, logp: np.ndarray | None, entropy: np.ndarray | None) -> np.ndarray:
        """Gradient in ``log_std [D]``."""
        found = np.zeros_like(self._inverse)
        if logp is not None:
            found += logp @ self._squares - np.add.reduce(logp)
        if entropy is not None:
            found += np.add.reduce(entropy)
        return found


Actions = Categorical | MultiCategorical | Gaussian


def actions_at(parameters: np.ndarray, log_std: np.ndarray | None, components: tuple[int, ...], action: np.ndarray) -> Actions:
    """The distribution of actions in a network's output ``[M, A]``, at the actions taken."""
    if log_std is not None:
        return Gaussian(parameters, log_std, action)
    return MultiCategorical(parameters, action, components) if components else Categorical(parameters, action)


class NetworkPass:
    """A forward pass of a policy: the columns of the actions taken on some observations, and the backward pass to its weights.

    Args:
        stacks: By name; ``policy`` gives the distribution, every other a column of its own name.
        log_std: Of a Gaussian policy, as a view of the end of its vector.
        observation: ``[M, D]``.
        action: ``[M]`` choices, ``[M, K]`` choices of components, or ``[M, A]``.
        shape: Of each column: any that has M numbers.
        components: Choices of each component; none where an action is one choice or a vector.
        mask: ``[M, A]``, the choices that were allowed; none where all were.
    """

    def __init__(self, stacks: dict[str, LayerStack], log_std: np.ndarray | None, observation: np.ndarray, action: np.ndarray,
                 want_entropy: bool, shape: tuple[int, ...], components: tuple[int, ...] = (),
                 mask: np.ndarray | None = None) -> None:  # fmt: skip
        self.stacks, self._observation, self._kept, found = stacks, observation, {}, {}
        for name, stack in stacks.items():
            found[name], self._kept[name] = stack.forward(observation)
        parameters = found.pop("policy")
        self._distribution = actions_at(forbid(parameters, mask), log_std, components, action)
        own = (
            {"logp": self._distribution.logp, "entropy": self._distribution.entropy}
            if want_entropy
            else {"logp": self._distribution.logp}
        )
        self.columns = {name: column.reshape(shape) for name, column in (own | found).items()}

    def gradients(self, grads: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Of the stacks' vectors, given those of columns. A stack no column of which is given has none; the rest are overwritten
        the next time."""
        flat = {name: grad.reshape(-1) for name, grad in grads.items()}
        logp, entropy = flat.pop("logp", None), flat.pop("entropy", None)
        found = {}
        if logp is not None or entropy is not None:
            flat = {"policy": self._distribution.grad(logp, entropy), **flat}
        with np.errstate(all="ignore"):  # an infinite gradient is for the learner to notice
            for name, grad in flat.items():
                stack = self.stacks[name]
                stack.backward(self._observation, self._kept[name], grad if grad.ndim > 1 else grad[:, None])
                found[name] = stack.gradient
        if "policy" in found and isinstance(self._distribution, Gaussian):
            found["policy"][-self._distribution.size :] = self._distribution.log_std_grad(logp, entropy)
        return found


class NetworkFunction(torch.autograd.Function):
    """A `NetworkPass` as one node of torch's graph: its columns in their order, from the vectors of its stacks in theirs."""

    @staticmethod
    def forward(ctx: Any, done: NetworkPass, *flats: Tensor) -> tuple[Tensor, ...]:
        ctx.done = done
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*flats)  # so that torch notices if they move before the gradient is asked for
        return tuple(torch.from_numpy(column) for column in done.columns.values())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[object, ...]:
        assert len(ctx.saved_tensors) == len(ctx.done.stacks)
        given = {name: grad.numpy() for name, grad in zip(ctx.done.columns, grads, strict=True) if grad is not None}
        found = ctx.done.gradients(given)
        return None, *(torch.from_numpy(found[name].copy()) if name in found else None for name in ctx.done.stacks)
