"""Knobs by path: set in their own type, refused with the nearest name, and set by the kind of task."""

from __future__ import annotations

import math

import pytest

from upslope.errors import MethodError
from upslope.methods import find
from upslope.objective.regularize import EntropyBonus, ReferenceKL

grpo, dapo, dhpo, ppo = (find(name) for name in ("grpo", "dapo", "dhpo", "ppo"))


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
        ("sac", "surrogate.temperature", "0.2", 0.2),
        ("sac", "surrogate.temperature", 0, 0.0),
        ("sac", "surrogate.temperature", "heat", "heat"),
        ("sac", "models.temperature.target_entropy", "-3", -3.0),
        ("sac", "models.temperature.target_entropy", "auto", "auto"),
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
