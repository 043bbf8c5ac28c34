"""A part, a method, a task and a reward for upslope."""
