"""An iteration of PPO on HalfCheetah, beside Stable-Baselines3: ``python bench/ppo_halfcheetah.py [--equal-return]``."""

from __future__ import annotations

from dataclasses import replace

from control_sides import ControlWork
from equal_return import main_with_return
from ppo_cartpole import ROW as CARTPOLE
from sides import Row

ROW: Row = replace(
    CARTPOLE,
    name="ppo_halfcheetah",
    work="PPO on HalfCheetah-v5: 8 environments, rollouts of 2048 steps, 10 epochs, minibatches of 64, observations and rewards "
    "normalised",
    given=ControlWork("HalfCheetah-v5", normalise=True),
    wanted=3.0,
    goal="at least 3 times SB3 at equal return is wanted",
)

if __name__ == "__main__":
    main_with_return(ROW)
