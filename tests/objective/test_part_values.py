"""Every method and every part, with these and with other knobs, computes on three fixed steps what it computed before.

The numbers are worked out by nobody: they are those of the code whose methods agree with their oracles, and they say that nothing
has changed, not that it is right. Where a change is meant, ``PYTHONPATH=tests python tests/objective/test_part_values.py`` writes
them anew; the difference of ``part_values.json`` names what has changed.
"""

from __future__ import annotations

import json
import math
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from part_values import accepted_knobs, asks, hosts, numbers, part_hosts, part_numbers, refusals
from pinned_build import build

PINNED = Path(__file__).parent / "part_values.json"


@cache
def pinned(of: str) -> dict[str, Any]:
    return json.loads(PINNED.read_text()).get(of, {}) if PINNED.exists() else {}


def differing(found: dict[str, Any], wanted: dict[str, Any]) -> list[str]:
    """Names of what differs, or is there in one of them only."""
    return [name for name in sorted(found.keys() | wanted.keys()) if not near(found.get(name), wanted.get(name))]


def near(found: Any, wanted: Any) -> bool:
    if isinstance(found, list) and isinstance(wanted, list):
        return all(near(*pair) for pair in zip(found, wanted, strict=True))
    if isinstance(found, float) and isinstance(wanted, float):
        # Networks of stored experience are in float32, whose last digits are the processor's own.
        same = pinned("build") == build()
        return math.isclose(found, wanted, rel_tol=1e-8 if same else 3e-5, abs_tol=1e-9 if same else 1e-7)
    return found == wanted


@pytest.mark.parametrize("method", sorted(pinned("methods")))
def test_a_method_computes_what_it_did(method: str):
    assert differing(numbers(hosts()[method]), pinned("methods")[method]) == []


@pytest.mark.parametrize("part", sorted(pinned("parts")))
def test_a_part_with_other_knobs_computes_what_it_did(part: str):
    assert differing(part_numbers(part), pinned("parts")[part]) == []


@pytest.mark.parametrize("part", sorted(pinned("accepted")))
def test_a_part_takes_and_refuses_the_knobs_it_did(part: str):
    assert accepted_knobs(part) == pinned("accepted")[part]


@pytest.mark.parametrize("part", sorted(pinned("refusals")))
def test_a_part_refuses_a_batch_as_it_did(part: str):
    assert refusals(part) == pinned("refusals")[part]


@pytest.mark.parametrize("part", sorted(pinned("asks")))
def test_a_part_asks_for_what_it_did(part: str):
    assert asks(part) == pinned("asks")[part]


def test_all_methods_and_parts_are_listed():
    assert pinned("methods").keys() == hosts().keys()
    for of in ("parts", "accepted", "refusals", "asks"):
        assert pinned(of).keys() == part_hosts().keys()


def rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: rounded(each) for name, each in value.items()}
    if isinstance(value, list):
        return [rounded(each) for each in value]
    return float(f"{value:.11g}") if isinstance(value, float) else value


if __name__ == "__main__":
    now = {
        "build": build(),
        "methods": {name: numbers(method) for name, method in hosts().items()},
        "parts": {kind: part_numbers(kind) for kind in part_hosts()},
        "asks": {kind: asks(kind) for kind in part_hosts()},
        "refusals": {kind: refusals(kind) for kind in part_hosts()},
        "accepted": {kind: accepted_knobs(kind) for kind in part_hosts()},
    }
    PINNED.write_text(json.dumps(rounded(now), indent=1) + "\n")
