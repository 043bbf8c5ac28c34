"""Rollouts: how trajectories are sampled, engines that continue text, and the loops around them."""
