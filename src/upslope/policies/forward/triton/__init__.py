"""Triton kernels of our decoder, for GPUs."""
