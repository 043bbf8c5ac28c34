"""From names to things: the task, the policy and the rollout of a run, for text and for control.

The two kinds of task meet here and in nothing above: both give a `Components`, and the run only ever sees that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from upslope.errors import UserError
from upslope.learners.base import check_learner
from upslope.plain_data import Knobs
from upslope.policies.control.own_module import OwnModule
from upslope.rewards import load_rewards
from upslope.rewards.programs import settle_sandbox
from upslope.runtime.python_objects import PythonObjects
from upslope.runtime.reward_text import reward_texts
from upslope.runtime.settings import Settings
from upslope.setting_up.base import Components, DryRun, Progress, pick_device
from upslope.setting_up.control import ControlComponents
from upslope.setting_up.text import TextComponents
from upslope.setting_up.where import check_found_by_workers, check_reachable, check_room
from upslope.tasks import load_task
from upslope.types import Method

if TYPE_CHECKING:
    from upslope.experience.dataset import Dataset
    from upslope.tasks.gym import GymTask
    from upslope.tasks.text import TextTask

__all__ = ["Components", "ControlComponents", "DryRun", "Progress", "TextComponents", "load_plan_task", "pick_device", "set_up"]


def load_plan_task(
    task: str, settings: Settings, reward: Sequence[str], test_data: str, objects: PythonObjects, for_training: bool
) -> TextTask | GymTask:
    """The task of a plan under its reward, with a sandbox for the programs that it runs, if it does."""
    wanted = objects.reward or load_rewards(reward_texts(reward))
    loaded = load_task(
        task if objects.task is None else objects.task,
        reward=wanted,
        test_data=objects.test_data or test_data or None,
        columns=settings.columns,
        judged=bool(settings.judge),
    )
    settle_sandbox(wanted, settings.sandbox, now=for_training)
    return loaded


def set_up(
    method: Method,
    task: str,
    model: str,
    settings: Settings,
    reward: Sequence[str] = (),
    test_data: str = "",
    knobs: Knobs | None = None,
    checking: Progress | None = None,
    for_training: bool = True,
    objects: PythonObjects | None = None,
    dataset: Dataset | None = None,
    dry: DryRun | None = None,
) -> Components:
    """The components for a plan. Whatever cannot work is refused here, before the first rollout.

    Args:
        knobs: set by path after the method's own for this kind of task; the components' ``method`` has both.
        checking: told how many of a file's prompts have been looked at; without it a line says so if it takes seconds.
        for_training: steps will be made, so the memory for them must be there.
        objects: the task, reward or model themselves, where they are not given by name.
        dataset: stored experience to learn from, in control.
        dry: nothing but what a run would take is asked of the components: no weights are loaded, nobody is connected to.
    """
    check_learner(method)
    objects = objects or PythonObjects()
    if for_training and dry is None:
        check_found_by_workers(settings, objects)
        check_reachable(settings)
    loaded = load_plan_task(task, settings, reward, test_data, objects, for_training and dry is None)
    if loaded.domain == "control":
        own = objects.model if isinstance(objects.model, OwnModule) else None  # a language model is refused with the settings
        return ControlComponents(method, cast("GymTask", loaded), settings, knobs or {}, for_training and dry is None, dataset, own)
    if isinstance(objects.model, OwnModule):
        objects.model.refuse_text()
    if dataset is not None:
        raise UserError(f"--data is stored experience of an environment; {loaded.name} is answered in text. Leave it out.")
    if method.learner != "policy-gradient":
        raise UserError(f"{method.name} learns from stored experience of an environment; {loaded.name} is answered in text.")
    components = TextComponents(method, cast("TextTask", loaded), objects.model or model, settings, knobs or {}, checking, dry)
    if for_training and dry is None:
        components.bring_judge()
        components.check_memory()
        check_room(components.settings)
    return components
