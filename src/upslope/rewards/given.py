"""What ``reward=`` takes in Python: a function, a name, a list of them, or ``{"name": (function or name, weight)}``.

What a file defines becomes the text that names it there, ``/home/me/mine.py:style*0.3``, and is kept with the run as one given on
the command line is. What no file defines, such as a lambda, can only be used while Python runs.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import math
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from upslope.errors import UserError
from upslope.fields import shown
from upslope.plain_data import JsonDict
from upslope.rewards.builtin import BuiltIn, Format, Regex
from upslope.rewards.errors import RewardError
from upslope.rewards.programs import CodeTests
from upslope.rewards.verifiers import MathVerify
from upslope.rewards.weighted import RewardPart, WeightedRewards, distinct, label_of
from upslope.runtime import user_code
from upslope.runtime.reward_text import RewardText
from upslope.tasks.text import Reward

POSSIBLE = 'a function, a name such as "exact", a list of them, or {"name": (function or name, weight)}'


@dataclasses.dataclass(frozen=True)
class GivenReward:
    """One reward as it was given: a text or a callable, its weight, and its label, if it was given one."""

    what: Any
    weight: float = 1.0
    label: str = ""

    def text(self) -> str | None:
        """The text that stands for it in ``run.toml``; nothing if only Python has it."""
        if isinstance(self.what, str):
            return str(RewardText(self.what, self.weight, self.label))
        name = _built_in_text(self.what) if isinstance(self.what, (BuiltIn, MathVerify, CodeTests)) else _name_in_file(self.what)
        return None if name is None else str(RewardText(name, self.weight, self.label))


def read_rewards(given: Any) -> list[GivenReward]:
    """All rewards that were given; none for ``None`` and an empty text.

    Raises:
        RewardError: for anything that is no reward.
    """
    if given is None or given in ("", ()):
        return []
    if isinstance(given, (list, Mapping)) and not given:
        raise RewardError(f"reward is {given!r}, without a reward in it. Give {POSSIBLE}, or leave it out.")
    if isinstance(given, Mapping):
        return [_labelled(label, value) for label, value in given.items()]
    if isinstance(given, Sequence) and not isinstance(given, str):
        return [_one(value) for value in given]
    return [_one(given)]


def _labelled(label: object, value: Any) -> GivenReward:
    if not isinstance(label, str) or not re.fullmatch(r"[\w.-]+", label):
        raise RewardError(f"a reward is called {shown(label)}; its name must be letters, digits, '.', '_' or '-'.")
    weight: object = 1.0
    if isinstance(value, tuple):
        if len(value) != 2:
            raise RewardError(f"the reward {label!r} is a tuple of {len(value)}; give (function or name, weight).")
        value, weight = value
    if isinstance(weight, bool) or not isinstance(weight, (int, float)) or not math.isfinite(weight):
        raise RewardError(f"the reward {label!r} has the weight {shown(weight)}; it must be a finite number.")
    one = _one(value)
    return GivenReward(one.what, one.weight * float(weight), label)


def _one(value: Any) -> GivenReward:
    if isinstance(value, str):
        read = RewardText.parse(value)
        if not read.name:
            raise RewardError("a reward is empty. Give a name such as 'exact', or leave it out.")
        return GivenReward(read.name, read.weight, read.label)
    if inspect.isclass(value):
        raise RewardError(f"{value.__name__} is a class; give one of it, {value.__name__}(), or a function.")
    if not callable(value):
        raise RewardError(f"{shown(value)} ({type(value).__name__}) is no reward. Give {POSSIBLE}.")
    return GivenReward(value)


def texts_of(given: Iterable[GivenReward]) -> tuple[str, ...] | None:
    """The rewards as ``run.toml`` has them; nothing if one of them cannot be kept."""
    texts = [each.text() for each in given]
    return None if None in texts else tuple(text for text in texts if text is not None)


def labels_of(reward: Reward) -> tuple[str, ...]:
    """What rewards that cannot be kept are called in ``run.toml``."""
    parts = reward.parts if isinstance(reward, WeightedRewards) else distinct([RewardPart(reward)])
    return tuple(part.label for part in parts)


def combined(parts: Sequence[RewardPart]) -> Reward | None:
    """One reward of several. A single one that is neither weighed nor labelled stays as it is."""
    if len(parts) == 1 and parts[0].weight == 1 and parts[0].label in ("", label_of(parts[0].reward)):
        return parts[0].reward
    return WeightedRewards(tuple(parts)) if parts else None


def _built_in_text(reward: Any) -> str:
    if isinstance(reward, Regex):
        return f"regex:{reward.pattern}"
    if isinstance(reward, Format):
        return f"format:{','.join(reward.tags)}"
    options: JsonDict = {
        each.name: getattr(reward, each.name)
        for each in dataclasses.fields(reward)
        if each.init and getattr(reward, each.name) != each.default
    }
    return ":".join(filter(None, (reward.name, ",".join(f"{name}={value}" for name, value in options.items()))))


def _name_in_file(function: Any) -> str | None:
    """``file.py:function`` of a function that a file defines at its top level and that loading the file gives again."""
    module = sys.modules.get(getattr(function, "__module__", None) or "")
    name, file = getattr(function, "__name__", ""), getattr(module, "__file__", None) or ""
    if not inspect.isfunction(function) or getattr(module, name, None) is not function or not file.endswith(".py"):
        return None
    path = Path(file).resolve()
    # A package's module cannot be taken out of it, and a script that trains would train again when it is loaded.
    if (path.parent / "__init__.py").exists() or {"site-packages", "dist-packages"} & set(path.parts):
        return None
    if module is not None and module.__name__ == "__main__" and not _only_defines(path):
        return None
    try:
        found = getattr(user_code.load_file(path), name, None)
    except UserError:
        return None
    return f"{path}:{name}" if callable(found) else None


def _only_defines(script: Path) -> bool:
    """Whether loading a script does no more than define: all else is under ``if __name__ == "__main__":``."""
    try:
        body = ast.parse(script.read_bytes()).body
    except (OSError, ValueError, SyntaxError):
        return False
    return all(_is_definition(statement) for statement in body)


def _is_definition(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.If):
        test = ast.unparse(statement.test).replace('"', "'")
        return test in ("__name__ == '__main__'", "'__main__' == __name__")
    if isinstance(statement, (ast.Assign, ast.AnnAssign)):
        return not any(isinstance(node, ast.Call) for node in ast.walk(statement))
    if isinstance(statement, ast.Expr):
        return isinstance(statement.value, ast.Constant)
    return isinstance(statement, (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
