"""Methods that choose, or make, the problems they learn from."""
