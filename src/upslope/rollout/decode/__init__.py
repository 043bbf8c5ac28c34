"""Decoding: one token further in many rows at once, by our own passes or by those of `transformers`."""
