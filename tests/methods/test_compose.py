"""Methods composed: changes of different slots go together, two of one slot collide."""

from __future__ import annotations

from pathlib import Path

import pytest
from batches import gradient, random_batch

import upslope as up
from upslope.errors import MethodError
from upslope.methods import compose, find
from upslope.objective.estimator import check
from upslope.objective.ratio import SequenceRatio
from upslope.objective.shape import Whiten
from upslope.objective.weight import TopEntropy

grpo, dapo, dhpo, ppo = (find(name) for name in ("grpo", "dapo", "dhpo", "ppo"))


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


def test_methods_of_ones_own_compose_as_values_and_from_files(tmp_path, monkeypatch):
    own = grpo.derive(name="own", shape=Whiten(), surrogate=find("gspo").surrogate)
    both = compose(["high-entropy", own])
    assert both.name == "high-entropy+own" and both.shape == (Whiten(),) and both.surrogate == own.surrogate
    assert both.weight == (TopEntropy(0.2),)
    with pytest.raises(MethodError, match=r"grandchild derives from 'own', which is not in the catalogue"):
        compose(["dhpo", own.derive(name="grandchild")])
    assert compose([own, own.derive(name="child", aggregate=dapo.aggregate)]).aggregate == dapo.aggregate
    monkeypatch.chdir(tmp_path)
    Path("my+files").mkdir()
    source = "from upslope.methods import grpo\nfrom upslope.parts import Whiten\n"
    Path("my+files/mine.py").write_text(source + "mine = grpo.derive(name='mine', shape=Whiten())\n")
    two = "a = grpo.derive(name='a', shape=Whiten())\nb = grpo.derive(name='b', ratio=SequenceRatio())\n"
    Path("two.py").write_text(source + "from upslope.parts import SequenceRatio\n" + two)
    assert up.method("my+files/mine.py").name == "mine" and up.method("my+files/mine.py:mine").name == "mine"
    assert up.method("dhpo+two.py:a").name == "dhpo+a" and up.method("two.py:a+high-entropy").weight == (TopEntropy(0.2),)
    with pytest.raises(MethodError, match=r"--take ratio=dhpo or --take ratio=b"):
        up.method("dhpo+two.py:b")
    assert up.method("dhpo+two.py:b", take={"ratio": "two.py:b"}).ratio == SequenceRatio()
    with pytest.raises(MethodError, match=r"two.py defines 2 methods; say which: two.py:a, two.py:b"):
        up.method("dhpo+two.py")
