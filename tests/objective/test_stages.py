"""The slot ``stages``: parts with names in an order, as text, in files, on the command line and in compositions."""

from __future__ import annotations

import pytest

from upslope.errors import MethodError
from upslope.methods import compose, find
from upslope.objective import estimator
from upslope.objective.stages import Stage
from upslope.report.describe import show_record, show_text
from upslope.rollout.sampled import Sampled
from upslope.runtime.method_file import dump_method, load_method, method_table, modern_table

GRPO, PLAIN, HYBRID = find("grpo"), find("dr-grpo"), find("dhpo")


def stage(name: str, share: float = 0.25, **changes: object) -> Stage:
    taken = {slot: getattr(PLAIN, slot) for slot in ("advantage", "ratio", "surrogate", "aggregate")}
    return Stage(**{"name": name, "share": share, "rollout": Sampled(), **taken, **changes})  # type: ignore[arg-type]


ZEBRA, APE, LATE = stage("zebra"), stage("ape", 0.5), stage("late", 0.1)
STAGED = PLAIN.derive(name="staged", stages=(ZEBRA, APE))


def test_a_method_has_no_stages_unless_it_says_so():
    assert all(find(name).stages == () for name in ("grpo", "dhpo", "sac"))
    assert PLAIN.derive(stages=None).stages == PLAIN.derive(stages=()).stages == () and PLAIN.derive(stages=()) == PLAIN


def test_stages_stay_in_their_order_through_files():
    again = load_method(dump_method(STAGED))
    assert again == STAGED and [each.name for each in again.stages] == ["zebra", "ape"]
    assert load_method(dump_method(PLAIN)) == PLAIN


def test_files_from_before_stages_have_none():
    table = method_table(PLAIN)
    del table["stages"]
    assert load_method(dump_method(PLAIN).replace("stages = []\n", "")) == PLAIN
    assert modern_table(table)["learner"] == "policy-gradient"


def test_parts_inside_a_stage_are_named_by_it():
    paths = [path for path, _ in STAGED.parts()]
    assert {"stages.zebra", "stages.zebra.rollout", "stages.ape.advantage"} <= set(paths)


@pytest.mark.parametrize(
    ("knobs", "shares"),
    [
        ({"stages.zebra.share": "0.3"}, {"zebra": 0.3, "ape": 0.5}),
        ({"stages.1.share": 0.3}, {"zebra": 0.25, "ape": 0.3}),
        ({"stages.zebra": "none"}, {"ape": 0.5}),
        ({"stages.zebra": "none", "stages.share": 0.1}, {"ape": 0.1}),
        ({"stages": "none"}, {}),
    ],
)
def test_knobs_by_name_or_position(knobs, shares):
    found = STAGED.with_knobs(knobs)
    assert {each.name: each.share for each in found.stages} == shares


def test_a_whole_stage_as_text():
    told = (
        "Stage(name='late', share=0.1, rollout=Sampled, advantage=GroupBaseline(scale='none'), ratio=TokenRatio,"
        " surrogate=PessimisticClip, aggregate=ConstantLength)"
    )
    assert STAGED.with_knobs({"stages.late": told}).stages == (ZEBRA, APE, LATE)
    assert PLAIN.with_knobs({"stages": told}).stages == (LATE,)
    with pytest.raises(MethodError, match=r"puts 'late' under 'early'. Say the same name in both places"):
        STAGED.with_knobs({"stages.early": told})


@pytest.mark.parametrize(
    ("path", "value", "told"),
    [
        ("stages.zebr.share", 0.3, "say which: zebra, ape"),
        ("stages.zebra.sahre", 0.3, "has no knob 'sahre'. Did you mean 'share'"),
        ("stages.zebra.share", 1.5, "less than 1|below 1"),
        ("stages.zebra.rollout", "none", "cannot be without its rollout"),
        ("stages.zebra.rollout", "TokenMean", "does not fit there"),
    ],
)
def test_wrong_knobs_say_what_to_do(path, value, told):
    with pytest.raises(MethodError, match=told):
        STAGED.with_knobs({path: value})


def test_what_is_no_stage_is_refused():
    with pytest.raises(MethodError, match=r"stages.0 of mine is .*It takes a part that derives from TrainingStage: Stage"):
        PLAIN.derive(name="mine", stages=PLAIN.advantage)


# -- composed ------------------------------------------------------------------------------------------------------------------


def test_stages_are_composed_in_order_and_a_name_stays_the_first_ones():
    other = GRPO.derive(name="other", stages=(stage("ape", 0.05), LATE))
    assert compose([STAGED, other]).stages == (ZEBRA, APE, LATE)
    assert [each.share for each in compose([other, STAGED]).stages] == [0.05, 0.1, 0.25]
    assert compose([HYBRID, STAGED]).stages == (ZEBRA, APE)


def test_what_a_method_takes_from_its_parent_is_taken_from_the_composition():
    shorter = STAGED.derive(name="shorter", stages=APE)
    assert compose([STAGED, shorter]).stages == (APE,)


def test_too_much_together_is_said_when_the_run_is_set_up_and_can_be_mended():
    both = compose([STAGED, GRPO.derive(name="other", stages=stage("third", 0.5))])
    with pytest.raises(MethodError, match=r"staged\+other take 1.25 of the run \(zebra 0.25, ape 0.5, third 0.5\)"):
        estimator.check(both)
    estimator.check(both.with_knobs({"stages.third.share": 0.1}))


# -- shown ---------------------------------------------------------------------------------------------------------------------


def test_show_says_which_stages_a_method_adds():
    record = show_record(STAGED, flat=True)
    assert record["changes"]["stages"]["to"] == f"{ZEBRA} + {APE}"
    flat = show_text(STAGED, flat=True)
    assert flat.index("stages.zebra  Stage") < flat.index("stages.ape  Stage") < flat.index("\nadvantage  ")
