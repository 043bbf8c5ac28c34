"""Reward models: their losses beside TRL's, the closed form on a bandit, and what the rows of two answers are."""

from __future__ import annotations

import itertools
import json
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from batches import assert_same, gradient, random_batch
from rollout_calls import collect
from small_learner import SIZES, learner
from torch import Tensor

import upslope as up
from upslope.errors import UserError
from upslope.methods import find
from upslope.objective.estimator import begin_update, decision_losses
from upslope.objective.models.score import AnswerScore
from upslope.objective.ratio.references import AgainstReferences
from upslope.objective.surrogate.preference import SigmoidPreference
from upslope.policies.reward_model import RewardModel
from upslope.policies.reward_runs import RewardRun
from upslope.rollout.pairs import FromPairs
from upslope.types import Batch, View

dpo, bt_rm, pair_rm = (find(name) for name in ("dpo", "bt-rm", "pair-rm"))
SMALL = dict(model="tiny:layers=1,width=32", steps=2, tasks_per_step=4, eval_problems=8, warm_start=0.0, max_tokens=8)


def scored_batch(seed: int, pairs: int = 5, losers: int = 1) -> Batch:
    """Contests of one winner and some losers, of different lengths, with a score at every decision, in float64."""
    batch = random_batch(seed, groups=pairs, samples=1 + losers)
    place = torch.arange(batch.rows) % (1 + losers)
    score = torch.randn(batch.sampled.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    current = View(batch.current.logp, more={"score": score.requires_grad_()})
    label = {"side": torch.where(place == 0, 1, -1), "order": torch.where(place == 0, 0, 1)}
    return batch.replace(current=current, label={**batch.label, **label})


def last_scores(batch: Batch, score: Tensor) -> Tensor:
    """By hand: the score at each row's last decision."""
    return torch.stack([score[row, int(on.nonzero().max())] for row, on in enumerate(batch.sampled > 0)])


def score_grad(method, batch: Batch) -> tuple[Tensor, Tensor]:
    """The method's loss and its gradient in the score of every decision."""
    from upslope.objective.estimator import method_loss

    loss = method_loss(method, batch)
    (grad,) = torch.autograd.grad(loss, batch.current["score"])
    return loss.detach(), grad


# -- independent losses ----------------------------------------------------------------------------------------------------


def trl_loss(chosen: Tensor, rejected: Tensor, margin: float, center: float) -> Tensor:
    """TRL's own `compute_loss` on these scores."""
    from collections import defaultdict

    from trl import RewardTrainer

    class Model:
        training = True

        def __call__(self, **inputs):
            return SimpleNamespace(logits=torch.cat([chosen, rejected]).unsqueeze(-1))

    same = SimpleNamespace(gather=lambda value: value, gather_for_metrics=lambda value: value)
    fake = SimpleNamespace(model=Model(), args=SimpleNamespace(center_rewards_coefficient=center), accelerator=same,
                           _metrics=defaultdict(lambda: defaultdict(list)), _total_train_tokens=0, _tp_size=1)  # fmt: skip
    inputs = {"attention_mask": torch.ones(2, 1), "margin": torch.full_like(chosen, margin)}
    return RewardTrainer.compute_loss(fake, fake.model, inputs)


@pytest.mark.checks("oracle", "bt-rm", by="TRL")
@pytest.mark.parametrize(("margin", "center"), [(0.0, 0.0), (0.5, 0.01), (-1.0, 0.3)])
def test_bt_rm_equals_trl(margin: float, center: float):
    batch = scored_batch(3)
    method = bt_rm.with_knobs({"surrogate.margin": margin, "models.score.center": center})
    loss, grad = score_grad(method, batch)
    score = batch.current["score"].detach().clone().requires_grad_()
    rows = last_scores(batch, score)
    theirs = trl_loss(rows[batch.label["side"] == 1], rows[batch.label["side"] == -1], margin, center)
    (wanted,) = torch.autograd.grad(theirs, score)
    torch.testing.assert_close(loss, theirs.detach(), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(grad, wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.checks("oracle", "pair-rm", by="hand-worked numbers")
def test_pair_rm_by_hand():
    """The chosen answer first says 3, last says 1: P = σ(2) = 0.8808, loss 0.126928; the gradient is ∓(1 - 0.8808) = ∓0.119203."""
    batch = scored_batch(0, pairs=1)
    on = torch.zeros_like(batch.sampled)
    on[:, 0] = 1  # one decision each
    score = torch.tensor([[3.0], [1.0]], dtype=torch.float64).expand(on.shape).clone().requires_grad_()
    batch = batch.replace(sampled=on, current=View(batch.current.logp, more={"score": score}))
    loss, grad = score_grad(pair_rm, batch)
    assert float(loss) == pytest.approx(0.1269280110)
    assert grad[:, 0].tolist() == pytest.approx([-0.1192029220, 0.1192029220])
    centred, _ = score_grad(pair_rm.with_knobs({"models.score.center": 0.01}), batch)
    assert float(centred) == pytest.approx(0.1269280110 + 0.01 * 16)


def test_several_losers_count_by_their_mean_or_as_a_softmax():
    batch = scored_batch(10, losers=3)
    rows = last_scores(batch, batch.current["score"].detach()).view(-1, 4)
    mean = -torch.nn.functional.logsigmoid(rows[:, 0] - rows[:, 1:].mean(1)).mean()
    beats_all = -rows.log_softmax(1)[:, 0].mean()
    assert float(score_grad(bt_rm, batch)[0]) == pytest.approx(float(mean), abs=1e-12)
    assert float(score_grad(bt_rm.with_knobs({"surrogate.losers": "softmax"}), batch)[0]) == pytest.approx(
        float(beats_all), abs=1e-12
    )


def test_only_the_end_of_an_answer_is_read():
    batch = scored_batch(4)
    _, grad = score_grad(bt_rm, batch)
    for row, on in enumerate(batch.sampled > 0):
        assert grad[row].nonzero().squeeze(1).tolist() == [int(on.nonzero().max())]
    assert float(gradient(bt_rm, batch).logp.abs().max()) == 0


# -- identities and closed forms -------------------------------------------------------------------------------------------


@pytest.mark.checks("identity", "bt-rm")
def test_put_back_bt_rm_is_dpo():
    batch = scored_batch(7)
    back = bt_rm.derive(ratio=AgainstReferences(), surrogate=SigmoidPreference(), models={})
    assert_same(gradient(back, batch), gradient(dpo, batch), exact=True)


@pytest.mark.checks("identity", "pair-rm")
def test_put_back_pair_rm_is_bt_rm():
    back, batch = pair_rm.derive(rollout=FromPairs(), models={"score": AnswerScore()}), scored_batch(8)
    for one, other in zip(score_grad(back, batch), score_grad(bt_rm, batch), strict=True):
        assert torch.equal(one, other)
    assert back.diff(bt_rm) == {}


REWARD = torch.tensor([0.3, -0.7, 1.1, 0.0], dtype=torch.float64)


def bandit_grad(scores: Tensor, chance: Tensor) -> Tensor:
    """Gradient in the arms' scores of the expected loss over all duels; ``chance[i, j]`` that i beats j."""
    scores = scores.clone().requires_grad_()
    duels = list(itertools.combinations(range(len(scores)), 2))
    arms = torch.tensor([arm for duel in duels for arm in duel])
    sure = torch.tensor([2 * float(chance[i, j]) - 1 for i, j in duels], dtype=torch.float64)
    batch = random_batch(0, groups=len(duels), samples=2, positions=1, ragged=False)
    batch = batch.replace(
        current=View(batch.current.logp, more={"score": scores[arms].unsqueeze(1)}),
        advantage=torch.stack([sure, -sure], 1).flatten().unsqueeze(1),
    )
    losses, _ = decision_losses(bt_rm, begin_update(bt_rm, batch))
    (grad,) = torch.autograd.grad(losses.sum(), scores)
    return grad


def test_on_a_bandit_the_differences_of_reward_are_recovered():
    chance, scores = torch.sigmoid(REWARD.unsqueeze(1) - REWARD), torch.zeros(4, dtype=torch.float64)
    for _ in range(1000):
        scores = scores - 2.0 * bandit_grad(scores, chance)
    torch.testing.assert_close(scores - scores[0], REWARD - REWARD[0], rtol=0, atol=1e-9)


def test_what_goes_round_has_no_score():
    """Rock, paper, scissors: the best that scores can do is to be all alike, however surely each wins."""
    circle = torch.tensor([[0.5, 0.9, 0.1], [0.1, 0.5, 0.9], [0.9, 0.1, 0.5]], dtype=torch.float64)
    assert bandit_grad(torch.zeros(3, dtype=torch.float64), circle).abs().max() < 1e-9


# -- rows ------------------------------------------------------------------------------------------------------------------


def test_both_orders_are_two_rows_that_end_alike():
    made = learner("pair-rm", SIZES)
    rows = collect(made.rollout, 1)
    assert rows.rows == 8 and rows.group.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert rows.label["side"].tolist() == [1, -1] * 4 and rows.label["order"].tolist() == [0, 1] * 4
    assert rows.sampled.sum(1).tolist() == [1] * 8
    policy, stop = made.policy, min(made.policy.stop_ids)
    for first, second in ((0, 1), (2, 3)):
        (a, b), (b_again, a_again) = (_split(rows.action[row], rows.sampled[row], stop) for row in (first, second))
        assert (a, b) == (a_again, b_again) and a != b
        (won,), (lost,) = made.rollout.task.pair(made.rollout.problems(rows)[first])
        assert (policy.decode(a), policy.decode(b)) == (won, lost)
    assert made.step(1)["preferred"] in (0, 0.25, 0.5, 0.75, 1)


def _split(action: Tensor, sampled: Tensor, stop: int) -> tuple[list[int], list[int]]:
    ids = action[: int(sampled.nonzero().max()) + 1].tolist()
    first = ids.index(stop)
    assert ids[-1] == stop and ids.count(stop) == 2
    return ids[:first], ids[first + 1 : -1]


def test_every_chosen_answer_meets_every_rejected_one(tmp_path):
    made = learner(pair_rm, SIZES)
    made.rollout.task.pair = lambda problem: (("a", "b"), ("c", "d", "e"))
    rows = collect(made.rollout, 1)
    assert rows.rows == 4 * 2 * 3 * 2
    assert [note["response"] for note in rows.info[:4]] == ["a\n\nc", "c\n\na", "a\n\nd", "d\n\na"]


# -- the model -------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> dict[str, str]:
    """A short run of each."""
    folder = tmp_path_factory.mktemp("runs")
    for name in ("bt-rm", "pair-rm"):
        up.train(name, "reverse:length=3", out=folder / name, **SMALL)
    return {name: str(folder / name) for name in ("bt-rm", "pair-rm")}


def test_a_run_leaves_a_model_that_transformers_loads_with_its_head(runs):
    """The score is the head on the last layer where the answer ends: computed here by `transformers` alone."""
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM, AutoTokenizer

    run = RewardRun.parse(runs["bt-rm"])
    model, tokenizer = (kind.from_pretrained(run.checkpoint()) for kind in (AutoModelForCausalLM, AutoTokenizer))
    head = load_file(run.checkpoint() / "head-score.safetensors")
    loaded = run.load()
    prompts, texts = ["abc ->", "de ->", "abc ->"], ["cba", "e", ""]
    wanted = []
    for prompt, text in zip(prompts, texts, strict=True):
        ids = [*loaded.policy.encode(prompt), *tokenizer(text, add_special_tokens=False).input_ids]
        hidden = model(torch.tensor([ids]), output_hidden_states=True).hidden_states[-1][0, -1]
        wanted.append(float((head["weight"] @ hidden + head["bias"]).detach()))
    assert loaded.scores(prompts, texts) == pytest.approx(wanted, abs=1e-5)


def test_scores_do_not_depend_on_what_else_is_scored(runs):
    model = RewardRun.parse(runs["bt-rm"]).load()
    prompts, texts = ["abc ->", "de ->", "abc ->", "abc ->"], ["cba", "eddd", "", "cba"]
    alone = [model.scores([prompt], [text])[0] for prompt, text in zip(prompts, texts, strict=True)]
    together = model.scores(prompts, texts)
    assert together == pytest.approx(alone, abs=1e-5) and together[0] == together[3]


@pytest.mark.parametrize("name", ["bt-rm", "pair-rm"])
def test_chances_of_both_orders_sum_to_one(runs, name: str):
    model = RewardRun.parse(runs[name]).load()
    (logits,) = model.logits([("abc ->", ("cba", "abc", "", "cba"))])
    chance = 1 / (1 + np.exp(-logits))
    assert np.array_equal(logits, -logits.T) and np.allclose(chance + chance.T, 1, atol=1e-15)
    assert logits[0, 3] == 0 and np.array_equal(logits[0], logits[3]) and logits[0, 1] != 0


def test_a_tournament_is_the_mean_over_the_others(runs):
    model = RewardRun.parse(runs["pair-rm"]).load()
    texts = ["cba", "abc", "x", "lone"]
    found = model.scores(["abc ->", "abc ->", "abc ->", "lone ->"], texts)
    (logits,) = model.logits([("abc ->", tuple(texts[:3]))])
    assert found[:3] == pytest.approx((logits.sum(1) / 2).tolist(), abs=1e-6) and found[3] == 0
    assert sum(found[:3]) == pytest.approx(0, abs=1e-6)


def test_the_score_of_a_run_is_the_share_of_held_out_pairs_it_ranks_right(runs):
    for name, path in runs.items():
        run = up.load(path)
        summary, (_, *_, last) = run.summary, run.evaluations
        assert summary["score"] == "preferred" and last["score"] == last["preferred"] == summary["score_after"]
        assert last["low"] <= last["score"] <= last["high"] and "kl_start" not in run.metrics[0]
        task, model = run.plan, RewardRun.parse(path).load()
        assert task.method.name == name and model.pairs == (name == "pair-rm")
        assert {"margin", "preferred", "score_chosen", "score_rejected"} <= run.metrics[0].keys()
        assert "logp_chosen" not in run.metrics[0]


def test_a_score_that_is_no_number_is_refused(runs):
    model = RewardRun.parse(runs["bt-rm"]).load()
    with torch.no_grad():
        model.policy.heads["score"].bias.fill_(torch.nan)
    with pytest.raises(UserError, match="gives 'cba' the score nan"):
        model.scores(["abc ->"], ["cba"])


def test_what_the_model_cannot_read_is_refused(runs):
    model = RewardRun.parse(runs["bt-rm"]).load()
    longest = model.policy.model.config.max_position_embeddings
    with pytest.raises(UserError, match=f"reads at most {longest}"):
        model.scores(["abc ->"], ["a" * longest])


def test_adapters_and_a_file_of_pairs(tmp_path):
    rows = [{"prompt": f"say {i}:", "chosen": f"{i}", "rejected": [f"{i}0", "no"]} for i in range(20)]
    file = tmp_path / "pairs.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    run = up.train("bt-rm", str(file), out=tmp_path / "run", lora=2, **SMALL)
    head = run.policy.heads["score"]
    own = RewardModel("run", run.policy, "score", False).scores(["say 1:"], ["1"])
    assert RewardRun.parse(str(tmp_path / "run")).load().scores(["say 1:"], ["1"]) == pytest.approx(own, abs=1e-5)
    assert math.isfinite(own[0]) and head.weight.requires_grad
