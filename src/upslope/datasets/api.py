"""What ``import upslope as up`` gives for stored experience."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from upslope.datasets.making import make_data as make
from upslope.errors import UserError
from upslope.experience import Dataset, load_dataset
from upslope.experience.checking import check_dataset
from upslope.experience.dataset import HOME
from upslope.experience.measures import Description
from upslope.experience.measures import describe as measure
from upslope.fields import shown
from upslope.run import Run
from upslope.runtime.arguments import anything_but, checked, folder, instance, optional, text
from upslope.tasks import load_task
from upslope.tasks.env_sources import source_of
from upslope.tasks.gym import GymTask

DATA = "a name in data/, a folder, FILE.npz, FILE.hdf5 or minari:ID; a dict of columns, Episodes, a list of Episode, or a Dataset"
TASK = "an environment: a name such as 'gym:Pendulum-v1', 'file.py:Class', or the object itself"


@checked(
    name=text("the name of a folder"),
    task=anything_but(TASK, int, float, bytes, type(None)),
    recipe=text("a recipe, such as 'random' or 'mixed:expert=0.1'"),
    steps=optional(instance("a whole number, at least 1, or None", int)),
    seed=instance("a whole number", int),
    from_run=text("a run or its folder; left out, none", Run),
    out=optional(folder("a folder, as text or a path, or None")),
)
def make_data(
    name: str,
    task: Any = "",
    recipe: str = "random",
    *,
    steps: int | None = None,
    seed: int = 0,
    from_run: str | Path | Run = "",
    out: str | Path | None = None,
) -> Dataset:
    """Plays an environment by a recipe, keeps what happened in ``data/<name>`` and returns it. The same call gives the same bits.

    Args:
        name: Of the folder. What is there by the very same recipe is returned; other data are never written over.
        task: An environment, as for `train`; left out, the run's own.
        recipe: Who acts: ``"random"``, ``"expert"``, ``"medium"``, ``"noisy:eps=0.3"``; ``upslope data make --help`` lists all.
        steps: Decisions, exactly; left out, 20,000, and of ``replay`` all there are.
        from_run: A run whose policy acts, or its folder.
        out: Where the folder goes; left out, ``data``.

    Example:
        >>> import upslope as up, tempfile
        >>> data = up.make_data("pole", "gym:CartPole-v1", "noisy:eps=0.5", steps=200, out=tempfile.mkdtemp())
        >>> len(data.episodes.decisions), data.card.expert
        (200, 500.0)
    """
    where = from_run.path if isinstance(from_run, Run) else from_run
    return make(name, _task(task), recipe, steps, seed, where, HOME if out is None else out)


@checked(
    data=anything_but(DATA, int, float, bytes, type(None)),
    task=optional(anything_but(f"{TASK}, or None", int, float, bytes)),
)
def load_data(data: Any, task: Any = None) -> Dataset:
    """Data for offline learning, checked: shapes, numbers, actions, ends.

    Args:
        data: A name in ``data/``, a folder, ``FILE.npz``, ``FILE.hdf5`` (D4RL) or ``minari:ID``; or a dict of columns
            (``observations, actions, rewards, terminations, truncations[, next_observations]``), `Episodes`, a list of `Episode`.
        task: An environment that they must fit.

    Raises:
        UserError: naming the episode and the step, if they cannot be learned from.
    """
    found, given = load_dataset(data), None if task is None else _task(task)
    loaded = load_task(given) if isinstance(given, str) else given
    if loaded is not None and not isinstance(loaded, GymTask):
        raise UserError(f"task is {shown(task)}, which is text; data are of environments.")
    check_dataset(found, loaded)
    return found


@checked(data=anything_but(DATA, int, float, bytes, type(None)), reference=optional(anything_but(DATA, int, float, bytes)))
def describe(data: Any, reference: Any = None) -> Description:
    """Measures data: how well they act (TQ), how much they explore (SACo), whether actions agree; and which methods they suit.

    Args:
        data: As for `load_data`.
        reference: What SACo is measured against: the experience of an online run of the same size.
    """
    return measure(load_data(data), None if reference is None else load_data(reference))


def _task(given: Any) -> str | GymTask:
    """The name of a task, or the task of an environment that was given as an object."""
    if isinstance(given, (str, Path)):
        return str(given)
    if isinstance(given, GymTask):
        return given
    if (source := source_of(given)) is None:
        raise UserError(f"task is {shown(given)}; it must be {TASK}.")
    return GymTask(source)
