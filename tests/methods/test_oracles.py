"""Losses, gradients and advantages against independent implementations, and against numbers worked out by hand.

The implementations are installed with the tests: one that cannot be imported is a failure, not a skip. They count empty rows in
their means and we do not, so the batches here have none.
"""

from __future__ import annotations

import math
from collections import defaultdict
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from batches import Outcome, at_proximal, gradient, random_batch
from torch import Tensor

from upslope.methods import find
from upslope.objective.advantage import GAE, GroupBaseline
from upslope.objective.aggregate import TokenMean
from upslope.objective.estimator import annotate, begin_update, decision_losses
from upslope.objective.surrogate import ClippedWeight, PessimisticClip
from upslope.objective.weight import TopEntropy
from upslope.runtime.seeding import generator
from upslope.types import Batch, Ended, Method, View

SEEDS = range(4)
HORIZON = 11
_BARE = {"filter": None, "reward": None}  # the oracles compute a loss; what a method does to rewards and rows is not theirs
_NARROW = PessimisticClip(low=0.06, high=0.09)


def _methods() -> dict[str, tuple[Method, dict]]:
    """Our method and the settings under which the others compute the same."""
    grpo = find("grpo")
    token = {"epsilon_low": 0.2, "epsilon_high": 0.2, "beta": 0.0, "level": "token", "delta": None}
    sequence = {**token, "epsilon_low": 0.06, "epsilon_high": 0.09, "level": "sequence"}
    return {
        "grpo": (grpo, {**token, "loss_type": "grpo", "beta": 0.04}),
        "dr-grpo": (find("dr-grpo"), {**token, "loss_type": "dr_grpo"}),
        # With all tokens in one batch, DAPO's normaliser and BNPO's are the same; both are asked.
        "dapo": (find("dapo").derive(**_BARE), {**token, "epsilon_high": 0.28, "loss_type": "dapo", "delta": 10.0}),
        "dapo, low dual clip": (
            find("dapo").derive(**_BARE, surrogate=PessimisticClip(0.2, 0.28, dual=1.5)),
            {**token, "epsilon_high": 0.28, "loss_type": "dapo", "delta": 1.5},
        ),
        "token mean": (grpo.derive(aggregate=TokenMean()), {**token, "loss_type": "bnpo", "beta": 0.04}),
        "gspo": (find("gspo").derive(surrogate=_NARROW), {**sequence, "loss_type": "grpo"}),
        "gspo, paper's bounds": (find("gspo"), {**sequence, "epsilon_low": 3e-4, "epsilon_high": 4e-4, "loss_type": "grpo"}),
        # Theirs bound the weight itself, ours its distance from one.
        "cispo": (find("cispo").derive(surrogate=ClippedWeight(1.0, 0.3)), {**token, "epsilon_high": 1.3, "loss_type": "cispo"}),
    }


CASES = list(_methods())


def _batch(seed: int) -> Batch:
    return random_batch(seed, groups=3, samples=4).replace(horizon=HORIZON)


def _advantages(method: Method, batch: Batch) -> Tensor:
    """One per row, as ours are: the oracles are fed the same."""
    return annotate(method, batch).advantage.sum(1) / batch.lengths()


def _assert_loss_and_gradient(ours: Outcome, loss: Tensor, leaf: Tensor) -> None:
    (grad,) = torch.autograd.grad(loss, leaf)
    torch.testing.assert_close(ours.loss, loss.detach(), rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(ours.logp, grad, rtol=1e-9, atol=1e-12)
    assert grad.abs().max() > 1e-4


# -- liger-kernel ----------------------------------------------------------------------------------------------------------


@pytest.mark.oracle("liger-kernel")
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("case", CASES)
def test_loss_and_gradient_match_liger(case: str, seed: int):
    from liger_kernel.chunked_loss.grpo_loss import LigerFusedLinearGRPOFunction

    method, settings = _methods()[case]
    batch = _batch(seed)
    leaf = batch.current.logp
    loss, metrics = LigerFusedLinearGRPOFunction.ppo_loss_fn(
        leaf,
        batch.sampled,
        _advantages(method, batch),
        batch.sampled,
        ref_per_token_logps=batch.reference["start"].logp,
        old_per_token_logps=batch.proximal.logp,
        epsilon_low=settings["epsilon_low"],
        epsilon_high=settings["epsilon_high"],
        beta=settings["beta"],
        loss_type=settings["loss_type"],
        max_completion_length=HORIZON,
        importance_sampling_level=settings["level"],
        delta=settings["delta"],
    )
    _assert_loss_and_gradient(gradient(method, batch), loss, leaf)
    if settings["loss_type"] != "cispo":  # there its metric counts clipped weights on one side of the advantage only
        torch.testing.assert_close(_clipped_share(method, batch), metrics[-1].double(), rtol=1e-6, atol=0)


def _clipped_share(method: Method, batch: Batch) -> Tensor:
    _, notes = decision_losses(method, begin_update(method, annotate(method, batch)))
    return ((notes["clipped_high"] | notes["clipped_low"]) * batch.sampled).sum() / batch.sampled.sum()


# -- TRL -------------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def grpo_trainer() -> type:
    from trl.trainer.grpo_trainer import GRPOTrainer

    return GRPOTrainer


def _stub(trainer: type, logp: Tensor, entropy: Tensor, settings: dict, top_entropy: float = 1.0) -> SimpleNamespace:
    """An object with just what the trainer's loss reads of itself: one process, one micro-batch, no model."""
    accelerator = SimpleNamespace(
        num_processes=1,
        gather=lambda column: column,
        reduce=lambda column, reduction: column,
        pad_across_processes=lambda column, dim, pad_index: column,
    )
    stub = SimpleNamespace(
        accelerator=accelerator,
        args=SimpleNamespace(delta=settings["delta"], use_bias_correction_kl=False, steps_per_generation=1),
        model=SimpleNamespace(training=True),
        aux_loss_enabled=False,
        beta=settings["beta"],
        current_gradient_accumulation_steps=1,
        epsilon_low=settings["epsilon_low"],
        epsilon_high=settings["epsilon_high"],
        importance_sampling_level=settings["level"],
        loss_type=settings["loss_type"],
        max_completion_length=HORIZON,
        off_policy_mask_threshold=None,
        top_entropy_quantile=top_entropy,
        use_vllm=False,
        _entropy_bonus_enabled=False,
        _get_per_token_logps_and_entropies=lambda *_, **__: (logp, entropy, None),
        _metrics={"train": defaultdict(list)},
    )
    stub.get_high_entropy_mask = lambda *given: trainer.get_high_entropy_mask(stub, *given)
    return stub


def _trl_inputs(method: Method, batch: Batch) -> dict[str, Tensor]:
    rows, positions = batch.sampled.shape
    there = torch.ones(rows, positions)
    return {
        "prompt_ids": torch.zeros(rows, 1, dtype=torch.long),
        "prompt_mask": torch.ones(rows, 1, dtype=torch.long),
        "completion_ids": torch.zeros(rows, positions, dtype=torch.long),
        "completion_mask": there.double(),
        "tool_mask": batch.sampled,
        "advantages": _advantages(method, batch),
        "old_per_token_logps": batch.proximal.logp,
        "ref_per_token_logps": batch.reference["start"].logp,
        "num_items_in_batch": batch.sampled.sum(),
    }


@pytest.mark.oracle("trl")
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("case", CASES)
def test_loss_and_gradient_match_trl(grpo_trainer: type, case: str, seed: int):
    method, settings = _methods()[case]
    batch = _batch(seed)
    leaf = batch.current.logp
    stub = _stub(grpo_trainer, leaf, batch.current.entropy.detach(), settings)
    loss = grpo_trainer._compute_loss(stub, None, _trl_inputs(method, batch))
    _assert_loss_and_gradient(gradient(method, batch), loss, leaf)
    if settings["level"] == "token" and settings["loss_type"] != "cispo" and settings["delta"] != 1.5:
        (theirs,) = stub._metrics["train"]["clip_ratio/region_mean"]
        assert _clipped_share(method, batch).item() == pytest.approx(theirs, rel=1e-6)


@pytest.mark.oracle("trl")
@pytest.mark.parametrize("seed", range(8))
def test_high_entropy_keeps_the_tokens_that_trl_keeps(grpo_trainer: type, seed: int):
    batch = random_batch(seed, groups=3, samples=4, positions=5 + seed)
    stub = _stub(grpo_trainer, batch.current.logp, batch.current.entropy, _methods()["dapo"][1])
    theirs = stub.get_high_entropy_mask(batch.proximal.entropy.float(), batch.sampled, 1 - 0.2)
    ours = TopEntropy(fraction=0.2)(batch) * batch.sampled
    assert torch.equal(ours > 0, theirs)
    assert 0 < theirs.sum() < batch.sampled.sum() / 4


@pytest.mark.oracle("trl")
@pytest.mark.parametrize("seed", SEEDS)
def test_high_entropy_loss_and_gradient_match_trl(grpo_trainer: type, seed: int):
    # TRL divides by all tokens, which is our denominator="all".
    method = find("high-entropy").derive(**_BARE, weight=TopEntropy(0.2, denominator="all"))
    batch = _batch(seed)
    leaf = batch.current.logp
    stub = _stub(grpo_trainer, leaf, batch.proximal.entropy, _methods()["dapo"][1], top_entropy=0.2)
    loss = grpo_trainer._compute_loss(stub, None, _trl_inputs(method, batch))
    _assert_loss_and_gradient(gradient(method, batch), loss, leaf)
    selected = gradient(method.derive(weight=TopEntropy(0.2)), batch)
    kept = (TopEntropy(0.2)(batch) * batch.sampled).sum()
    torch.testing.assert_close(selected.logp, gradient(method, batch).logp * batch.sampled.sum() / kept)


@pytest.mark.oracle("trl")
@pytest.mark.parametrize("seed", SEEDS)
def test_group_advantages_match_trls_formula(seed: int):
    from trl.trainer.utils import nanstd

    batch = _batch(seed)
    grouped = batch.reward.view(3, 4)
    theirs = (grouped - grouped.nanmean(1, keepdim=True)) / (nanstd(grouped, dim=1).unsqueeze(1) + 1e-4)
    ours = GroupBaseline(eps=1e-4)(batch)
    torch.testing.assert_close(ours, theirs.flatten().unsqueeze(1) * batch.sampled)


# -- generalised advantage estimation --------------------------------------------------------------------------------------


def _control_batch(seed: int, rows: int = 5, positions: int = 12) -> Batch:
    """Several episodes per row: terminated and truncated ones mixed, the last one paused by the end of the rollout."""
    random = generator(seed, "control")

    def normal() -> Tensor:
        return torch.randn(rows, positions, generator=random, dtype=torch.float64)

    kind = torch.rand(rows, positions, generator=random)
    ended = torch.zeros(rows, positions, dtype=torch.int8)
    ended[kind < 0.15] = int(Ended.TERMINATED)
    ended[kind > 0.85] = int(Ended.TRUNCATED)
    ended[:, -1] = torch.where(ended[:, -1] == 0, int(Ended.PAUSED), ended[:, -1].int()).to(torch.int8)
    assert all((ended == name).any() for name in Ended)
    return Batch(
        sampled=torch.ones(rows, positions, dtype=torch.float64),
        reward=torch.zeros(rows, dtype=torch.float64),
        group=torch.arange(rows),
        task=torch.arange(rows),
        behavior=View(normal()),
        proximal=View(normal(), value=normal()),
        step_reward=normal(),
        ended=ended,
        bootstrap=normal(),  # also behind terminations and in the middle of episodes, where it must not be read
    )


def _torchrl_gae(batch: Batch, gae: GAE) -> tuple[Tensor, Tensor]:
    from torchrl.objectives.value.functional import generalized_advantage_estimate

    value = batch.proximal.value
    following = torch.cat([value[:, 1:], torch.zeros_like(value[:, :1])], dim=1)
    following = torch.where(batch.ended > 0, batch.bootstrap, following)
    columns = (value, following, batch.step_reward, batch.ended > 0, batch.ended == Ended.TERMINATED)
    found = generalized_advantage_estimate(gae.gamma, gae.lam, *(column.unsqueeze(2) for column in columns))
    return found[0].squeeze(2), found[1].squeeze(2)


@pytest.mark.oracle("torchrl")
@pytest.mark.parametrize("lam", [0.0, 0.95, 1.0])
@pytest.mark.parametrize("seed", SEEDS)
def test_gae_matches_torchrl(seed: int, lam: float):
    batch, gae = _control_batch(seed), GAE(gamma=0.97, lam=lam)
    advantage, returns = _torchrl_gae(batch, gae)
    ours = gae(batch)
    torch.testing.assert_close(ours, advantage, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(gae.signals(batch, ours)["returns"], returns, rtol=1e-6, atol=1e-6)


@pytest.mark.oracle("torchrl")
@pytest.mark.parametrize("seed", SEEDS)
def test_gae_passes_over_what_was_not_sampled(seed: int):
    """With tool tokens cut out of each row, the others see an ordinary row."""
    batch, gae = _control_batch(seed), GAE(gamma=0.97, lam=0.9)
    spread = torch.tensor([0, 1, 4, 5, 6, 9, 10, 11, 12, 15, 16, 17])  # holes at 2, 3, 7, 8, 13, 14

    def widen(column: Tensor) -> Tensor:
        if column.dim() == 1:
            return column
        wide = torch.full((column.shape[0], 18), 77, dtype=column.dtype)
        wide[:, spread] = column
        return wide

    wide = batch._map(widen)
    wide = wide.replace(
        sampled=torch.where(wide.sampled == 77, 0.0, wide.sampled), ended=torch.where(wide.ended == 77, 0, wide.ended)
    )
    found = gae(wide)
    torch.testing.assert_close(found[:, spread], _torchrl_gae(batch, gae)[0], rtol=1e-6, atol=1e-6)
    assert not found[:, [2, 3, 7, 8, 13, 14]].any()


@pytest.mark.oracle("stable-baselines3")
@pytest.mark.parametrize("seed", SEEDS)
def test_gae_matches_stable_baselines(seed: int):
    from gymnasium import spaces
    from stable_baselines3.common.buffers import RolloutBuffer

    batch, gae = _control_batch(seed), GAE(gamma=0.97, lam=0.9)
    rows, positions = batch.sampled.shape
    buffer = RolloutBuffer(positions, spaces.Box(-1, 1, (1,)), spaces.Discrete(2), gamma=gae.gamma, gae_lambda=gae.lam, n_envs=rows)
    # It knows "done" only: what stands behind a truncation is added to the reward, discounted.
    truncated = batch.ended == Ended.TRUNCATED
    reward = batch.step_reward + gae.gamma * batch.bootstrap * truncated
    done = ((batch.ended == Ended.TERMINATED) | truncated).numpy()
    buffer.rewards = reward.T.numpy()
    buffer.values = batch.proximal.value.T.numpy()
    buffer.episode_starts = np.concatenate([np.zeros((1, rows)), done.T[:-1]]).astype(np.float32)
    buffer.advantages = np.zeros((positions, rows))
    buffer.compute_returns_and_advantage(last_values=batch.bootstrap[:, -1], dones=done[:, -1])
    ours = gae(batch)
    torch.testing.assert_close(ours, torch.from_numpy(buffer.advantages.T.copy()), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(gae.signals(batch, ours)["returns"], torch.from_numpy(buffer.returns.T.copy()), rtol=1e-6, atol=1e-6)


def test_gae_by_hand():
    """Two steps and a termination; gamma = 0.5, lambda = 0.5: delta = (1 + 0.5*4 - 2, 3 + 0 - 4), A = (1 + 0.25 * -1, -1)."""
    view = View(torch.zeros(1, 2), value=torch.tensor([[2.0, 4.0]]))
    ended = torch.tensor([[0, 1]], dtype=torch.int8)
    batch = Batch(
        sampled=torch.ones(1, 2), reward=torch.tensor([2.0]), group=torch.zeros(1), task=torch.zeros(1), behavior=view,
        proximal=view, step_reward=torch.tensor([[1.0, 1.0]]), ended=ended, bootstrap=torch.full((1, 2), math.nan),
    )  # fmt: skip
    # The row's reward of 2 is paid at its last decision, on top of the step's 1.
    advantage = GAE(gamma=0.5, lam=0.5)(batch)
    assert advantage.tolist() == [[0.75, -1.0]]
    assert GAE().signals(batch, advantage)["returns"].tolist() == [[2.75, 3.0]]


# -- worked by hand --------------------------------------------------------------------------------------------------------


def _row(ratios: list[float], advantage: float, logp: float = -1.0) -> Batch:
    """One answer with these token ratios and one advantage."""
    log = torch.tensor([ratios], dtype=torch.float64).log()
    old = logp - log.detach()
    ones, zero = torch.ones_like(log), torch.zeros(1, dtype=torch.long)
    current = View(torch.full_like(log, logp).requires_grad_())
    reward = torch.tensor([advantage], dtype=torch.float64)
    return Batch(ones, reward, zero, zero, View(old), View(old), current, advantage=advantage * ones, horizon=10)


def _loss_and_gradient(method: Method, batch: Batch) -> tuple[float, list[float]]:
    loss = decision_losses(method, begin_update(method, batch))[0].sum()
    return loss.item(), torch.autograd.grad(loss, batch.current.logp)[0].flatten().tolist()


def test_rloo_by_hand():
    """Rewards 1, 0, 0, 2: the others' means are 2/3, 1, 1, 1/3."""
    batch = at_proximal(random_batch(0, groups=1, samples=4, positions=1, ragged=False))
    batch = batch.replace(reward=torch.tensor([1.0, 0.0, 0.0, 2.0], dtype=torch.float64))
    assert annotate(find("rloo"), batch).advantage.flatten().tolist() == pytest.approx([1 / 3, -1, -1, 5 / 3])
    assert gradient(find("rloo"), batch).logp.flatten().tolist() == pytest.approx([-1 / 12, 1 / 4, 1 / 4, -5 / 12])


@pytest.mark.parametrize(
    ("logs", "advantage", "bounded"),
    [
        ((0.1, 0.9, -0.2), 2.0, (0.1, 0.4, -0.2)),  # too high and good: held at 0.4
        ((0.1, 0.9, -0.2), -2.0, (0.1, 0.9, -0.2)),  # too high and bad: free to come down
        ((0.1, -0.9, -0.2), -2.0, (0.1, -0.4, -0.2)),
        ((0.1, -0.9, -0.2), 2.0, (0.1, -0.9, -0.2)),
    ],
)
def test_gmpo_by_hand(logs: tuple, advantage: float, bounded: tuple):
    value = -advantage * math.exp(sum(bounded) / 3)
    loss, grad = _loss_and_gradient(find("gmpo"), _row([math.exp(d) for d in logs], advantage))
    assert loss == pytest.approx(value)
    assert grad == pytest.approx([value / 3 if held == d else 0.0 for d, held in zip(logs, bounded, strict=True)])


def test_dhpo_by_hand():
    """Ratios 1.5, 0.9, 1: s = 1.35^(1/3) = 1.10521. Clipped: 1.28, 0.9, 1 and 1.02. Mixed halves: ū = 1.15, 0.96, 1.01."""
    method = find("dhpo").with_knobs({"surrogate.sequence.low": 0.01, "surrogate.sequence.high": 0.02})
    loss, grad = _loss_and_gradient(method, _row([1.5, 0.9, 1.0], 1.0))
    assert loss == pytest.approx(-(1.15 + 0.96 + 1.01) / 3)
    assert grad == pytest.approx(
        [0.0, -0.5 * 0.9 / 3, -0.5 * 1.0 / 3]
    )  # the sequence is outside its region, two tokens inside theirs
    loss, grad = _loss_and_gradient(method, _row([1.5, 0.9, 1.0], -1.0))
    free = [0.5 * (ratio + 1.35 ** (1 / 3)) for ratio in (1.5, 0.9, 1.0)]  # 1.30261, 1.00261, 1.05261: worse than clipped
    assert loss == pytest.approx(sum(free) / 3)
    assert grad == pytest.approx([u / 3 for u in free])


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "slope"),
    [(7.0, -1.0, 3.0, 0.0), (2.0, -1.0, 2.0, 2.0), (7.0, 1.0, -1.2, 0.0), (0.5, -2.0, 1.6, 0.0), (0.5, 2.0, -1.0, -1.0)],
)
def test_dual_clip_by_hand(ratio: float, advantage: float, loss: float, slope: float):
    method = find("grpo").derive(surrogate=PessimisticClip(0.2, 0.2, dual=3.0), regularize=None)
    assert _loss_and_gradient(method, _row([ratio], advantage)) == (pytest.approx(loss), [pytest.approx(slope)])
