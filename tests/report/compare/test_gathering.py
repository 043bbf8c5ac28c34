"""From folders of runs to numbers: grouping, what stands in the way of a ranking, and every figure of a comparison."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from fake_runs import fake_run

from upslope.errors import UserError
from upslope.report.compare.gathering import expand, gather
from upslope.report.compare.measuring import Comparison, half_of, measure
from upslope.report.compare.sampling import curve
from upslope.runtime.statistics import interquartile_mean, pass_at_k


def compared(*paths: Path, **asked) -> Comparison:
    return measure(gather([(path, None) for path in paths]), **asked)


def three_methods(root: Path, seeds: int = 5, **settings) -> list[Path]:
    ends = {"grpo": 0.6, "gspo": 0.605, "dhpo": 0.9}
    return [
        fake_run(root, method, seed, end + 0.01 * seed, before=0.4 + 0.01 * seed, right=[seed % 5, 4, 2], **settings)
        for method, end in ends.items()
        for seed in range(seeds)
    ]


# -- grouping --------------------------------------------------------------------------------------------------------------


def test_seeds_of_a_method_are_one_contender_and_knobs_make_another(tmp_path: Path) -> None:
    paths = [fake_run(tmp_path, "grpo", seed, 0.5) for seed in (2, 0, 1)]
    paths += [fake_run(tmp_path, "grpo", seed, 0.6, knobs={"surrogate.high": 0.28}) for seed in (0, 1)]
    paths.append(fake_run(tmp_path, "dapo", 0, 0.7))
    field = gather([(path, None) for path in paths])
    assert [each.label for each in field.contenders] == ["grpo surrogate.high=0.2", "grpo surrogate.high=0.28", "dapo"]
    assert [run.seed for run in field.contenders[0].on("reverse")] == [0, 1, 2]
    assert not field.paired and any("numbers of runs differ" in note for note in field.notes)


def test_settings_that_change_learning_make_another_contender_and_bookkeeping_does_not(tmp_path: Path) -> None:
    paths = [fake_run(tmp_path, "grpo", 0, 0.5), fake_run(tmp_path, "grpo", 1, 0.5, checkpoint_every=3, threads=2)]
    paths.append(fake_run(tmp_path, "grpo", 0, 0.6, lr=1e-3))
    field = gather([(path, None) for path in paths])
    assert [each.label for each in field.contenders] == ["grpo lr=0.0002", "grpo lr=0.001"]
    assert not field.obstacles


def test_a_run_of_before_a_setting_existed_has_its_default(tmp_path: Path) -> None:
    old, new = fake_run(tmp_path, "grpo", 0, 0.5), fake_run(tmp_path, "grpo", 1, 0.5, sampling_precision="auto")
    text = (old / "run.toml").read_text()
    (old / "run.toml").write_text("\n".join(line for line in text.splitlines() if not line.startswith("sampling_precision")))
    assert text.count("sampling_precision") <= 1
    rounded = fake_run(tmp_path, "grpo", 0, 0.5, sampling_precision="fp8")
    field = gather([(path, None) for path in (old, new, rounded)])
    assert [each.label for each in field.contenders] == ["grpo sampling_precision=auto", "grpo sampling_precision=fp8"]


def test_a_copy_of_a_run_counts_once_and_an_unfinished_one_not_at_all(tmp_path: Path) -> None:
    paths = [
        fake_run(tmp_path, "grpo", 0, 0.5),
        fake_run(tmp_path, "grpo", 0, 0.5),
        fake_run(tmp_path, "grpo", 1, 0.5, finished=False),
    ]
    field = gather([(path, None) for path in paths])
    assert len(field.contenders[0].runs) == 1
    assert any("counts once" in note for note in field.notes) and any("not finished" in note for note in field.notes)


def test_folders_that_are_no_runs_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no run\.toml"):
        expand([tmp_path])
    with pytest.raises(UserError, match="no finished run"):
        gather([(fake_run(tmp_path, "grpo", 0, 0.5, finished=False), None)])


def test_the_folder_of_a_comparison_stands_for_its_cells(tmp_path: Path) -> None:
    path = fake_run(tmp_path, "grpo", 0, 0.5)
    (tmp_path / "compare.toml").write_text(
        f'[[cells]]\nfolder = "{path.name}"\nlabel = "mine"\n\n[[cells]]\nfolder = "later"\nlabel = "x"\n'
    )
    assert expand([tmp_path]) == [(path, "mine")]


# -- what is not ranked ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"steps": 30}, "differ in budget: steps is 20 for grpo; 30 for gspo"),
        ({"samples_per_task": 16}, "differ in budget: samples per task is 8 for grpo; 16 for gspo"),
        ({"eval_problems": 100}, "differ in evaluation set: problems is 200 for grpo; 100 for gspo"),
        ({"task": "sort"}, "trained on different tasks (grpo: reverse; gspo: sort)"),
        ({"warm_start": 0.2}, "differ in budget: warm start is 0.4 for grpo; 0.2 for gspo"),
    ],
)
def test_runs_that_differ_in_what_must_be_the_same_are_not_ranked(tmp_path: Path, changed: dict, words: str) -> None:
    paths = [fake_run(tmp_path, "grpo", seed, 0.1) for seed in range(5)]
    paths += [fake_run(tmp_path, "gspo", seed, 0.9, **changed) for seed in range(5)]
    found = compared(*paths)
    assert found.pairs == [] and found.sentences == []
    assert found.headline.startswith("Not ranked: they ") and words in found.headline


def test_only_common_tasks_are_compared(tmp_path: Path) -> None:
    paths = [fake_run(tmp_path, method, seed, 0.5) for method in ("grpo", "gspo") for seed in range(2)]
    paths.append(fake_run(tmp_path, "grpo", 0, 0.9, task="sort"))
    found = compared(*paths)
    assert found.tasks == ["reverse"] and any("not every method has been trained on sort" in note for note in found.notes)


def test_a_reader_is_told_of_other_starts_other_versions_and_more_samples(tmp_path: Path) -> None:
    paths = [fake_run(tmp_path, "grpo", 0, 0.5), fake_run(tmp_path, "dapo", 0, 0.5, before=0.3, extra={"samples": 512.0})]
    text = (paths[1] / "run.toml").read_text()
    (paths[1] / "run.toml").write_text(text.replace('torch = "2.13"', 'torch = "2.14"'))
    notes = " ".join(compared(*paths).notes)
    for words in ("did not start from the same score", "different versions", "dapo sampled 2.00 times as much as grpo"):
        assert words in notes


# -- the numbers -----------------------------------------------------------------------------------------------------------


def test_every_figure_of_a_comparison(tmp_path: Path) -> None:
    found = compared(*three_methods(tmp_path))
    assert found.labels == ["dhpo", "gspo", "grpo"] and found.headline == "dhpo beats both others." and found.paired
    dhpo = found.standings[0]
    ends = [0.9, 0.91, 0.92, 0.93, 0.94]
    assert dhpo.score.value == pytest.approx(interquartile_mean(ends)) and dhpo.tasks["reverse"].after == pytest.approx(ends)
    assert dhpo.score.low is not None and dhpo.score.low <= dhpo.score.value <= (dhpo.score.high or 0)
    line = next(line for line in found.curves["reverse"]["steps"] if line.label == "dhpo")
    assert line.x == [float(step) for step in range(0, 21, 2)] and line.middle[-1] == pytest.approx(dhpo.score.value)
    samples = next(line for line in found.curves["reverse"]["samples"] if line.label == "dhpo")
    assert samples.x == [256.0 * step for step in range(0, 21, 2)] and samples.middle == pytest.approx(line.middle)
    tokens = next(line for line in found.curves["reverse"]["tokens"] if line.label == "dhpo")
    assert tokens.x[-1] == pytest.approx(20 * 1000)  # seeds spend different amounts: as far as all of them went
    profile = found.profiles[0]
    assert profile.middle[0] == 1.0 and profile.middle[-1] == 0.0
    rates = {each.key: each.values for each in found.diagnostics["reverse"]}
    assert rates["wasted"]["grpo"] == pytest.approx(0.25) and rates["memory"]["grpo"] == pytest.approx(402)
    assert rates["total_seconds"]["grpo"] == pytest.approx(20 * 0.52) and rates["entropy"]["grpo"] == pytest.approx(1.025)
    assert found.settings["reverse"]["steps"] == 20 and "seed" not in found.settings["reverse"]


def test_the_record_is_json_without_what_is_not_a_number(tmp_path: Path) -> None:
    record = compared(*three_methods(tmp_path, seeds=1)).record()
    again = json.loads(json.dumps(record, allow_nan=False))
    assert again["standings"][0]["score"]["low"] is None
    assert again["sentences"][0].endswith("one seed says nothing about others.")


def test_steps_to_a_threshold_count_runs_that_never_get_there_as_last(tmp_path: Path) -> None:
    paths = [fake_run(tmp_path, "grpo", seed, end) for seed, end in enumerate((0.9, 0.8, 0.5, 0.5, 0.5))]
    paths += [fake_run(tmp_path, "gspo", seed, 0.9) for seed in range(5)]
    found = compared(*paths, threshold=0.7).efficiency["reverse"]
    slow, fast = found.methods
    assert (slow.steps, slow.reached, slow.of) == (None, 2, 5) and slow.high is None
    assert (fast.steps, fast.reached, fast.low, fast.high) == (12.0, 5, 12.0, 12.0)
    assert half_of(np.array([4.0, np.inf, 2.0])) == 4.0 and half_of(np.array([2.0, np.inf])) == 2.0
    easy = compared(*paths).efficiency["reverse"]
    assert easy.threshold == pytest.approx(0.4 + 0.8 * 0.5) and not easy.given


def test_pass_at_k_is_that_of_each_run_taken_over_seeds(tmp_path: Path) -> None:
    found = compared(*three_methods(tmp_path)).passes["reverse"]
    line = next(line for line in found if line.label == "grpo")
    each = [pass_at_k([4, 4, 4], [seed % 5, 4, 2], 2) for seed in range(5)]
    assert line.x == [1.0, 2.0, 4.0] and line.middle[1] == pytest.approx(interquartile_mean(each))
    assert curve({"samples": 6, "right": [3]}).keys() == {1, 2, 4, 6}


def test_control_is_compared_by_returns_and_tasks_are_normalised_together(tmp_path: Path) -> None:
    paths = []
    for seed in range(5):
        for method, good in (("ppo", 200.0), ("bpo", 300.0)):
            paths.append(fake_run(tmp_path, method, seed, good + seed, task="gym:CartPole-v1", before=20.0))
            paths.append(fake_run(tmp_path, method, seed, -good + seed, task="gym:Acrobot-v1", before=-500.0))
    found = compared(*paths)
    assert found.score_name == {"gym:CartPole-v1": "mean return", "gym:Acrobot-v1": "mean return"}
    assert found.normalised["gym:CartPole-v1"] == (20.0, 304.0) and found.normalised["gym:Acrobot-v1"] == (-500.0, -196.0)
    ppo = next(each for each in found.standings if each.label == "ppo")
    scaled = [(200 + seed - 20) / 284 for seed in range(5)] + [(-200 + seed + 500) / 304 for seed in range(5)]
    assert ppo.score.value == pytest.approx(interquartile_mean(scaled))
    assert ppo.tasks["gym:CartPole-v1"].score.value == pytest.approx(202.0)
    assert any(each.key == "episode_length" for each in found.diagnostics["gym:CartPole-v1"])
    given = compared(*paths, references={"gym:CartPole-v1": (0.0, 500.0)})
    assert given.normalised["gym:CartPole-v1"] == (0.0, 500.0)
    assert [pair.chance for pair in given.pairs] == [pair.chance for pair in found.pairs]  # ranks do not care


def test_runs_without_recorded_samples_are_counted_by_their_sizes(tmp_path: Path) -> None:
    paths = [fake_run(tmp_path, method, 0, 0.5, extra={"samples": None}) for method in ("grpo", "gspo")]
    line = compared(*paths).curves["reverse"]["samples"][0]
    assert line.x[-1] == 20 * 32 * 8
