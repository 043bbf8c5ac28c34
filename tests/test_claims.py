"""The claims' machinery: the table bed is exact where it says so, claims refuse nonsense, and a page says what was measured."""

from __future__ import annotations

import dataclasses
import json
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from upslope.errors import UserError
from upslope.experience import load_dataset
from upslope.types import Ended

FOLDER = Path(__file__).resolve().parent.parent / "bench" / "claims"
sys.path.insert(0, str(FOLDER))

import control_bed  # noqa: E402
import control_envs  # noqa: E402
from beds import Corrupted, Flipped, GoodArms, Lock, Noisy, Reward, TableBed, TablePolicy, TableRollout, train_table  # noqa: E402
from claim_page import curve_band, paired_difference, shown, verdict  # noqa: E402
from control_bed import SHARED, ControlBed, env_steps_until, final_return  # noqa: E402
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

SMALL_POLICY = {"policy.hidden": (8, 8)}
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
    rows = TableRollout(policy, BEDS[name].contexts, 4000, 0).collect(1)
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
    rows = TableRollout(TablePolicy(bed, 0), 2, 50, 0).collect(1)
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
    taught = run.learner.rollout.teacher(run.learner.rollout.collect(1))
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


def test_a_text_bed_is_a_whole_run():
    settings = {"steps": 2, "tasks_per_step": 2, "samples_per_task": 2, "warm_start": 0.0, "eval_problems": 4}
    bed = TextBed("reverse:length=2", "tiny:layers=1,width=32", after=partial(sampled_answers, problems=3, samples=8))
    claim = example(bed=bed, settings=settings, conditions={"text": {"passes": 2}}, statements=example().statements[:1])
    result = run_cell(claim.cells([0])[0])
    assert result.curve("updates").tolist() == [2, 2] and set(result.extra) == {"pass@1", "pass@8", "distinct"}


def test_seeds_for_choosing_write_nothing(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("harness.PAGES", tmp_path)
    main(example(), ["--workers", "1", "--first-seed", "100", "--seeds", "1", "--steps", "2"])
    assert "--seeds 1 --first-seed 100 --steps 2" in capsys.readouterr().out and not list(tmp_path.iterdir())


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


# -- control ---------------------------------------------------------------------------------------------------------------


def control(**changes):
    given = {
        "name": "example",
        "title": "An example",
        "about": "Two on data.",
        "variants": {"bc": Variant("bc", SMALL_POLICY), "td3": Variant("td3", {}, {"offline_steps": 2})},
        "bed": ControlBed("WalledPoint", data="mixed:expert=0.5", data_steps=200, episodes=2),
        "settings": {"steps": 2, "updates_per_step": 2, "horizon": 20, "eval_problems": 1, "minibatch": 8},
        "measures": {"final return": final_return, "steps": env_steps_until(-1.0, within=40)},
        "statements": [Statement("bc", "above", "td3", "final return")],
        "chosen": "it was not.",
        "curves": {"return": "return"},
        "seeds": 2,
    }
    return Claim(**given | changes)  # type: ignore[arg-type]


def test_a_control_bed_learns_from_data_of_the_seed_and_is_judged(tmp_path, monkeypatch):
    monkeypatch.setenv(SHARED, str(tmp_path))
    first, again = (run_cell(control().cells([3])[0]) for _ in range(2))
    assert [folder.name for folder in tmp_path.iterdir() if folder.is_dir()] == ["WalledPoint-mixed-expert-0-5-2000-200-3"]
    assert first.metrics == again.metrics and len(first.metrics) == 2 and first.curve("updates").tolist() == [2, 2]
    assert -200 < first.after < 0 and first.extra["final return"] == first.after and first.extra["stopped"] == 0
    other = run_cell(control().cells([4])[0])
    assert other.curve("loss").tolist() != first.curve("loss").tolist()


@pytest.mark.parametrize(("name", "least"), [("WalledPoint", -60.0), ("SparseReach", 0.9)])
def test_data_of_the_small_environments_have_an_expert(tmp_path, name, least):
    made = load_dataset(ControlBed(name, data="expert", data_steps=100).dataset(0, tmp_path))
    assert made.card.expert > least


def test_only_who_learns_from_data_is_given_some():
    variants = {
        "bc": Variant("bc"),
        "sac": Variant("sac"),
        "rlpd": Variant("rlpd"),
        "td3": Variant("td3", {}, {"offline_steps": 1}),
    }
    assert [control_bed._wants_data(cell) for cell in control(variants=variants).cells([0])] == [True, False, True, True]


def test_a_run_whose_values_leave_all_bounds_keeps_its_last_return(monkeypatch):
    from upslope.learners.nonfinite import NonFinite

    def at_the_second(method, metrics, largest_reward, gamma, step):
        if step == 2:
            raise NonFinite("values left all bounds.", "Do something.")

    monkeypatch.setattr("upslope.learners.actor_critic.check_values", at_the_second)
    result = run_cell(control().cells([0])[1])
    assert result.extra == {"stopped": 1.0, "final return": result.after} and len(result.metrics) == 2
    assert np.isnan(result.curve("q_value")).tolist() == [False, True] and np.isfinite(result.curve("return")).all()


def test_steps_until_a_return_are_steps_in_the_environment():
    def of(returns):
        metrics = [{"return": score, "env_steps": 50.0 * (step + 1)} for step, score in enumerate(returns)]
        return Result(control().cells([0])[0], 0.0, returns[-1], 0.0, metrics)

    assert env_steps_until(-1.0, within=400)(of([-9, -1, -3])) == 100
    assert env_steps_until(-1.0, within=400)(of([-9, -8, -7])) == 400 and env_steps_until(-1.0, within=80)(of([-9, -1])) == 80


def test_walls_stop_the_point_except_in_the_gap():
    env = control_envs.WalledPoint()
    env.reset(seed=0)
    for left, passes in ((-0.75, True), (-0.4, False), (0.5, False)):
        env.place, env.speed = np.array([left, -0.01]), np.zeros(2)
        env.step(np.array([0.0, 1.0]))
        assert (env.place[1] > 0) == passes
    env.place = np.array([0.6, -0.2])
    around = np.hypot(1.35, 0.2) + np.hypot(1.35, 0.6)
    assert env.way_left() == pytest.approx(around) and around > np.hypot(0.0, 0.8)


@pytest.mark.parametrize(("action", "pays"), [(-0.2, 0.2), (0.5, 0.5), (0.9, 0.1), (-1.0, 0.0)])
def test_one_shot_pays_most_at_the_edge_of_its_inner_half(action, pays):
    env = control_envs.OneShot()
    env.reset(seed=0)
    _, reward, terminated, _, _ = env.step(np.array([action]))
    assert reward == pytest.approx(pays) and terminated


def test_experts_of_the_small_environments_know_the_way():
    for env in (control_envs.WalledPoint(), control_envs.SparseReach()):
        observation, _ = env.reset(seed=1)
        expert, over = control_envs.Towards(), False
        expert.begin(env, observation, np.random.default_rng(0))
        while not over:
            observation, _, terminated, truncated, _ = env.step(expert.act(observation))
            over = terminated or truncated
        assert np.linalg.norm(env.place - env.goal) < 0.15


@pytest.mark.slow
def test_many_claims_run_at_once_go_on_where_they_stopped_and_are_told_later(tmp_path, monkeypatch, capsys):
    import many

    def in_turn(workers):
        return ThreadPoolExecutor(1)

    monkeypatch.setattr(many, "pool", in_turn)
    monkeypatch.setattr(many, "claims", lambda: {"example": control(), "dapo": example(name="dapo")})
    arguments = ["--out", str(tmp_path / "cells"), "--seeds", "2"]
    many.main(["run", *arguments, "--workers", "1", "--minutes", "0"])
    assert "4 cells were not begun" in capsys.readouterr().out
    many.main(["run", *arguments, "--workers", "1"])
    assert "0 cells were not begun" in capsys.readouterr().out
    many.main(["run", *arguments, "--workers", "1"])
    assert "0 cells to run, 4 are there" in capsys.readouterr().out
    many.main(["page", *arguments, "--pages", str(tmp_path)])
    assert "- bc: above td3: " in (tmp_path / "example.md").read_text() and (tmp_path / "example.png").exists()
    with pytest.raises(SystemExit, match="no claim 'dappo'"):
        many.main(["list", "dappo"])
