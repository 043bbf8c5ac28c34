"""Tensor functions that parts of several slots share."""
