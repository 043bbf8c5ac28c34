"""What tests of methods compare with: adapters to other libraries' losses, and answers small enough to work out by hand.

The libraries are installed with the tests: one that cannot be imported is a failure, not a skip. They count empty rows in
their means and we do not, so the batches here have none.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from types import SimpleNamespace

import torch
from batches import Outcome, at_proximal, gradient, random_batch
from exact_policy import ExactPolicy, varied_reward
from torch import Tensor

from upslope.methods import find
from upslope.objective.advantage import GAE
from upslope.objective.estimator import annotate, begin_update, decision_losses
from upslope.runtime.seeding import generator
from upslope.types import Batch, Ended, Method, View

HORIZON = 11
BARE = {"filter": None, "reward": None}  # the oracles compute a loss; what a method does to rewards and rows is not theirs


def oracle_batch(seed: int) -> Batch:
    return random_batch(seed, groups=3, samples=4).replace(horizon=HORIZON)


def row_advantages(method: Method, batch: Batch) -> Tensor:
    """One per row, as ours are: the oracles are fed the same."""
    return annotate(method, batch).advantage.sum(1) / batch.lengths()


def assert_loss_and_gradient(ours: Outcome, loss: Tensor, leaf: Tensor, rtol: float = 1e-9) -> None:
    (grad,) = torch.autograd.grad(loss, leaf)
    torch.testing.assert_close(ours.loss, loss.detach(), rtol=rtol, atol=1e-12)
    torch.testing.assert_close(ours.logp, grad, rtol=rtol, atol=1e-12)
    assert grad.abs().max() > 1e-4


def clipped_share(method: Method, batch: Batch) -> Tensor:
    _, notes = decision_losses(method, begin_update(method, annotate(method, batch)))
    return ((notes["clipped_high"] | notes["clipped_low"]) * batch.sampled).sum() / batch.sampled.sum()


# -- TRL -------------------------------------------------------------------------------------------------------------------


def trl_stub(trainer: type, logp: Tensor, entropy: Tensor, settings: dict, top_entropy: float = 1.0) -> SimpleNamespace:
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


def trl_inputs(method: Method, batch: Batch) -> dict[str, Tensor]:
    rows, positions = batch.sampled.shape
    there = torch.ones(rows, positions)
    return {
        "prompt_ids": torch.zeros(rows, 1, dtype=torch.long),
        "prompt_mask": torch.ones(rows, 1, dtype=torch.long),
        "completion_ids": torch.zeros(rows, positions, dtype=torch.long),
        "completion_mask": there.double(),
        "tool_mask": batch.sampled,
        "advantages": row_advantages(method, batch),
        "old_per_token_logps": batch.proximal.logp,
        "ref_per_token_logps": batch.reference["start"].logp,
        "num_items_in_batch": batch.sampled.sum(),
    }


# -- trinity-rft -----------------------------------------------------------------------------------------------------------

TRINITY_CLIP = {"low": 0.2, "high": 0.2, "dual": 3.0}
"""The trust region of its GRPO loss; the bound on bad tokens is not to be set."""
TRINITY_ROUNDING = 1e-8
"""It adds as much to every count that it divides by."""


def trinity_mix(method: Method, batch: Batch, expert: Tensor, mu: float, mean: str = "token-mean") -> tuple[Tensor, Tensor]:
    """Its loss of samples and expert rows in one batch, (1 - mu) GRPO + mu SFT, and the leaf it is to be differentiated in."""
    from trinity.algorithm.policy_loss_fn.mix_policy_loss import MIXPolicyLossFn

    own, shown = int((~expert).sum()), int(expert.sum())
    loss = MIXPolicyLossFn(
        mu=mu, clip_range=0.2, train_batch_size_usual=own, train_batch_size_expert=shown, loss_agg_mode=mean, use_dynamic_bsz=False
    )
    leaf = batch.current.logp.detach().clone().requires_grad_()
    advantage = torch.zeros_like(batch.sampled)
    advantage[~expert] = annotate(method, batch.take_rows(~expert)).advantage
    return loss(leaf, batch.proximal.logp, batch.sampled, advantage, expert)[0], leaf


def side_by_side(own: Outcome, shown: Outcome, expert: Tensor, mu: float) -> Outcome:
    """Ours on samples and on expert rows, weighed as trinity weighs them, as one outcome of the whole batch."""
    both = torch.zeros(len(expert), own.logp.shape[1], dtype=own.logp.dtype)
    both[~expert], both[expert] = (1 - mu) * own.logp, mu * shown.logp
    return dataclasses.replace(own, loss=(1 - mu) * own.loss + mu * shown.loss, logp=both)


# -- generalised advantage estimation --------------------------------------------------------------------------------------


def control_batch(seed: int, rows: int = 5, positions: int = 12) -> Batch:
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


def torchrl_gae(batch: Batch, gae: GAE) -> tuple[Tensor, Tensor]:
    from torchrl.objectives.value.functional import generalized_advantage_estimate

    value = batch.proximal.value
    following = torch.cat([value[:, 1:], torch.zeros_like(value[:, :1])], dim=1)
    following = torch.where(batch.ended > 0, batch.bootstrap, following)
    columns = (value, following, batch.step_reward, batch.ended > 0, batch.ended == Ended.TERMINATED)
    found = generalized_advantage_estimate(gae.gamma, gae.lam, *(column.unsqueeze(2) for column in columns))
    return found[0].squeeze(2), found[1].squeeze(2)


# -- worked out by hand ----------------------------------------------------------------------------------------------------


def one_answer(ratios: list[float], advantage: float, logp: float = -1.0) -> Batch:
    """One answer with these token ratios and one advantage."""
    log = torch.tensor([ratios], dtype=torch.float64).log()
    old = logp - log.detach()
    ones, zero = torch.ones_like(log), torch.zeros(1, dtype=torch.long)
    current = View(torch.full_like(log, logp).requires_grad_())
    reward = torch.tensor([advantage], dtype=torch.float64)
    return Batch(ones, reward, zero, zero, View(old), View(old), current, advantage=advantage * ones, horizon=10)


def loss_and_gradient(method: Method, batch: Batch) -> tuple[float, list[float]]:
    loss = decision_losses(method, begin_update(method, batch))[0].sum()
    return loss.item(), torch.autograd.grad(loss, batch.current.logp)[0].flatten().tolist()


def assert_grpos_first_gradient(method: Method) -> None:
    """While all ratios are one, the gradient is that of GRPO without its KL term."""
    plain = find("grpo").derive(regularize=None)
    policy = ExactPolicy.random(seed=5)
    batch = policy.batch(policy.draw(48, seed=1), varied_reward(policy), samples=8)
    ours, theirs = policy.gradient(method, batch), policy.gradient(plain, batch)
    assert theirs.norm() > 1e-3
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-9)
    ragged = at_proximal(random_batch(seed=4))
    torch.testing.assert_close(gradient(method, ragged).logp, gradient(plain, ragged).logp)


def llama_loss(model: torch.nn.Module, prompts: list[list[int]], answers: list[list[int]]) -> torch.Tensor:
    """The mean cross-entropy of the answers' tokens behind their prompts, by the model of transformers itself."""
    width = max(len(p) + len(a) for p, a in zip(prompts, answers, strict=True))
    ids = [[*p, *a, *[0] * (width - len(p) - len(a))] for p, a in zip(prompts, answers, strict=True)]
    labels = [[*[-100] * len(p), *a, *[-100] * (width - len(p) - len(a))] for p, a in zip(prompts, answers, strict=True)]
    mask = [[1] * (len(p) + len(a)) + [0] * (width - len(p) - len(a)) for p, a in zip(prompts, answers, strict=True)]
    return model(input_ids=torch.tensor(ids), attention_mask=torch.tensor(mask), labels=torch.tensor(labels)).loss
