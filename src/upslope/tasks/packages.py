"""Tasks of installed packages, by their entry point's name, or ``PACKAGE/NAME`` where that is not theirs alone."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Container, Mapping
from typing import Any

from upslope.errors import Remark, TaskError, UserError, did_you_mean
from upslope.plugins import TASKS, Plugin, plugins
from upslope.tasks.own import OwnTask, make_own
from upslope.tasks.text import TextTask


def make(plugin: Plugin, options: Mapping[str, Any]) -> OwnTask:
    """The task that an entry point names, with knobs."""
    kind = task_class(plugin)
    knobs = list(inspect.signature(kind).parameters)
    for knob in options:
        if knob not in knobs:
            told = f"{plugin.package}/{plugin.name} has no knob {knob!r}.{did_you_mean(knob, knobs)}"
            raise TaskError(f"{told} Its knobs: {', '.join(knobs) or 'none'}.")
    return make_own(kind, inspect.getfile(kind), options)


def task_class(plugin: Plugin) -> type[TextTask]:
    """The class that an entry point names."""
    found = plugin.load()
    if isinstance(found, type) and issubclass(found, TextTask) and found is not TextTask:
        return found
    where = f"{plugin.package}'s entry point {TASKS} {plugin.name} = {plugin.value!r}"
    raise TaskError(f"{where} names no class of TextTask. Reinstall the package, or ask its authors.")


def descriptions(ours: Container[str]) -> dict[str, str]:
    """The first line of each task's docstring, by the name that ``--task`` takes. What cannot be used is left out with a remark.

    Args:
        ours: names of tasks that are upslope's own; a package's is then known as ``PACKAGE/NAME``.
    """
    found: dict[str, str] = {}
    names = [plugin.name for plugin in plugins(TASKS)]
    for plugin in plugins(TASKS):
        try:
            about = (inspect.getdoc(task_class(plugin)) or "").partition("\n")[0]
        except UserError as problem:
            warnings.warn(Remark(str(problem)), stacklevel=2)
            continue
        alone = plugin.name not in ours and names.count(plugin.name) == 1
        name = plugin.name if alone else f"{plugin.package}/{plugin.name}"
        found[name] = f"{about or 'A task'} (of {plugin.package})".replace(". (of", " (of")
    return found
