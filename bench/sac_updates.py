"""Updates of SAC on stored experience, beside Stable-Baselines3: ``python bench/sac_updates.py``."""

from __future__ import annotations

from off_policy_sides import OURS, SB3, StoredWork
from side_by_side import main
from sides import Row

ROW = Row(
    name="sac_updates",
    work="SAC on 50,000 stored decisions of Hopper's shapes: twenty updates on batches of 256, networks of 256 x 256",
    unit="updates/s",
    rate="updates",
    ours=OURS,
    peer=SB3,
    given=StoredWork("sac"),
    window=2,
    exact=("updates",),
    wanted=1.8,
    goal="at least 1.8 times Stable-Baselines3 is wanted",
)

if __name__ == "__main__":
    main(ROW)
