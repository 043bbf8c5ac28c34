"""Importing this makes the worlds known to gymnasium; it is done where such an id is asked for (`upslope.tasks.env_packages`)."""

from __future__ import annotations

import gymnasium

from upslope.tasks.worlds.names import WORLDS

for name, world in WORLDS.items():
    gymnasium.register(name, entry_point=f"upslope.tasks.worlds.{world.place}", max_episode_steps=world.steps)
