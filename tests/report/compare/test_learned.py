"""Whether anything was learned: the sentence that a report begins with, its interval, and thresholds above the start."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from fake_runs import fake_run

from upslope.report.compare.gathering import Contender, Field, Trained, gather
from upslope.report.compare.learned import measure_learning
from upslope.report.compare.markdown import markdown
from upslope.report.compare.measuring import Comparison, measure
from upslope.report.compare.page import page
from upslope.report.compare.terminal import text


def compared(root: Path, ends: dict[str, list[float]], threshold: float | None = None, **asked: object) -> Comparison:
    paths = [fake_run(root, name, seed, end, **asked) for name, some in ends.items() for seed, end in enumerate(some)]  # type: ignore[arg-type]
    return measure(gather([(path, None) for path in paths]), threshold=threshold)


def test_nine_runs_that_all_got_worse_read_as_such(tmp_path: Path) -> None:
    found = compared(tmp_path, {"grpo": [0.2, 0.21, 0.19], "gspo": [0.2, 0.22, 0.2], "dhpo": [0.21, 0.2, 0.19]})
    worse = "Nothing was learned: every method got worse (9 of 9 runs ended no better than they began)."
    assert found.learning == worse and found.headline == f"{worse} No method can be told from another."
    assert [each.outcome for each in found.learned] == ["got worse"] * 3
    assert text(found).startswith(worse) and f"# {worse} No method" in markdown(found) and worse in page(found)
    record = json.loads(json.dumps(found.record()))
    assert record["learning"] == worse and record["learned"][0]["rose"] == 0 and record["learned"][0]["high"] < 0
    assert record["efficiency"]["reverse"] == {"threshold": None, "given": False, "methods": []}
    for told in (markdown(found), page(found)):
        assert "no steps to a score where no method has learned" in told
    assert "steps to 0" not in text(found)


def test_what_was_learned_stands_before_who_wins(tmp_path: Path) -> None:
    found = compared(tmp_path, {"grpo": [0.1] * 5, "dhpo": [0.9, 0.91, 0.92, 0.93, 0.94]})
    assert found.learning == "dhpo learned; grpo got worse." and found.headline == "dhpo beats grpo."
    assert text(found).startswith("dhpo learned; grpo got worse. dhpo beats grpo.\n")
    assert "# dhpo learned; grpo got worse. dhpo beats grpo.\n" in markdown(found)
    html = page(found)
    assert html.index("dhpo learned; grpo got worse.") < html.index("dhpo beats grpo.")


def test_a_rise_within_the_noise_is_not_called_learning(tmp_path: Path) -> None:
    found = compared(tmp_path, {"grpo": [0.43], "gspo": [0.42]})  # 6 and 4 problems of 200 more
    assert found.learning == "Nothing was learned: no method ended above its start beyond noise (2 of 2 runs rose)."
    assert found.efficiency["reverse"].threshold is None
    alone = compared(tmp_path / "alone", {"grpo": [0.9]})
    assert alone.learning == "grpo learned." and alone.headline.startswith("One method")


def test_runs_that_score_the_same_leave_open_what_the_problems_do(tmp_path: Path) -> None:
    found = compared(tmp_path, {"grpo": [1.0] * 4, "gspo": [1.0] * 4}, before=1.0)
    first = found.learned[0]
    assert (first.change, first.outcome) == (0.0, "not told from its start") and first.low < -0.005 and first.high > 0.005
    score = found.standings[0].score
    assert score.value == 1.0 and (score.low, score.high) == pytest.approx((0.981, 1.0), abs=5e-4)  # Wilson, 200 of 200
    assert found.standings[0].tasks["reverse"].score == score and "1.000 [0.981, 1.000]" in text(found)


def test_returns_are_judged_by_their_own_intervals(tmp_path: Path) -> None:
    found = compared(tmp_path, {"ppo": [200.0, 210.0, 190.0], "bpo": [15.0, 25.0, 20.0]}, task="gym:CartPole-v1", before=20.0)
    assert [each.outcome for each in found.learned] == ["learned", "not told from its start"]
    assert found.learning == "ppo learned; bpo cannot be told from the start."
    assert found.learned[0].low == pytest.approx(180 - 4.3027 * 10 / 3**0.5, abs=1e-2)  # Student's, two degrees of freedom


@pytest.mark.parametrize(
    ("end", "said"),
    [
        (0.4, {"learned": 1, "got worse": 1, "not told from its start": 398}),
        (0.5, {"learned": 367, "got worse": 0, "not told from its start": 33}),
    ],
)
def test_how_often_five_seeds_are_called_learned(tmp_path: Path, end: float, said: dict[str, int]) -> None:
    """Where nothing changed, in at most a twentieth of cases; a tenth more of 200 problems is mostly found."""
    rng, found = np.random.default_rng(3), dict.fromkeys(said, 0)
    for _ in range(400):
        runs = []
        for seed in range(5):
            before, after = (float(rng.binomial(200, chance) / 200) for chance in (0.4, end))
            evaluations = [{"step": step, "score": score, "problems": 200} for step, score in ((0, before), (9, after))]
            runs.append(Trained(tmp_path, "m", "t", seed, "accuracy", before, after, evaluations, [], {}))
        (each,) = measure_learning(Field([Contender("m", tuple(runs))], ["t"], [], []))
        found[each.outcome] += 1
    assert found == said


def test_a_given_threshold_below_the_start_is_told(tmp_path: Path) -> None:
    ends = {"grpo": [0.9] * 2, "gspo": [0.8] * 2}
    found = compared(tmp_path / "a", ends, threshold=0.3)
    assert any("--threshold 0.3 is below the start on reverse (0.4)" in note for note in found.notes)
    assert not any("--threshold" in note for note in compared(tmp_path / "b", ends, threshold=0.5).notes)
    own = compared(tmp_path / "c", ends).efficiency["reverse"]
    assert own.threshold == pytest.approx(0.4 + 0.8 * 0.5)


def test_budgets_that_differ_are_shown_at_equal_tokens(tmp_path: Path) -> None:
    paths = [fake_run(tmp_path, "grpo", seed, 0.8) for seed in range(2)]
    paths += [fake_run(tmp_path, "grpo", seed, 0.8, samples_per_task=16, extra={"tokens": 2000.0}) for seed in range(2)]
    found = measure(gather([(path, None) for path in paths]))
    assert "they differ in budget: samples per task is 8 for grpo samples_per_task=8" in found.headline and not found.pairs
    (note,) = [note for note in found.notes if note.startswith("At equal tokens")]
    assert "(20,000, as far as all went): grpo samples_per_task=8 0.798, grpo samples_per_task=16 0.6. " in note
    assert "This is no ranking" in note
