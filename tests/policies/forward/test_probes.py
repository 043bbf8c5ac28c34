"""Columns of probes: in chunks, computed again for their gradient, the same however rows are cut."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from upslope.objective.base import Probe, ProbeInputs
from upslope.objective.functional.curvature import PolicyShift
from upslope.objective.functional.one_token import OneTokenSamples
from upslope.policies import LanguageModel, TextInputs
from upslope.policies.forward import logprobs
from upslope.policies.forward.decoder import hidden_states
from upslope.policies.forward.packing import lay_out
from upslope.policies.tiny import character_tokenizer
from upslope.types import Trajectories, View, decision_keys
from upslope.types.batch import salt

VOCABULARY, ROWS, POSITIONS = 211, 5, 6
PROBE = OneTokenSamples(samples=32, wrong=-0.2, temperature=1.3)


@dataclass(frozen=True)
class Spread(Probe):
    """A probe of a test's own: how far apart the logits are, with its gradient."""

    name: ClassVar[str] = "spread"
    differentiable: ClassVar[bool] = True

    def __call__(self, seen: ProbeInputs) -> Tensor:
        return seen.logits.logsumexp(1) + seen.logits.square().mean(1)


def policy_of(plain: bool, dtype: torch.dtype = torch.float64) -> LanguageModel:
    import transformers as hf

    sizes = {"vocab_size": VOCABULARY, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4,
             "num_key_value_heads": 2, "head_dim": 4, "max_position_embeddings": 64, "eos_token_id": 2, "pad_token_id": 0,
             "initializer_range": 0.5}  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        policy = LanguageModel(hf.LlamaForCausalLM(hf.LlamaConfig(**sizes)), character_tokenizer("abc"), "small").to(dtype=dtype)
    policy.plain = plain
    return policy


def rows_of(temperature: float = 1.0) -> Trajectories:
    random = torch.Generator().manual_seed(1)
    lengths = torch.tensor([6, 2, 4, 6, 1]).unsqueeze(1)
    sampled = (torch.arange(POSITIONS) < lengths).float()
    sampled[0, 2] = 0.0  # somebody else's token
    prompt = torch.randint(3, VOCABULARY, (ROWS, 4), generator=random)
    return Trajectories(
        sampled=sampled,
        reward=torch.zeros(ROWS),
        group=torch.arange(ROWS),
        task=torch.arange(ROWS),
        behavior=View(torch.full_like(sampled, torch.nan)),
        action=torch.randint(3, VOCABULARY, sampled.shape, generator=random),
        temperature=torch.full_like(sampled, temperature),
        key=decision_keys(torch.arange(ROWS), POSITIONS),
        inputs=TextInputs(prompt, torch.ones_like(prompt)),
        draw=2,
    )


def column_and_grads(policy: LanguageModel, rows: Trajectories, probe: Probe, weight: Tensor) -> tuple[Tensor, list[Tensor]]:
    column = policy.evaluate(rows, frozenset({probe.name}), probes=(probe,))[probe.name]
    return column, list(torch.autograd.grad((column * weight).sum(), list(policy.model.parameters())))


def by_whole_logits(policy: LanguageModel, rows: Trajectories, probe: Probe, weight: Tensor) -> tuple[Tensor, list[Tensor]]:
    """The same with all logits at once and autograd through them."""
    if policy.body is None:
        ids = torch.cat([rows.inputs.prompt, rows.action[:, :-1]], 1)
        logits = policy.model(input_ids=ids, use_cache=False).logits[:, -POSITIONS:].flatten(0, 1)
    else:  # transformers norms in float32 whatever the weights are
        layout = lay_out(rows.inputs.prompt, rows.inputs.prompt_mask, rows.action, torch.full((ROWS,), POSITIONS))
        logits = hidden_states(policy.body, layout, torch.float64) @ policy.body.head.weight.t()
    logits = logits / rows.temperature.view(-1, 1)
    key = (rows.key + salt("probe/2")).flatten()
    column = probe(ProbeInputs(logits, logits[:, :1], rows.action.flatten(), torch.zeros(len(logits)), key)).view(ROWS, POSITIONS)
    column = column * rows.sampled
    return column, list(torch.autograd.grad((column * weight).sum(), list(policy.model.parameters())))


def assert_close(found: tuple[Tensor, list[Tensor]], expected: tuple[Tensor, list[Tensor]], rtol: float) -> None:
    torch.testing.assert_close(found[0], expected[0], rtol=rtol, atol=rtol)
    for mine, theirs in zip(found[1], expected[1], strict=True):
        torch.testing.assert_close(mine, theirs, rtol=rtol, atol=rtol * float(theirs.abs().max()))


WEIGHT = torch.randn(ROWS, POSITIONS, generator=torch.Generator().manual_seed(4), dtype=torch.float64)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("probe", [PROBE, Spread()], ids=lambda probe: probe.name)
@pytest.mark.parametrize("plain", [False, True])
def test_column_and_gradient_are_those_of_autograd_through_all_logits(plain, probe, temperature):
    policy, rows = policy_of(plain), rows_of(temperature)
    found, expected = (way(policy, rows, probe, WEIGHT) for way in (column_and_grads, by_whole_logits))
    assert_close(found, expected, 1e-6 if plain else 1e-11)
    assert float(expected[0].detach().abs().max()) > 0 and all(float(grad.abs().max()) > 0 for grad in expected[1])


@pytest.mark.parametrize("plain", [False, True])
def test_chunks_change_nothing(plain, monkeypatch):
    policy, rows = policy_of(plain), rows_of()
    whole = column_and_grads(policy, rows, PROBE, WEIGHT)
    monkeypatch.setattr(logprobs, "CHUNK_FLOATS", 3 * (VOCABULARY + PROBE.width()))
    assert_close(column_and_grads(policy, rows, PROBE, WEIGHT), whole, 1e-11)


@pytest.mark.parametrize("plain", [False, True])
def test_rows_apart_or_in_another_order_draw_the_same(plain):
    policy, rows = policy_of(plain), rows_of()
    whole = column_and_grads(policy, rows, PROBE, WEIGHT)
    order = torch.tensor([3, 0, 4, 2, 1])
    turned = column_and_grads(policy, rows.take_rows(order), PROBE, WEIGHT[order])
    assert_close((turned[0][order.argsort()], turned[1]), whole, 1e-6 if plain else 1e-11)
    parts = (slice(0, 1), slice(1, 4), slice(4, 5))
    pieces = [column_and_grads(policy, rows.take_rows(part), PROBE, WEIGHT[part]) for part in parts]
    summed = [sum(grads) for grads in zip(*(piece[1] for piece in pieces), strict=True)]
    assert_close((torch.cat([piece[0] for piece in pieces]), summed), whole, 1e-6 if plain else 1e-11)
    other = policy.evaluate(rows.replace(draw=3), frozenset({"one_token"}), probes=(PROBE,))["one_token"]
    assert not torch.allclose(other, whole[0]), "another update draws anew"


class Largest(TorchDispatchMode):
    """The most numbers that any tensor made while it lasts has held."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        self.numbers = max([self.numbers, *(leaf.numel() for leaf in tree_leaves(out) if isinstance(leaf, Tensor))])
        return out


def test_no_tensor_holds_the_logits_of_all_decisions(monkeypatch):
    policy, rows, few = policy_of(plain=False), rows_of(), OneTokenSamples(samples=4)
    decisions = int((rows.sampled.cumsum(1).max(1).values).sum()) + 1
    with Largest() as seen:
        column_and_grads(policy, rows, few, WEIGHT)
    assert seen.numbers >= decisions * VOCABULARY, "in one chunk they are all there: the measure works"
    monkeypatch.setattr(logprobs, "CHUNK_FLOATS", 2 * (VOCABULARY + few.width()))
    with Largest() as seen:
        column_and_grads(policy, rows, few, WEIGHT)
    assert seen.numbers <= VOCABULARY * 16, "the head's own weights are the largest, forward and backward"


@pytest.mark.parametrize("plain", [False, True])
def test_what_no_loss_descends_stays_a_constant_beside_it(plain):
    policy, rows = policy_of(plain), rows_of().replace(advantage=torch.ones(ROWS, POSITIONS))
    view = policy.evaluate(rows, frozenset({"one_token", "policy_shift"}), probes=(PROBE, PolicyShift()))
    assert view["one_token"].requires_grad and not view["policy_shift"].requires_grad
    with torch.no_grad():
        alone = policy.evaluate(rows, frozenset({"policy_shift"}), probes=(PolicyShift(),))["policy_shift"]
        quiet = policy.evaluate(rows, frozenset({"one_token"}), probes=(PROBE,))["one_token"]
    torch.testing.assert_close(view["policy_shift"], alone)
    assert not quiet.requires_grad and torch.equal(quiet, view["one_token"])
