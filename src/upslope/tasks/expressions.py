"""Expressions of given numbers with ``+``, ``-`` and ``*``: their value, and random ones."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

_LONGEST_EXPRESSION = 256
_TOKEN = re.compile(r"\s*(?:([0-9]+)|([-+*()]))")
_BINDS = {"+": 1, "-": 1, "*": 2}


def evaluate_expression(text: str, numbers: Sequence[int]) -> int | None:
    """The value of an expression of ``+``, ``-``, ``*``, brackets and some of ``numbers``, each used at most once.

    ``None`` for anything else, whatever the text: it is parsed here, never executed, and its length bounds the work.
    """
    tokens = _tokens(text, numbers)
    if not tokens:
        return None
    # Two stacks: values, and operators that wait for their right side.
    values: list[int] = []
    waiting: list[str] = []
    operand_next = True
    for token in [*tokens, ""]:
        if operand_next != (token == "(" or token.isdigit()):
            return None
        if token == "(":
            waiting.append(token)
        elif operand_next:
            values.append(int(token))
            operand_next = False
        else:
            while waiting and waiting[-1] != "(" and _BINDS[waiting[-1]] >= _BINDS.get(token, 0):
                _apply(waiting.pop(), values)
            if token == ")":
                if not waiting:
                    return None
                waiting.pop()
            elif token:
                waiting.append(token)
                operand_next = True
    return values[0] if not waiting else None


def _tokens(text: str, numbers: Sequence[int]) -> list[str]:
    """The tokens of an expression, or none if it has others, or numbers that were not given."""
    text = text.strip()
    if not text.isascii() or len(text) > _LONGEST_EXPRESSION:
        return []
    tokens: list[str] = []
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            return []
        tokens.append(match[1] or match[2])
        position = match.end()
    # Compared as text, so that 007 is no way to write 7.
    used = Counter(token for token in tokens if token.isdigit())
    return tokens if used <= Counter(map(str, numbers)) else []


def _apply(operator: str, values: list[int]) -> None:
    right, left = values.pop(), values.pop()
    values.append(left + right if operator == "+" else left - right if operator == "-" else left * right)


def random_expression(numbers: list[int], choices: list[list[float]]) -> tuple[int, str]:
    """Join all numbers into one expression, two at a time: its value and its text with no needless bracket."""
    parts: list[tuple[int, str, int]] = [(number, str(number), 3) for number in numbers]
    for first, second, third in choices:
        left = parts.pop(int(first * len(parts)))
        right = parts.pop(int(second * len(parts)))
        operator = "+-*"[int(third * 3)]
        binds = _BINDS[operator]
        values = [left[0], right[0]]
        _apply(operator, values)
        left_text = f"({left[1]})" if left[2] < binds else left[1]
        # a-(b+c) needs its brackets, a+(b+c) does not.
        right_text = f"({right[1]})" if right[2] < binds or (operator == "-" and right[2] == binds) else right[1]
        parts.append((values[0], left_text + operator + right_text, binds))
    return parts[0][0], parts[0][1]
