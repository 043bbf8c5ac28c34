"""T-PPO: answers written window by window, advantages of what is not over, a value function that waits for the end."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import torch
from batches import assert_same, gradient, random_batch, replace_view
from rollout_calls import choose, collect

import upslope as up
from upslope.errors import MethodError, UserError
from upslope.learners.policy_gradient import PolicyGradient
from upslope.methods import find
from upslope.objective.advantage import GAE
from upslope.objective.advantage.extended import ExtendedGAE
from upslope.objective.estimator import annotate, begin_update, silent_rows
from upslope.objective.models.finished import FinishedValue
from upslope.objective.models.value import ValueFunction
from upslope.objective.weight.window import ThisWindow
from upslope.policies import load_language_model
from upslope.rollout.engines.torch_engine import TorchEngine
from upslope.rollout.text import TextRollout
from upslope.rollout.windows import WindowRollout, Windows
from upslope.run import Watcher
from upslope.runtime.files import load_state, save_state
from upslope.runtime.seeding import uniforms
from upslope.runtime.settings import Settings
from upslope.setting_up import set_up
from upslope.tasks import load_task
from upslope.tasks.text import Problem, Scores
from upslope.types import Batch, Ended, Method, Sampling, Trajectories, draw_by_weight

ppo, t_ppo = find("ppo").for_domain("text"), find("t-ppo")
SIZES = Settings(tasks_per_step=3, samples_per_task=4, warm_start=0.0, eval_problems=4, max_tokens=12, steps=10, lr=1e-3, warmup=0)
MODEL = "tiny:layers=1,width=32"


def as_ppo(windows: int = 1) -> Method:
    """t-ppo with everything but the windows turned back."""
    values = ppo.models[0][1]
    own = FinishedValue(**{field.name: getattr(values, field.name) for field in dataclasses.fields(values)})
    advantage = ExtendedGAE(gamma=ppo.advantage.gamma, lam=ppo.advantage.lam, value_lam=ppo.advantage.lam)
    return t_ppo.derive(rollout=Windows(windows, least=1), advantage=advantage, surrogate=ppo.surrogate, models={"value": own})


def paused(batch: Batch, *rows: int) -> Batch:
    """The batch with these rows going on behind their last decision, having earned nothing yet."""
    ended, reward = batch.ended.clone(), batch.reward.clone()
    for row in rows:
        ended[row] = torch.where(ended[row] != 0, int(Ended.PAUSED), 0)
        reward[row] = 0.0
    return batch.replace(ended=ended, reward=reward, components={"task": reward})


def now(batch: Batch) -> Batch:
    return batch.replace(segment={**batch.segment, "window": torch.zeros_like(batch.action)})


# -- the objective ---------------------------------------------------------------------------------------------------------


@pytest.mark.checks("identity", "t-ppo")
def test_without_pauses_it_is_ppo():
    for seed in range(3):
        batch = now(random_batch(seed=seed))
        assert_same(gradient(as_ppo(), batch), gradient(ppo, batch))


@pytest.mark.checks("oracle", "t-ppo", by="hand-worked numbers")
def test_the_value_is_held_behind_a_pause():
    batch = random_batch(seed=0, groups=1, samples=2, positions=4, ragged=False).replace(step_reward=None)
    value = torch.tensor([[0.1, 0.3, 0.6, 0.7], [0.2, 0.2, 0.5, 0.1]]).double()
    ended = torch.tensor([[0, 0, 0, int(Ended.PAUSED)], [0, 0, 0, int(Ended.TERMINATED)]], dtype=torch.int8)
    batch = replace_view(batch, "proximal", value=value).replace(ended=ended, reward=torch.tensor([0.0, 1.0]).double())
    part = ExtendedGAE(gamma=1.0, lam=0.5)
    # Paused: errors 0.2, 0.3, 0.1 and none of its own at the end. Ended: 0, 0.3, -0.4 and 1 - 0.1 = 0.9.
    expected = [[0.2 + 0.5 * (0.3 + 0.5 * 0.1), 0.3 + 0.5 * 0.1, 0.1, 0.0],
                [0.5 * (0.3 + 0.5 * (-0.4 + 0.5 * 0.9)), 0.3 + 0.5 * (-0.4 + 0.5 * 0.9), -0.4 + 0.5 * 0.9, 0.9]]  # fmt: skip
    found = part(batch)
    torch.testing.assert_close(found, torch.tensor(expected).double())
    # The returns are those of lambda 1: the reward for what ended, the held value for what did not.
    returns = part.signals(batch, found)["returns"]
    torch.testing.assert_close(returns, torch.tensor([[0.7] * 4, [1.0] * 4]).double())
    torch.testing.assert_close(part(batch)[1], GAE(1.0, 0.5)(batch)[1])
    measured = batch.replace(bootstrap=torch.full_like(value, 0.9))
    torch.testing.assert_close(ExtendedGAE(1.0, 0.5, "bootstrap")(measured), GAE(1.0, 0.5)(measured))
    assert ExtendedGAE(1.0, 0.5, "bootstrap")(measured)[0, 3] == pytest.approx(0.2)


def test_nothing_is_learned_where_the_value_stays_the_same():
    batch = paused(random_batch(seed=1), 0, 5)
    batch = replace_view(batch, "proximal", value=torch.full_like(batch.sampled, 0.3)).replace(step_reward=None)
    assert not ExtendedGAE()(batch)[[0, 5]].any()
    assert ExtendedGAE()(batch)[1].any()


@pytest.mark.checks("oracle", "t-ppo", by="counting")
def test_the_policy_learns_from_this_window_and_the_value_from_what_ended():
    batch = paused(random_batch(seed=4, groups=3, samples=4), 0, 3, 7)
    old = batch.segment["window"] > 0
    assert (old & (batch.sampled > 0)).sum() > 3
    found = gradient(t_ppo, batch)
    on = batch.sampled > 0
    assert not found.logp[old].any() and found.logp[on & ~old].count_nonzero() > 10
    goes_on = torch.zeros(12, dtype=torch.bool)
    goes_on[[0, 3, 7]] = True
    assert not found.value[goes_on].any()
    # The value's mean is over the 9 ended rows; without a clip each decision has weight * (V - R) / count.
    free = t_ppo.with_knobs({"models.value.clip": float("inf")})
    returns = annotate(free, batch).signal["returns"]
    count = batch.sampled[~goes_on].sum()
    assert gradient(free, batch).value[~goes_on][on[~goes_on]].all(), "old decisions of ended answers too"
    expected = 0.5 * (batch.current.value.detach() - returns) * batch.sampled / count
    torch.testing.assert_close(gradient(free, batch).value[~goes_on], expected[~goes_on])


def test_tokens_before_a_pause_can_be_left_out():
    batch = now(paused(random_batch(seed=5), 0))
    kept, all_of_it = ThisWindow(skip=2)(batch), ThisWindow()(batch)
    assert all_of_it.equal((batch.sampled > 0).double())
    assert kept[0].sum() == batch.sampled[0].sum() - 2 and not kept[0, batch.sampled[0].nonzero()[-2:]].any()
    assert kept[1:].equal(all_of_it[1:])


def test_a_row_whose_policy_loss_is_dropped_still_fits_the_value():
    batch = random_batch(seed=6)
    batch = batch.replace(segment={**batch.segment, "window": torch.ones_like(batch.action)})
    update = begin_update(t_ppo, annotate(t_ppo, batch))
    assert not update.share.any() and not silent_rows(t_ppo, update).any()
    assert gradient(t_ppo, batch).value.any()


# -- the engine's limits ---------------------------------------------------------------------------------------------------


def test_a_completion_ends_at_its_own_limit_and_is_otherwise_the_same():
    engine = TorchEngine(load_language_model(MODEL, 1))
    prompts, numbers = [[5, 6], [7], [8, 9, 10]], uniforms((6, 9), 0, "limits")
    free = engine.generate(prompts, 2, Sampling(9), numbers)
    bound = engine.generate(prompts, 2, Sampling(9), numbers, [4, 20, 1])
    for row, limit in enumerate([4, 4, 9, 9, 1, 1]):
        length = min(limit, int(free.sampled[row].sum()))
        assert bound.sampled[row].sum() == length
        assert bound.tokens[row, :length].equal(free.tokens[row, :length])
        torch.testing.assert_close(bound.logp[row, :length], free.logp[row, :length])
    assert bound.finish[4] == "length"
    with pytest.raises(UserError, match="smallest 0"):
        engine.generate(prompts, 2, Sampling(9), numbers, [4, 0, 1])
    with pytest.raises(UserError, match="2 limits"):
        engine.generate(prompts, 2, Sampling(9), numbers, [4, 2])
    room = engine.policy.model.config.max_position_embeddings
    engine.generate([[5] * (room - 2)], 1, Sampling(9), numbers[:1], [2])
    with pytest.raises(UserError, match="positions"):
        engine.generate([[5] * (room - 2)], 1, Sampling(9), numbers[:1], [3])


# -- the rollout -----------------------------------------------------------------------------------------------------------


def stops_often(name: str = MODEL):
    """An untrained model that stops after a few tokens, so that some answers end in a window and some do not."""
    policy = load_language_model(name, 3)
    with torch.no_grad():
        policy.model.get_output_embeddings().weight[sorted(policy.stop_ids)] *= 6.0
        hidden = policy.model.get_output_embeddings().weight[sorted(policy.stop_ids)[0]]
        policy.model.model.norm.weight += 2.0 * hidden.sign()
    return policy


def rollout(windows: int = 3, policy=None, tokens: int = 12) -> WindowRollout:
    policy = policy or stops_often()
    sizes = {"tasks": 3, "samples": 4, "sampling": Sampling(tokens), "seed": 5}
    return Windows(windows, least=1).build(load_task("reverse"), policy, **sizes)


def whole(made: WindowRollout, rows: Trajectories, row: int) -> list[int]:
    """Prompt and answer so far, as ids."""
    prompt = rows.inputs.prompt[row][rows.inputs.prompt_mask[row] > 0].tolist()
    return prompt + rows.action[row][rows.sampled[row] > 0].tolist()


def test_answers_go_on_where_they_paused():
    made = rollout()
    kinds: set[int] = set()
    before: dict[int, list[int]] = {}
    for step in range(1, 9):
        rows = collect(made, step)
        assert rows.rows == 12
        last = rows.ended.amax(1)
        kinds |= set(last.tolist())
        for row in range(12):
            text = whole(made, rows, row)
            begun = before.get(row, made.policy.encode(rows.info[row]["prompt"]))
            new = len(text) - len(begun)
            assert text[: len(begun)] == begun and 1 <= new <= 4
            assert (rows.segment["window"][row] == 0)[rows.sampled[row] > 0].sum() == new
            goes_on = int(last[row]) == Ended.PAUSED
            assert goes_on == (made.live[0][row] is not None)
            assert not goes_on or (new == 4 and rows.sampled[row].sum() == 4 and rows.reward[row] == 0)
            if goes_on:
                before[row] = text
            else:
                before.pop(row, None)
                assert text[-1] in made.policy.stop_ids or rows.sampled[row].sum() == 12
        assert rows.sampled.sum(1).max() <= 12
    assert kinds == {Ended.TERMINATED, Ended.TRUNCATED, Ended.PAUSED}


def test_what_was_recorded_is_what_the_policy_says():
    made, old = rollout(), 0
    for step in range(1, 6):
        rows = collect(made, step)
        old += int((rows.segment["window"] > 0).sum())
        torch.testing.assert_close(made.policy.evaluate(rows).logp, rows.behavior.logp * rows.sampled, rtol=1e-4, atol=1e-4)
    assert old > 10


def test_windows_that_do_not_divide_the_limit_end_at_it():
    made = rollout(windows=4, tokens=10)  # windows of 3, the last of 1
    longest = 0
    for step in range(1, 10):
        rows = collect(made, step)
        longest = max(longest, int(rows.lengths().max()))
    assert longest == 10


@pytest.mark.checks("identity", "t-ppo")
def test_one_window_is_plain_sampling():
    policy = stops_often()
    plain = TextRollout(load_task("reverse"), policy, tasks=3, samples=4, sampling=Sampling(12), seed=5)
    ours = rollout(windows=1, policy=policy)
    for step in (1, 2):
        one, other = collect(ours, step), collect(plain, step)
        for name in ("sampled", "reward", "group", "task", "action", "ended"):
            assert torch.equal(getattr(one, name), getattr(other, name)), name
        torch.testing.assert_close(one.behavior.logp, other.behavior.logp)
        assert one.info == other.info


def test_a_step_writes_the_same_however_long_answers_are():
    made = rollout(windows=4, policy=load_language_model(MODEL, 0), tokens=40)  # hardly ever stops
    told = []
    for step in range(1, 13):
        collect(made, step)
        told.append(made.metrics())
    assert {each["longest"] for each in told} == {10.0}
    assert min(each["tokens"] for each in told) > 0.75 * max(each["tokens"] for each in told)
    lengths = [each["length"] for each in told if "length" in each]
    assert max(lengths) > 5 * min(lengths), "and lengths did differ"


def test_what_is_alive_goes_through_a_checkpoint(tmp_path: Path):
    made, other = rollout(), rollout()
    for step in (1, 2, 3):
        collect(made, step)
    save_state(tmp_path, "rollout", made.state())
    assert "safetensors" not in " ".join(file.name for file in tmp_path.iterdir()), "token prefixes, never caches"
    assert len(json.loads((tmp_path / "rollout.json").read_text())["live"]["0"]) == 12
    other.load_state(load_state(tmp_path, "rollout"))
    for step in (4, 5):
        one, two = collect(made, step), collect(other, step)
        assert torch.equal(one.action, two.action) and torch.equal(one.behavior.logp, two.behavior.logp) and one.info == two.info
        assert made.metrics() == other.metrics()


# -- through the learner ---------------------------------------------------------------------------------------------------


def letters(problems: list[Problem], responses: list[str]) -> Scores:
    """Pays for letters, so that an untrained model earns something."""
    reward = [sum(map(str.isalpha, response)) / 12 for response in responses]
    return Scores(reward, [False] * len(reward), {"letters": reward})


def learner(method: Method, **changes) -> PolicyGradient:
    bench = set_up(method, "reverse", MODEL, dataclasses.replace(SIZES, **changes))
    object.__setattr__(bench.task, "score", letters)
    return PolicyGradient(bench.method, bench.policy, bench.rollout, bench.settings, bench.policy.frozen_copy())


@pytest.mark.checks("identity", "t-ppo")
def test_a_run_with_one_window_is_ppo():
    ours, theirs = learner(as_ppo(), updates_per_step=2), learner(find("ppo"), updates_per_step=2)
    for step in (1, 2, 3):
        one, two = ours.step(step), theirs.step(step)
        for name in ("reward", "reward_letters", "tokens", "longest", "length", "loss", "grad_norm"):
            assert one[name] == pytest.approx(two[name], rel=1e-4, abs=1e-6), name
    for name, tensor in ours.policy.weights().items():
        torch.testing.assert_close(tensor, theirs.policy.weights()[name], rtol=1e-3, atol=1e-5)


def test_metrics_are_of_what_ended():
    made = learner(t_ppo.with_knobs({"rollout.least": 1}))
    for step in range(1, 7):
        told = made.step(step)
        rows = made.last
        ended = (rows.ended == Ended.TRUNCATED).any(1) | (rows.ended == Ended.TERMINATED).any(1)
        assert told["ended"] == pytest.approx(float(ended.float().mean()))
        assert told["tokens"] == float((rows.segment["window"] == 0).logical_and(rows.sampled > 0).sum())
        if ended.any():
            assert told["reward"] == pytest.approx(float(rows.reward[ended].mean())) == pytest.approx(told["reward_letters"])


def test_a_run_that_stopped_in_the_middle_of_answers_goes_on_exactly(tmp_path: Path):
    class Breaks(Watcher):
        def stepped(self, step, metrics):
            if step == 5:
                raise RuntimeError("crash")

    sizes = {"tasks_per_step": 3, "samples_per_task": 4, "max_tokens": 12, "warm_start": 0.0, "eval_problems": 4, "lr": 1e-3}
    plan = {**sizes, "model": MODEL, "steps": 6, "checkpoint_every": 3, "updates_per_step": 2, "knobs": {"rollout.least": 1}}
    whole = up.train("t-ppo", "reverse", **plan, out=tmp_path / "whole")
    with pytest.raises(RuntimeError, match="crash"):
        up.train("t-ppo", "reverse", **plan, out=tmp_path / "cut", watcher=Breaks())
    assert any(json.loads((tmp_path / "cut/checkpoints/step-000003/learner.json").read_text())["rollout"]["live"]["0"])
    again = up.resume(tmp_path / "cut")
    clock = {"seconds", "seconds_sampling", "tokens_per_second", "memory"}
    told = [[{key: value for key, value in line.items() if key not in clock} for line in run.metrics] for run in (whole, again)]
    assert told[0] == told[1] and any(0 < line["ended"] < 1 for line in told[0])
    for name, tensor in whole.policy.weights().items():
        assert tensor.equal(again.policy.weights()[name]), name


def test_short_answers_are_not_cut():
    sizes = {"tasks": 1, "samples": 2, "seed": 0}
    policy, task = load_language_model(MODEL, 0), load_task("reverse")
    lengths = [Windows(windows=4).build(task, policy, sampling=Sampling(tokens), **sizes).window for tokens in (4, 20, 33, 400)]
    assert lengths == [4, 8, 9, 100]


def test_groups_filters_that_refill_and_curricula_are_refused():
    with pytest.raises(MethodError, match="group"):
        learner(find("grpo").derive(rollout=Windows()))
    made = rollout()
    with pytest.raises(UserError, match="refill"):
        collect(made, 1, 1, 2)
    with pytest.raises(UserError, match="curriculum"):
        choose(made, 1, 0, 2, 4, lambda offer: draw_by_weight(offer, torch.ones(len(offer))))
    with pytest.raises(MethodError, match="Windows"):
        gradient(t_ppo, random_batch(seed=1).replace(segment={}))
    for wrong in ({"windows": 0}, {"least": 0}):
        with pytest.raises(MethodError, match="=0"):
            Windows(**wrong)
    with pytest.raises(MethodError, match="-1"):
        ThisWindow(skip=-1)
    assert isinstance(FinishedValue(), ValueFunction)
