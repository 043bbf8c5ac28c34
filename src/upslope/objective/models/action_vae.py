"""What good recorded actions look like: an autoencoder that is taught them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from torch import Tensor

from upslope.errors import MethodError
from upslope.objective.base import Learned, ModelNetwork, Networks, Notes
from upslope.objective.critics.members import FirstMember, Members
from upslope.objective.critics.targets import networks
from upslope.objective.networks.vae import ActionVAE
from upslope.types import Batch


@dataclass(frozen=True)
class GoodActions(Learned):
    r"""Reconstructs the recorded actions that are better than their state (A2PR).

    .. math::  L = w\, 1[Q_1(s, a) > V(s)]\, \tfrac1D \lVert \hat a - a \rVert^2
        + \tfrac{k}{L} \operatorname{KL}(q(z | s, a) \,\Vert\, N(0, 1)), \qquad \hat a = \text{decode}(s, z),\ z \sim q

    Fields:
        critic: the model that values actions.
        over: what its members say as one.
        value: the model that values states.
        weight: w.
        kl: k, how much the latents are held to a standard Gaussian.
        network: the autoencoder.
    """

    ranges: ClassVar = {"weight": "[0, inf)", "kl": "[0, inf)"}

    lr_scale: float = 10 / 3
    critic: str = "q"
    over: Members = field(default_factory=FirstMember)
    value: str = "value"
    weight: float = 1.0
    kl: float = 0.5
    network: ActionVAE = field(default_factory=ActionVAE)

    def model_network(self) -> ModelNetwork:
        return self.network

    def loss(self, batch: Batch) -> tuple[Tensor, Notes]:
        nets = networks(batch)
        if batch.action is None:
            raise MethodError("recorded actions are to be reconstructed, and these rows have none.")
        worth = self.over(nets.value(self.critic, "now", batch.action.unsqueeze(2), members=self.over.asked), nets).squeeze(-1)
        good = (worth > nets.value(self.value, "now")[0, ..., 0]).to(worth.dtype).detach()
        rebuilt, mean, log_std = reconstructed(nets, nets.scope, batch.action, "encoding")
        error = (rebuilt - batch.action).square().mean(-1)
        divergence = (0.5 * (mean.square() + (2 * log_std).exp() - 1) - log_std).mean(-1)
        return self.weight * good * error + self.kl * divergence, {"error": error.detach(), "good": good}


def reconstructed(nets: Networks, model: str, action: Tensor, noise: str) -> tuple[Tensor, Tensor, Tensor]:
    """What an autoencoder makes of actions ``[N, T, A]``; mean and logarithm of the spread of the latents it goes through."""
    mean, log_std = nets.column(model, "encode", action=action).chunk(2, -1)
    latent = mean + log_std.exp() * nets.normal(mean, noise)
    return nets.column(model, "decode", latent=latent), mean, log_std
