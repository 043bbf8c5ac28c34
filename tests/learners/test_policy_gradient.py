"""The learner: cutting does not change gradients, nothing moves on nothing, filters refill, passes end early, states are kept."""

import dataclasses
import math
from itertools import product

import pytest
import torch
from fast_methods import few_fast
from rollout_calls import collect
from small_learner import SIZES, learner, weights

from upslope.errors import MethodError, UserError
from upslope.learners.optimizer_step import learning_rate
from upslope.learners.updates.slicing import pack, share_decisions, share_groups
from upslope.methods import catalogue, find
from upslope.objective.advantage import MovingBaseline
from upslope.objective.controller import AdaptiveKL, TargetKL
from upslope.objective.filter import DropConstantGroups
from upslope.objective.reward import StepKL
from upslope.runtime.seeding import generator
from upslope.runtime.settings import Settings
from upslope.setting_up import set_up
from upslope.tasks.text import Scores

TEXT = {name: method for name, method in catalogue().items() if method.learner == "policy-gradient"}
TEXT_METHODS = few_fast(TEXT)
LEARNING = few_fast(name for name in TEXT if name != "tp-llama")
"""That one learns only along a path to a right answer, which these small steps hardly ever hold: `test_plain.py` has it."""


@pytest.mark.parametrize("method", LEARNING)
def test_micro_batches_do_not_change_the_step(method, monkeypatch):
    after, losses = [], []
    for budget in (100_000, 40):
        made = learner(method, dataclasses.replace(SIZES, updates_per_step=2))
        made.optimizer_step.optimizer = torch.optim.SGD([{**group, "lr": 0.0} for group in made.optimizer.param_groups], lr=0.0)
        monkeypatch.setattr(type(made.policy), "token_budget", lambda self, budget=budget: budget)
        start = weights(made)
        losses.append(made.step(1)["loss"])
        after.append(weights(made) - start)
    assert losses[1] == pytest.approx(losses[0], rel=1e-3, abs=1e-6), "what is reported is the update's loss, not its slices' mean"
    assert after[0].abs().max() > 0
    torch.testing.assert_close(after[0], after[1], rtol=1e-3, atol=1e-7)


@pytest.mark.parametrize("method", ["grpo", "dhpo", "dapo"])
def test_an_update_without_signal_moves_nothing(method):
    made = learner(find(method).derive(filter=(), regularize=()), flat=range(4))
    start = weights(made)
    told = made.step(1)
    assert told["empty_updates"] == 1 and told["constant_groups"] == 1
    assert weights(made).equal(start)
    assert not made.optimizer.state


def test_dapo_samples_other_tasks_in_place_of_those_without_signal():
    made = learner("dapo", flat=[0, 2])
    told = made.step(1)
    assert made.last is not None and made.last.group_index()[1] == 4
    assert not made.last.group_stats(made.last.components["task"]).constant.any()
    assert told["kept_rows"] < 1
    assert len(made.last.info) == made.last.rows
    assert all(
        row["reward"] == pytest.approx(float(reward))
        for row, reward in zip(made.last.info, made.last.components["task"], strict=True)
    )


def test_a_step_in_which_every_group_is_dropped_learns_nothing_and_goes_on():
    made = learner(find("dapo").with_knobs({"filter.rounds": 2}), flat=range(4), always=True)
    start = weights(made)
    told = made.step(1)
    assert told["kept_rows"] == 0 and weights(made).equal(start)


def test_with_one_update_the_ratio_is_one_and_no_second_pass_is_made(monkeypatch):
    made = learner("dhpo", dataclasses.replace(SIZES, watch_kl=False))
    calls = []
    plain = made.policy.evaluate
    monkeypatch.setattr(made.policy, "evaluate", lambda *a: calls.append(torch.is_grad_enabled()) or plain(*a))
    told = made.step(1)
    assert calls == [True]
    assert told["log_ratio"] == 0 and told["kl_proximal"] == 0 and told["clip_fraction"] == 0
    assert told["learning"] > 0.9


def test_with_several_updates_the_ratio_leaves_one():
    told = learner("dhpo", dataclasses.replace(SIZES, passes=4, lr=3e-3)).step(1)
    assert told["updates"] == 4 and told["log_ratio"] > 0


def test_the_reference_is_computed_only_where_it_counts(monkeypatch):
    for weight, expected in ((0.04, 1), (0.0, 0)):
        made = learner(find("grpo").with_knobs({"regularize.weight": weight}), dataclasses.replace(SIZES, watch_kl=False))
        calls = []
        plain = made.references.start.evaluate
        monkeypatch.setattr(made.references.start, "evaluate", lambda *a, plain=plain, calls=calls: calls.append(1) or plain(*a))
        made.step(1)
        assert len(calls) == expected


@pytest.mark.parametrize("method", few_fast(name for name in TEXT if name != "tp-llama" and TEXT[name].scorer is None))
def test_before_the_first_update_the_policy_is_where_it_began(method):
    """Also where some groups carry no signal, whose rows the pass before the updates leaves out."""
    made = learner(method, dataclasses.replace(SIZES, updates_per_step=2, lr=1e-2), flat=[1])
    assert made.step(1)["kl_start"] == pytest.approx(0, abs=1e-5)
    assert made.step(2)["kl_start"] > 1e-4


def test_target_kl_ends_the_passes():
    settings = dataclasses.replace(SIZES, passes=20, lr=1e-2)
    free = learner("grpo", settings).step(1)
    bounded = learner(find("grpo").derive(controller=TargetKL(limit=0.001)), settings).step(1)
    assert free["updates"] == 20 and bounded["updates"] < 20


def test_controllers_and_baselines_remember():
    method = find("ppo").derive(name="mine", reward=StepKL(), controller=AdaptiveKL(target=1e-9, horizon=100))
    made = learner(method)
    told = made.step(1)
    assert told["reward_kl"] == pytest.approx(0, abs=1e-6)
    made.step(2)
    assert made.states["controller.0"]["weight"] != pytest.approx(0.05)
    # A controller asks for it in every step, also in one of which filters leave nothing.
    method = method.derive(filter=DropConstantGroups())
    nothing_left = learner(method, dataclasses.replace(SIZES, watch_kl=False), flat=range(4), always=True)
    assert nothing_left.step(1)["kept_rows"] == 0
    assert nothing_left.step(2)["kl_start"] == pytest.approx(0, abs=1e-6)
    baseline = learner(find("reinforce").derive(advantage=MovingBaseline()))
    first = baseline.step(1)["reward"]
    assert baseline.states["advantage"]["baseline"] == pytest.approx(0.1 * first)


def test_every_decision_is_in_exactly_one_share():
    batch = collect(learner("grpo").rollout, 1)
    decisions = [share.rows() for share in share_decisions(batch, 7, generator(0))]
    for shares in (share_groups(batch, 3, generator(0)), decisions):
        assert sum(int(share.sampled.sum()) for share in shares) == int(batch.sampled.sum())
    groups = [set(share.group.tolist()) for share in share_groups(batch, 3, generator(0))]
    assert sum(map(len, groups)) == 4 == len(set().union(*groups))


def test_slices_hold_whole_groups_where_the_method_asks_for_it():
    batch = collect(learner("grpo").rollout, 1)
    cost = batch.lengths().long() + 5
    for scope, padded in product(("sequence", "group"), (True, False)):
        slices = pack(batch, torch.arange(batch.rows), cost, 30, scope, padded)
        assert sorted(torch.cat(slices).tolist()) == list(range(batch.rows))
        if scope == "group":
            assert all(len(batch.group[piece].unique()) * 4 == len(piece) for piece in slices)
        elif padded:
            assert all(len(piece) * int(cost[piece].max()) <= 30 for piece in slices)
        else:
            assert all(int(cost[piece].sum()) <= 30 for piece in slices)
            assert torch.cat(slices).tolist() == list(range(batch.rows)), "neighbours stay together: they share prompts"


def test_methods_that_need_groups_are_refused_before_any_rollout_where_there_are_none():
    compares = find("ppo").derive(advantage=find("grpo").advantage)  # its critic still learns from steps
    with pytest.raises(MethodError, match=r"ppo compares several answers.*such as grpo"):
        set_up(compares, "gym:CartPole-v1", "tiny", Settings())


def test_a_group_of_one_is_refused():
    with pytest.raises(UserError, match="samples-per-task is 1"):
        set_up(find("grpo"), "reverse", "tiny:layers=1,width=32", Settings(samples_per_task=1))


def test_the_learning_rate_rises_and_falls():
    settings = Settings(lr=1.0, steps=100, warmup=10, lr_floor=0.1, schedule="linear")
    rates = [learning_rate(settings, step) for step in range(1, 101)]
    assert rates[0] == pytest.approx(0.1) and rates[9] == rates[10] == 1.0
    assert rates == sorted(rates[:10]) + sorted(rates[10:], reverse=True)
    assert rates[-1] == pytest.approx(0.1 + 0.9 / 90)
    constant = dataclasses.replace(settings, schedule="constant", warmup=0)
    assert {learning_rate(constant, step) for step in (1, 50, 100)} == {1.0}
    cosine = dataclasses.replace(settings, schedule="cosine", warmup=0)
    assert learning_rate(cosine, 51) == pytest.approx(0.55)


def test_an_infinite_gradient_is_skipped_and_told():
    made = learner("reinforce")
    start = weights(made)
    made.rollout.task.score = lambda problems, responses: Scores(
        [math.inf, *([0.0] * (len(responses) - 1))], [False] * len(responses), {}
    )
    told = made.step(1)
    assert told["skipped_updates"] > 0 or told.get("empty_updates", 0) > 0
    assert weights(made).equal(start)


def test_a_gpu_that_is_not_there_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UserError, match=r"--device cuda, but torch sees no GPU"):
        set_up(find("grpo"), "reverse", "tiny:layers=1,width=32", Settings(device="cuda"))
    assert set_up(find("grpo"), "reverse", "tiny:layers=1,width=32", Settings()).settings.device == "cpu"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(UserError, match=r"networks of ppo are on the CPU"):
        set_up(find("ppo"), "gym:CartPole-v1", "tiny", Settings(device="cuda"))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("method", TEXT_METHODS)
def test_a_gpu_takes_the_same_step(method):
    moved = []
    for device in ("cpu", "cuda"):
        made = learner(method, dataclasses.replace(SIZES, device=device, updates_per_step=2))
        start = weights(made).cpu()
        made.step(1)
        moved.append(weights(made).cpu() - start)
    assert torch.nn.functional.cosine_similarity(*moved, dim=0) > 0.99


def test_settings_of_the_wrong_kind_are_refused():
    for wrong, says in (({"steps": "10"}, "steps is '10'"), ({"steps": 2.5}, "a whole number"), ({"lr": "fast"}, "a number")):
        with pytest.raises(UserError, match=says):
            Settings(**wrong)
    with pytest.raises(MethodError, match="a trust region needs both at 0 or above"):
        find("grpo").with_knobs({"surrogate.high": -1})


def test_a_held_out_problem_is_asked_once():
    from upslope.rollout.evaluation import evaluate_text

    bench = set_up(find("grpo"), "reverse:length=2,letters=4", "tiny:layers=1,width=32", SIZES)
    found = evaluate_text(bench.task, bench.policy, problems=500, max_tokens=4)
    assert len(found.problems) == len({problem.prompt for problem in found.problems}) == len(found.correct) < 16
