"""The reward that compares formulas: math-verify, with limits to what a response may cost."""

from __future__ import annotations

import logging
import re
import threading
from dataclasses import dataclass
from typing import Any, ClassVar

from upslope.errors import MissingExtra, install_extra

# What takes sympy longer than a step may: factorials, powers in exponents, exponents of four digits.
_HEAVY = re.compile(
    r"!|(?:\^|\*\*)\s*\{[^{}]*(?:\^|\*\*)|(?:\^|\*\*)\s*\w+\s*(?:\^|\*\*)|(?:\^|\*\*)\s*\{?\s*\d{4,}|\\(?:int|sum|prod|lim)\b"
)


@dataclass(frozen=True)
class MathVerify:
    """1 where math-verify finds the response mathematically equal to the answer, as ``0.5`` is to ``\\frac{1}{2}``.

    Answers may be LaTeX or plain; a boxed or last formula of a longer response is found. Garbage is worth 0 and never raises.

    Time limits need the main thread (the library sets an alarm). In other threads what is known to be slow is not tried: such a
    response is worth 0 unless it reads like the answer.

    Fields:
        seconds: limit for each reading and each comparison. More lets harder formulas through and a bad response cost more.
        longest: characters kept of a response, counted from its end, where the answer stands.
    """

    name: ClassVar[str] = "math-verify"
    needs_answer: ClassVar[bool] = True

    seconds: int = 3
    longest: int = 2_000

    def __call__(self, prompts: list[str], responses: list[str], answers: list[str]) -> list[float]:
        library = _library()
        return [float(self._equal(library, *pair)) for pair in zip(responses, answers, strict=True)]

    def _equal(self, library: Any, response: str, answer: str) -> bool:
        response, answer = response.strip()[-self.longest :], _expected(answer)
        if response == answer:
            return True
        limited = threading.current_thread() is threading.main_thread()
        if not response or (not limited and (_HEAVY.search(response) or len(response) > 400)):
            return False
        limit = self.seconds if limited else None
        try:
            gold = library.parse(_as_formula(answer), parsing_timeout=limit)
            readings = [response]
            # Without an anchor only a number is looked for; a short response may be a bare formula.
            if len(response) <= 200 and _as_formula(response) != response:
                readings.append(_as_formula(response))
            return any(
                library.verify(gold, library.parse(reading, parsing_timeout=limit), timeout_seconds=limit) for reading in readings
            )
        except Exception:
            return False


def _expected(answer: str) -> str:
    """The expected answer; of one that GSM8K's ``####`` follows, what stands behind it. What is boxed the library finds itself."""
    return answer.rpartition("####")[2].strip()


def _as_formula(text: str) -> str:
    """Text without LaTeX delimiters as a formula."""
    return text if "$" in text or "\\boxed" in text or "\\(" in text or "\\[" in text else f"${text}$"


def _library() -> Any:
    try:
        import math_verify
    except ImportError as error:
        raise MissingExtra("math-verify is", install_extra("text")) from error
    # It reports every response it cannot read, which in training is most of them.
    logging.getLogger("math_verify").setLevel(logging.CRITICAL)
    return math_verify
