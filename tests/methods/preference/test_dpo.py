"""DPO and its kin: whole losses beside independent ones, closed forms on a bandit, and what a run on pairs reports."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math

import numpy as np
import pytest
import torch
from batches import assert_same, gradient, random_batch
from rollout_calls import collect
from small_learner import SIZES, learner
from torch import Tensor

import upslope as up
from upslope.errors import TaskError, UserError
from upslope.methods import find
from upslope.objective.advantage.contest import BestWorst, Sides
from upslope.objective.aggregate import SequenceMeanTokenSum
from upslope.objective.estimator import annotate, begin_update, decision_losses, kept, method_loss
from upslope.objective.functional.contests import Contests
from upslope.objective.ratio import NoRatio
from upslope.objective.ratio.references import AgainstReferences
from upslope.objective.surrogate import LogLikelihood
from upslope.objective.surrogate.preference import SigmoidPreference, SquaredPreference
from upslope.tasks import load_task
from upslope.types import Batch, View

dpo, ipo, simpo, kto, online = (find(name) for name in ("dpo", "ipo", "simpo", "kto", "online-dpo"))
liger = pytest.importorskip("liger_kernel.chunked_loss.dpo_loss", reason="liger-kernel comes with upslope[oracles]")


def pairs_batch(seed: int, pairs: int = 5, losers: int = 1) -> Batch:
    """Contests of one winner and some losers, of different lengths, in float64."""
    batch = random_batch(seed, groups=pairs, samples=1 + losers)
    side = torch.where(torch.arange(batch.rows) % (1 + losers) == 0, 1, -1)
    return batch.replace(label={**batch.label, "side": side})


def summed(column: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
    """Sums over winners and over losers."""
    rows = torch.where(batch.sampled > 0, column, 0.0).sum(1)
    return rows[batch.label["side"] == 1], rows[batch.label["side"] == -1]


def assert_equals(method, batch: Batch, loss) -> None:
    """The method's loss and its gradient in every token's log-probability, beside another's ``loss(logp)``."""
    found = gradient(method, batch)
    logp = batch.current.logp.detach().clone().requires_grad_()
    other = loss(logp)
    (grad,) = torch.autograd.grad(other, logp)
    torch.testing.assert_close(found.loss, other.detach(), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(found.logp, grad, rtol=1e-12, atol=1e-12)


@pytest.mark.checks("oracle", "dpo", by="liger-kernel")
@pytest.mark.parametrize("beta", [0.1, 2.0])
def test_dpo_equals_liger(beta: float):
    batch = pairs_batch(3)

    def theirs(logp: Tensor) -> Tensor:
        (won, lost), (ref_won, ref_lost) = summed(logp, batch), summed(batch.reference["start"].logp, batch)
        own = liger.LigerFusedLinearDPOFunction.preference_loss_fn
        return own(won, lost, torch.zeros(batch.rows, 1), ref_won, ref_lost, beta=beta)[0]

    assert_equals(dpo.with_knobs({"surrogate.beta": beta}), batch, theirs)


@pytest.mark.checks("oracle", "simpo", by="liger-kernel")
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_simpo_equals_liger(smoothing: float):
    from liger_kernel.chunked_loss.simpo_loss import LigerFusedLinearSimPOFunction

    batch = pairs_batch(4)

    def theirs(logp: Tensor) -> Tensor:
        (won, lost), (long, short) = summed(logp, batch), summed(torch.ones_like(logp), batch)
        own = LigerFusedLinearSimPOFunction.preference_loss_fn
        return own(won / long, lost / short, torch.zeros(batch.rows, 1), beta=2.0, gamma=1.0, label_smoothing=smoothing)[0]

    assert_equals(simpo.with_knobs({"surrogate.label_smoothing": smoothing}), batch, theirs)


@pytest.mark.checks("oracle", "kto", by="liger-kernel")
def test_kto_equals_liger():
    from liger_kernel.chunked_loss.kto_loss import LigerFusedLinearKTOFunction

    batch = random_batch(5, groups=9, samples=1)
    side = torch.tensor([1, -1, 0] * 3)
    batch = batch.replace(label={**batch.label, "side": side})
    moved = torch.where(batch.sampled > 0, batch.current.logp - batch.reference["start"].logp, 0.0).sum(1).detach()
    threshold = moved[side == 0].mean().clamp_min(0)

    def theirs(logp: Tensor) -> Tensor:
        on = side != 0
        rows, first = (torch.where(batch.sampled > 0, each, 0.0).sum(1)[on] for each in (logp, batch.reference["start"].logp))
        own = LigerFusedLinearKTOFunction.preference_loss_fn
        return own(rows, side[on] == 1, torch.zeros(int(on.sum()), 1), first, beta=0.1, kl=threshold)[0]

    assert_equals(kto, batch, theirs)


@pytest.mark.parametrize("side", [1, -1])
def test_kto_learns_from_one_kind_alone(side: int):
    """Without mismatched rows the threshold is 0: wanted answers get likelier, unwanted ones less."""
    batch = random_batch(14, groups=4, samples=1).replace(label={"side": torch.full((4,), side)})
    found = gradient(kto, batch)
    assert found.finite() and bool((side * found.logp[batch.sampled > 0] < 0).all())


@pytest.mark.checks("oracle", "ipo", by="hand-worked numbers")
def test_ipo_by_hand():
    """Winner moved by 2 over two tokens, loser by -1 over one: difference 3, target 1/(2 · 0.25) = 2, loss 1; means 1 and -1."""
    batch = random_batch(0, groups=1, samples=2, positions=2, ragged=False)
    on = torch.tensor([[1.0, 1.0], [1.0, 0.0]], dtype=torch.float64)
    start = torch.tensor([[-3.0, -3.0], [-1.0, 0.0]], dtype=torch.float64)
    logp = torch.tensor([[-2.0, -2.0], [-2.0, 0.0]], dtype=torch.float64)
    batch = batch.replace(
        sampled=on, current=View(logp.requires_grad_()), reference={"start": View(start)}, label={"side": torch.tensor([1, -1])}
    )
    found = gradient(ipo.with_knobs({"surrogate.tau": 0.25}), batch)
    assert float(found.loss) == pytest.approx(1.0)
    assert found.logp.tolist() == [pytest.approx([2.0, 2.0]), pytest.approx([-2.0, 0.0])]
    means = gradient(ipo.with_knobs({"surrogate.tau": 0.25, "surrogate.unit": "mean"}), batch)
    assert float(means.loss) == pytest.approx(0.0)  # 1 - (-1) is the target itself


@pytest.mark.checks("oracle", "online-dpo", by="hand-worked numbers")
def test_the_best_and_the_worst_are_the_pair():
    batch = random_batch(6, groups=2, samples=4)
    reward = torch.tensor([0.2, 0.9, 0.9, -1.0, 0.5, 0.5, 0.5, 0.5], dtype=torch.float64)
    found = annotate(online, batch.replace(reward=reward))
    assert (found.advantage * found.sampled).sum(1).sign().tolist() == [0, 1, 0, -1, 0, 0, 0, 0]
    assert kept(online, found, late=True).nonzero().squeeze(1).tolist() == [1, 3]  # a tie is dropped, of two best the first counts
    every = BestWorst(losers=True)(batch.replace(reward=reward))
    assert every.sum(1).sign().tolist() == [-1, 1, 0, -1, 0, 0, 0, 0]


# -- identities ------------------------------------------------------------------------------------------------------------


@pytest.mark.checks("identity", "ipo")
@pytest.mark.checks("identity", "simpo")
@pytest.mark.checks("identity", "online-dpo")
def test_put_back_they_are_dpo():
    batch = pairs_batch(7)
    back = ipo.derive(surrogate=SigmoidPreference()), simpo.derive(ratio=AgainstReferences(), surrogate=SigmoidPreference())
    for method in (*back, online.derive(advantage=Sides())):
        assert_same(gradient(method, batch), gradient(dpo, batch), exact=True)


@pytest.mark.checks("identity", "kto")
def test_kto_put_back_is_dpo():
    batch = pairs_batch(8)
    back = kto.derive(surrogate=SigmoidPreference(), filter=dpo.filter, weight=(), aggregate=dpo.aggregate)
    assert_same(gradient(back, batch), gradient(dpo, batch), exact=True)


@pytest.mark.checks("identity", "dpo")
def test_an_untouched_policy_has_the_gradient_of_unlikelihood():
    """At the start dpo is β/2 times the log-likelihood of winners less that of losers, per contest: its parent is nobody."""
    batch = pairs_batch(9)
    batch = batch.replace(reference={"start": View(batch.current.logp.detach())})
    plain = dpo.derive(surrogate=LogLikelihood(), ratio=NoRatio(), aggregate=SequenceMeanTokenSum())
    found, likelihood = gradient(dpo, batch), gradient(plain, batch)
    torch.testing.assert_close(found.logp, 0.1 * likelihood.logp, rtol=1e-12, atol=1e-15)  # 2N rows to a mean over N contests


def test_the_loss_of_dpo_begins_at_log_2():
    batch = pairs_batch(9)
    start = {"start": View(batch.current.logp.detach())}
    assert float(gradient(dpo, batch.replace(reference=start)).loss) == pytest.approx(math.log(2), abs=1e-15)


def test_several_losers_count_by_their_mean_or_as_a_softmax():
    batch = pairs_batch(10, losers=3)
    score = torch.where(batch.sampled > 0, batch.current.logp - batch.reference["start"].logp, 0.0).sum(1).detach().view(-1, 4)
    mean = -torch.nn.functional.logsigmoid(0.1 * (score[:, 0] - score[:, 1:].mean(1))).mean()
    soft = -torch.nn.functional.logsigmoid(-(0.1 * (score[:, 1:] - score[:, :1])).logsumexp(1)).mean()
    assert float(gradient(dpo, batch).loss) == pytest.approx(float(mean), abs=1e-12)
    softmax = dpo.with_knobs({"surrogate.losers": "softmax"})
    assert float(gradient(softmax, batch).loss) == pytest.approx(float(soft), abs=1e-12)
    one = pairs_batch(10)
    assert_same(gradient(softmax, one), gradient(dpo, one), exact=False)


def test_contests_count_the_same_whatever_their_size():
    batch = pairs_batch(11, pairs=2, losers=3)
    keep = torch.tensor([True, True, False, False, True, True, True, True])  # one loser against three
    two = batch.take_rows(keep.nonzero().squeeze(1))
    alone = [float(gradient(dpo, two.take_rows(two.group == group)).loss) for group in two.group.unique()]
    assert float(gradient(dpo, two).loss) == pytest.approx(sum(alone) / 2, abs=1e-12)


def test_a_side_without_tokens_and_a_contest_of_one_side_are_dropped():
    batch = pairs_batch(12, pairs=3)
    empty = batch.sampled.clone()
    empty[0] = 0  # the first winner said nothing
    side = batch.label["side"].clone()
    side[3] = 1  # the second contest has two winners
    batch = annotate(dpo, batch.replace(sampled=empty, label={"side": side}))
    assert kept(dpo, batch, late=True).nonzero().squeeze(1).tolist() == [4, 5]
    contests = Contests.of(batch)
    assert contests.decided.tolist() == [False, False, True]
    losses, _ = decision_losses(dpo, begin_update(dpo, batch))
    assert losses.isfinite().all()


# -- closed forms on a bandit ----------------------------------------------------------------------------------------------

ARMS = 4
REWARD = torch.tensor([0.3, -0.7, 1.1, 0.0], dtype=torch.float64)
START = torch.tensor([0.1, 0.4, 0.2, 0.3], dtype=torch.float64)


def bandit(logits: Tensor, advantage: Tensor, duels: list[tuple[int, int]], start: Tensor) -> Batch:
    """A contest for each duel of arms, each answer one token."""
    arms = torch.tensor([arm for duel in duels for arm in duel])
    logp = logits.log_softmax(0)[arms].unsqueeze(1)
    batch = random_batch(0, groups=len(duels), samples=2, positions=1, ragged=False)
    return batch.replace(current=View(logp), reference={"start": View(start.log()[arms].unsqueeze(1))}, advantage=advantage)


def population_gradient(surrogate, logits: Tensor, chance: Tensor) -> Tensor:
    """Gradient of the expected loss over all duels, each as likely as any other; ``chance[i, j]`` that i beats j."""
    logits = logits.clone().requires_grad_()
    duels = list(itertools.combinations(range(ARMS), 2))
    sure = torch.tensor([2 * float(chance[i, j]) - 1 for i, j in duels], dtype=torch.float64)
    advantage = torch.stack([sure, -sure], 1).flatten().unsqueeze(1)
    batch = bandit(logits, advantage, duels, START)
    method = dpo.derive(surrogate=surrogate)
    losses, _ = decision_losses(method, begin_update(method, batch))
    (grad,) = torch.autograd.grad(losses.sum(), logits)
    return grad


def test_dpo_on_bradley_terry_is_the_regularised_optimum():
    chance = torch.sigmoid(REWARD.unsqueeze(1) - REWARD)
    best = START.log() + REWARD / 0.5  # start · exp(R / β)
    assert population_gradient(SigmoidPreference(beta=0.5), best, chance).abs().max() < 1e-12
    assert population_gradient(SigmoidPreference(beta=0.5), START.log(), chance).abs().max() > 1e-3


def test_ipo_is_another_optimum():
    """On uniform duels it is start · exp(P(y beats the others) / τ), which is not that of DPO."""
    chance = torch.sigmoid(REWARD.unsqueeze(1) - REWARD)
    tau, logits = 0.5, START.log().clone()
    for _ in range(4000):
        logits = logits - 0.5 * population_gradient(SquaredPreference(tau=tau), logits, chance)
    # The least squares fit of s_i - s_j to (2 P_ij - 1) / 2τ has s_i = mean_j (P_ij - 1/2) / τ.
    wanted = START.log() + chance.mean(1) / tau
    torch.testing.assert_close(logits.softmax(0), wanted.softmax(0), rtol=1e-9, atol=1e-9)
    assert (wanted.softmax(0) - (START.log() + REWARD / tau).softmax(0)).abs().max() > 0.01


def test_a_win_that_is_not_sure_is_an_expectation():
    batch = pairs_batch(13)
    chance = 0.8
    sure = torch.where(batch.label["side"].unsqueeze(1) == 1, 2 * chance - 1, 1 - 2 * chance) * batch.sampled
    swapped = batch.replace(label={"side": -batch.label["side"]})
    soft, _ = decision_losses(dpo, begin_update(dpo, batch.replace(advantage=sure)))
    expected = chance * method_loss(dpo, batch) + (1 - chance) * method_loss(dpo, swapped)
    torch.testing.assert_close(soft.sum(), expected)


# -- runs ------------------------------------------------------------------------------------------------------------------


def test_references_are_computed_for_the_rows_that_learn_alone(monkeypatch):
    made = learner("online-dpo", SIZES)
    seen = []
    real = made.views.reference
    monkeypatch.setattr(made.views, "reference", lambda method, name, rows: seen.append(rows.rows) or real(method, name, rows))
    metrics = made.step(1)
    assert metrics["samples"] == 16 and seen and seen[0] == made.last.rows < 16
    assert metrics["loss"] == pytest.approx(math.log(2), abs=1e-5)
    assert {"margin", "preferred", "logp_chosen", "logp_rejected"} <= metrics.keys()


def lines(path, rows) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


SMALL = dict(model="tiny:layers=1,width=32", steps=2, tasks_per_step=4, eval_problems=8, warm_start=0.0, max_tokens=8)


def test_a_run_on_a_file_of_pairs_needs_no_reward(tmp_path):
    rows = [{"prompt": f"say {i}:", "chosen": f"{i}", "rejected": [f"{i}0", "no"]} for i in range(20)]
    run = up.train("dpo", lines(tmp_path / "pairs.jsonl", rows), out=tmp_path / "run", **SMALL)
    assert run.summary["score"] == "preferred" and 0 <= run.summary["score_after"] <= 1
    steps = [each for each in run.metrics if each["kind"] == "step"]
    assert "reward" not in steps[0] and steps[0]["loss"] == pytest.approx(math.log(2), abs=1e-5)


def test_a_method_that_samples_is_refused_on_preferences_without_a_reward(tmp_path):
    rows = [{"prompt": f"say {i}:", "chosen": f"{i}", "rejected": "no"} for i in range(20)]
    with pytest.raises(UserError, match=r"online-dpo samples answers.*no reward"):
        up.train("online-dpo", lines(tmp_path / "pairs.jsonl", rows), out=tmp_path / "run", **SMALL)


def test_thumbs_up_and_down(tmp_path):
    rows = [{"prompt": f"say {i}:", "completion": f"{i}" if i % 2 else "no", "label": bool(i % 2)} for i in range(30)]
    run = up.train("kto", lines(tmp_path / "labels.jsonl", rows), out=tmp_path / "run", **SMALL)
    assert run.summary["score"] == "preferred"
    with pytest.raises(TaskError, match='line 1: no "chosen", and dpo needs pairs'):
        up.train("dpo", lines(tmp_path / "labels.jsonl", rows), out=tmp_path / "other", **SMALL)


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ({"chosen": "a", "rejected": "a"}, "'a' both chosen and rejected"),
        ({"chosen": "", "rejected": "a"}, "not empty"),
        ({"chosen": "a"}, 'has "chosen" and no "rejected"'),
        ({"chosen": "a", "rejected": 3}, "has \"rejected\": '3'"),
        ({"completion": "a", "label": "perhaps"}, "it must be true or false"),
    ],
)
def test_sides_that_cannot_be_used_are_named_by_line(tmp_path, row, told):
    good = {"prompt": "1:", "chosen": "a", "rejected": "b"}
    with pytest.raises(TaskError, match="line 2") as refused:
        up.train("dpo", lines(tmp_path / "pairs.jsonl", [good, {"prompt": "2:", **row}]), out=tmp_path / "run", **SMALL)
    assert told in str(refused.value)


def test_conversations_bring_their_prompt(tmp_path):
    def said(text: str, prompt: str = "hello") -> list[dict]:
        return [{"role": "user", "content": prompt}, {"role": "assistant", "content": text}]

    rows = [{"chosen": said(f"hi {i}"), "rejected": said("no")} for i in range(3)]
    task = load_task(lines(tmp_path / "pairs.jsonl", rows))
    problem = task.sample(1, "train", np.random.default_rng(0))[0]
    assert problem.prompt == "hello" and task.pair(problem)[1] == ("no",)
    rows[1]["rejected"] = said("no", "another")
    with pytest.raises(TaskError, match=r"line 2.*different conversations"):
        load_task(lines(tmp_path / "pairs.jsonl", rows))


@pytest.mark.slow
@pytest.mark.checks("oracle", "dpo", by="TRL's DPOTrainer")
def test_three_updates_are_those_of_trls_own_trainer(tmp_path, monkeypatch):
    """Whole runs, with their data, references, losses, clipping and AdamW: the second and third loss depend on all of it."""
    import sys

    from places import ROOT

    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    before = set(sys.modules)
    from pair_sides import PairWork, first_losses

    try:
        ours, theirs = first_losses(PairWork(rows=8, prompt_tokens=6, tokens=14))
    finally:
        for name in {"pair_sides", "sft_sides", "text_sides", "text_work", "sides"} - before:
            sys.modules.pop(name, None)
    assert ours[0] == pytest.approx(0.6931472, abs=1e-6) and abs(ours[2] - ours[0]) > 1e-4
    assert ours == pytest.approx(theirs, abs=1e-6)


@pytest.mark.parametrize("updates", [1, 2])
def test_the_kl_to_the_start_of_given_pairs_takes_no_pass_of_its_own_where_one_update_tells_it(tmp_path, updates, monkeypatch):
    lines = [{"prompt": f"p{n}", "chosen": f"yes {n}", "rejected": f"no{n}"} for n in range(12)]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    made = learner("dpo", dataclasses.replace(SIZES, updates_per_step=updates), task=str(tmp_path / "pairs.jsonl"))
    told, asked = [], []
    evaluate = type(made.policy).evaluate

    def counted(self, rows, *arguments, **named):
        asked[-1] += self is made.policy
        return evaluate(self, rows, *arguments, **named)

    monkeypatch.setattr(type(made.policy), "evaluate", counted)
    for step in range(1, 4):
        asked.append(0)
        told.append(made.step(step)["kl_start"])
    before = 0 if updates == 1 else 2  # the proximal policy, and the KL
    assert asked == [updates + before] * 3
    assert told[0] == 0 and 0 < told[1] < told[2]
    made.policy.load_weights(made.references.start.weights())
    asked.append(0)
    assert made.step(4)["kl_start"] == 0


def test_the_kl_of_the_update_is_that_of_a_pass(tmp_path):
    lines = [{"prompt": f"p{n}", "chosen": f"yes {n}", "rejected": f"no{n}"} for n in range(12)]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    made = learner("dpo", SIZES, task=str(tmp_path / "pairs.jsonl"))
    made.step(1)
    rows = collect(made.rollout, 2)
    policies = made.references.start, made.policy
    start, now = (made.views.columns(made.method, policy, rows, frozenset()).logp for policy in policies)
    expected = ((start - now).exp() - 1 - (start - now)) * rows.sampled
    assert made.step(2)["kl_start"] == pytest.approx(float(expected.sum() / rows.sampled.sum()), rel=1e-4)
