"""What arguments that several functions have may be, and the words that say so."""

from __future__ import annotations

from upslope.plain_data import JsonDict
from upslope.run import Watcher
from upslope.runtime.arguments import anything_but, folder, instance, mapping, optional, text
from upslope.types import Method

METHOD = "a method, its name, a composition such as 'dhpo+high-entropy', a file such as 'mine.py', or the run.toml of a run"
TASK = "a name ('upslope tasks'), a file, or the problems or the environment themselves"
MODEL = "'tiny', 'smollm2', or the folder of a model or a run; compare trains in processes of their own, which load it there"
DEFAULT_TASK = "reverse"
_CHECKS: JsonDict = {
    "out": optional(folder("a folder, as text or a path, or None")),
    "knobs": optional(mapping("a dict from paths to values, as in {'surrogate.high': 0.3}, or None")),
    "take": optional(mapping("a dict from slots to methods, as in {'surrogate': 'dapo'}, or None", text("the name of a method"))),
    "watcher": optional(instance("an upslope.Watcher, or None", Watcher)),
    "path": folder("the folder of a run, as text or a path"),
    "trust": instance("True or False", bool),
}
"""Of arguments that several functions have."""


def checks(*names: str) -> JsonDict:
    """Of these arguments, by name, as `checked` takes them."""
    return {name: _CHECKS[name] for name in names}


OF_A_RUN: JsonDict = dict(
    method=text(METHOD, Method),
    task=anything_but(TASK, int, float, bytes, type(None)),
    reward=anything_but("a name, a function, a list of them, or {name: (function or name, weight)}", int, float, bytes),
    test_data=anything_but("a file, or the problems themselves", int, float, bytes),
    data=anything_but("the name of a dataset, a file, or episodes themselves", int, float, bytes),
    preset=text("the name of a preset, such as 'rl-zoo'"),
)
"""Of what `train` and `estimate` are both given."""
