"""What `upslope.train`, `resume` and `load` are given: names for the plan, and objects for what no name brings back."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, TypeGuard

from torch import nn

from upslope.policies.control.own_module import OwnModule
from upslope.policies.given import GivenModel, given_model
from upslope.rewards import load_reward
from upslope.run import Run
from upslope.runtime.python_objects import PythonObjects
from upslope.tasks import TextTask
from upslope.tasks.env_sources import name_in_run, source_of
from upslope.tasks.gym import GymTask
from upslope.tasks.python_data import as_python_table


def task_argument(task: Any, test_data: Any) -> tuple[str, str, PythonObjects]:
    """The names of task and test data, and what of them was given as objects that their names do not bring back."""
    by_name = test_data is None or isinstance(test_data, (str, Path))
    tested = None if by_name else as_python_table(test_data, "test", "test_data")
    name = str(test_data or "") if tested is None else tested.name
    if isinstance(task, (str, Path)):
        return str(task), name, PythonObjects(test_data=tested)
    source = None if isinstance(task, TextTask) else source_of(task)
    if source is not None and (known := name_in_run(source)) is not None:
        return known, name, PythonObjects(test_data=tested)
    found = GymTask(source) if source else task if isinstance(task, TextTask) else as_python_table(task, "problems")
    return found.name, name, PythonObjects(task=found, test_data=tested)


def model_argument(model: object) -> tuple[str, GivenModel | OwnModule | None]:
    """What a model is called, and the model itself where it is an object; a module that is no language model is for control."""
    model = model.path if isinstance(model, Run) else model
    if isinstance(model, (str, Path)):
        return str(model), None
    given = OwnModule(model) if is_own_module(model) else given_model(model)
    return given.name, given


def is_own_module(model: object) -> TypeGuard[nn.Module]:
    """Whether it is a module of torch's and none of `transformers`."""
    known = sys.modules.get("transformers")  # whoever has a model of theirs has imported it
    return isinstance(model, nn.Module) and not (known is not None and isinstance(model, known.PreTrainedModel))


def objects_again(task: object, reward: object, model: object) -> PythonObjects:
    """What a run was given, once more, for one that could not keep it."""
    source = None if task is None or isinstance(task, (str, TextTask)) else source_of(task)
    model = OwnModule(model) if is_own_module(model) else model
    return PythonObjects(task if source is None else GymTask(source), None if reward is None else load_reward(reward), model)
