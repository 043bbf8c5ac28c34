"""Record and replay: torch's operations are written down once and then repeated in numpy, thousands of times.

A method's loss on 64 decisions is some two hundred operations on columns of 64 numbers, forward and backward. Torch and the parts'
own Python cost about ten times what numpy takes for the same arithmetic. `Tape` watches one run below autograd, so the gradient's
operations are on it too; `Tape.program` turns it into a straight line of numpy calls: what does not depend on the inputs is
computed once, what is computed twice or never read is left out.

Only what is certain is repeated. An operation that is not in `KERNELS`, one that reads a value into Python (a branch on data) or
that changes what something else still looks at makes the program ``None``, and the caller goes on as the method is written.

The line of calls is compiled by `exec`, since a loop over it in Python would cost as much again as the calls. What is compiled is
made here of generated names (``x0``, ``c3``, ``v7``), brackets and ``.astype``; no text of a method, a knob or a file enters it.
``--plain`` does without.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from upslope.plain_data import JsonDict
from upslope.runtime import torch_private


class Program(NamedTuple):
    """A run that can be repeated."""

    reads: list[int]
    """Which of the inputs it takes: those that matter."""
    run: Callable[..., tuple[Any, ...]]
    """Arrays of those inputs to arrays (or numbers of numpy) in the order of the outputs."""

    def __call__(self, *arrays: np.ndarray) -> tuple[Any, ...]:
        with np.errstate(all="ignore"):  # infinities are no news to a method
            return self.run(*arrays)


class Tape(torch_private.DispatchMode):  # type: ignore[misc,name-defined]
    """Remembers every operation while it is entered."""

    def __init__(self) -> None:
        super().__init__()
        self.done: list[tuple[str, tuple[Any, ...], JsonDict, Any]] = []
        """Name, arguments and result. All tensors are kept, so that an ``id`` names one of them."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.done.append((func.name().removeprefix("aten::"), args, kwargs or {}, result))
        return result

    def program(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Program | None:
        """The run as a function of these inputs, or ``None`` where that is not certain."""
        if isinstance(self, torch_private.NoDispatchMode):
            return None
        try:
            return _Writer(inputs).write(self.done, outputs)
        except _Uncertain:
            return None


class _Uncertain(Exception):
    """The run cannot be repeated from its tape alone."""


class _Writer:
    """Goes through a tape with the values at hand and writes down one line per operation that depends on the inputs."""

    def __init__(self, inputs: Sequence[Tensor]) -> None:
        self.inputs = [f"x{i}" for i in range(len(inputs))]
        self.names = {id(tensor): name for tensor, name in zip(inputs, self.inputs, strict=True)}
        if len(self.names) < len(inputs):
            raise _Uncertain  # one tensor in two places now need not be one the next time
        self.values: JsonDict = {name: tensor.detach().numpy() for name, tensor in zip(self.inputs, inputs, strict=True)}
        self.varies = set(self.inputs)
        self.storages: dict[int, set[int]] = {}
        for tensor in inputs:
            self._note(tensor)
        self.known: dict[Any, str] = {}
        """What a call with these arguments is called already."""
        self.lines: dict[str, tuple[str, list[str]]] = {}
        """The line of each name, and the names it reads."""

    def write(self, done: list[tuple[str, tuple[Any, ...], JsonDict, Any]], outputs: Sequence[Tensor]) -> Program:
        with np.errstate(all="ignore"):
            for name, args, kwargs, result in done:
                self._operation(name, args, kwargs, result)
        returned = [self._name(tensor) for tensor in outputs]
        for name, tensor in zip(returned, outputs, strict=True):
            found = np.asarray(self.values[name])
            if not np.allclose(found, tensor.detach().numpy(), rtol=1e-3, atol=1e-6, equal_nan=True):
                raise _Uncertain
        return self._compiled(returned)

    def _compiled(self, returned: list[str]) -> Program:
        read = set(returned)
        kept = []
        for name, (line, reads) in reversed(self.lines.items()):
            if name in read:
                kept.append(line)
                read.update(reads)
        body = [*reversed(kept), f"return ({' '.join(f'{name},' for name in returned)})"]
        taken = [position for position, name in enumerate(self.inputs) if name in read]
        head = f"def run({', '.join(self.inputs[position] for position in taken)}):"
        scope = {name: value for name, value in self.values.items() if name not in self.lines and name not in self.inputs}
        exec("\n    ".join([head, *body]), scope)  # made of names alone: what they stand for is in the scope
        return Program(taken, scope["run"])

    def _operation(self, name: str, args: tuple[Any, ...], kwargs: JsonDict, result: Any) -> None:
        base, _, overload = name.partition(".")
        if base.startswith("profiler::"):
            return
        if not isinstance(result, Tensor):
            raise _Uncertain  # a value is read into Python, or there are several results
        in_place = base.endswith("_") and not base.endswith("__")
        if in_place:
            self._changed(result)
        arguments = [self._argument(value) for value in args]
        if "rounding_mode" in kwargs or kwargs.get("alpha", 1) != 1:
            raise _Uncertain
        reads = [reading for _, readings in arguments for reading in readings]
        if base in FROM_SHAPES or not any(reading in self.varies for reading in reads):
            self._bind(result, self._constant(result.detach().numpy().copy()))
            return
        self._bind(result, self._line(base.rstrip("_") if in_place else base, overload, args, arguments, reads, result))

    def _line(self, base: str, overload: str, args: Any, arguments: Any, reads: list[str], result: Tensor) -> str:
        """The name of an operation's value, computed here to see that it is of the right kind."""
        shape, dtype = tuple(result.shape), result.detach().numpy().dtype
        text = self._call(base, overload, args, [text for text, _ in arguments], shape, dtype)
        try:
            value = eval(text, self.values)
        except (TypeError, ValueError, AttributeError) as error:
            raise _Uncertain from error  # a variant whose arguments the kernel does not know
        if np.shape(value) != shape:
            full = self._constant(np.ones(shape, dtype))
            text, value = f"{self._constant(np.multiply)}({text}, {full})", value * np.ones(shape, dtype)
        if np.asarray(value).dtype != dtype:
            text, value = f"{text}.astype({self._constant(dtype)})", np.asarray(value).astype(dtype)[()]
        if text in self.values:
            return text
        if text in self.known:
            return self.known[text]
        name = self.known[text] = f"v{len(self.lines)}"
        self.lines[name] = (f"{name} = {text}", reads)
        self.values[name] = value
        self.varies.add(name)
        return name

    def _call(self, base: str, overload: str, args: Any, texts: list[str], shape: tuple[int, ...], dtype: np.dtype) -> str:
        """The operation in numpy's words, but for kind and shape; a name alone where it changes no value."""
        if base in COPIES:
            return texts[1 if base == "copy" else 0]
        if base in RESHAPED:
            same = np.shape(self.values[texts[0]]) == shape
            return texts[0] if same else f"{self._constant(np.reshape)}({texts[0]}, {self._constant(shape)})"
        if base not in KERNELS or (overload in ("dim", "other") and base in ("min", "max")):
            raise _Uncertain
        unchanged = self._unchanged(base, texts, shape, dtype)
        if unchanged is not None:
            return unchanged
        kernel = KERNELS[base]
        if base == "sum" and args[0].dtype == torch.bool and len(args) == 1:
            kernel = np.count_nonzero
        elif base == "pow" and args[1] == 2:
            texts, kernel = texts[:1], np.square
        elif base in REDUCED:
            texts = texts[:1] + [self._constant(piece) for piece in _axes(args)]
        return f"{self._constant(kernel)}({', '.join(texts)})"

    def _unchanged(self, base: str, texts: list[str], shape: tuple[int, ...], dtype: np.dtype) -> str | None:
        """The argument that an operation gives back as it is, because another is a constant that changes nothing."""

        def all_are(text: str, value: Any) -> bool:
            return text in self.values and text not in self.varies and bool(np.all(np.equal(self.values[text], value)))

        if base == "where":
            chosen = [texts[1]] if all_are(texts[0], True) else [texts[2]] if all_are(texts[0], False) else []
        else:
            chosen = [texts[0]] if base in NEUTRAL and all_are(texts[1], NEUTRAL[base]) else []
            if base in NEUTRAL and base not in ("sub", "div", "pow") and all_are(texts[0], NEUTRAL[base]):
                chosen = [texts[1]]
        for text in chosen:
            if text in self.varies and np.shape(self.values[text]) == shape and np.asarray(self.values[text]).dtype == dtype:
                return text
        return None

    # -- names -----------------------------------------------------------------------------------------------------------

    def _argument(self, value: Any) -> tuple[str, list[str]]:
        """How an argument is written, and the names it reads."""
        if isinstance(value, Tensor):
            name = self._name(value)
            return name, [name]
        if isinstance(value, list | tuple) and any(isinstance(item, Tensor) for item in value):
            names = [self._name(item) for item in value]
            return f"[{', '.join(names)}]", names
        return self._constant(value), []

    def _name(self, tensor: Tensor) -> str:
        if id(tensor) not in self.names:
            self._note(tensor)
            self.names[id(tensor)] = self._constant(tensor.detach().numpy().copy())  # from outside: fixed while the program serves
        return self.names[id(tensor)]

    def _constant(self, value: Any) -> str:
        key: tuple[Any, ...]
        if isinstance(value, np.ndarray):
            key = ("array", value.dtype.str, value.shape, value.tobytes())
        else:
            key = ("call", id(value)) if callable(value) else (type(value).__name__, repr(value))
        if key not in self.known:
            self.known[key] = f"c{len(self.known)}"
            self.values[self.known[key]] = value
        return self.known[key]

    def _bind(self, tensor: Tensor, name: str) -> None:
        self.names[id(tensor)] = name
        self._note(tensor)

    def _note(self, tensor: Tensor) -> None:
        self.storages.setdefault(tensor.untyped_storage().data_ptr(), set()).add(id(tensor))

    def _changed(self, tensor: Tensor) -> None:
        """A tensor is written to in place: it gets a new value and no other may look at the same memory."""
        if id(tensor) not in self.names or self.storages[tensor.untyped_storage().data_ptr()] != {id(tensor)}:
            raise _Uncertain
        if self.names[id(tensor)] in self.inputs:
            raise _Uncertain


# -- what each operation is in numpy -------------------------------------------------------------------------------------------


def _axes(args: tuple[Any, ...]) -> tuple[Any, None, None, bool]:
    """The axes of a reduction and whether they are kept, with all that stands between them in numpy's reductions."""
    axis = args[1] if len(args) > 1 else None
    axes = None if axis is None or axis == [] else tuple(axis) if isinstance(axis, list | tuple) else (int(axis),)
    return axes, None, None, bool(args[2]) if len(args) > 2 else False


def _mean(array: Any, axis: Any, dtype: None, out: None, keepdims: bool) -> Any:
    total = np.add.reduce(array, axis=axis, keepdims=keepdims)  # type: ignore[call-overload]
    return total / array.dtype.type(array.size // max(total.size, 1))


def _clamp(array: Any, low: Any = None, high: Any = None) -> Any:
    if low is not None:
        array = np.maximum(array, low)
    return array if high is None else np.minimum(array, high)


def _sigmoid(array: Any) -> Any:
    return 1 / (1 + np.exp(-array))


def _softplus(array: Any, beta: float = 1, threshold: float = 20) -> Any:
    return np.where(array * beta > threshold, array, np.log1p(np.exp(array * beta)) / beta)


def _softplus_backward(grad: Any, array: Any, beta: float, threshold: float) -> Any:
    return np.where(array * beta > threshold, grad, grad * _sigmoid(array * beta))


FROM_SHAPES = {"zeros_like", "ones_like", "new_zeros", "new_ones", "scalar_tensor", "zeros", "ones", "arange"}
"""Their result does not depend on their tensors' values."""
RESHAPED = {"view", "_unsafe_view", "reshape", "unsqueeze", "squeeze", "alias", "detach", "lift_fresh", "_reshape_alias"}
COPIES = {"_to_copy", "clone", "copy", "expand"}
"""The same values: kind and shape are those of the result."""
REDUCED = {"sum", "mean", "any", "all", "amin", "amax", "min", "max"}
NEUTRAL = {"mul": 1, "div": 1, "pow": 1, "add": 0, "sub": 0, "bitwise_and": True, "logical_and": True, "bitwise_or": False}
"""What leaves the other operand as it is."""
KERNELS: dict[str, Callable[..., Any]] = {
    **{"add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.true_divide, "neg": np.negative},
    **{"exp": np.exp, "expm1": np.expm1, "log": np.log, "log1p": np.log1p, "sqrt": np.sqrt, "tanh": np.tanh, "abs": np.abs},
    **{"reciprocal": np.reciprocal, "rsqrt": lambda array: 1 / np.sqrt(array), "sign": np.sign, "sgn": np.sign, "pow": np.power},
    **{"minimum": np.minimum, "maximum": np.maximum, "clamp": _clamp, "clamp_min": np.maximum, "clamp_max": np.minimum},
    **{"eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal},
    **{"bitwise_and": np.bitwise_and, "bitwise_or": np.bitwise_or, "bitwise_not": np.bitwise_not, "bitwise_xor": np.bitwise_xor},
    **{"logical_and": np.logical_and, "logical_or": np.logical_or, "logical_not": np.logical_not},
    **{"isnan": np.isnan, "isinf": np.isinf, "where": np.where},
    **{"masked_fill": lambda array, mask, value: np.where(mask, value, array)},
    **{"sigmoid": _sigmoid, "sigmoid_backward": lambda grad, given: grad * given * (1 - given)},
    **{"softplus": _softplus, "softplus_backward": _softplus_backward},
    **{"sum": np.add.reduce, "any": np.logical_or.reduce, "all": np.logical_and.reduce, "mean": _mean},
    **{"amin": np.minimum.reduce, "amax": np.maximum.reduce, "min": np.minimum.reduce, "max": np.maximum.reduce},
}
"""By the operation's name, without what tells its variants apart; in-place ones are the same. Arguments as in torch's schema."""
