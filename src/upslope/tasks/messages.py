"""Prompts as messages: the turns of a conversation, checked, and as a text that people and rewards can read."""

from __future__ import annotations

from typing import Any

from upslope.errors import TaskError
from upslope.plain_data import Message, Prompt

LIKE = '[{"role": "user", "content": "What is 2+2?"}]'


def as_messages(value: Any, where: str, name: str) -> tuple[Message, ...]:
    """The messages of a column, each with a role and content in text.

    Raises:
        TaskError: if it is no such list.
    """
    if not isinstance(value, list) or not value:
        raise TaskError(f'{where}: "{name}" must be text or a list of messages such as {LIKE}, but is {str(value)[:40]!r}.')
    found: list[Message] = []
    for number, message in enumerate(value, start=1):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise TaskError(
                f'{where}: message {number} of "{name}" is {str(message)[:40]!r}; it needs a role and content, as in {LIKE}.'
            )
        if not isinstance(message.get("content"), str):
            said = str(message.get("content"))[:40]
            raise TaskError(f'{where}: the content of message {number} of "{name}" must be text, but is {said!r}.')
        # Arrow gives every message the keys of all of them, with nothing behind those it lacks.
        found.append({key: item for key, item in message.items() if item is not None})
    return tuple(found)


def readable(messages: tuple[Message, ...]) -> str:
    """The messages as text; of a single one its content."""
    if len(messages) == 1:
        return str(messages[0]["content"])
    return "\n\n".join(f"{message['role']}: {message['content']}" for message in messages)


def with_text_behind(prompt: Prompt, text: str) -> Prompt:
    """A prompt with something added at its end: in a conversation, to the user's last message."""
    if isinstance(prompt, str):
        return prompt + text
    messages: list[Message] = list(prompt)
    place = max(index for index, message in enumerate(messages) if message["role"] == "user")
    messages[place] = {**messages[place], "content": messages[place]["content"] + text}
    return tuple(messages)
