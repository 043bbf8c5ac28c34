"""A method as a value: derived, compared, printed and hashed."""

from __future__ import annotations

import pytest

from upslope.errors import MethodError
from upslope.methods import catalogue, find
from upslope.objective.aggregate import SequenceMeanTokenMean, TokenMean
from upslope.objective.regularize import ReferenceKL
from upslope.types import Paper

grpo, dapo, dhpo, ppo = (find(name) for name in ("grpo", "dapo", "dhpo", "ppo"))


def test_derive_names_its_parent_and_starts_with_no_notes():
    mine = grpo.derive(name="mine", aggregate=TokenMean())
    assert (mine.parent, mine.notes, mine.formula, mine.differs) == ("grpo", "", "", "")
    assert mine.diff(grpo) == {"aggregate": ("SequenceMeanTokenMean()", "TokenMean()")}
    assert grpo.derive(aggregate=TokenMean()).parent == grpo.parent and grpo.aggregate == SequenceMeanTokenMean()


def test_derive_keeps_the_knobs_of_each_domain_unless_told_otherwise():
    ppo = find("ppo")
    assert ppo.on and ppo.derive(name="mine").on == ppo.on
    assert not ppo.derive(name="mine", on={}).on


def test_diff_shows_the_slots_of_dapo():
    changed = dapo.diff(grpo)
    assert set(changed) == {"surrogate", "aggregate", "regularize", "filter", "reward"}
    assert changed["regularize"][1] == "none" and "high=0.28" in changed["surrogate"][1]
    assert grpo.diff(grpo) == {}


def test_a_method_prints_compares_and_hashes():
    lines = str(dhpo).splitlines()
    assert lines[0].startswith("dhpo: ") and "2601.05607" in lines[0]
    assert [line.split()[0] for line in lines[1:]] == ["advantage", "ratio", "surrogate", "aggregate"]
    assert dhpo == dhpo.derive() and hash(dhpo) == hash(dhpo.derive())
    assert len({method for method in catalogue().values()}) == len(catalogue())
    assert dhpo.with_knobs({"ratio.mix.share": 0.4}) != dhpo


def test_stacked_slots_take_a_part_a_tuple_or_nothing():
    part = ReferenceKL()
    assert grpo.derive(regularize=part).regularize == grpo.derive(regularize=[part]).regularize == (part,)
    assert grpo.derive(regularize=None).regularize == ()
    assert grpo.without("regularize", "surrogate").surrogate is None


def test_parts_have_paths():
    paths = [path for path, _ in find("dhpo-entropy").parts()]
    assert paths == [
        *("advantage", "ratio", "ratio.token", "ratio.sequence", "ratio.mix"),
        *("surrogate", "surrogate.token", "surrogate.sequence", "aggregate"),
    ]
    assert "models.value" in [path for path, _ in ppo.parts()] and "shape.0" in [path for path, _ in ppo.parts()]


@pytest.mark.parametrize("wrong", [{"title": 1}, {"year": "2025"}, {"arxiv": 2507.18071}, {"title": None}])
def test_a_paper_holds_text_and_a_year(wrong):
    with pytest.raises(MethodError, match=f"the {next(iter(wrong))} of a paper is"):
        Paper(**{"title": "A paper", "year": 2025, **wrong})
