"""An iteration of PPO on CartPole, beside Stable-Baselines3: ``python bench/ppo_cartpole.py [--equal-return]``."""

from __future__ import annotations

from control_sides import OURS, SB3, ControlWork
from equal_return import main_with_return
from sides import Row

ROW = Row(
    name="ppo_cartpole",
    work="PPO on CartPole-v1: 8 environments, rollouts of 2048 steps, 10 epochs, minibatches of 64",
    unit="env-steps/s",
    rate="env_steps",
    ours=OURS,
    peer=SB3,
    given=ControlWork("CartPole-v1", normalise=False),
    window=1,
    exact=("env_steps", "updates"),
    wanted=4.0,
    goal="at least 4 times SB3 at equal return is wanted",
)

if __name__ == "__main__":
    main_with_return(ROW)
