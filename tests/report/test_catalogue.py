"""The catalogue as data: every method has every field, and what it needs, is for and came to is what its parts and claims say."""

from __future__ import annotations

import pytest

from upslope.methods import catalogue
from upslope.report.catalogue import (
    CRITICS,
    NEEDS,
    OF_TASK,
    OTHER_MODELS,
    VERDICTS,
    catalogue_records,
    commands_of,
    needs_of,
    record,
    verdict,
    written_beside,
)
from upslope.types import SLOTS

FIELDS = {
    "name", "family", "year", "title", "arxiv", "parent", "learner", "differs", "use_when", "formula", "slots", "needs",
    "situations", "claim", "commands",
}  # fmt: skip


@pytest.mark.parametrize("name", catalogue())
def test_every_method_has_every_field(name: str) -> None:
    found = record(catalogue()[name])
    assert set(found) == FIELDS
    assert all(found[key] for key in FIELDS - {"arxiv", "parent", "needs", "situations"})
    assert 1950 < found["year"] < 2100 and set(found["slots"]) <= set(SLOTS) and set(found["needs"]) <= set(NEEDS)
    claim = found["claim"]
    assert claim["verdict"] in VERDICTS and (claim["verdict"] == "not measured") == (claim["of"] == 0)
    assert all(page in written_beside()["claims"] for page in claim["pages"])
    assert found["commands"][-1].startswith(f"upslope train {name} ")


def test_every_word_of_a_part_and_every_learned_model_has_its_place() -> None:
    for name, method in catalogue().items():
        for path, part in method.parts():
            assert part.needs_of_task <= set(OF_TASK), (name, path)
        assert {model for model, _ in method.models} <= CRITICS | OTHER_MODELS, name


@pytest.mark.parametrize(
    ("name", "needs"),
    [
        ("ppo", ["critic"]),
        ("grpo", ["reference", "groups"]),
        ("dpo", ["reference", "pairs"]),
        ("sft", ["demonstrations"]),
        ("iql", ["critic", "dataset"]),
        ("kto", ["reference", "labels"]),
        ("nsr", []),
    ],
)
def test_what_a_method_needs(name: str, needs: list[str]) -> None:
    assert needs_of(catalogue()[name]) == needs


def test_verdicts_in_one_word() -> None:
    assert verdict([]) == "not measured" and verdict(["held", "held"]) == "held"
    assert verdict(["held", "did not hold"]) == "partly" == verdict(["held", "not shown at this scale"])
    assert verdict(["not shown at this scale", "did not hold"]) == "did not hold"
    assert verdict(["not shown at this scale"]) == "not shown"


def test_counts_are_those_of_the_list_of_methods() -> None:
    from upslope.report.describe import checks

    for name, told in checks().items():
        claim = record(catalogue()[name])["claim"]
        assert told["claim"].startswith(f"{claim['held']} of {claim['of']} held" if claim["of"] else "not measured"), name


def test_the_whole_says_what_its_words_mean() -> None:
    whole = catalogue_records()
    assert [each["name"] for each in whole["methods"]] == list(catalogue())
    assert set(whole["needs"]) == {need for each in whole["methods"] for need in each["needs"]}
    assert set(whole["claims"]) == {page for each in whole["methods"] for page in each["claim"]["pages"]}
    for claim in whole["claims"].values():
        for line in (claim["curve"] or {"lines": {}})["lines"].values():
            assert len(line) <= 32 and all(value is None or 0 <= value <= 100 for value in line)


def test_a_method_of_another_package_has_a_command_all_the_same() -> None:
    other = catalogue()["grpo"].derive(name="not-ours", parent="grpo")
    assert commands_of(other) == ["upslope train not-ours --task TASK"]
    assert record(other)["claim"]["verdict"] == "not measured"
