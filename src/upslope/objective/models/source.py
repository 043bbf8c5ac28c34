"""Which source a transition comes from: the recorded world or the one that is acted in."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from upslope.errors import MethodError
from upslope.objective.base import Learned, ModelNetwork, Networks, Notes
from upslope.objective.critics.targets import networks
from upslope.objective.networks import DiscriminatorNetwork
from upslope.types import Batch, Source

REAL, SIMULATED = 0, 1
"""Places of the two logits: a dataset's rows are real, the run's own come from a simulator."""


def real_rows(batch: Batch) -> Tensor:
    """Decisions ``[N, T]`` of the dataset, as 0 and 1."""
    if "source" not in batch.label:
        raise MethodError("a part tells a dataset's rows from the run's own, and these rows do not say where they come from.")
    return (batch.label["source"] == Source.DEMONSTRATED).to(batch.sampled.dtype).unsqueeze(1) * torch.ones_like(batch.sampled)


@dataclass(frozen=True)
class SourceDiscriminator(Learned):
    r"""Tells real transitions from simulated ones, by state and action or by these and what came of them (DARC, H2O).

    .. math::  L = -\log \operatorname{softmax}(\ell(s, a[, s']) + \ell_{beside}(s, a))_{source}

    Fields:
        network: what it is made of; ``sees_following`` shows it the state behind the row.
        beside: the model whose logits are added, so that this one says only what the next state adds.
        noise: spread of what is added to its inputs while it learns: it must not know single rows by heart.
    """

    ranges: ClassVar = {"noise": "[0, inf)"}

    order: int = -4
    network: DiscriminatorNetwork = field(default_factory=DiscriminatorNetwork)
    beside: str = ""
    noise: float = 0.1

    def needs(self) -> frozenset[str]:
        return frozenset({"label.source"})

    def model_network(self) -> ModelNetwork:
        return self.network

    def loss(self, batch: Batch) -> tuple[Tensor, Notes]:
        nets = networks(batch)
        if batch.action is None:
            raise MethodError("sources are told apart by states and actions, and these rows have no actions.")
        state = _disturbed(nets, "now", self.noise)
        action = batch.action
        if not nets.discrete:
            action = action + self.noise * nets.normal(action, "source/action")
        following = _disturbed(nets, "next", self.noise) if self.network.sees_following else None
        logits = _logits(nets, nets.scope, state, action, following)
        if self.beside:
            logits = logits + _logits(nets, self.beside, state, action, None)
        real = real_rows(batch)
        logp = logits.log_softmax(-1)
        chosen = torch.where(real > 0, logp[..., REAL], logp[..., SIMULATED])
        right = (logits[..., REAL] > logits[..., SIMULATED]) == (real > 0)
        return -chosen, {"accuracy": right.to(chosen.dtype)}


def log_ratio(batch: Batch, model: str, draws: int = 0, spread: float = 0.0) -> Tensor:
    r"""Logarithm ``[N, T, J]`` of how much likelier what came of a row is in the real world than in the simulated one.

    .. math::  \log \frac{P_{real}(s' | s, a)}{P_{sim}(s' | s, a)}
        = \log \frac{p_{sas'}(real)\,p_{sa}(sim)}{p_{sas'}(sim)\,p_{sa}(real)} = \ell_{sas'}(real) - \ell_{sas'}(sim)

    The p are the two discriminators' probabilities; the logits of the pair cancel.

    Args:
        model: The discriminator that sees the next state.
        draws: Next states that are tried for each row; 0 takes the one that came.
        spread: Of what is added to each dimension of these.
    """
    nets = networks(batch)
    assert batch.action is not None
    state, following = (nets.column(model, "state", at=at).unsqueeze(2) for at in ("now", "next"))  # type: ignore[arg-type]
    if draws:
        following = following.expand(-1, -1, draws, -1)
        following = following + spread * nets.normal(following, "source/tried")
    action = batch.action.unsqueeze(2)
    action = action.expand(-1, -1, following.shape[2]) if nets.discrete else action.expand(-1, -1, following.shape[2], -1)
    logits = _logits(nets, model, state.expand_as(following), action, following)
    return (logits[..., REAL] - logits[..., SIMULATED]).detach()


def _disturbed(nets: Networks, at: str, noise: float) -> Tensor:
    state = nets.column(nets.scope, "state", at=at)  # type: ignore[arg-type]
    return state + noise * nets.normal(state, f"source/{at}")


def _logits(nets: Networks, model: str, state: Tensor, action: Tensor, following: Tensor | None) -> Tensor:
    inputs = {"state": state, "action": action} | ({} if following is None else {"following": following})
    return nets.column(model, "logits", "now", **inputs)
