"""Updates of IQL on stored experience, beside d3rlpy: ``python bench/iql_updates.py``."""

from __future__ import annotations

import dataclasses

from off_policy_sides import StoredWork
from side_by_side import main
from td3_bc_updates import ROW as OTHER

ROW = dataclasses.replace(
    OTHER,
    name="iql_updates",
    work=OTHER.work.replace("TD3+BC", "IQL", 1),
    given=StoredWork("iql"),
)

if __name__ == "__main__":
    main(ROW)
