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
from upslope.testing import batch_for

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
        (["td3-bc", "dapo"], {}, "td3-bc learns from stored experience and dapo learns from what it has just sampled"),
        (["dapo", "td3-bc"], {}, "Compose methods that learn in the same way"),
        (
            *(["td3", "iql"], {"policy": "td3", "surrogate": "td3"}),
            r"td3 and iql both fill 'models.q': QFunction\(.*--take models=td3 or --take models=iql",
        ),
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


# -- methods of stored experience ------------------------------------------------------------------------------------------


def test_changes_compose_where_experience_is_stored():
    td3_bc = find("td3-bc")
    critics = find("td3").with_knobs({"models.q.network.members": 5}).derive(name="five-critics", parent="td3")
    both = compose([td3_bc, critics])
    assert both.surrogate == td3_bc.surrogate and both.offline and dict(both.models)["q"].network.members == 5
    assert compose([critics, td3_bc]).diff(both) == {}, "where nothing collides, order does not matter"
    assert gradient(both, batch_for(both, 0)).finite()


def test_a_method_composed_with_its_child_is_the_child_with_the_settings_that_go_with_it():
    both, td3_bc = compose(["td3", "td3-bc"], take={"surrogate": "td3-bc"}), find("td3-bc")
    assert both.diff(td3_bc) == {} and both.offline
    assert both.settings_on("control") == td3_bc.settings_on("control")
    assert find("td3").diff(td3_bc)["offline"] == ("yes", "no"), "what it learns from is a difference"


def test_which_of_two_models_is_taken_can_be_said():
    own, theirs = (compose(["td3", "iql"], take={"models": name, "policy": name, "surrogate": name}) for name in ("td3", "iql"))
    assert dict(own.models)["q"] == dict(find("td3").models)["q"] and dict(theirs.models)["q"] == dict(find("iql").models)["q"]
