"""Updates: one optimiser step each, on rows in slices or on single decisions."""
