"""Which method is better? Cells are trained side by side, and the answer comes with error bars and in plain words."""
