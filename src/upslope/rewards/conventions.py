"""How a reward function wants to be called, told by the names of its parameters: ours, TRL's or verl's.

What TRL 1.16 and verl 0.9 do was read in their sources. Not given here are TRL's ``completion_ids`` and ``trainer_state``, and
verl's router: a reward sees text.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from upslope.fields import shown
from upslope.rewards.errors import RewardError
from upslope.tasks.text import RewardRows, takes

Function = Callable[..., Any]
ANSWERS = ("solution", "solutions", "ground_truth", "target", "label", "expected", "reference", "gold")
"""What functions call the expected answer that is ``answer`` here, where the data have no such column themselves."""
UNSEEN = ("completion_ids", "trainer_state", "environments")
"""What TRL gives a function and we do not."""
UNHEARD = ("log_extra", "log_metric")
"""Functions that TRL hands in to be called with more to log."""


class Ours:
    """``(prompts, responses, answers)``: three lists of text, and ``infos`` for one that has such a parameter."""

    none_applies = False
    """Whether ``None`` in place of a number says that the reward does not apply to a row."""

    def check(self, name: str, function: Function, signature: inspect.Signature) -> None:
        """Refuses a function that cannot be called like this."""
        try:
            signature.bind([], [], [], **({"infos": []} if takes(function, "infos") else {}))
        except TypeError:
            short = getattr(function, "__name__", type(function).__name__)
            told = f"{name}{signature} cannot be called with three lists"
            ours, theirs = f"def {short}(prompts, responses, answers)", f"def {short}(completions, **kwargs)"
            raise RewardError(f"{told}. Write it as {ours}, or, as TRL has it, {theirs}.") from None

    def reads_answer(self, function: Function) -> bool:
        """Whether the parameters tell that it compares with the answer: ours get it always, so that says nothing."""
        return False

    def call(self, name: str, function: Function, rows: RewardRows, finish: Function) -> Any:
        """What the function returns; ``finish`` waits for what is asynchronous."""
        further = {"infos": rows.infos} if takes(function, "infos") else {}
        return finish(function(rows.prompts, rows.responses, rows.answers, **further))


class Trl(Ours):
    """``(completions, **columns)``: all by name, each column of the data as a list; ``None`` for a row it does not apply to.

    Prompts and completions are texts, or lists of messages where the data's prompts are.
    """

    none_applies = True

    def reads_answer(self, function: Function) -> bool:
        return any(takes(function, name) for name in ("answer", "answers", *ANSWERS))

    def check(self, name: str, function: Function, signature: inspect.Signature) -> None:
        """Which columns there are is only known with the data."""
        for parameter in signature.parameters.values():
            if parameter.kind is parameter.POSITIONAL_ONLY:
                raise RewardError(f"{name}{signature} cannot be called by name, as one with 'completions' is. Leave out the '/'.")
            if parameter.name in UNSEEN and parameter.default is parameter.empty:
                raise RewardError(
                    f"{name} needs {parameter.name!r}, which no reward is given here: it sees text. Give it a default."
                )

    def call(self, name: str, function: Function, rows: RewardRows, finish: Function) -> Any:
        return finish(function(**self._arguments(name, function, rows)))

    def _arguments(self, name: str, function: Function, rows: RewardRows) -> dict[str, Any]:
        names = dict.fromkeys(column for info in rows.infos for column in info)
        columns: dict[str, Any] = {column: [info.get(column) for info in rows.infos] for column in names}
        columns = {"answer": rows.answers, **columns, **_conversation(rows)}
        parameters = inspect.signature(function).parameters.values()
        if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
            given = dict(columns)
        else:
            given = {parameter.name: columns[parameter.name] for parameter in parameters if parameter.name in columns}
        for parameter in parameters:
            if parameter.name in given or parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
                continue
            if parameter.name in ANSWERS:
                given[parameter.name] = rows.answers
            elif parameter.name in UNHEARD:
                given[parameter.name] = _unheard
            elif parameter.default is parameter.empty:
                there = ", ".join(columns)
                raise RewardError(f"{name} needs the column {parameter.name!r}, which the data do not have. There are {there}.")
        return given


def _conversation(rows: RewardRows) -> dict[str, list[Any]]:
    """Prompts and completions as TRL has them: messages where the prompt is a list of them."""
    prompts = [text if messages is None else list(messages) for text, messages in zip(rows.prompts, rows.messages, strict=True)]
    completions = [
        text if messages is None else [{"role": "assistant", "content": text}]
        for text, messages in zip(rows.responses, rows.messages, strict=True)
    ]
    return {"prompts": prompts, "completions": completions}


def _unheard(*values: Any, **named: Any) -> None:
    """Takes what would be logged elsewhere."""


class Verl(Ours):
    """``(data_source, solution_str, ground_truth, extra_info)``, row by row: a number, or a mapping with ``score``."""

    def reads_answer(self, function: Function) -> bool:
        return takes(function, "ground_truth")

    def check(self, name: str, function: Function, signature: inspect.Signature) -> None:
        known = {"data_source", "solution_str", "ground_truth", "extra_info"}
        for parameter in signature.parameters.values():
            needed = parameter.default is parameter.empty and parameter.kind not in (
                parameter.VAR_KEYWORD,
                parameter.VAR_POSITIONAL,
            )
            if needed and parameter.name not in known:
                raise RewardError(f"{name}{signature} needs {parameter.name!r}, which no reward is given. Give it a default.")

    def call(self, name: str, function: Function, rows: RewardRows, finish: Function) -> Any:
        found = [finish(function(**self._arguments(function, rows, row))) for row in range(len(rows.responses))]
        if not any(isinstance(each, Mapping) for each in found):
            return found
        for each in found:
            if not isinstance(each, Mapping) or "score" not in each:
                raise RewardError(f"{name} returned {shown(each)}, without 'score'. Return a number, or a mapping that has it.")
        columns = {"reward": [each["score"] for each in found]}
        for key in found[0]:
            # Other entries, such as the text it extracted, are nothing that has a mean.
            if key not in ("score", "reward") and all(isinstance(each.get(key), (bool, int, float)) for each in found):
                columns[str(key)] = [each[key] for each in found]
        return columns

    def _arguments(self, function: Function, rows: RewardRows, row: int) -> dict[str, Any]:
        info = dict(rows.infos[row])
        model = info.pop("reward_model", None)
        truth = model.get("ground_truth", rows.answers[row]) if isinstance(model, Mapping) else rows.answers[row]
        source, extra = info.pop("data_source", rows.task_name), info.pop("extra_info", None)
        given = {
            "data_source": source,
            "solution_str": rows.responses[row],
            "ground_truth": truth,
            "extra_info": dict(extra) if isinstance(extra, Mapping) else info,
        }
        everything = any(each.kind is each.VAR_KEYWORD for each in inspect.signature(function).parameters.values())
        return given if everything else {name: value for name, value in given.items() if takes(function, name)}


def convention_of(function: Function) -> Ours:
    """How a function is to be called. One whose parameters cannot be seen is called as ours are."""
    if takes(function, "completions"):
        return Trl()
    if takes(function, "completion_ids"):  # refused, saying why
        return Trl()
    return Verl() if takes(function, "solution_str") else Ours()
