"""Adapters beside matrices in four bits: what is sampled and learned is what the dequantised weights give, and nothing is kept."""

from __future__ import annotations

import pytest
import torch
from small_models import PROMPTS, policy_of, rows_of
from torch import Tensor

from upslope.policies import LanguageModel
from upslope.policies.forward.packed_matrix import plain_weight
from upslope.rollout.engines.torch_engine import TorchEngine
from upslope.runtime import seeding
from upslope.types import Sampling, Trajectories

pytest.importorskip("peft", reason="LoRA needs the extra upslope[lora]")
torch.set_num_threads(1)

KINDS = ("llama", "qwen2-full", "qwen3", "gemma")
"""Llama's head is its own, Gemma's is tied to the embedding, Qwen2 has biases, Qwen3 norms of heads."""
N, TOKENS = 4, 10
CPU = torch.device("cpu")


def moved(policy: LanguageModel, seed: int) -> LanguageModel:
    """The policy with its adapters a step further, somewhere."""
    random = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in policy.trainable()["policy"]:
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=random))
    return policy


def both(kind: str, dtype: torch.dtype = torch.float32, apart: bool = False) -> tuple[LanguageModel, LanguageModel]:
    """A policy whose base is in four bits, and an ordinary one whose weights are what these stand for.

    Args:
        apart: the adapters of the ordinary one are computed beside them, too, and not merged.
    """
    plain, packed = policy_of(kind), policy_of(kind)
    for policy in (plain, packed):
        policy.to(dtype=dtype).add_lora(3, seed=0)
        policy.model.to(dtype)
    if apart:
        plain.hold_apart(dtype)
    packed.hold_apart(dtype, packed=True)
    with torch.no_grad():
        for mine, theirs in zip(plain.model.modules(), packed.model.modules(), strict=True):
            if hasattr(mine, "base_layer"):
                mine.base_layer.weight.copy_(plain_weight(theirs.base_layer))
    return moved(plain, 1), moved(packed, 1)


def sampled(policy: LanguageModel, keep: bool = False) -> Trajectories:
    uniforms = seeding.uniforms((len(PROMPTS) * N, TOKENS), 7)
    done = TorchEngine(policy).generate(PROMPTS, N, Sampling(TOKENS, temperature=0.8), uniforms, keep=keep)
    return rows_of(policy, PROMPTS, N, done, 0.8)


def learned(policy: LanguageModel, rows: Trajectories) -> tuple[list[Tensor], list[Tensor]]:
    """Log-probabilities and entropies, and the gradients of a loss of both."""
    view = policy.evaluate(rows, frozenset({"entropy"}))
    assert view.entropy is not None
    weight = seeding.uniforms(tuple(view.logp.shape), 3).to(view.logp.dtype)
    loss = (view.logp * weight).sum() + 0.3 * view.entropy.square().sum()
    for parameter in policy.model.parameters():
        parameter.grad = None
    loss.backward()
    return [view.logp.detach(), view.entropy.detach()], [parameter.grad for parameter in policy.trainable()["policy"]]  # type: ignore[misc]


def base(policy: LanguageModel) -> dict[str, Tensor]:
    return {name: value for name, value in policy.model.named_parameters() if "lora_" not in name}


# -- the same numbers ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("recompute", [0, 1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_learning_is_that_of_the_dequantised_weights(kind: str, recompute: int) -> None:
    """In float64, with adapters that are merged there; and to the last bit, with adapters that are beside them there too."""
    for dtype, apart in ((torch.float64, False), (torch.float32, True)):
        plain, packed = both(kind, dtype, apart)
        rows = sampled(plain)
        plain.recompute = packed.recompute = recompute
        (columns, grads), (own, own_grads) = learned(plain, rows), learned(packed, rows)
        how = {"atol": 0.0, "rtol": 0.0} if apart else {"atol": 1e-6, "rtol": 1e-6}
        torch.testing.assert_close([*own, *own_grads], [*columns, *grads], **how)
        assert all(float(grad.abs().max()) > 0 for grad in own_grads)
    assert all(value.grad is None and not value.requires_grad for value in base(packed).values())


@pytest.mark.parametrize("kind", KINDS)
def test_sampling_is_that_of_the_dequantised_weights_and_of_learning(kind: str) -> None:
    plain, packed = both(kind)
    theirs, ours = sampled(plain), sampled(packed)
    assert ours.action is not None and theirs.action is not None and torch.equal(ours.action, theirs.action)
    torch.testing.assert_close(ours.behavior.logp, theirs.behavior.logp, atol=1e-5, rtol=1e-5)
    with torch.no_grad():
        found = packed.evaluate(ours).logp
    torch.testing.assert_close(found, ours.behavior.logp * ours.sampled, atol=1e-5, rtol=1e-5)
    assert TorchEngine(packed).probe(ours) < 1e-5
