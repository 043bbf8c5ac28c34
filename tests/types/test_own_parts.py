"""Parts of the user's own: refused if a run could not bring them back, and blamed by name, place and line for what they do."""

from pathlib import Path
from typing import Any

import pytest
import torch
from batches import random_batch

import upslope as up
from upslope.errors import MethodError
from upslope.methods import catalogue, check_own_name, find
from upslope.objective.advantage import GroupBaseline
from upslope.objective.estimator import check, method_loss
from upslope.objective.surrogate.clip import PessimisticClip
from upslope.runtime.method_file import check_can_be_found_again
from upslope.runtime.user_code import load_file
from upslope.types import Method

HEAD = """
from dataclasses import dataclass, field
from typing import ClassVar
import numpy
import torch
import upslope as up
from upslope.objective.advantage import GroupBaseline
from upslope.objective.base import *
from upslope.objective.ratio import ConstantMix, Hybrid

"""


def method_of(folder: Path, text: str, slot: str = "weight", parent: str = "grpo", made: str = "S()") -> Method:
    file = folder / "mine.py"
    file.write_text(f"{HEAD}{text}\nmethod = up.method('{parent}').derive(name='mine', {slot}={made})\n")
    return load_file(file).method


@pytest.mark.parametrize(
    ("text", "made", "says"),
    [
        ("class S(Weight):\n    def __init__(self, by): self.by = by\n", "S(5.0)", "S has settings of its own and is no dataclass"),
        ("class S(Weight):\n    by: float = 1.0\n", "S()", "S has settings of its own and is no dataclass"),
        ("class S(GroupBaseline):\n    eps = 5.0\n", "S()", "S has settings of its own and is no dataclass"),
        ("@dataclass(frozen=True)\nclass B(Weight):\n    by: float = 1.0\nclass S(B):\n    by = 2.0\n", "S()", "S has settings"),
        (
            "@dataclass(frozen=True)\nclass S(Weight):\n    by: float = field(default=1.0, init=False)\n",
            "S()",
            "its field 'by' is not given when it is made",
        ),
        (
            "@dataclass(frozen=True)\nclass S(Weight):\n    by: float = 1.0\n"
            "    def __post_init__(self): object.__setattr__(self, 'twice', 2 * self.by)\n",
            "S()",
            "it holds 'twice', which is no field",
        ),
        (
            "@dataclass(frozen=True)\nclass S(Weight):\n    by: float = 1.0\n"
            "    def __post_init__(self): object.__setattr__(self, 'by', 2 * self.by)\n",
            "S()",
            "made from its own fields, its 'by' is another",
        ),
        (
            "@dataclass(frozen=True)\nclass S(Weight):\n    by: float\n"
            "    def __init__(self, twice): object.__setattr__(self, 'by', twice / 2)\n",
            "S(3.0)",
            "cannot be made from its own fields",
        ),
        ("@dataclass(frozen=True)\nclass S(Weight):\n    by: list = field(default_factory=list)\n", "S()", "not []"),
        ("@dataclass(frozen=True)\nclass S(Weight):\n    by: object = None\n", "S()", "write 'no bound' as inf"),
        (
            "def make():\n    @dataclass(frozen=True)\n    class S(Weight):\n        by: float = 1.0\n    return S\n",
            "make()()",
            "its class is not found under its name",
        ),
    ],
)
def test_a_part_that_would_come_back_with_other_settings_is_refused(text: str, made: str, says: str, tmp_path: Path):
    slot = "advantage" if "GroupBaseline)" in text else "weight"
    method = method_of(tmp_path, text, slot, made=made)
    with pytest.raises(MethodError) as told:
        check_can_be_found_again(method)
    assert says in str(told.value) and str(told.value).startswith(slot) and "\n" not in str(told.value)
    out = tmp_path / "run"
    with pytest.raises(MethodError, match="could not make again"):
        up.train(str(tmp_path / "mine.py"), task="reverse:length=2", model="tiny:layers=1,width=16", out=out)
    assert not out.exists()


@pytest.mark.parametrize(
    "text",
    [
        "@dataclass(frozen=True)\nclass S(GroupBaseline):\n    eps: float = 5.0\n    kind: ClassVar[str] = 'a'\n",
        "class S(GroupBaseline):\n    def __call__(self, batch): return super().__call__(batch)\n",
        "class S(GroupBaseline):\n    kind: ClassVar[str] = 'a'\n",
    ],
)
def test_a_part_that_would_come_back_as_it_is_is_not(text: str, tmp_path: Path):
    check_can_be_found_again(method_of(tmp_path, text, "advantage"))


@pytest.mark.parametrize("name", catalogue())
def test_every_method_of_the_catalogue_could_be_brought_back(name: str):
    check_can_be_found_again(find(name))
    check(find(name))


# -- what they do ----------------------------------------------------------------------------------------------------------

PART = "@dataclass(frozen=True)\nclass S({base}):\n    def __call__(self, batch, *branches):\n        return {returned}\n"
SHAPE = "a float tensor of shape [12, 8]"


@pytest.mark.parametrize(
    ("slot", "base", "returned", "says"),
    [
        ("advantage", "Advantage", "None", f"advantage (S) returned None; it must return {SHAPE}"),
        ("advantage", "Advantage", "0.5", f"advantage (S) returned 0.5 (float); it must return {SHAPE}"),
        ("advantage", "Advantage", "batch.reward", "returned a tensor of shape [12] and torch.float64"),
        ("advantage", "Advantage", "batch.sampled.numpy()", "returned a numpy array of shape [12, 8]"),
        ("advantage", "Advantage", "batch.sampled > 0", "and torch.bool; it must"),
        ("weight", "Weight", "None", "weight.0 (S) returned None"),
        ("regularize", "Regularizer", "batch.current.logp.sum()", "regularize.0 (S) returned a tensor of shape []"),
        ("aggregate", "Aggregate", "1", "aggregate (S) returned 1 (int)"),
        ("reward", "Reward", "batch.reward", "torch.float64; it must return the batch with 12 rewards"),
        ("surrogate", "Surrogate", "batch.advantage", "surrogate (S) returned a tensor"),
        ("surrogate", "Surrogate", "(None, {})", "surrogate (S) returned None; it must return a loss of shape [12, 8]"),
        ("weight", "Weight", "batch.nothing", "raised AttributeError: 'Batch' object has no attribute 'nothing' (mine.py"),
        ("advantage", "Advantage", "1 / 0", "advantage (S) raised ZeroDivisionError: division by zero (mine.py, line 14)."),
        ("weight", "Weight", "batch.sampled @ batch.sampled", "weight.0 (S) raised RuntimeError: "),
    ],
)  # fmt: skip
def test_what_a_part_returns_or_raises_is_told_with_its_place(slot: str, base: str, returned: str, says: str, tmp_path: Path):
    method = method_of(tmp_path, PART.format(base=base, returned=returned), slot)
    with pytest.raises(MethodError) as told:
        method_loss(method, random_batch(0, dtype=torch.float64))
    assert says in str(told.value) and "\n" not in str(told.value)


def test_a_part_inside_of_another_is_the_one_that_is_blamed(tmp_path: Path):
    text = PART.format(base="Mix", returned="1 / 0")
    method = method_of(tmp_path, text, "ratio", "dhpo", "Hybrid(mix=S())")
    with pytest.raises(MethodError, match=r"ratio.mix \(S\) raised ZeroDivisionError") as told:
        method_loss(method, random_batch(0))
    assert isinstance(told.value.__cause__, ZeroDivisionError)


def test_an_error_of_our_own_parts_keeps_its_name(monkeypatch: pytest.MonkeyPatch):
    def fails(self: Any, batch: Any) -> None:
        raise ZeroDivisionError("ours")

    monkeypatch.setattr(GroupBaseline, "__call__", fails)
    with pytest.raises(ZeroDivisionError, match="ours"):
        method_loss(find("grpo"), random_batch(0))


def test_a_run_with_such_a_part_says_so(tmp_path: Path):
    method_of(
        tmp_path,
        PART.format(base="Filter", returned="[True]").replace("def", "refill: bool = False\n    rounds: int = 1\n    def"),
        "filter",
    )
    with pytest.raises(MethodError, match=r"filter.0 \(S\) returned \[True\] \(list\); it must return a tensor of 4 booleans"):
        up.train(
            str(tmp_path / "mine.py"), task="reverse:length=2", model="tiny:layers=1,width=16", steps=1, tasks_per_step=2,
            samples_per_task=2, warm_start=0.0, eval_problems=2, out=tmp_path / "run",
        )  # fmt: skip


def test_a_part_in_a_slot_that_is_not_its_own_is_refused():
    with pytest.raises(MethodError, match=r"surrogate of grpo is GroupBaseline\(.*It takes a part that derives from Surrogate"):
        check(find("grpo").derive(surrogate=GroupBaseline()))
    with pytest.raises(MethodError, match=r"shape\.0 of grpo is GroupBaseline"):
        check(find("grpo").derive(shape=GroupBaseline()))


def test_a_method_named_like_one_of_the_catalogue_is_refused():
    with pytest.raises(MethodError, match="is called 'grpo' like one of the catalogue, and differs from it in surrogate"):
        check_own_name(find("grpo").derive(surrogate=PessimisticClip(high=0.3)))
    for fine in (find("grpo"), find("grpo").derive(name="mine", surrogate=PessimisticClip(high=0.3))):
        check_own_name(fine)
