"""Recipes as text."""

import pytest

from upslope.datasets.recipe import KINDS, Recipe
from upslope.errors import UserError


def test_what_is_left_out_has_its_default_and_is_written_down():
    assert str(Recipe.parse("noisy")) == str(Recipe.parse("noisy:eps=0.3")) == "noisy:eps=0.3,of=expert"
    assert str(Recipe.parse("random")) == "random"
    assert Recipe.parse("two_quality:axis=2")["axis"] == 2


@pytest.mark.parametrize("kind", KINDS)
def test_a_recipe_is_read_back_from_its_text(kind: str):
    assert Recipe.parse(str(Recipe.parse(kind))) == Recipe.parse(kind)


def test_who_acts():
    assert [Recipe.parse(text).base for text in ("mixed", "noisy", "noisy:of=medium", "narrow_action", "replay")] == [
        "expert", "expert", "medium", "random", "replay",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("mediun", "no recipe 'mediun'. Did you mean 'medium' .* There are random, scripted, .*, oracle; 'upslope"),
        ("", "no recipe ''. There are random"),
        ("random:eps=0.3", "random has no option 'eps'. Its options: none"),
        ("noisy:ep=0.3", "noisy has no option 'ep'. Its options: eps=0.3, of=expert"),
        ("noisy:eps", "'eps' has no value, as in eps=0.3"),
        ("noisy:eps=much", "eps='much' is no number"),
        ("noisy:eps=1.5", "eps=1.5; it must be between 0 and 1"),
        ("noisy:eps=nan", "eps=nan; it must be between 0 and 1"),
        ("narrow_action:share=0", "share=0 leaves no actions"),
        ("noisy:of=replay", "of='replay' is nobody who acts"),
        ("two_quality:axis=-1", "axis=-1; it counts the numbers of an observation from 0"),
        ("oracle:kind=magic", "it must be plan or markov"),
    ],
)
def test_what_is_no_recipe(text: str, told: str):
    with pytest.raises(UserError, match=told):
        Recipe.parse(text)
