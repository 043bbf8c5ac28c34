"""Data made on the spot: who acts, by which recipe, and what it is worth."""

from upslope.datasets.making import make_data

__all__ = ["make_data"]
