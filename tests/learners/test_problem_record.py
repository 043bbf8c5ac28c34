"""What a run writes down of the problems it chose and made."""

from __future__ import annotations

import torch
from part_values import steps
from small_learner import SIZES, learner

from upslope.learners.problem_record import LONGEST, problem_record
from upslope.tasks.text import Problem


def rows(notes, **changes):
    """Three groups of four rows with these notes."""
    batch = steps()[0][0]
    return batch.replace(info=[dict(note) for note in notes for _ in range(4)], **changes)


def test_a_step_in_which_nobody_chose_or_made_a_problem_has_no_line():
    assert problem_record(rows([{"prompt": "a"}, {"prompt": "b"}, {"prompt": "c"}], made=[]), 1) is None
    assert problem_record(rows([], made=[]), 1) is None


def test_each_problem_is_told_once_with_its_answers_and_why():
    notes = [{"prompt": "a" * 1000, "chosen": {"weight": 0.5}}, {"prompt": "b", "chosen": {}, "made_from": ["a" * 1000, "z"]}, {}]
    made = [Problem("c", info={"made_from": ["b"], "made_by": "harder", "generation": 2, "entry": object()})]
    batch = rows(notes, made=made, components={"task": torch.arange(12.0)})
    found = problem_record(batch, 7)
    assert found["step"] == 7 and [each["answers"] for each in found["problems"]] == [4, 4, 4]
    assert [each["reward"] for each in found["problems"]] == [1.5, 5.5, 9.5]
    first, second, _ = found["problems"]
    assert first["prompt"] == "a" * LONGEST and first["chosen"] == {"weight": 0.5} and "made_from" not in first
    assert second["made_from"] == ["a" * LONGEST, "z"] and second["id"] == str(int(batch.task[4]))
    assert found["made"] == [{"id": str(Problem("c").id), "prompt": "c", "made_from": ["b"], "made_by": "harder", "generation": 2}]


def test_a_problem_of_the_pool_is_known_again_when_it_is_taken():
    made = learner("eva", SIZES)
    lines = []
    for step in (1, 2, 3):
        made.step(step)
        lines.append(problem_record(made.traced.sampled, step))
    first = {each["id"] for each in lines[0]["made"]}
    taken = [each for each in lines[1]["problems"] if each["id"] in first]
    assert first and taken and all(each["chosen"]["from_pool"] == 1 and each["made_from"] for each in taken)
