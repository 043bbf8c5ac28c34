"""The error of rewards."""

from __future__ import annotations

from upslope.errors import UserError


class RewardError(UserError):
    """A reward that cannot be loaded, that raised, or that returned something other than a number for each response."""


class NotFinite(RewardError):
    """A reward that returned something other than a finite number."""
