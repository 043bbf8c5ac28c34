"""Multi-layer perceptrons as the networks of critics and value functions."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from upslope.errors import MethodError
from upslope.objective.base import ActionSpace, ModelNetwork
from upslope.objective.networks.encoders import DefaultEncoder, Encoder, flat_encoder
from upslope.objective.networks.flat_network import FlatNetwork
from upslope.objective.networks.layers import MLPStack
from upslope.objective.networks.pair import PairModel
from upslope.objective.networks.pieces import in_numbers
from upslope.packed import Piece


class MLPModel(nn.Module):
    """Values of states or of actions, from several perceptrons at once.

    Args:
        judges: ``"state"`` gives a value for a state, ``"action"`` one for a state and an action vector, ``"choices"`` one for each
            choice.
        encoder: Makes features of observations, the same ones for all perceptrons.
        pieces: Of packed observations what is where.
    """

    def __init__(
        self,
        stack: MLPStack,
        judges: Literal["state", "action", "choices"],
        encoder: FlatNetwork | None = None,
        pieces: tuple[Piece, ...] = (),
    ):
        super().__init__()
        self.stack, self.judges, self.encoder, self.pieces = stack, judges, encoder, pieces

    def answer(self, observation: Tensor, action: Tensor | None, frozen: bool, members: int = 0) -> Tensor:
        """``[E, N, T, J]`` for observations ``[N, T, ...]`` and actions ``[N, T, J, A]`` or ids ``[N, T, J]``."""
        rows, flat = observation.shape[:2], observation.flatten(0, 1)
        if self.encoder is not None:
            flat = self.encoder(flat, frozen)
        if self.judges == "action":
            if action is None:
                raise MethodError("this model judges actions, and was asked without one.")
            return self.stack(flat, frozen, action.flatten(0, 1), members).squeeze(-1).unflatten(1, (*rows, -1))
        found = self.stack(flat, frozen, None, members).unflatten(1, rows)
        if self.judges == "choices" and action is not None:
            return found.gather(-1, action.expand(found.shape[0], *action.shape))
        return found

    def state(self, observation: Tensor, frozen: bool) -> Tensor:
        """The state as `of_state` and `slope` take it, ``[N, T, ...]``, an image in numbers that can be mixed: whoever changes it
        gives it back."""
        dtype = self.stack.flat.dtype
        return in_numbers(observation, self.pieces, dtype) if self.pieces else observation.to(dtype)

    def of_state(self, observation: Tensor, frozen: bool, state: Tensor) -> Tensor:
        """What a model of states says ``[E, N, T, 1]`` of others than those of the rows."""
        return self.answer(state, None, frozen)

    def slope(self, observation: Tensor, frozen: bool, state: Tensor) -> Tensor:
        """The gradient ``[N, T, ...]`` of what its first member says, in the state; it can be descended itself."""
        with torch.enable_grad():
            state = state.detach().requires_grad_()
            said = self.answer(state, None, frozen, members=1)
            (found,) = torch.autograd.grad(said.sum(), state, create_graph=not frozen)
        return found


class HiddenLayers:
    """What parts with the field ``hidden`` share: a list is a tuple, and layers without a width are refused."""

    fewest_layers: ClassVar[int] = 1
    hidden: tuple[int, ...]

    def __post_init__(self) -> None:
        if isinstance(self.hidden, list):
            object.__setattr__(self, "hidden", tuple(self.hidden))

    def check_knobs(self, path: str) -> None:
        super().check_knobs(path)  # type: ignore[misc]
        if len(self.hidden) < self.fewest_layers or not all(1 <= width <= 2**20 for width in self.hidden):
            wanted = "it must be the width of each hidden layer, at least 1 each: 256,256."
            raise MethodError(f"{path}.hidden of {type(self).__name__} is {self.hidden}; {wanted}")


@dataclass(frozen=True)
class MLPEnsemble(HiddenLayers, ModelNetwork):
    """Several multi-layer perceptrons of one shape that differ in their first weights.

    Fields:
        members: networks. Two and their smaller value keep a critic from believing too much; more cost time.
        hidden: widths of the hidden layers. None at all leaves one linear layer, as the DQN paper has behind its encoder.
        activation: between them.
        layer_norm: normalise what goes into each activation; it keeps values outside the data from growing.
        pair: all of it twice, each for one of the two tasks of an environment that is never reset; the last number of an
            observation says which.
        encoder: what makes features of an observation, shared by the members.
    """

    ranges: ClassVar = {"members": "[1, 1000]"}
    fewest_layers: ClassVar[int] = 0

    members: int = 2
    hidden: tuple[int, ...] = (256, 256)
    activation: Literal["relu", "tanh", "silu", "gelu"] = "relu"
    layer_norm: bool = False
    pair: bool = False
    encoder: Encoder = field(default_factory=DefaultEncoder)

    def build(self, space: ActionSpace, takes_action: bool, seed: int) -> nn.Module:
        if self.pair:
            return PairModel.build(lambda own, seed: self._one(own, takes_action, seed), space, seed)
        return self._one(space, takes_action, seed)

    def _one(self, space: ActionSpace, takes_action: bool, seed: int) -> MLPModel:
        judges: Literal["state", "action", "choices"] = "state"
        encoder, inputs = flat_encoder(self.encoder, space, seed ^ 1)  # other draws than those of the layers
        outputs = 1
        if takes_action and space.discrete:
            judges, outputs = "choices", space.actions
        elif takes_action:
            judges, inputs = "action", inputs + space.actions
        stack = MLPStack(self.members, (inputs, *self.hidden, outputs), self.activation, self.layer_norm, seed)
        return MLPModel(stack, judges, encoder, space.pieces)
