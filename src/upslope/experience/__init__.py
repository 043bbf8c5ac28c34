"""Stored experience: whole episodes, where they are kept, and the one sampler that cuts rows out of them."""

from upslope.experience.card import Card, Space
from upslope.experience.dataset import Dataset, load_dataset
from upslope.experience.episodes import Episode, Episodes

__all__ = ["Card", "Dataset", "Episode", "Episodes", "Space", "load_dataset"]
