"""The catalogue as the page shows it: the data of the report, with formulas set."""

from __future__ import annotations

import re
from functools import cache

from upslope.board.mathml import formula_mathml
from upslope.plain_data import JsonDict
from upslope.report.catalogue import catalogue_records


@cache
def catalogue_data() -> JsonDict:
    """What the board answers and the site carries. Nothing in it changes while a process runs."""
    found = catalogue_records()
    methods = [each | {"formula_mathml": formula_lines(each["formula"])} for each in found["methods"]]
    return found | {"methods": methods}


def formula_lines(formula: str) -> list[str]:
    """A formula as MathML, each of its definitions by itself; none if one of them cannot be set."""
    lines = [formula_mathml(line) for line in re.split(r"[,;](?:\s{2,}|\n)|\n", formula) if line.strip()]
    return lines if all(lines) else []
