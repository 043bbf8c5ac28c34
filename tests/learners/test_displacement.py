"""A run on pairs that makes its chosen answers less likely is told so, once, with what helps."""

from __future__ import annotations

import json
import warnings

import pytest

import upslope as up
from upslope.errors import Remark
from upslope.learners.displacement import DisplacementWatch, looks
from upslope.methods import find
from upslope.testing.runs import Breaks, Crash


def steps(chosen, loss=None):
    """Records of steps with these log-likelihoods, and a loss that falls unless others are given."""
    losses = loss or [0.7 - 0.01 * place for place in range(len(chosen))]
    return [{"kind": "step", "logp_chosen": value, "loss": each} for value, each in zip(chosen, losses, strict=True)]


FALLING = [-4.0] * 5 + [-5.5] * 5


def test_a_clear_fall_is_told_with_metric_and_cures():
    told = DisplacementWatch(find("dpo")).remark(steps(FALLING))
    assert told.startswith("logp_chosen fell from -4.0 to -5.5 while the loss fell too: ")
    cures = "an sft term on the chosen answers (docs/preferences.md), a larger surrogate.beta (it is 0.1), opa-dpo or sppo"
    assert told.endswith(f"Try {cures}.")
    assert "\n" not in told
    other = DisplacementWatch(find("ipo")).remark(steps(FALLING))
    assert other.endswith("Try an sft term on the chosen answers (docs/preferences.md), opa-dpo or sppo.")


@pytest.mark.parametrize(
    "records",
    [
        steps([-4.0] * 5 + [-4.9] * 5),  # less than a nat
        steps([-40.0] * 5 + [-42.0] * 5),  # less than a tenth
        steps([-4.0] * 5 + [-5.5, -5.5, -4.5, -5.5, -5.5]),  # not in all of the last steps
        steps(FALLING, [0.7] * 5 + [0.8] * 5),  # the loss did not fall
        steps(FALLING[:9]),  # too few
        [{"kind": "step", "loss": 0.5}] * 10,  # no pairs
    ],
)
def test_what_is_no_displacement_is_not_told(records):
    assert DisplacementWatch(find("dpo")).remark(records) == ""


def test_it_is_told_at_the_first_look_that_sees_it_and_at_no_other():
    assert looks(9) == [] and looks(10) == [10] and looks(100) == [10, 15, 20, 30, 40, 60, 80]
    watch, records = DisplacementWatch(find("dpo")), steps([-4.0] * 12 + [-6.0] * 48)
    told = [look for look in looks(60) if watch.remark(records[:look])]
    assert told == [20]  # at 15 only three steps had fallen


def test_methods_that_sample_are_left_alone():
    assert DisplacementWatch(find("dpo")).watches and DisplacementWatch(find("kto")).watches
    assert not any(DisplacementWatch(find(name)).watches for name in ("online-dpo", "sppo", "grpo", "did"))


def test_a_run_into_displacement_says_it_once_whether_it_was_stopped_or_not(tmp_path):
    """The rejected answer is the chosen one twice over, so that dpo pushes both down: from 22 nats to 28 in 10 steps."""
    rows = [{"prompt": f"say {number}:", "chosen": "aaaa", "rejected": "aaaaaaaa"} for number in range(20)]
    file = tmp_path / "pairs.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    sizes = dict(
        model="tiny:layers=1,width=32", steps=12, lr=1e-2, tasks_per_step=4, warm_start=0.0, eval_problems=4, max_tokens=10
    )
    whole = remarks(lambda: up.train("dpo", str(file), **sizes, checkpoint_every=6, out=tmp_path / "whole"))
    assert len(whole) == 1

    def stopped() -> None:
        with pytest.raises(Crash):
            up.train("dpo", str(file), **sizes, checkpoint_every=6, out=tmp_path / "halves", watcher=Breaks(8))

    assert remarks(stopped) == []
    assert remarks(lambda: up.resume(tmp_path / "halves")) == whole


def remarks(work) -> list[str]:
    """What is said of displacement while this works."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        work()
    return [str(each.message) for each in said if each.category is Remark and "logp_chosen fell" in str(each.message)]
