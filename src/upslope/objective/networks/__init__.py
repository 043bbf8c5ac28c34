"""Networks of learned models, and what they are made of."""

from upslope.objective.networks.discriminator import DiscriminatorNetwork
from upslope.objective.networks.encoders import DefaultEncoder, Encoder, NatureCNN, SmallCNN
from upslope.objective.networks.mlp import MLPEnsemble
from upslope.objective.networks.scalar import Scalar
from upslope.objective.networks.vae import ActionVAE

__all__ = [
    "ActionVAE",
    "DefaultEncoder",
    "DiscriminatorNetwork",
    "Encoder",
    "MLPEnsemble",
    "NatureCNN",
    "Scalar",
    "SmallCNN",
]
