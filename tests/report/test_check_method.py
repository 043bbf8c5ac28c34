"""``upslope check-method``: methods of the catalogue pass, and each fault is found by the check that is there for it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor

from upslope.cli import main
from upslope.errors import UserError
from upslope.methods import grpo
from upslope.parts import Aggregate, GroupBaseline, PessimisticClip, Regularizer, Shape, Surrogate, Weight
from upslope.testing import CHECKS, batch_for, check_method, run_checks
from upslope.testing.runs import IN_RUNS
from upslope.types import Batch

FAST = [name for name in CHECKS if name not in IN_RUNS]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dhpo", "ppo", "spo-single-stream"])
def test_methods_of_the_catalogue_pass(name: str, capsys: pytest.CaptureFixture):
    assert main(["check-method", name]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(CHECKS) + 1 and all(line.startswith("ok ") for line in lines[:-1])
    assert lines[-1] == f"{name} passes all {len(CHECKS)} checks"


# -- faults ----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SliceMean(Weight):
    """Divides by the mean over whatever slice it is given."""

    scope = "decision"

    def __call__(self, batch: Batch) -> Tensor:
        size = batch.current.logp.detach().abs()
        return size / size.mean()


@dataclass(frozen=True)
class WholeMean(Aggregate):
    """Counts what was not sampled."""

    scope = "update"

    def __call__(self, batch: Batch) -> Tensor:
        return torch.full_like(batch.sampled, 1 / batch.sampled.numel())


@dataclass(frozen=True)
class Divided(GroupBaseline):
    """Divides by the spread of the rewards, which may be zero."""

    def __call__(self, batch: Batch) -> Tensor:
        return super().__call__(batch) / (batch.reward.max() - batch.reward.min())


@dataclass(frozen=True)
class Leaks(Shape):
    """Looks at what was not sampled."""

    scope = "step"

    def __call__(self, batch: Batch) -> Tensor:
        return batch.advantage * (1 + batch.behavior.logp.mean())


@dataclass(frozen=True)
class Raises(Shape):
    scope = "step"

    def __call__(self, batch: Batch) -> Tensor:
        return {}["nothing"]


@dataclass(frozen=True)
class Greedy(Regularizer):
    """Names a column that it does not read."""

    scope = "decision"

    def needs(self) -> frozenset[str]:
        return frozenset({"current.entropy"})

    def __call__(self, batch: Batch) -> Tensor:
        return torch.zeros_like(batch.sampled)


@dataclass(frozen=True)
class Exploding(Surrogate):
    scope = "decision"

    def __call__(self, batch: Batch, branches: tuple) -> tuple:
        return -torch.exp(batch.current.logp - batch.proximal.logp) * batch.advantage, {}


FAULTS = {
    "cuts": {"weight": SliceMean()},
    "padding": {"shape": Leaks()},
    "empty": {"aggregate": WholeMean()},
    "equal rewards": {"advantage": Divided(scale="none")},
    "groups of one": {"advantage": Divided(scale="none")},
    "needs": {"regularize": Greedy()},
    "infinite": {"surrogate": Exploding()},
}


@pytest.mark.parametrize("check", FAULTS)
def test_a_fault_is_found_by_its_check(check: str):
    (found,) = run_checks(grpo.derive(name="faulty", **FAULTS[check]), [check])
    assert not found.passed and found.check == check and len(found.said) > 10


def test_what_a_part_raises_is_a_line_and_the_other_checks_go_on():
    found = {each.check: each for each in run_checks(grpo.derive(name="faulty", shape=Raises()), FAST)}
    assert list(found) == FAST
    assert found["cuts"].said.startswith("shape.0 (Raises) raised KeyError: 'nothing'") and found["parts"].passed


def test_in_a_test_of_ones_own_it_is_an_assertion():
    check_method(grpo, ["cuts", "masks"])
    with pytest.raises(AssertionError, match=r"(?s)faulty fails 1 checks:\nFAILED  cuts .*cut "):
        check_method(grpo.derive(name="faulty", weight=SliceMean()), ["cuts", "order"])
    with pytest.raises(UserError, match=r"no check named 'cut'\. Did you mean 'cuts'"):
        check_method(grpo, ["cut"])


def test_a_knob_that_turns_a_change_off():
    mine = grpo.derive(name="mine", surrogate=PessimisticClip(low=0.2, high=0.28, dual=grpo.surrogate.dual))
    check_method(mine, ["identity"], off={"surrogate.high": 0.2})
    with pytest.raises(AssertionError, match="identity"):
        check_method(mine, ["identity"], off={"surrogate.high": 0.25})


def test_a_column_of_a_methods_own_is_drawn():
    @dataclass(frozen=True)
    class Reads(Regularizer):
        scope = "decision"

        def needs(self) -> frozenset[str]:
            return frozenset({"current.surprise", "reference.teacher.logp", "label.kind", "segment.turn"})

        def __call__(self, batch: Batch) -> Tensor:
            return batch.current.logp * 0

    batch = batch_for(grpo.derive(name="mine", regularize=Reads()), seed=0)
    assert batch.current.columns()["surprise"].shape == batch.sampled.shape and "teacher" in batch.reference
    assert batch.label["kind"].shape == batch.reward.shape and batch.segment["turn"].shape == batch.sampled.shape


# -- the command -----------------------------------------------------------------------------------------------------------

MINE = """
from dataclasses import dataclass
from upslope.methods import grpo
from upslope.parts import Shape

@dataclass(frozen=True)
class Doubled(Shape):
    scope = "step"
    by: float = 2.0
    def __call__(self, batch):
        return batch.advantage * self.by

doubled = grpo.derive(name="doubled", shape=Doubled())
"""


def test_a_file_of_ones_own(tmp_path: Path, capsys: pytest.CaptureFixture):
    mine = tmp_path / "mine.py"
    mine.write_text(MINE)
    assert main(["check-method", str(mine), "--off", "shape.by=1", "--no-runs", "--json"]) == 0
    assert [each["check"] for each in json.loads(capsys.readouterr().out)] == FAST
    assert main(["check-method", str(mine), "--off", "shape.by=1.5", "--no-runs"]) == 2
    said = capsys.readouterr().out.splitlines()
    assert said[-1] == f"doubled fails 1 of {len(FAST)} checks: identity" and said[1].startswith("FAILED  identity ")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nothing"], "no method named 'nothing'"),
        (["grpo", "--off", "surrogate.hihg=1"], "hihg"),
        (["reinforce", "--off", "x"], "PATH=VALUE"),
        (["reinforce", "--off", "advantage.scale=none"], "no parent"),
    ],
)
def test_what_cannot_be_checked_is_an_error_in_a_line(words: list[str], said: str, capsys: pytest.CaptureFixture):
    assert main(["check-method", *words, "--no-runs"]) == 2
    told = capsys.readouterr().err
    assert said in told and told.count("\n") == 1
