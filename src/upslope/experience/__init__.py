"""Stored experience: whole episodes, where they are kept, and the one sampler that cuts rows out of them."""

from upslope.experience.episodes import Episode, Episodes

__all__ = ["Episode", "Episodes"]
