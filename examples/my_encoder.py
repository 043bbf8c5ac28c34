"""A network of one's own as a part of a method: PPO that looks at waves of what it sees.

upslope train examples/my_encoder.py --task gym:CartPole-v1
"""

from dataclasses import dataclass

import torch
from torch import nn

from upslope.methods import find
from upslope.parts import MLP, Encoder
from upslope.types import Paper


class Waves(nn.Module):
    """The observation, and sines of mixtures of its numbers, which are learned."""

    def __init__(self, inputs: int, count: int, random: torch.Generator):
        super().__init__()
        self.mixtures = nn.Parameter(torch.randn(inputs, count, generator=random))

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        return torch.cat([observation, torch.sin(observation @ self.mixtures)], -1)


@dataclass(frozen=True)
class WaveEncoder(Encoder):
    """Waves of a vector.

    Fields:
        count: of the waves.
    """

    count: int = 16

    def build(self, shape: tuple[int, ...], channel_axis: int | None, seed: int) -> nn.Module:
        return Waves(shape[0], self.count, torch.Generator().manual_seed(seed))


wavy_ppo = find("ppo").derive(
    name="wavy-ppo",
    paper=Paper("A note of mine", year=2026),
    differs="actor and critic look at waves of the observation",
    policy=MLP(encoder=WaveEncoder()),
)
