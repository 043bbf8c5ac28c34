"""Preferences in a table: chosen and rejected answers to a prompt, or single answers with a label.

Answers are texts, lists of texts, or conversations whose last message is the assistant's. A conversation may bring the prompt.
"""

from __future__ import annotations

from typing import Any

from upslope.errors import TaskError
from upslope.plain_data import JsonDict
from upslope.tasks.messages import as_messages

Pair = tuple[tuple[str, ...], tuple[str, ...]]
"""The chosen answers to a problem, and the rejected ones."""

YES, NO = ("true", "1", "1.0", "yes", "+1"), ("false", "0", "0.0", "no", "-1")


def as_answers(value: Any) -> tuple[str, ...] | None:
    """One answer or several, none of them empty; nothing for anything else."""
    if isinstance(value, str):
        return (value,) if value.strip() else None
    if not isinstance(value, (list, tuple)) or not value:
        return None
    if all(isinstance(each, str) and each.strip() for each in value):
        return tuple(value)
    last = value[-1]
    spoken = isinstance(last, dict) and last.get("role") == "assistant" and isinstance(last.get("content"), str)
    return (last["content"],) if spoken and last["content"].strip() else None


def as_label(value: Any) -> bool | None:
    """Whether an answer is wanted; nothing for anything that says neither."""
    text = str(value).strip().lower()
    return True if text in YES else False if text in NO else None


def asked_in_conversations(where: str, chosen: Any, rejected: Any) -> Any:
    """The messages that both sides answer, where they are conversations and no column has the prompt; nothing otherwise."""
    if not (isinstance(chosen, list) and chosen and isinstance(chosen[0], dict) and len(chosen) > 1):
        return None
    messages = as_messages(chosen, where, "chosen")
    if isinstance(rejected, list) and rejected and isinstance(rejected[0], dict):
        others = as_messages(rejected, where, "rejected")
        if others[:-1] != messages[:-1]:
            raise TaskError(f'{where}: "chosen" and "rejected" answer different conversations. Give both the same messages before '
                            "the last, or a \"prompt\" of its own.")  # fmt: skip
    return list(messages[:-1])


def problem_with_pair(values: JsonDict) -> str:
    """What is wrong with the preferences of a row, in words; nothing if they can be used or there are none.

    Args:
        values: by role, those that the row has.
    """
    chosen, rejected = as_answers(values.get("chosen")), as_answers(values.get("rejected"))
    if ("chosen" in values) != ("rejected" in values):
        there, missing = ("chosen", "rejected") if "chosen" in values else ("rejected", "chosen")
        return f'has "{there}" and no "{missing}". Give it one, or give single answers as "completion" with a "label"'
    for side, found in (("chosen", chosen), ("rejected", rejected)):
        if side in values and found is None:
            wanted = "an answer in text, a list of such, or messages that end with the assistant's, and not empty"
            return f'has "{side}": {str(values[side])[:40]!r}; it must be {wanted}'
    if chosen and rejected and (both := set(chosen) & set(rejected)):
        return f"has {sorted(both)[0][:40]!r} both chosen and rejected. Leave the line out, or mend one side"
    if "completion" in values and as_answers(values["completion"]) is None:
        return f'has "completion": {str(values["completion"])[:40]!r}; it must be an answer in text, and not empty'
    if "completion" in values and as_label(values.get("label")) is None:
        return f'has a "completion" and "label": {str(values.get("label"))[:40]!r}; it must be true or false'
    return ""
