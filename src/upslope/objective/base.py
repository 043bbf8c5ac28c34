"""Slot classes, for those who write parts: the same as in `upslope.types`, where they are defined."""

from typing import Any

from upslope.types import (
    Acting,
    ActingContext,
    ActionSpace,
    Advantage,
    Aggregate,
    Branch,
    Controller,
    Curriculum,
    Data,
    DataContext,
    Drawn,
    DrawnData,
    Filter,
    Learned,
    LossTerm,
    Memory,
    Mix,
    Model,
    ModelNetwork,
    ModelPart,
    ModelView,
    Nearest,
    Networks,
    Notes,
    Probe,
    ProbeInputs,
    Ratio,
    Reference,
    Regularizer,
    Reward,
    RolloutPlan,
    Shape,
    Solved,
    State,
    Stateful,
    Surrogate,
    Weight,
    World,
)
from upslope.types.lazy_names import renamed

RENAMED = {"Remembers": "Stateful", "Outside": "DataContext", "Through": "ModelView", "Seen": "ProbeInputs"}
"""Old names, each with its successor."""


def __getattr__(name: str) -> Any:
    return renamed(name, __name__, RENAMED)


__all__ = [
    "Acting",
    "ActingContext",
    "ActionSpace",
    "Advantage",
    "Aggregate",
    "Branch",
    "Controller",
    "Curriculum",
    "Data",
    "DataContext",
    "Drawn",
    "DrawnData",
    "Filter",
    "Learned",
    "LossTerm",
    "Memory",
    "Mix",
    "Model",
    "ModelNetwork",
    "ModelPart",
    "ModelView",
    "Nearest",
    "Networks",
    "Notes",
    "Probe",
    "ProbeInputs",
    "Ratio",
    "Reference",
    "Regularizer",
    "Reward",
    "RolloutPlan",
    "Shape",
    "Solved",
    "State",
    "Stateful",
    "Surrogate",
    "Weight",
    "World",
]
