"""eva: what it is without its pool, and what a few steps make and take."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from carried import assert_carries_over
from small_learner import SIZES, learner, weights

from upslope.errors import TaskError
from upslope.methods import find
from upslope.objective.estimator import annotate
from upslope.setting_up import set_up
from upslope.types import Trajectories, View

eva, rloo = find("eva"), find("rloo")


@pytest.mark.checks("identity", "eva")
def test_without_the_pool_it_is_rloo_to_the_last_bit():
    """Of problems that are all different: one drawn twice would be answered once."""
    settings = dataclasses.replace(SIZES, updates_per_step=2)
    made = [learner(method, settings) for method in (eva.with_knobs({"curriculum.share": 0.0}), rloo)]
    for step in (1, 2, 3):
        found = [each.step(step) for each in made]
        assert found[0]["samples"] == found[1]["samples"] == 16 and found[0]["made"] > 0
    assert torch.equal(weights(made[0]), weights(made[1]))


@pytest.mark.checks("oracle", "eva", by="hand-worked numbers")
def test_regret_and_advantage_by_hand():
    """Rewards 1, 0, 0, 0: the best less the mean is 3/4; against the mean of the others, A = 1 and -1/3 three times. A problem
    made of it begins with 3/4, and one made of a solved problem with 0."""
    paid = torch.tensor([1.0, 0, 0, 0, 1, 1, 1, 1], dtype=torch.float64)
    on = torch.ones(8, 1, dtype=torch.float64)
    rows = Trajectories(on, paid, torch.tensor([0] * 4 + [1] * 4), torch.tensor([5] * 4 + [9] * 4), View(-on), View(-on))
    found = annotate(eva, rows).advantage[:, 0].tolist()
    assert found == pytest.approx([1, -1 / 3, -1 / 3, -1 / 3, 0, 0, 0, 0])
    tasks, info = dict(eva.memory)["pool"].measured(rows)
    assert tasks.tolist() == [5, 9] and info.tolist() == [0.75, 0.0]


def test_what_a_step_makes_later_steps_take():
    made = learner(eva.with_knobs({"data.picked": 1.0}))
    first = made.step(1)
    kept = made.states["memory.pool"]
    assert first["pool_size"] == 0 and first["made"] == len(kept["text"]) > 4 and (kept["priority"] > 0).all()
    second = made.step(2)
    assert second["chosen_from_pool"] == 0.75 and second["pool_size"] == first["made"]
    notes = {note["prompt"]: note for note in made.last.info}
    ours = [note for note in notes.values() if "made_from" in note]
    assert len(ours) == 3 and all(note["generation"] == 1 and note["made_by"] in ("harder", "alike") for note in ours)
    assert all(note["chosen"]["from_pool"] == 1.0 and note["chosen"]["priority"] > 0 for note in ours)
    assert {note["chosen"]["from_pool"] for name, note in notes.items() if note not in ours} == {0.0}
    assert made.step(3)["made_generation"] > 1, "problems are made of those that were made"


def test_a_run_that_was_stopped_goes_on_with_the_same_pool(tmp_path):
    whole = assert_carries_over(eva.with_knobs({"memory.pool.keep": 5}), SIZES, tmp_path, steps=4, stop=2)
    assert len(whole.states["memory.pool"]["text"]) == 5, "full, so that what goes matters too"


def test_a_task_without_variants_is_refused(tmp_path):
    file = tmp_path / "data.jsonl"
    file.write_text('{"prompt": "1+1=", "answer": "2"}\n' * 3)
    with pytest.raises(TaskError, match="eva needs variants"):
        set_up(eva, str(file), "tiny:layers=1,width=32", SIZES)
