"""What was checked of each method, gathered from where it stands: markers of the tests, judged lines of the claim pages, costs.

`collect` reads files only: no test is run and nothing of upslope is imported.
"""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parent
TESTS = DOCS.parent / "tests"
JUDGED = re.compile(
    r"^- (?P<method>[\w.+-]+)(?P<setting> \S+=\S+)?: (?P<words>.*?): "
    r"\*\*(?P<verdict>held|not shown at this scale|did not hold)\*\*",
    re.M,
)


def collect() -> dict[str, dict[str, Any]]:
    """For each method: ``identity`` and ``oracle`` (where, against what), ``claim`` (verdicts by page) and ``cost``."""
    found: dict[str, dict[str, Any]] = {}
    for file in sorted((TESTS / "methods").rglob("test_*.py")):
        _read_markers(file, found)
    for page in sorted((DOCS / "claims").glob("*.md")):
        for line in JUDGED.finditer(page.read_text(encoding="utf-8")):
            if line["setting"] and page.stem != line["method"]:  # of others' pages those count that are of the method as it comes
                continue
            verdicts = of(found, line["method"]).setdefault("claim", {})
            verdicts.setdefault(page.stem, []).append(line["verdict"])
    cost = DOCS / "claims" / "data" / "cost.json"
    if cost.exists():
        for name, numbers in json.loads(cost.read_text())["methods"].items():
            of(found, name)["cost"] = numbers
    return found


def of(found: dict[str, dict[str, Any]], name: str) -> dict[str, Any]:
    return found.setdefault(name, {})


def _read_markers(file: Path, found: dict[str, dict[str, Any]]) -> None:
    """``@pytest.mark.checks("oracle", "bnpo", by="verl")`` above a test."""
    where = file.relative_to(TESTS.parent).as_posix()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "checks"):
            continue
        kind, *methods = [argument.value for argument in node.args if isinstance(argument, ast.Constant)]
        by = next((word.value.value for word in node.keywords if word.arg == "by" and isinstance(word.value, ast.Constant)), "")
        for method in methods:
            if kind == "oracle":
                texts = of(found, method).setdefault("oracle", {}).setdefault(where, [])
                if by and by not in texts:
                    texts.append(by)
            elif where not in of(found, method).setdefault(kind, []):
                of(found, method)[kind].append(where)


EVERY_METHOD = ("tests/test_table.py", "tests/test_resume.py", "tests/test_learning.py")
"""Tests that go through all methods of the catalogue."""


def brief(record: dict[str, Any]) -> dict[str, Any]:
    """What the command line shows of a method's checks."""
    verdicts = [verdict for page in record.get("claim", {}).values() for verdict in page]
    held, against = verdicts.count("held"), verdicts.count("did not hold")
    claim = f"{held} of {len(verdicts)} held" + (f", {against} did not" if against else "") if verdicts else "not measured"
    done = [kind for kind in ("identity", "oracle") if record.get(kind)]
    tests = dict.fromkeys([*record.get("identity", []), *record.get("oracle", {}), *EVERY_METHOD])
    return {"checks": " ".join([*done, "learns"]), "claim": claim, "tests": list(tests)}
