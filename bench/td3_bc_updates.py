"""Updates of TD3+BC on stored experience, beside d3rlpy: ``python bench/td3_bc_updates.py``."""

from __future__ import annotations

from off_policy_sides import D3RLPY, OURS, StoredWork
from side_by_side import main
from sides import Row

ROW = Row(
    name="td3_bc_updates",
    work="TD3+BC on 50,000 stored decisions of Hopper's shapes: twenty updates on batches of 256, networks of 256 x 256",
    unit="updates/s",
    rate="updates",
    ours=OURS,
    peer=D3RLPY,
    given=StoredWork("td3-bc"),
    window=2,
    exact=("updates",),
    wanted=2.0,
    goal="at least 2.0 times d3rlpy is wanted",
)

if __name__ == "__main__":
    main(ROW)
