"""A method as a value: derived, compared, set, composed, written and read."""

from __future__ import annotations

import dataclasses
import math
import sys
from pathlib import Path

import pytest
from batches import assert_same, gradient, random_batch

import upslope as up
from upslope.errors import MethodError, UserError
from upslope.methods import catalogue, compose, find
from upslope.objective.aggregate import SequenceMeanTokenMean, TokenMean
from upslope.objective.estimator import check
from upslope.objective.ratio import SequenceRatio
from upslope.objective.regularize import EntropyBonus, ReferenceKL
from upslope.objective.weight import TopEntropy
from upslope.runtime.method_file import dump_method, load_method, user_bundles
from upslope.runtime.user_code import keep, load_file
from upslope.types import Method, Weight

grpo, dapo, dhpo, ppo = (find(name) for name in ("grpo", "dapo", "dhpo", "ppo"))
PLAIN = grpo.derive(regularize=None)
"""GRPO without its KL term."""


# -- deriving and comparing ------------------------------------------------------------------------------------------------


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


# -- knobs -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "path", "text", "value"),
    [
        ("grpo", "surrogate.high", "0.3", 0.3),
        ("grpo", "surrogate.dual", "inf", math.inf),
        ("grpo", "advantage.ddof", "0", 0),
        ("grpo", "advantage.leave_one_out", "true", True),
        ("grpo", "advantage.leave_one_out", False, False),
        ("grpo", "advantage.scale", "none", "none"),
        ("grpo", "regularize.weight", "0.001", 0.001),
        ("grpo", "regularize.0.weight", 1, 1.0),
        ("dhpo", "ratio.mix.share", "0.25", 0.25),
        ("dhpo", "surrogate.sequence.low", "1e-3", 1e-3),
        ("ppo", "models.value.clip", "0.2", 0.2),
        ("dapo", "filter.refill", "False", False),
    ],
)
def test_a_knob_is_set_by_path_in_its_own_type(name: str, path: str, text, value):
    changed = find(name).with_knobs({path: text})
    slot, *rest = path.split(".")
    held = dict(changed.parts())
    owner = next(part for where, part in held.items() if where in (".".join([slot, *rest[:-1]]), ".".join([slot, "0", *rest[:-1]])))
    found = getattr(owner, rest[-1])
    assert found == value and type(found) is type(value)
    assert list(changed.diff(find(name))) in ([slot], [])


@pytest.mark.parametrize(
    ("name", "knobs", "says"),
    [
        ("grpo", {"surogate.high": 0.3}, "Did you mean 'surrogate'"),
        ("grpo", {"surrogate.hihg": 0.3}, "Did you mean 'high'"),
        ("grpo", {"surrogate": 0.3}, "PessimisticClip is a part, not a knob"),
        ("grpo", {"surrogate.high": "much"}, "that knob is a float"),
        ("grpo", {"advantage.leave_one_out": "perhaps"}, "that knob is a bool"),
        ("grpo", {"advantage.ddof": "one"}, "that knob is a whole number"),
        ("grpo", {"advantage.ddof": 0.5}, "that knob is a whole number"),
        ("grpo", {"shape.eps": 0.1}, "no knob to set"),
        ("dhpo", {"ratio.mix.shar": 0.1}, "Did you mean 'share'"),
        ("dhpo", {"ratio.mix": 0.1}, "ConstantMix is a part, not a knob"),
        # A word that is none of the knob's choices would silently take the last branch of an if.
        ("grpo", {"advantage.scale": "stdd"}, "std"),
        ("grpo", {"regularize.estimator": "k4"}, "k3"),
        ("dhpo", {"surrogate.form": "per_branch"}, "per_branch_min"),
    ],
)
def test_a_wrong_knob_is_refused_with_the_nearest_name(name: str, knobs: dict, says: str):
    with pytest.raises(MethodError, match=says) as refused:
        find(name).with_knobs(knobs)
    ((path, value),) = knobs.items()
    assert path in str(refused.value) and str(value) in str(refused.value)


def test_in_a_stack_the_position_says_which():
    two = grpo.derive(regularize=(ReferenceKL(), EntropyBonus()))
    assert two.with_knobs({"regularize.1.weight": 0.5}).regularize == (ReferenceKL(), EntropyBonus(0.5))
    with pytest.raises(MethodError, match="say which: 0, 1"):
        two.with_knobs({"regularize.weight": 0.5})


def test_knobs_by_domain():
    text, control = ppo.for_domain("text"), ppo.for_domain("control")
    assert (text.advantage.lam, text.surrogate.dual, dict(text.models)["value"].clip) == (1.0, 3.0, 0.5)
    assert control == ppo and ppo.for_domain("control-discrete").regularize[0].weight == 0.01
    assert grpo.for_domain("text") == grpo


# -- composing -------------------------------------------------------------------------------------------------------------


def test_changes_of_different_slots_compose():
    both = compose(["dr-grpo", "gspo"])
    gspo, dr_grpo = find("gspo"), find("dr-grpo")
    assert (both.ratio, both.surrogate) == (gspo.ratio, gspo.surrogate)
    assert (both.advantage, both.aggregate, both.regularize) == (dr_grpo.advantage, dr_grpo.aggregate, ())
    assert (both.name, both.parent) == ("dr-grpo+gspo", "dr-grpo")
    assert both.diff(compose(["gspo", "dr-grpo"])) == {}, "where nothing collides, order does not matter"
    check(both)
    assert gradient(both, random_batch(0)).finite()


def test_an_addition_composes_with_another_branch_of_the_family():
    both = compose(["dhpo", "high-entropy"])
    assert both.weight == (TopEntropy(0.2),) and both.derive(weight=None).diff(dhpo) == {}
    assert gradient(both, random_batch(0)).finite()


def test_two_changes_of_one_slot_collide_and_the_error_says_how_to_choose():
    with pytest.raises(MethodError) as refused:
        compose(["dapo", "gspo"])
    message = str(refused.value)
    for part in ("surrogate", str(dapo.surrogate), str(find("gspo").surrogate), "--take surrogate=dapo", "--take surrogate=gspo"):
        assert part in message
    theirs, ours = (compose(["dapo", "gspo"], take={"surrogate": name}) for name in ("gspo", "dapo"))
    assert theirs.surrogate == find("gspo").surrogate and ours.surrogate == dapo.surrogate
    assert theirs.ratio == ours.ratio == SequenceRatio() and theirs.filter == dapo.filter


@pytest.mark.parametrize(
    ("names", "take", "says"),
    [
        (["dhp"], {}, "Did you mean 'dhpo'"),
        (["grpo", "reinforce"], {}, "reinforce has no parent"),
        (["dapo", "gspo"], {"surogate": "gspo"}, "Did you mean 'surrogate'"),
        (["dapo", "gspo"], {"surrogate": "grpo"}, "not among the composed"),
    ],
)
def test_wrong_compositions_are_refused(names: list, take: dict, says: str):
    with pytest.raises(MethodError, match=says):
        compose(names, take)


# -- files -----------------------------------------------------------------------------------------------------------------

USER_FILE = '''
from dataclasses import dataclass

from upslope.methods import find
from upslope.objective.base import Weight


@dataclass(frozen=True)
class EveryOther(Weight):
    """Every other decision."""

    start: int = 0

    def __call__(self, batch):
        weight = batch.sampled.clone()
        weight[:, self.start :: 2] = 0
        return weight


halved = find("grpo").derive(name="halved", differs="learns from every other token", weight=EveryOther(1))
'''


def test_a_users_own_part_goes_through_toml_with_its_hash(tmp_path: Path):
    path = tmp_path / "my_method.py"
    path.write_text(USER_FILE)
    method, code = load_file(path).halved, tmp_path / "code"
    (bundle,) = user_bundles(method)
    assert isinstance(method, Method) and bundle.root / bundle.entry == path
    keep({bundle}, code)
    text = dump_method(method)
    assert "/my_method.py:EveryOther@" in text
    assert load_method(text, code) == method and hash(load_method(text, code)) == hash(method)
    found = gradient(method, random_batch(0))
    assert_same(gradient(method, random_batch(0), "rows"), found)
    assert not gradient(method.derive(regularize=None), random_batch(0)).logp[:, 1::2].any()
    with pytest.raises(MethodError, match="folder"):
        load_method(text)


def test_a_file_that_changed_is_refused_before_it_runs(tmp_path: Path):
    path = tmp_path / "my_method.py"
    path.write_text(USER_FILE)
    method, code = load_file(path).halved, tmp_path / "code"
    text = dump_method(method)
    keep(user_bundles(method), code)
    (copied,) = code.glob("*/my_method.py")
    copied.write_text(USER_FILE + f"\nopen({str(tmp_path / 'ran')!r}, 'w').close()\n")
    with pytest.raises(UserError, match="not the code this run was started with"):
        load_method(text, code)
    assert not (tmp_path / "ran").exists(), "a file that is refused must not have been executed"


@pytest.mark.parametrize("name", ["this:s", "upslope.types:Batch", "upslope.errors:nothing", "upslope.nowhere:X"])
def test_only_parts_are_read_from_a_file(name: str):
    text = dump_method(grpo).replace("aggregate.SequenceMeanTokenMean", name)
    with pytest.raises(MethodError, match="not a part"):
        load_method(text)
    assert "this" not in sys.modules, "a file must not be able to import whatever it likes"


def test_unknown_fields_in_a_file_are_refused():
    with pytest.raises(MethodError, match="colour"):
        load_method('colour = "red"\n' + dump_method(grpo))
    with pytest.raises(MethodError, match="hihg"):
        load_method(dump_method(grpo).replace("high =", "hihg ="))


def test_what_toml_cannot_hold_is_refused():
    @dataclasses.dataclass(frozen=True)
    class Odd(Weight):
        knob: object = None

    with pytest.raises(MethodError, match="write 'no bound' as inf"):
        dump_method(grpo.derive(weight=Odd()))


def test_a_method_called_like_one_of_the_catalogue_is_refused(tmp_path: Path):
    path = tmp_path / "my_method.py"
    path.write_text(USER_FILE.replace('name="halved"', 'name="grpo"'))
    with pytest.raises(MethodError, match="'grpo' like one of the catalogue"):
        up.method(str(path))
