"""Where a control policy is judged: in the environment it learns in, or in another one with the same spaces."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from upslope.errors import TaskError

if TYPE_CHECKING:
    from upslope.tasks.gym import GymTask


def load_test_task(spec: str, task: GymTask) -> GymTask:
    """The environment that ``--test-task`` names, or the task itself where it names none.

    Raises:
        TaskError: if there is no such environment, or a policy of the task could not act in it.
    """
    if not spec:
        return task
    from upslope.tasks import load_task

    found = load_task(spec)
    if found.domain != "control":
        raise TaskError(f"--test-task {spec!r} is text; a policy that acts is judged in an environment, as in gym:Pendulum-v1.")
    other = cast("GymTask", found)
    for what, own, theirs in (
        ("observations", task.observation_space, other.observation_space),
        ("actions", task.action_space, other.action_space),
    ):
        if own != theirs:
            raise TaskError(
                f"--test-task {other.name} has {what} {theirs}, and {task.name}, where the policy learns, has {own}. Give an "
                "environment with the same spaces."
            )
    return other
