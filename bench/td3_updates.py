"""Updates of TD3 on stored experience, beside Stable-Baselines3: ``python bench/td3_updates.py``."""

from __future__ import annotations

from off_policy_sides import OURS, SB3, StoredWork
from side_by_side import main
from sides import Row

ROW = Row(
    name="td3_updates",
    work="TD3 on 50,000 stored decisions of Hopper's shapes: twenty updates on batches of 256, networks of 256 x 256",
    unit="updates/s",
    rate="updates",
    ours=OURS,
    peer=SB3,
    given=StoredWork("td3"),
    window=2,
    exact=("updates",),
    wanted=1.6,
    goal="at least 1.6 times Stable-Baselines3 is wanted",
)

if __name__ == "__main__":
    main(ROW)
