"""What a run says of itself while it goes: how long it will take, after its third step, in a terminal and in a log."""

from __future__ import annotations

import pytest

from upslope.report.live import LiveTable


def stepped(steps: int, seconds: list[float], terminal: bool, first: int = 1) -> LiveTable:
    with LiveTable(terminal=terminal) as live:
        live.steps = steps
        for step, taken in enumerate(seconds, start=first):
            live.stepped(step, {"seconds": taken, "reward": 0.5})
    return live


@pytest.mark.parametrize("terminal", [False, True])
def test_after_the_third_step_it_is_said_how_long_the_others_take(terminal: bool, capsys):
    stepped(63, [30.0, 1.5, 2.5, 9.0, 9.0], terminal)
    said = capsys.readouterr().err
    assert said.count("to go") == 1 and "about 2:00 to go: 60 steps of 2 s" in said, "the first, which compiles, does not count"


def test_of_a_run_that_goes_on_its_own_third_step_counts(capsys):
    stepped(20, [30.0, 1.0, 1.0], terminal=False, first=11)
    assert "about 0:07 to go: 7 steps of 1 s" in capsys.readouterr().err


@pytest.mark.parametrize(("steps", "made"), [(3, 3), (10, 2)])
def test_where_nothing_is_left_or_too_little_is_known_nothing_is_said(steps: int, made: int, capsys):
    stepped(steps, [1.0] * made, terminal=False)
    assert "to go" not in capsys.readouterr().err
