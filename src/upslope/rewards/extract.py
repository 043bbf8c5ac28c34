"""What a text says: its final answer, its last number, what it boxes, which option it chooses. Of responses and expected ones."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

# -- the part of a text that counts -----------------------------------------------------------------------------------------


def final_text(response: str) -> str:
    """What a response says in the end: inside of its last ``<answer>``, else behind its thoughts; stripped.

    A response that was cut while it was still thinking says nothing.
    """
    text = response
    if "<think>" in text or "</think>" in text:
        text = text.rpartition("</think>")[2] if text.rfind("</think>") > text.rfind("<think>") else ""
    opened = text.rpartition("<answer>")
    return (opened[2].partition("</answer>")[0] if opened[1] else text).strip()


def expected_text(answer: str) -> str:
    """The answer itself in what people's files have as one: behind GSM8K's ``####``, inside of MATH's ``\\boxed{}``, else all."""
    if "####" in answer:
        return answer.rpartition("####")[2].strip()
    boxed = last_boxed(answer)
    return answer.strip() if boxed is None else boxed.strip()


def last_boxed(text: str) -> str | None:
    """What stands in the last ``\\boxed{...}`` that is closed, braces inside of it included; nothing if there is none."""
    end = len(text)
    while (start := text.rfind("\\boxed", 0, end)) >= 0:
        inside = _braced(text, start + len("\\boxed"), end)
        if inside is not None:
            return inside
        end = start  # one that holds this one is not closed either
    return None


def _braced(text: str, start: int, end: int) -> str | None:
    """What the braces hold that begin here, if they end before ``end``."""
    begin = end - len(text[start:end].lstrip())
    if not text.startswith("{", begin):
        return None
    depth = 0
    for place in range(begin, end):
        if text[place] in "{}" and text[place - 1] != "\\":
            depth += 1 if text[place] == "{" else -1
            if depth == 0:
                return text[begin + 1 : place]
    return None


_SPACING = re.compile(r"\\(?:left|right|displaystyle|limits)(?![A-Za-z])|\\[!,;: ]|~|\s+|\$")
_WRAPPED = re.compile(r"\\(?:text|textbf|textit|mathrm|mathbf|mbox)\{([^{}]*)\}")


def plain_formula(text: str) -> str:
    """A formula without what only changes its looks, to compare two of them as texts."""
    text = re.sub(r"\\[dt]frac(?![A-Za-z])", r"\\frac", _WRAPPED.sub(r"\1", text))
    return _SPACING.sub("", text).rstrip(".").casefold()


# -- numbers ----------------------------------------------------------------------------------------------------------------

_DIGITS = r"(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)"
_DECIMAL = rf"(?:{_DIGITS}(?:\.[0-9]+)?|\.[0-9]+)"
_POWER = r"(?:[eE][-+]?[0-9]{1,3}(?![0-9A-Za-z.])|\s*(?:\\times|\\cdot|[x×*·])\s*10\s*(?:\^|\*\*)\s*\{?\s*[-+]?[0-9]{1,3}\s*\}?)"
_RAISED = r"(?:(?:\^|\*\*)\{?(?P<raised>[0-9]{1,2})\}?(?![0-9.]))?"
_NUMBER = re.compile(
    r"(?P<sign>(?<![\w)\]}.])[-+](?=[$€£\\.0-9]))?[$€£]?(?P<late>(?<=[$€£])-)?(?:"
    r"\\[dt]?frac\s*\{\s*(?P<top>-?[0-9]{1,40})\s*\}\s*\{\s*(?P<bottom>-?[0-9]{1,40})\s*\}"
    rf"|(?<![A-Za-z_0-9])(?P<whole>[0-9]{{1,40}})\s(?P<over>[0-9]{{1,40}})/(?P<under>[0-9]{{1,40}})(?![0-9])"
    rf"|(?<![A-Za-z_0-9])(?P<number>{_DECIMAL})(?P<power>{_POWER})?{_RAISED}(?:\s?/\s?(?P<divisor>[0-9]{{1,40}})(?![0-9.,]*[0-9/]))?"
    r")(?P<percent>\s?\\?%|\s(?=percent\b))?"
)
LONGEST = 20_000
"""Characters that are read of a text, counted from its end, where the answer stands."""
_MOST_DIGITS = 400


class Amount:
    """A number as it was written."""

    def __init__(self, value: Fraction, percent: bool = False):
        self.value, self.percent = value, percent

    def equals(self, other: Amount, tolerance: float) -> bool:
        """Whether they are the same to ``tolerance``; 50% is 50 for whoever leaves out the sign, and 0.5."""
        if _near(self.value, other.value, tolerance):
            return True
        if self.percent == other.percent:
            return False
        share, plain = (self, other) if self.percent else (other, self)
        return _near(share.value / 100, plain.value, tolerance)


def _near(one: Fraction, other: Fraction, tolerance: float) -> bool:
    return abs(one - other) <= Fraction(tolerance)


def last_number(text: str) -> Amount | None:
    """The last number in a text: ``-1,234.5``, ``$3``, ``50%``, ``3/4``, ``\\frac{3}{4}``, ``1 1/2``, ``1.2e-3``, ``2 x 10^3``."""
    found = None
    for match in _NUMBER.finditer(_plain_signs(text[-LONGEST:])):
        found = _amount(match) or found
    return found


def whole_number(text: str) -> Amount | None:
    """The number that a text is, a sign of currency aside; nothing if it says more than that."""
    plain = _plain_signs(text.strip()).strip("$ .")
    match = _NUMBER.fullmatch(plain)
    return _amount(match) if match else None


def _plain_signs(text: str) -> str:
    return text.replace("−", "-").replace("{,}", ",").replace("\\!", "").replace("\\$", "$").replace("\\,", "")


def _amount(match: re.Match[str]) -> Amount | None:
    """A number's value; nothing for a division by zero or one of hundreds of digits."""
    try:
        if match["top"]:
            value = Fraction(int(match["top"]), int(match["bottom"]))
        elif match["whole"]:
            value = int(match["whole"]) + Fraction(int(match["over"]), int(match["under"]))
        else:
            if len(match["number"]) > _MOST_DIGITS:
                return None
            value = Fraction(match["number"].replace(",", "")) * _power(match["power"])
            value = value ** int(match["raised"]) if match["raised"] and len(match["number"]) < 10 else value
            value = value / int(match["divisor"]) if match["divisor"] else value
    except ZeroDivisionError:
        return None
    negative = match["sign"] == "-" or bool(match["late"])
    return Amount(-value if negative else value, bool(match["percent"]))


def _power(text: str | None) -> Fraction:
    if not text:
        return Fraction(1)
    exponent = text[1:] if text[0] in "eE" else re.split(r"\^|\*\*", text)[-1]
    return Fraction(10) ** int(re.sub(r"[\s{}]", "", exponent))


# -- options ----------------------------------------------------------------------------------------------------------------

LETTERS = "ABCDEFGHIJ"
_MARK = r"[\s*_`\"'(\[{$\\]{0,8}"
"""Signs and blanks around a letter; few of them, since a model may write thousands in a row."""
_SAID = re.compile(
    rf"(?:answer|option|choice|correct(?: one)?)\b(?: *(?:is|are|would be|must be|should be|:|=|-))*{_MARK}"
    rf"(?:\\text|\\textbf)?{_MARK}"
    rf"(?:option|choice)?{_MARK}(?P<letter>[A-J])(?![A-Za-z0-9'])(?=(?P<rest>[^\n]{{0,24}}))",
    re.I,
)
_ALONE = re.compile(rf"{_MARK}(?P<letter>[A-Ja-j])[\s*_`\"')\]}}$.:,!]*")
_LEADING = re.compile(rf"{_MARK}(?P<letter>[A-J])[*_`]*(?:[).:\]]|\s-\s)[*_`]*(?:\s|$)")
_BRACKETED = re.compile(r"\((?P<letter>[A-J])\)|\*\*\(?(?P<bold>[A-J])[).:]?\*\*")
_ANOTHER = re.compile(r"\s*[)\]*]*\s*(?:,|/|and|or|&)\s*[(*]*[A-J](?![A-Za-z0-9])", re.I)


def chosen_letter(text: str, options: Sequence[str] = ()) -> str | None:
    """Which option a text names, however it says so: ``B``, ``(B)``, ``**B**``, ``The answer is B.``, or the option's own text.

    Nothing where it names none, or several at once.

    Args:
        options: the options' texts in order, where they are known.
    """
    boxed = last_boxed(text)
    text = (text if boxed is None else _WRAPPED.sub(r"\1", boxed)).strip()
    if alone := _ALONE.fullmatch(text):
        return alone["letter"].upper()
    if (by_text := _option_of(text, options)) is not None:
        return by_text
    said = list(_SAID.finditer(text))
    # "an answer a child gives": a small a is a letter only where nothing but its end follows.
    said = [match for match in said if match["letter"].isupper() or not re.match(r"\s+\w", match["rest"])]
    if said:
        return None if _ANOTHER.match(said[-1]["rest"]) else said[-1]["letter"].upper()
    bracketed = {match["letter"] or match["bold"] for match in _BRACKETED.finditer(text)}
    leading = _LEADING.match(text)
    if leading and not bracketed - {leading["letter"]} and not _ANOTHER.match(text[leading.end("letter") :]):
        return leading["letter"]
    if len(bracketed) == 1:
        return bracketed.pop()
    named = [letter for letter, option in zip(LETTERS, options, strict=False) if option.strip() and contains(text, option)]
    return named[0] if len(named) == 1 and not bracketed else None


def _option_of(text: str, options: Sequence[str]) -> str | None:
    said = _bare(text)
    same = [letter for letter, option in zip(LETTERS, options, strict=False) if said and _bare(option) == said]
    return same[0] if len(same) == 1 else None


def _bare(text: str) -> str:
    return " ".join(re.sub(r"[*_`\"]", "", text).split()).strip(" .").casefold()


def expected_letter(answer: str, options: Sequence[str] = ()) -> str | None:
    """The letter that an expected answer means: itself, the option whose text it is, or, as in MMLU, the option's number from 0."""
    text = expected_text(answer)
    if (by_text := _option_of(text, options)) is not None:
        return by_text
    if options and re.fullmatch(r"[0-9]", text) and int(text) < len(options):
        return LETTERS[int(text)] if int(text) < len(LETTERS) else None
    return chosen_letter(text, options)


def options_of(info: Mapping[str, Any]) -> tuple[str, ...]:
    """The options of a problem from its further columns; none if it has no such column.

    ``choices`` or ``options`` (a list, a mapping of letters, or ARC's mapping of ``label`` and ``text``), or columns ``A``, ``B``.
    """
    for name in ("choices", "options"):
        given = info.get(name)
        if isinstance(given, Mapping) and isinstance(given.get("text"), Sequence):
            given = given["text"]
        if isinstance(given, Mapping):
            return tuple(str(given[key]) for key in sorted(given, key=str))
        if isinstance(given, Sequence) and not isinstance(given, str):
            return tuple(re.sub(r"^\(?[A-J][).:]\s+", "", str(option)) for option in given)
    for letters in (LETTERS, LETTERS.lower()):
        columns = [letter for letter in letters if letter in info]
        if len(columns) > 1:
            return tuple(str(info[letter]) for letter in columns)
    return ()


def contains(text: str, wanted: str) -> bool:
    """Whether words or a number stand in a text as a whole: ``4`` is not in ``14``, ``3.4`` or ``4,000``. Case does not matter."""
    wanted = " ".join(wanted.split()).casefold()
    if not wanted:
        return False
    before = r"(?<![\w])(?<![0-9][.,])" + (r"(?<!-)" if wanted[0].isdigit() else "")
    behind = r"(?!\w)(?![.,][0-9])" if wanted[-1].isalnum() else ""
    return re.search(before + re.escape(wanted) + behind, " ".join(text.split()).casefold()) is not None
