"""The claims' machinery: the table bed is exact where it says so, claims refuse nonsense, and a page says what was measured."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import signal
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from rollout_calls import collect

from upslope.errors import UserError
from upslope.types import Ended

FOLDER = Path(__file__).resolve().parent.parent / "bench" / "claims"
sys.path.insert(0, str(FOLDER))

from beds import Corrupted, Flipped, GoodArms, Lock, Noisy, Reward, TableBed, TablePolicy, TableRollout, train_table  # noqa: E402
from claim_page import curve_band, paired_difference, shown, verdict  # noqa: E402
from harness import (  # noqa: E402
    Claim,
    Result,
    Statement,
    TextBed,
    Variant,
    at_step,
    average,
    drawdown,
    final,
    main,
    run_cell,
    sampled_answers,
    steps_until,
)  # fmt: skip

SMALL = TableBed(GoodArms(decoy=0.5), contexts=4, vocabulary=6)
JUDGED = re.compile(
    r"^- \S+: .+: \*\*(held|not shown at this scale|did not hold)\*\* "
    r"\(difference [+-][\d.]+, interval [+-][\d.]+ to [+-][\d.]+\)$"
)
BEDS = {
    "arms": SMALL,
    "noisy arms": TableBed(Noisy(inner=GoodArms(good=2), spread=0.3), contexts=3, vocabulary=5, spread=1.0),
    "flipped": TableBed(Flipped(inner=GoodArms(), share=0.2), contexts=3, vocabulary=5, spread=1.0),
    "lock with stop": TableBed(Lock(free=(1,)), contexts=3, vocabulary=4, positions=3, spread=1.0, stop=True, known=0.5),
    "partial lock": TableBed(Lock(partial=True), contexts=3, vocabulary=4, positions=3, spread=1.0, stop=True),
    "features": TableBed(Lock(), contexts=6, vocabulary=4, positions=2, spread=1.0, features=3),
    "shared": TableBed(Lock(), contexts=3, vocabulary=4, positions=2, spread=1.0, shared=(0,), temperature=0.8),
}


@dataclasses.dataclass(frozen=True)
class LastIsThird(Reward):
    """Has no closed form of its own; and none is right at the first position."""

    def mean(self, contexts, tokens):
        return (tokens[:, -1] == 3).float() * (1 + contexts % 2) / 2


# -- the table -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", BEDS)
def test_closed_forms_equal_the_sum_over_all_answers(name):
    policy = TablePolicy(BEDS[name], 0)
    probability = policy.log_probability().exp()
    torch.testing.assert_close(policy.exact(), policy._enumerated(probability), rtol=1e-5, atol=1e-6)
    assert (policy.exact().reward > 0).all()


@pytest.mark.parametrize("name", [name for name in BEDS if name != "flipped"])
def test_samples_agree_with_the_exact_reward_entropy_and_length(name):
    policy = TablePolicy(BEDS[name], 0)
    rows = collect(TableRollout(policy, BEDS[name].contexts, 4000, 0), 1)
    error = rows.reward.std() / len(rows.reward) ** 0.5
    assert abs(float(rows.reward.mean()) - policy.told()["J"]) / float(error) < 4
    entropy = float((rows.behavior.entropy * rows.sampled).sum() / rows.sampled.sum())
    assert entropy == pytest.approx(policy.exact_entropy(), abs=0.02)
    assert float(rows.lengths().mean()) == pytest.approx(policy.told()["exact_length"], abs=0.03)


@pytest.mark.parametrize("name", ["arms", "lock with stop", "features"])
def test_the_gradient_through_the_learner_is_that_of_the_exact_reward(name):
    """RLOO is unbiased: a z-test over steps so small that they never move the policy."""
    bed, samples, steps = BEDS[name], 64, 80
    run = train_table("rloo", bed, steps=0, tasks_per_step=bed.contexts, samples_per_task=samples, lr=1e-12)
    policy, learner = run.policy, run.learner
    exact = torch.autograd.grad(policy.exact().reward.mean(), policy.moved)[0].flatten()
    found = []
    for step in range(1, steps + 1):
        learner.step(step)
        found.append(-policy.moved.grad.flatten().clone())
    estimates = torch.stack(found)
    error = estimates.std(0) / steps**0.5
    z = ((estimates.mean(0) - exact) / error)[error > 1e-9]
    assert float(z.abs().max()) < 4.5
    assert float(exact.norm()) > 3 * float(error.norm())


def test_the_start_is_as_known_as_it_says():
    bed = TableBed(Lock(good=2), contexts=4, vocabulary=8, positions=3, known=(0.1, 0.3), filler=(1,), spread=1.0)
    start = bed.first_logits(3).softmax(-1)
    torch.testing.assert_close(start[0, 0, 1:3], torch.tensor([0.1, 0.1]))
    torch.testing.assert_close(start[1, 2, 1:3], torch.tensor([0.3, 0.3]))
    torch.testing.assert_close(start[:, 1, 1], torch.full((4,), 0.99))
    torch.testing.assert_close(start.sum(-1), torch.ones(4, 3))
    assert TableBed(contexts=2, vocabulary=4).first_logits(0).softmax(-1).allclose(torch.tensor(0.25))


def test_rewards_without_a_closed_form_are_enumerated_or_refused():
    policy = TablePolicy(TableBed(LastIsThird(), contexts=2, vocabulary=5, positions=2), 0)
    torch.testing.assert_close(policy.exact().reward, torch.tensor([0.1, 0.2]))
    torch.testing.assert_close(policy.exact().success, torch.tensor([0.0, 0.2]))
    assert policy.pass_at(2) == pytest.approx((0 + 1 - 0.8**2) / 2)
    with pytest.raises(UserError, match=r"32\^4 answers are too many"):
        TablePolicy(TableBed(LastIsThird(), positions=4), 0).exact()


def test_rows_say_how_they_ended_and_what_they_answered():
    bed = TableBed(Lock(free=(1,)), contexts=2, vocabulary=3, positions=3, stop=True, items=3)
    rows = collect(TableRollout(TablePolicy(bed, 0), 2, 50, 0), 1)
    last = rows.lengths().long() - 1
    ends = rows.ended.gather(1, last.unsqueeze(1)).squeeze(1)
    stopped = rows.action.gather(1, last.unsqueeze(1)).squeeze(1) == 0
    assert ends[stopped].eq(int(Ended.TERMINATED)).all() and ends[~stopped].eq(int(Ended.TRUNCATED)).all()
    assert stopped.any() and not stopped.all() and rows.lengths().unique().numel() == 3
    same = (rows.action[0, [0, 2]] == rows.action[:, [0, 2]]).all(1)
    assert (rows.label["answer"] == rows.label["answer"][0]).equal(same)
    assert rows.segment["item"][0].tolist() == [0, 1, 2]


def test_a_lagging_or_noisy_sampler_is_not_the_policy():
    lagging = train_table("grpo", dataclasses.replace(SMALL, lag=3), steps=5, lr=0.5)
    fresh = train_table("grpo", SMALL, steps=5, lr=0.5)
    assert len(lagging.learner.rollout.older) == 4
    assert lagging.curve("reward")[0] == fresh.curve("reward")[0]
    offline = train_table("grpo", dataclasses.replace(SMALL, lag=99), steps=5, lr=0.5).learner.rollout
    assert offline._sampler(6).equal(offline.policy.first.log_softmax(-1))
    noisy = train_table("grpo", dataclasses.replace(SMALL, sampler_noise=0.5, ratio_to_sampler=True), steps=2)
    assert noisy.curve("log_ratio")[0] > 0.1 and fresh.curve("log_ratio")[0] == 0


def test_the_same_seed_gives_the_same_curve_and_another_does_not():
    runs = [train_table("dapo", SMALL, steps=6, passes=2, seed=seed) for seed in (1, 1, 2)]
    assert (runs[0].curve("J") == runs[1].curve("J")).all() and not (runs[0].curve("J") == runs[2].curve("J")).all()
    assert runs[0].curve("J")[-1] > runs[0].before["J"]


def test_values_and_references_work_on_a_table():
    run = train_table("ppo", TableBed(Lock(partial=True), contexts=4, vocabulary=4, positions=2), steps=40, watch_kl=True)
    assert run.policy.heads["value"].abs().max() > 0.05 and run.curve("kl_start")[-1] > 0
    assert run.curve("J")[-1] > run.before["J"] + 0.2
    taught = run.learner.rollout.teacher(collect(run.learner.rollout, 1))
    assert taught.reward.eq(1).all() and taught.behavior.logp.isnan().all()


def test_corrupted_tasks_pay_by_a_coin():
    tokens, contexts = torch.ones(2000, 1, dtype=torch.long), torch.arange(2000) % 4
    paid = Corrupted(inner=GoodArms(), every=4)(contexts, tokens, torch.rand(2000))
    assert paid[contexts != 0].eq(1).all() and 0.4 < float(paid[contexts == 0].mean()) < 0.6


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda: TableBed(contexts=0), "contexts=0"),
        (lambda: TableBed(GoodArms(good=4), vocabulary=5), "do not fit"),
        (lambda: TableBed(GoodArms(good=4), known=0.3), "stay below 1"),
        (lambda: TableBed(filler=(1,)), "positions are 0 to 0"),
        (lambda: TableBed(temperature=0.0), "temperature=0.0"),
        (lambda: GoodArms(decoy=2.0), "a decoy below 1"),
        (lambda: TablePolicy(TableBed(Lock(free=(0,))), 0).exact(), "leaves none"),
        (lambda: train_table("grpo", SMALL, stepz=3), "Did you mean"),
    ],
)
def test_nonsense_is_refused(wrong, says):
    with pytest.raises(UserError, match=says):
        wrong()


# -- statistics and pages --------------------------------------------------------------------------------------------------


def example(**changes) -> Claim:
    given = {
        "name": "example",
        "title": "a rate of zero learns nothing",
        "about": "Two paragraphs.\n\nThis is the second.",
        "variants": {"grpo": Variant("grpo", {"regularize.weight": 0.0}), "slow": Variant("grpo", settings={"lr": 1e-9})},
        "bed": SMALL,
        "settings": {"steps": 12, "lr": 0.3, "tasks_per_step": 4},
        "conditions": {"plain": {}, "noise": {"bed": {"reward": Noisy(inner=GoodArms(), spread=0.1)}}},
        "measures": {"final J": final("J", 3), "mean entropy": average("exact_entropy")},
        "statements": [
            Statement("grpo", "final J above that of", "slow", "final J"),
            Statement("slow", "final J above that of", "grpo", "final J", conditions=("plain",)),
            Statement("slow", "final J within 1 of that of", "grpo", "final J", margin=1.0, conditions=("plain",)),
            Statement("grpo", "entropy below", 1.7, "mean entropy", higher=False),
        ],
        "seeds": 4,
        "chosen": "it was not.",
    }
    return Claim(**{**given, **changes})


def test_verdicts_follow_the_interval():
    assert [verdict(*ends) for ends in ((0.1, 0.2), (-0.1, 0.2), (-0.2, -0.1), (0.0, 0.1))] == [
        "held", "not shown at this scale", "did not hold", "not shown at this scale",
    ]  # fmt: skip
    mean, low, high = paired_difference([1.0, 2.0, 3.0], [0.5, 1.5, 2.5])
    assert mean == low == high == 0.5
    middle, low_band, high_band = curve_band(np.array([[0.0, 1.0], [1.0, 1.0], [2.0, 1.0], [100.0, 1.0]]))
    assert middle.tolist() == [1.5, 1.0] and low_band[0] < 1.5 < high_band[0] and low_band[1] == high_band[1] == 1.0


def test_measures():
    result = Result(None, 0.0, 0.0, 0.0, [{"J": value} for value in (0.1, 0.6, 0.2, 0.7)])  # type: ignore[arg-type]
    assert final("J", 2)(result) == pytest.approx(0.45) and at_step("J", 2)(result) == 0.6
    assert steps_until("J", 0.6)(result) == 2 and steps_until("J", 0.9)(result) == 5
    assert drawdown("J")(result) == pytest.approx(0.4) and average("J")(result) == pytest.approx(0.4)


@pytest.mark.slow
def test_a_claim_runs_from_declaration_to_page(tmp_path, capsys):
    main(example(), ["--workers", "1", "--out", str(tmp_path)])
    page = (tmp_path / "example.md").read_text()
    assert page in capsys.readouterr().out
    judged = [line for line in page.splitlines() if line.startswith("- ")]
    assert len(judged) == 6 and all(JUDGED.match(line) for line in judged)
    verdicts = [JUDGED.match(line).group(1) for line in judged]  # type: ignore[union-attr]
    assert verdicts[:3] == ["held", "did not hold", "held"]
    assert "- grpo: entropy below 1.7: **held**" in page
    assert "There are 6 such intervals, and no correction is made for their number" in page.replace("\n", " ")
    assert "`make claims METHOD=example`" in page and "one process" in page and "it was not." in page
    assert "Bed: `TableBed(reward=GoodArms(decoy=0.5), contexts=4, vocabulary=6)`" in page
    assert (tmp_path / "example.png").stat().st_size > 1000
    told = json.loads((tmp_path / "data" / "example.json").read_text())
    assert len(told["conditions"]["noise"]["grpo"]["measures"]["final J"]) == 4 and told["judged"]["plain"] == judged[:4]
    assert len(told["conditions"]["plain"]["slow"]["curves"]["J"]["step"]) == 12
    main(example(), ["--workers", "1", "--out", str(tmp_path / "again")])
    assert json.loads((tmp_path / "again" / "data" / "example.json").read_text()) == told


@pytest.mark.parametrize("seeds", [1, 2])
def test_fewer_than_three_seeds_judge_nothing(tmp_path, seeds):
    claim = example(conditions={"plain": {}}, settings={"steps": 2, "lr": 0.3, "tasks_per_step": 4})
    main(claim, ["--workers", "1", "--seeds", str(seeds), "--out", str(tmp_path)])
    page = (tmp_path / "example.md").read_text()
    judged = [line for line in page.splitlines() if line.startswith("- ")]
    assert judged and all(f"seeds: {seeds}, too few for an interval)" in line for line in judged)
    assert all("**not shown at this scale** (difference " in line for line in judged) and "Tables: interquartile" not in page
    assert f"Of {claim.seeds} planned seeds {seeds} came out whole" in page
    assert ("One seed (0), paired" if seeds == 1 else "2 seeds (0 to 1), paired") in page
    (row,) = [line for line in page.splitlines() if line.startswith("| final J |")]
    assert "[" not in row and row.count(",") == 2 * (seeds - 1)


def test_a_text_bed_is_a_whole_run():
    settings = {"steps": 2, "tasks_per_step": 2, "samples_per_task": 2, "warm_start": 0.0, "eval_problems": 4}
    bed = TextBed("reverse:length=2", "tiny:layers=1,width=32", after=partial(sampled_answers, problems=3, samples=8))
    claim = example(bed=bed, settings=settings, conditions={"text": {"passes": 2}}, statements=example().statements[:1])
    result = run_cell(claim.cells([0])[0])
    assert result.curve("updates").tolist() == [2, 2] and set(result.extra) == {"pass@1", "pass@8", "distinct"}


def test_seeds_for_choosing_write_nothing(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("harness.PAGES", tmp_path)
    before = signal.getsignal(signal.SIGTERM), dict(os.environ)
    main(example(), ["--workers", "1", "--first-seed", "100", "--seeds", "1", "--steps", "2"])
    assert "--seeds 1 --first-seed 100 --steps 2" in capsys.readouterr().out and not list(tmp_path.iterdir())
    assert (signal.getsignal(signal.SIGTERM), dict(os.environ)) == before


def test_claims_that_cannot_be_judged_are_refused(tmp_path):
    with pytest.raises(UserError, match=r"speaks of 'gppo'.*Did you mean 'grpo'"):
        example(statements=[Statement("gppo", "above", "slow", "final J")])
    with pytest.raises(UserError, match="speaks of 'final K'"):
        example(statements=[Statement("grpo", "above", "slow", "final K")])
    with pytest.raises(SystemExit, match="is nan"):
        main(
            example(measures={"final J": lambda r: float("nan"), "mean entropy": average("J")}), ["--workers", "1", "--steps", "1"]
        )


def test_a_bed_is_shown_with_what_is_not_the_default():
    assert shown(TableBed()) == "TableBed()"
    assert (
        shown(TableBed(Noisy(inner=Lock(free=(1,))), positions=2)) == "TableBed(reward=Noisy(inner=Lock(free=(1,))), positions=2)"
    )


def test_every_script_declares_a_claim_under_its_own_name():
    from fast import claims

    found = claims()
    assert {"dapo", "dhpo"} <= set(found)
    for claim in found.values():
        assert claim.chosen.strip(), f"{claim.name} does not say how its setting was chosen"
