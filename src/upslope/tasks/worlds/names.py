"""Names of the worlds and what they are, to be listed without importing gymnasium."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class World:
    """A line of ``upslope tasks``, and where the environment is.

    Fields:
        place: module and class below this package.
        about: what it is, with its options.
        steps: time limit.
    """

    place: str
    about: str
    steps: int


WORLDS: Mapping[str, World] = {
    "upslope/RandomMDP-v0": World("tables:RandomMDP", "A random table: states=20,actions=4,branching=3,seed=0.", 50),
    "upslope/Chain-v0": World("tables:Chain", "States in a row, a reward behind the last: states=5,slip=0.", 50),
    "upslope/RiverSwim-v0": World("tables:RiverSwim", "Against the current to a large reward: states=6.", 100),
    "upslope/CombinationLock-v0": World("tables:CombinationLock", "One right action after another: length=6,actions=3,seed=0.", 50),
    "upslope/FrozenLake-v0": World("tables:FrozenLakeMap", "A frozen lake, drawn: size=4,frozen=0.8,slippery=true,seed=0.", 100),
    "upslope/Bandit-v0": World("tables:Bandit", "Arms that pay by chance, logged with propensities: arms=5,contexts=1,seed=0.", 1),
    "upslope/LQR-v0": World("analytic:LQR", "A linear system, quadratic cost: size=2,controls=1,noise=0,seed=0.", 50),
    "upslope/Newsvendor-v0": World("analytic:Newsvendor", "An order before demand is known: price=2,cost=1.", 1),
    "upslope/Inventory-v0": World("analytic:Inventory", "Stock, ordered daily: mean=1,holding=1,backlog=4.", 50),
    "upslope/Fishery-v0": World("analytic:Fishery", "Fish that grow back: growth=0.8,capacity=1,noise=0.1.", 100),
    "upslope/TwoLinkArm-v0": World("analytic:TwoLinkArm", "An arm to bring to a point: first=1,second=1,speed=0.2.", 50),
}
"""By the id that gymnasium knows."""
