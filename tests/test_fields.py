"""Settings and knobs that can only be a mistake are refused wherever they come from, and no method of the catalogue has one."""

import dataclasses
import math
import tomllib
from dataclasses import dataclass
from typing import Any, Literal

import pytest
import tomli_w
from hypothesis import given, settings
from hypothesis import strategies as st

from upslope.errors import MethodError, UserError
from upslope.fields import Interval, all_ranges, hints
from upslope.methods import catalogue, find
from upslope.objective.advantage.baseline import GroupBaseline
from upslope.objective.regularize.kl import ReferenceKL
from upslope.objective.shape import Whiten
from upslope.objective.surrogate.clip import PessimisticClip
from upslope.objective.weight.selection import TopEntropy
from upslope.runtime.method_file import dump_method, load_method
from upslope.runtime.settings import Settings
from upslope.runtime.settings_values import BOUNDS
from upslope.types import Part

NAN = float("nan")


@pytest.mark.parametrize(
    ("setting", "value", "says"),
    [
        ("lr", NAN, "--lr is nan; it must be a number, and NaN is none."),
        ("lr", math.inf, "--lr is inf; it must be above 0 and finite."),
        ("weight_decay", math.inf, "it must be at least 0 and finite."),
        ("temperature", NAN, "NaN is none"),
        ("temperature", -1, "--temperature is -1; it must be above 0."),
        ("top_p", 1.5, "it must be above 0 and at most 1."),
        ("min_p", -0.1, "it must be at least 0 and below 1."),
        ("adam_beta2", 1.5, "--adam-beta2 is 1.5; it must be at least 0 and below 1."),
        ("adam_eps", 0.0, "it must be above 0."),
        ("warm_start", 1.5, "it must be at least 0 and at most 1."),
        ("threads", 100_000, "--threads is 100000; it must be at least 1 and at most 1024."),
        ("seed", 2**63, "it must be below 2**63."),
        ("seed", 10**400, "it must be below 2**63."),
        ("seed", None, "it must be a whole number."),
        ("steps", "10", "--steps is '10'; it must be a whole number."),
        ("steps", True, "it must be a whole number."),
        ("lr", "a", "it must be a number."),
        ("recompute", "some", "it must be a whole number or one of auto, all, off."),
        ("recompute", -1, "it must be at least 0."),
        ("checkpoint_every", "never", "it must be a whole number or one of auto, none."),
        ("plain", 1, "it must be True or False."),
        ("watch_kl", "yes", "it must be True or False."),
        ("stop", 3, "it must be text."),
        ("stop", "\udc80", "it must be text that can be written as UTF-8."),
        ("precision", "fp8", "--precision is 'fp8'; it must be one of auto, float32."),
        ("schedule", "liner", "it must be one of constant, linear, cosine. Did you mean 'linear'"),
        ("record", "everything", "it must be one of all, some, none."),
        ("device", "gpu", "it must be one of auto, cpu, cuda."),
        ("engine", 3, "it must be text."),
    ],
)
def test_a_setting_that_can_only_be_a_mistake_is_refused(setting: str, value: Any, says: str):
    with pytest.raises(UserError) as told:
        Settings(**{setting: value})
    assert says in str(told.value) and "\n" not in str(told.value)


def test_a_number_that_python_does_not_write_is_refused_too():
    with pytest.raises(UserError, match="--seed is a number of thousands of digits; it must be below"):
        Settings(seed=10**5000)


def test_settings_that_are_unusual_are_not():
    Settings(steps=0, seed=-1, lr=1e30, grad_clip=math.inf, adam_beta2=0.0, top_p=1, threads=1024, warm_start=0)
    assert set(BOUNDS) <= {f.name for f in dataclasses.fields(Settings)}


@pytest.mark.parametrize(
    ("method", "knob", "value", "says"),
    [
        ("grpo", "regularize.weight", "nan", "--set regularize.weight=nan (now 0.04): it must be a number, and NaN is none."),
        ("grpo", "regularize.weight", NAN, "NaN is none"),
        ("grpo", "regularize.weight", "-1", "--set regularize.weight=-1 (now 0.04): it must be at least 0."),
        ("grpo", "regularize.weight", "inf", "it must be at least 0 and finite."),
        ("grpo", "surrogate.dual", "0.5", "--set surrogate.dual=0.5 (now inf): it must be above 1."),
        ("grpo", "surrogate.dual", "1", "it must be above 1."),
        ("ppo", "advantage.gamma", "1.5", "it must be at least 0 and at most 1."),
        ("ppo", "advantage.lam", "-0.1", "it must be at least 0 and at most 1."),
        ("dapo", "filter.rounds", "1e400", "that knob is a whole number"),
        ("dapo", "filter.rounds", "nan", "that knob is a whole number"),
        ("dhpo", "ratio.mix.share", "2", "at most 1"),
    ],
)
def test_a_knob_that_can_only_be_a_mistake_is_refused(method: str, knob: str, value: Any, says: str):
    with pytest.raises(MethodError) as told:
        find(method).with_knobs({knob: value})
    assert says in str(told.value) and "\n" not in str(told.value)


@pytest.mark.parametrize(
    ("slot", "part", "says"),
    [
        ("regularize", ReferenceKL(weight=NAN), "regularize.0.weight of ReferenceKL is nan; it must be a number, and NaN is none."),
        ("regularize", ReferenceKL(weight=-1.0), "regularize.0.weight of ReferenceKL is -1.0; it must be at least 0."),
        ("regularize", ReferenceKL(estimator="k4"), "is 'k4'; it must be one of k1, k2, k3"),  # type: ignore[arg-type]
        ("advantage", GroupBaseline(scale="mad"), "advantage.scale of GroupBaseline is 'mad'; it must be one of std, none"),  # type: ignore[arg-type]
        ("advantage", GroupBaseline(eps="small"), "advantage.eps of GroupBaseline is 'small'; it must be a number."),  # type: ignore[arg-type]
        ("advantage", GroupBaseline(leave_one_out="no"), "it must be True or False."),  # type: ignore[arg-type]
        ("surrogate", PessimisticClip(dual=0.5), "surrogate.dual of PessimisticClip is 0.5; it must be above 1."),
        ("advantage", lambda batch: batch.reward, "which is no part"),
        ("surrogate", 3, "surrogate of grpo is 3, which is no part"),
        ("regularize", lambda batch: 0, "regularize.0 of grpo is <function"),
        ("shape", (Whiten(), None), "shape.1 of grpo is None, which is no part"),
        ("models", {"value": 3}, "models.value of grpo is 3, which is no part"),
        ("models", ReferenceKL(), "a mapping of names is wanted"),
    ],
)  # fmt: skip
def test_a_method_is_not_made_of_what_can_only_be_a_mistake(slot: str, part: Any, says: str):
    with pytest.raises(MethodError) as told:
        find("grpo").derive(**{slot: part})
    assert says in str(told.value) and "\n" not in str(told.value)


def test_a_part_of_ones_own_declares_its_ranges():
    @dataclass(frozen=True)
    class Mine(ReferenceKL):
        ranges = {"share": "[0, 1)"}  # noqa: RUF012

        share: float = 0.5
        kind: Literal["a", "b"] = "a"

    for wrong, says in (({"share": 1.0}, "below 1"), ({"weight": -1.0}, "at least 0"), ({"kind": "c"}, "one of a, b")):
        with pytest.raises(MethodError, match=says):
            find("grpo").derive(regularize=Mine(**wrong))
    with pytest.raises(MethodError, match="below 1"):
        find("grpo").derive(regularize=Mine()).with_knobs({"regularize.share": 2})


def test_a_range_that_is_no_interval_is_told():
    @dataclass(frozen=True)
    class Mine(ReferenceKL):
        ranges = {"weight": "0..1"}  # noqa: RUF012

    with pytest.raises(MethodError, match=r"the range '0\.\.1' is no interval; write it as"):
        find("grpo").derive(regularize=Mine())


def test_a_whole_number_may_stand_for_a_real_knob_and_be_set_to_a_fraction():
    changed = find("grpo").derive(weight=TopEntropy(fraction=1)).with_knobs({"weight.fraction": "0.5"})
    assert changed.weight[0].fraction == 0.5


@pytest.mark.parametrize("name", catalogue())
def test_no_method_of_the_catalogue_is_out_of_range(name: str):
    method = find(name)
    for domain in ["", *dict(method.on)]:
        for path, part in method.for_domain(domain).parts():
            part.check_knobs(path)
            assert hints(type(part)) or not dataclasses.fields(part), "nothing would be checked"


def _kinds(kind: type[Part]) -> list[type[Part]]:
    return [kind, *(below for child in kind.__subclasses__() for below in _kinds(child))]


def test_every_range_is_of_a_knob_and_can_be_read():
    catalogue()
    ranged = [kind for kind in _kinds(Part) if kind.__module__.startswith("upslope.") and "ranges" in vars(kind)]
    assert len(ranged) > 30
    for kind in ranged[1:]:
        assert set(vars(kind)["ranges"]) <= {f.name for f in dataclasses.fields(kind)}, kind
        for interval in all_ranges(kind).values():
            read = Interval.parse(interval)
            assert read.low < read.high and interval[0] in "[(" and interval[-1] in "])"


@pytest.mark.parametrize(
    ("interval", "inside", "outside"),
    [("[0, 1)", (0, 0.5), (-0.1, 1)), ("(0, inf)", (1e-9, 1e300), (0, math.inf)), ("(1, inf]", (1.1, math.inf), (1, -math.inf))],
)
def test_brackets_belong_and_parentheses_do_not(interval: str, inside: tuple, outside: tuple):
    read = Interval.parse(interval)
    assert all(value in read for value in inside) and not any(value in read for value in outside)


# -- anything at all -------------------------------------------------------------------------------------------------------

ANYTHING = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8), st.binary(max_size=4),
    st.sampled_from([[1], 2**63, -(2**70), 10**400, 5e-324, -0.0, "nan", "inf", "1e400", "\udc80", "0x10", "1_0", object()]),
)  # fmt: skip
SETTING = st.sampled_from([f.name for f in dataclasses.fields(Settings)])
KNOBS = [(name, f"{path}.{f.name}") for name in catalogue() for path, part in find(name).parts() for f in dataclasses.fields(part)]


@settings(max_examples=300, deadline=None)
@given(SETTING, ANYTHING)
def test_any_setting_is_taken_or_refused_in_a_line(name: str, value: Any):
    try:
        made = Settings(**{name: value})
    except UserError as error:
        assert "\n" not in str(error) and str(error).encode("utf-8", "surrogatepass")
    else:
        kept = getattr(made, name)
        assert kept == kept, "NaN was taken"
        tomllib.loads(tomli_w.dumps({name: kept} if kept is not None else {}))


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(KNOBS), ANYTHING)
def test_any_knob_is_taken_or_refused_in_a_line(knob: tuple[str, str], value: Any):
    name, path = knob
    try:
        changed = find(name).with_knobs({path: value})
    except UserError as error:
        assert "\n" not in str(error)
    else:
        assert load_method(dump_method(changed)) == changed
