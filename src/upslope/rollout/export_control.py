"""A trained controller as one file that needs nothing of ours: ``.onnx``, or ``.pt`` (TorchScript).

The file takes raw observations ``[N, ...]`` (float32 as the environment shapes them, int64 for a Discrete space) and gives
``action``, the greedy one as the environment takes it, and ``parameters``: logits, values of the choices, or means before they are
clipped or squashed. Where actions are vectors and drawn, ``log_std`` is a third output, one for all observations or one for each.
Normalisation and clipping are inside. Before it is written it must agree with `DeployedPolicy.predict` on a thousand observations.
"""

from __future__ import annotations

import io
import math
import warnings
from collections.abc import Callable, Iterator
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor, nn

from upslope.errors import MissingExtra, UserError, did_you_mean, install_extra
from upslope.objective.networks.layers import ACTIVATIONS
from upslope.plain_data import JsonDict
from upslope.policies.control.greedy import DenseLayer, GreedyNetwork
from upslope.policies.control.network_policy import NetworkPolicy
from upslope.rollout.deployed import DeployedPolicy
from upslope.runtime.files import write_bytes
from upslope.tasks.action_masks import mask_shown

CHECKED = 1000
"""Observations on which a file must agree with the policy: half of them from episodes, half drawn wider around those."""
TOLERANCE = 1e-4
"""Largest difference of parameters and continuous actions, relative to the largest of their size; rounding is below 1e-5."""
OPSET = 18

Answer = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]
"""From observations to actions and parameters."""


class Agreement(NamedTuple):
    """How far a file is from the policy."""

    difference: float
    """Of parameters and continuous actions, relative."""
    other_actions: int
    """Discrete choices that differ although the policy was not undecided between the two."""

    @property
    def holds(self) -> bool:
        return self.difference <= TOLERANCE and self.other_actions == 0  # a NaN is not below anything


def export_control(controller: DeployedPolicy, path: Path) -> JsonDict:
    """Writes the policy to ``path``; its suffix says how.

    Raises:
        UserError: for another suffix, a path that cannot be written, or a file that would not do what the policy does.
    """
    makers = {".onnx": _onnx, ".pt": _torchscript}
    path = path.expanduser()
    if path.suffix not in makers:
        near = did_you_mean(path.suffix, makers) if path.suffix else ""
        raise UserError(f"--to {str(path)!r}: a controller is written as policy.onnx or policy.pt (TorchScript).{near}")
    if path.is_dir():
        raise UserError(f"--to {str(path)!r} is a folder; give the file to write, such as {str(path / 'policy.onnx')!r}.")
    from gymnasium import spaces

    if controller.task.layout.has_images or not isinstance(controller.observation_space, (spaces.Box, spaces.Discrete)):
        raise UserError(
            f"{controller.task.name} has observations {controller.observation_space}; only a policy on a Box of numbers or a "
            "Discrete space is written as a file. up.load(RUN).predict answers for it."
        )
    data, answer, by = makers[path.suffix](controller)
    found = compare(controller, answer, observations_to_check(controller))
    if not found.holds:
        raise UserError(
            f"{path} was not written: on {CHECKED:,} observations it would differ from the policy by {found.difference:.1e} and "
            f"choose another action {found.other_actions} times. Please report this with the run's run.toml."
        )
    try:
        write_bytes(path, data)
    except OSError as problem:
        raise UserError(f"{path} cannot be written: {problem.strerror}.") from problem
    return {"file": str(path), "bytes": len(data), "checked": CHECKED, "difference": found.difference, "checked_by": by}


# -- the check -------------------------------------------------------------------------------------------------------------


def observations_to_check(controller: DeployedPolicy, count: int = CHECKED) -> np.ndarray:
    """Observations of episodes that the policy plays, and as many drawn around them with ten times the spread."""
    space, random = controller.observation_space, np.random.default_rng(0)
    if hasattr(space, "n"):
        return int(space.start) + random.integers(0, space.n, count)
    found: list[np.ndarray] = []
    env, seed = controller.task.make_one(), 0
    try:
        observation, info = env.reset(seed=seed)
        while len(found) < count // 2:
            found.append(np.asarray(observation, np.float32))
            action, _ = controller.predict(observation, action_masks=mask_shown(env, info))
            observation, _, terminated, truncated, info = env.step(action)
            if terminated or truncated:
                seed += 1
                observation, info = env.reset(seed=seed)
    finally:
        env.close()
    played = np.stack(found)
    wide = played.mean(0) + 10 * (played.std(0) + 1e-3) * random.standard_normal((count - len(played), *space.shape))
    return np.concatenate([played, wide.astype(np.float32)])


def compare(controller: DeployedPolicy, answer: Answer, observations: np.ndarray) -> Agreement:
    """The answers of a file beside those of `DeployedPolicy.predict`."""
    wanted, _ = controller.predict(observations, deterministic=True)
    thought = controller.parameters(observations)
    action, parameters = answer(observations)
    if action.shape != wanted.shape or parameters.shape != thought.shape:
        return Agreement(float("inf"), len(observations))
    size = np.abs(thought).max() + 1e-6
    difference = float(np.abs(parameters - thought).max() / size)
    if controller.task.continuous:
        return Agreement(max(difference, float(np.abs(action - wanted).max() / max(size, np.abs(wanted).max()))), 0)
    counts, rows = np.array(controller.task.components or thought.shape[1:]), np.arange(len(thought))[:, None]
    chosen = ((each - _start(controller)).reshape(len(thought), -1) for each in (wanted, action))
    mine, its = (thought[rows, counts.cumsum() - counts + ids.clip(0, counts - 1)] for ids in chosen)
    return Agreement(difference, int((mine - its > TOLERANCE * size).any(1).sum()))


def _start(controller: DeployedPolicy) -> np.ndarray:
    """The id of the first choice, in the shape of an action; nothing for vectors."""
    return np.array(getattr(controller.action_space, "start", 0), np.int64)


# -- TorchScript -----------------------------------------------------------------------------------------------------------


class _Exported(nn.Module):
    """The controller in torch's own operations, for tracing."""

    def __init__(self, controller: DeployedPolicy) -> None:
        super().__init__()
        space, normaliser = controller.action_space, controller.observations
        self.network = network = controller.policy.greedy_network()
        self.one_hot = int(controller.observation_space.n) if hasattr(controller.observation_space, "n") else 0
        self.first = int(getattr(controller.observation_space, "start", 0))
        self.shape = tuple(space.shape)
        self.start = nn.Buffer(torch.from_numpy(_start(controller)))
        self.clip = normaliser.clip if normaliser is not None else 0.0
        mean, spread = _statistics(controller)
        self.mean, self.spread = nn.Buffer(torch.from_numpy(mean)), nn.Buffer(torch.from_numpy(spread))
        pieces = [piece for layers in network.members for layer in layers for piece in layer if piece is not None]
        self.pieces = nn.ParameterList([nn.Parameter(piece, False) for piece in pieces])
        if network.log_std is not None:
            self.log_std = nn.Buffer(network.log_std)
        if network.last != "best":
            self.low, self.high = (nn.Buffer(torch.from_numpy(np.array(end))) for end in (space.low, space.high))
        if network.last == "tanh":
            self.least, self.range = (nn.Buffer(torch.from_numpy(each)) for each in _stretch(controller))

    def forward(self, observation: Tensor) -> tuple[Tensor, ...]:
        if self.one_hot:
            hidden = nn.functional.one_hot(observation - self.first, self.one_hot).float()
        else:
            hidden = observation.reshape(observation.shape[0], -1).float()
        if self.clip:
            hidden = ((hidden.double() - self.mean) / self.spread).clamp(-self.clip, self.clip).float()
        pieces = iter(self.pieces)
        output = torch.stack([self._member(layers, hidden, pieces) for layers in self.network.members]).mean(0)
        parameters = output[:, : self.network.actions]
        if self.network.last == "best":
            each = parameters.split(self.network.components or self.network.actions, -1)
            return torch.stack([logits.argmax(-1) for logits in each], -1).reshape(-1, *self.shape) + self.start, parameters
        stretched = self.least + 0.5 * (parameters.tanh() + 1.0) * self.range if self.network.last == "tanh" else parameters
        shaped = stretched.reshape(-1, *self.shape).to(self.low.dtype)
        action = torch.maximum(torch.minimum(shaped, self.high), self.low)
        return action, parameters, *self._log_std(output)

    def _member(self, layers: tuple[DenseLayer, ...], hidden: Tensor, pieces: Iterator[Tensor]) -> Tensor:
        for layer in layers[:-1]:
            hidden = nn.functional.linear(hidden, next(pieces), next(pieces))
            if layer.scale is not None:
                hidden = nn.functional.layer_norm(hidden, hidden.shape[-1:], next(pieces), next(pieces))
            hidden = ACTIVATIONS[self.network.activation](hidden)
        return nn.functional.linear(hidden, next(pieces), next(pieces))

    def _log_std(self, output: Tensor) -> tuple[Tensor, ...]:
        if self.network.std == "none":
            return ()
        shared = self.network.std == "shared"
        return (self.log_std if shared else output[:, self.network.actions :].clamp(*self.network.log_std_bounds),)


def _stretch(controller: DeployedPolicy) -> tuple[np.ndarray, np.ndarray]:
    """The lower end and the width of the box that [-1, 1] stands for."""
    box = cast(NetworkPolicy, controller.policy).box
    assert box is not None
    return box.low, box.high - box.low


def _torchscript(controller: DeployedPolicy) -> tuple[bytes, Answer, str]:
    module = _Exported(controller).eval()
    space = controller.observation_space
    example = torch.zeros((2, *space.shape), dtype=torch.int64 if hasattr(space, "n") else torch.float32)
    example = example + int(getattr(space, "start", 0))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch would rather have other formats
        traced = torch.jit.trace(module, example)
        file = io.BytesIO()
        torch.jit.save(traced, file)
        loaded = torch.jit.load(io.BytesIO(file.getvalue()))

    def answer(observations: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        with torch.no_grad():
            action, parameters, *_ = loaded(torch.from_numpy(observations))
        return action.numpy(), parameters.numpy()

    return file.getvalue(), answer, "torch.jit"


def _statistics(controller: DeployedPolicy) -> tuple[np.ndarray, np.ndarray]:
    """Mean and spread that observations are normalised by, float64; 0 and 1 if they are not."""
    normaliser, size = controller.observations, controller.task.observation_size
    if normaliser is None:
        return np.zeros(size), np.ones(size)
    moments = normaliser.moments
    spread = np.sqrt(moments.variance + normaliser.eps) if moments.count else np.ones(size)
    return moments.mean.copy(), spread


# -- ONNX ------------------------------------------------------------------------------------------------------------------


class _Graph:
    """An ONNX graph under construction: `add` gives the name of what a node computes."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def add(self, operation: str, *inputs: str, name: str = "", **attributes: Any) -> str:
        from onnx import helper

        name = name or f"{operation.lower()}{len(self.nodes)}"
        self.nodes.append(helper.make_node(operation, list(inputs), [name], **attributes))
        return name

    def constant(self, name: str, value: np.ndarray) -> str:
        from onnx import numpy_helper

        self.constants.append(numpy_helper.from_array(np.ascontiguousarray(value), name))
        return name

    def number(self, value: float) -> str:
        return self.constant(f"number{len(self.constants)}", np.array(value, np.float32))


def _onnx(controller: DeployedPolicy) -> tuple[bytes, Answer, str]:
    try:
        import onnx
    except ImportError:
        raise MissingExtra("onnx is", install_extra("export")) from None
    from onnx import TensorProto, helper

    space, task = controller.observation_space, controller.task
    graph, network = _Graph(), controller.policy.greedy_network()
    output = _network(graph, network, _input(graph, controller))
    parameters = _columns(graph, output, 0, network.actions, "parameters")
    action = _action(graph, controller, network, parameters)
    taken = helper.np_dtype_to_tensor_dtype(np.dtype(controller.action_space.dtype)) if task.continuous else TensorProto.INT64
    outputs = [
        helper.make_tensor_value_info(action, taken, ["N", *controller.action_space.shape]),
        helper.make_tensor_value_info(parameters, TensorProto.FLOAT, ["N", task.action_size]),
    ]
    if network.std != "none":
        outputs.append(_log_std(graph, network, output))
    kind = TensorProto.INT64 if hasattr(space, "n") else TensorProto.FLOAT
    inputs = [helper.make_tensor_value_info("observation", kind, ["N", *space.shape])]
    made = helper.make_graph(graph.nodes, "policy", inputs, outputs, graph.constants)
    told, opset = f"the policy of {task.name}", [helper.make_opsetid("", OPSET)]
    model = helper.make_model(made, opset_imports=opset, producer_name="upslope", doc_string=told, ir_version=9)
    onnx.checker.check_model(model)
    data = model.SerializeToString()
    return data, *_onnx_answer(data)


def _input(graph: _Graph, controller: DeployedPolicy) -> str:
    """The observation as the network sees it, ``[N, D]``."""
    from onnx import TensorProto

    space = controller.observation_space
    if hasattr(space, "n"):
        place = graph.add("Sub", "observation", graph.constant("first", np.array(int(space.start))))
        depth, values = graph.constant("depth", np.array(int(space.n))), graph.constant("off_on", np.array([0, 1], np.float32))
        flat = graph.add("OneHot", place, depth, values)
    else:
        flat = graph.add("Flatten", "observation", axis=1)
    normaliser = controller.observations
    if normaliser is None:
        return flat
    mean, spread = _statistics(controller)
    wide = graph.add("Cast", flat, to=TensorProto.DOUBLE)  # the statistics are, and so is the difference that is taken
    scaled = graph.add("Div", graph.add("Sub", wide, graph.constant("mean", mean)), graph.constant("spread", spread))
    low, high = graph.constant("least", np.array(-normaliser.clip)), graph.constant("most", np.array(normaliser.clip))
    return graph.add("Cast", graph.add("Clip", scaled, low, high), to=TensorProto.FLOAT)


def _network(graph: _Graph, network: GreedyNetwork, observation: str) -> str:
    """What the network puts out, ``[N, O]``; the mean of its members."""
    found = []
    for member, layers in enumerate(network.members):
        hidden = observation
        for number, layer in enumerate(layers):
            place = f"{member}_{number}"
            named = [
                graph.constant(f"{kind}{place}", piece.numpy()) for kind, piece in layer._asdict().items() if piece is not None
            ]
            hidden = graph.add("Gemm", hidden, *named[:2], transB=1)
            if number == len(layers) - 1:
                break
            if named[2:]:
                hidden = graph.add("LayerNormalization", hidden, *named[2:], axis=-1, epsilon=1e-5)
            hidden = _activated(graph, network.activation, hidden)
        found.append(hidden)
    return graph.add("Mean", *found) if len(found) > 1 else found[0]


def _activated(graph: _Graph, activation: str, taken: str) -> str:
    if activation == "silu":
        return graph.add("Mul", taken, graph.add("Sigmoid", taken))
    if activation == "gelu":  # an operation of its own only in later versions
        share = graph.add("Erf", graph.add("Mul", taken, graph.number(math.sqrt(0.5))))
        return graph.add("Mul", taken, graph.add("Mul", graph.add("Add", share, graph.number(1.0)), graph.number(0.5)))
    return graph.add({"tanh": "Tanh", "relu": "Relu"}[activation], taken)


def _columns(graph: _Graph, output: str, first: int, end: int, name: str = "") -> str:
    place = len(graph.constants)
    ends = [graph.constant(f"{kind}{place}", np.array([at])) for kind, at in (("from", first), ("to", end), ("along", 1))]
    return graph.add("Slice", output, *ends, name=name)


def _log_std(graph: _Graph, network: GreedyNetwork, output: str) -> Any:
    from onnx import TensorProto, helper

    if network.log_std is not None:
        graph.add("Identity", graph.constant("log_std_value", network.log_std.numpy()), name="log_std")
        return helper.make_tensor_value_info("log_std", TensorProto.FLOAT, [network.actions])
    ends = [graph.number(end) for end in network.log_std_bounds]
    graph.add("Clip", _columns(graph, output, network.actions, 2 * network.actions), *ends, name="log_std")
    return helper.make_tensor_value_info("log_std", TensorProto.FLOAT, ["N", network.actions])


def _action(graph: _Graph, controller: DeployedPolicy, network: GreedyNetwork, parameters: str) -> str:
    from onnx import helper

    space = controller.action_space
    if network.last == "best":
        best, shape = _best(graph, network.components or (network.actions,), parameters), np.array([-1, *space.shape])
        shaped = graph.add("Reshape", best, graph.constant("shape", shape))
        return graph.add("Add", shaped, graph.constant("start", _start(controller)), name="action")
    taken = parameters
    if network.last == "tanh":
        least, width = _stretch(controller)
        share = graph.add("Mul", graph.add("Add", graph.add("Tanh", parameters), graph.number(1.0)), graph.number(0.5))
        taken = graph.add("Add", graph.constant("least_action", least), graph.add("Mul", share, graph.constant("width", width)))
    shaped = graph.add("Reshape", taken, graph.constant("shape", np.array([-1, *space.shape])))
    typed = graph.add("Cast", shaped, to=helper.np_dtype_to_tensor_dtype(np.dtype(space.dtype)))
    below = graph.add("Min", typed, graph.constant("high", np.asarray(space.high)))
    return graph.add("Max", below, graph.constant("low", np.asarray(space.low)), name="action")


def _best(graph: _Graph, components: tuple[int, ...], parameters: str) -> str:
    """The id of the largest logit, of each component the largest."""
    cut = [_columns(graph, parameters, low, high) for low, high in pairwise([0, *accumulate(components)])]
    return graph.add("Concat", *(graph.add("ArgMax", logits, axis=-1, keepdims=1) for logits in cut), axis=1)


def _onnx_answer(data: bytes) -> tuple[Answer, str]:
    """What the file itself answers: by onnxruntime where it is installed, else by onnx's own reference."""
    try:
        import onnxruntime
    except ImportError:
        import onnx
        from onnx.reference import ReferenceEvaluator

        session: Any = ReferenceEvaluator(onnx.load_from_string(data))
        by = "onnx.reference"
    else:
        session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
        by = f"onnxruntime {onnxruntime.__version__}"

    def answer(observations: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        action, parameters, *_ = session.run(None, {"observation": observations})
        return action, parameters

    return answer, by
