"""Levels of reasoning-gym's datasets: its curricula as options of a dataset.

A curriculum has attributes (how many terms, how many digits), each with a list of levels. Level L of a dataset is level L of each
of them, or its last one. Ranges hold the values of a level and of the one below: reasoning-gym's own choice, all levels from 0,
would make most problems of a high level easy ones, and a level's values alone are often a single number.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from upslope.plain_data import JsonDict

BROKEN = frozenset({"knight_swap", "modulo_grid"})
"""Datasets of reasoning-gym 0.1.25 whose own configuration refuses what their curriculum gives."""


def curriculum_of(dataset: str) -> Any:
    """A fresh curriculum of a dataset, or nothing where there is none that works."""
    from reasoning_gym import factory

    return factory.create_curriculum(dataset) if factory.has_curriculum(dataset) and dataset not in BROKEN else None


def top_level(dataset: str) -> int:
    """The highest level, or -1 for a dataset without levels."""
    curriculum = curriculum_of(dataset)
    return -1 if curriculum is None else max((len(each.levels) for each in curriculum.attributes.values()), default=0) - 1


def level_options(dataset: str, level: int, *, inclusive: bool = False) -> JsonDict:
    """What a level sets in the dataset's configuration.

    Args:
        inclusive: let ranges begin at level 0, as some configurations demand.
    """
    from reasoning_gym.coaching.base_curriculum import DefaultCurriculumContext, RangeAttributeMode

    curriculum = curriculum_of(dataset)
    for name, attribute in curriculum.attributes.items():
        curriculum.set_attr_level(name, min(level, len(attribute.levels) - 1))
    mode = RangeAttributeMode.INCLUSIVE if inclusive else RangeAttributeMode.LAST_K
    made = curriculum.generate_configuration({}, DefaultCurriculumContext(mode=mode, k=2))
    return {name: getattr(made, name) for attribute in curriculum.attributes.values() for name in fields_of(attribute)}


def fields_of(attribute: Any) -> tuple[str, ...]:
    """The fields of a configuration that an attribute sets."""
    one = getattr(attribute, "field_name", None)
    return (one,) if one else (attribute.lower_field_name, attribute.upper_field_name)


def level_fields(dataset: str) -> frozenset[str]:
    """All fields that a level sets."""
    curriculum = curriculum_of(dataset)
    attributes = () if curriculum is None else curriculum.attributes.values()
    return frozenset(name for attribute in attributes for name in fields_of(attribute))


def nearest_level(dataset: str, options: Mapping[str, Any]) -> int:
    """The lowest level whose upper bounds hold those of a configuration that names no level; -1 without levels."""
    from reasoning_gym.factory import DATASETS

    curriculum, found = curriculum_of(dataset), 0
    if curriculum is None:
        return -1
    set_to = {f.name: f.default for f in dataclasses.fields(DATASETS[dataset][1])} | dict(options)
    for attribute in curriculum.attributes.values():
        value = set_to.get(fields_of(attribute)[-1])
        if isinstance(value, (int, float)) and all(isinstance(each, (int, float)) for each in attribute.levels):
            holding = [level for level, each in enumerate(attribute.levels) if each >= value]
            found = max(found, holding[0] if holding else len(attribute.levels) - 1)
    return found
