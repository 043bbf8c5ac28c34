"""Updates of TD3 on stored experience, beside Stable-Baselines3: ``python bench/td3_updates.py``."""

from __future__ import annotations

import dataclasses

from off_policy_sides import StoredWork
from sac_updates import ROW as OTHER
from side_by_side import main

ROW = dataclasses.replace(
    OTHER,
    name="td3_updates",
    work=OTHER.work.replace("SAC", "TD3", 1),
    given=StoredWork("td3"),
    wanted=1.6,
    goal="at least 1.6 times Stable-Baselines3 is wanted",
)

if __name__ == "__main__":
    main(ROW)
