"""Gradients that products add up themselves, and weights held once for learning and sampling: what autograd and copies give.

On a GPU both are as they come; here they are switched on for a CPU, with products in another precision than the weights'.
"""

from __future__ import annotations

import pytest
import torch
from small_models import PROMPTS, policy_of, rows_of
from torch import Tensor

from upslope.learners.references import START, References
from upslope.methods import find
from upslope.objective.base import Reference
from upslope.objective.references import MovingAverage, Snapshot
from upslope.policies import LanguageModel
from upslope.policies.forward import gradient_sums, held_weights
from upslope.policies.forward.blocks import blocks_of
from upslope.policies.forward.gradient_sums import add_product, one_update
from upslope.policies.forward.low_rank import lie_together
from upslope.rollout.decode.weights import Weights
from upslope.rollout.engines.torch_engine import TorchEngine
from upslope.runtime import seeding
from upslope.types import Sampling, Trajectories

torch.set_num_threads(1)
KINDS = ("llama", "qwen2-full", "qwen3", "gemma")
N, TOKENS = 4, 10


@pytest.fixture(autouse=True)
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gradient_sums, "serves", lambda weight: True)
    monkeypatch.setattr(held_weights, "serves", lambda weight: True)


@pytest.fixture
def half(monkeypatch: pytest.MonkeyPatch) -> None:
    """Products in bfloat16, weights in float32."""
    monkeypatch.setattr(LanguageModel, "compute_dtype", torch.bfloat16)


def sampled(policy: LanguageModel, engine: TorchEngine | None = None, by: LanguageModel | None = None) -> Trajectories:
    uniforms = seeding.uniforms((len(PROMPTS) * N, TOKENS), 7)
    call = (engine or TorchEngine(policy)).begin(PROMPTS, N, Sampling(TOKENS), uniforms, by=by)
    while call.advance():
        pass
    return rows_of(policy, PROMPTS, N, call.completions(), 1.0)


def backward(policy: LanguageModel, rows: Trajectories, slices: int) -> list[Tensor]:
    """Gradients of a loss, slice by slice."""
    policy.model.zero_grad(set_to_none=True)
    for index in torch.arange(rows.rows).chunk(slices):
        piece = rows.take_rows(index)
        view = policy.evaluate(piece, frozenset({"entropy"}))
        weight = seeding.uniforms((rows.rows, piece.sampled.shape[1]), 3)[index]
        ((view.logp * weight).sum() + 0.3 * view.entropy.square().sum()).backward()  # type: ignore[union-attr]
    return [parameter.grad for parameter in policy.model.parameters()]  # type: ignore[misc]


@pytest.mark.parametrize("recompute", [0, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_products_add_up_what_autograd_adds_up(kind: str, recompute: int) -> None:
    policy = policy_of(kind)
    policy.recompute = recompute
    rows = sampled(policy)
    policy.model.model.embed_tokens.padding_idx = int(rows.inputs.prompt[0, -1])  # which learns nothing as an input
    expected = [gradient.clone() for gradient in backward(policy, rows, 3)]
    with one_update():
        found = backward(policy, rows, 3)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, atol=2e-6 * float(theirs.abs().max()), rtol=2e-6)
    inner = policy.model.model.layers[0].self_attn
    asked = [inner.q_proj.weight.grad, inner.k_proj.weight.grad, inner.v_proj.weight.grad]
    assert lie_together(asked, torch.float32), "one product adds to all three"


def test_gradients_that_are_asked_for_come_as_they_always_do() -> None:
    """Outside of an update, and of weights of which some are frozen."""
    policy = policy_of("llama")
    rows = sampled(policy)
    policy.model.zero_grad(set_to_none=True)
    parameters = list(policy.model.parameters())
    found = torch.autograd.grad(policy.evaluate(rows).logp.sum(), parameters)
    assert all(parameter.grad is None for parameter in parameters)
    frozen = policy.model.model.layers[1].self_attn.k_proj.weight.requires_grad_(False)
    with one_update():
        policy.evaluate(rows).logp.sum().backward()
    assert frozen.grad is None
    for parameter, expected in zip(parameters, found, strict=True):
        if parameter is not frozen:
            torch.testing.assert_close(parameter.grad, expected, atol=2e-6 * float(expected.abs().max()), rtol=2e-6)


def test_a_product_is_added_to_gradients_wherever_they_lie() -> None:
    parts = [torch.nn.Parameter(torch.zeros(rows, 3)) for rows in (2, 4)]
    a, b = torch.arange(30.0).view(6, 5), torch.arange(15.0).view(5, 3)
    parts[1].grad = torch.ones(4, 3)  # only one has some, at a place of its own
    for _ in range(2):
        add_product(parts, a, b)
    torch.testing.assert_close(torch.cat([part.grad for part in parts]), 2 * a @ b + torch.tensor([0.0] * 2 + [1.0] * 4)[:, None])


@pytest.mark.parametrize("kind", KINDS)
def test_held_weights_give_the_bits_of_copies(kind: str, half: None, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = policy_of(kind)
    with monkeypatch.context() as plain:
        plain.setattr(held_weights, "serves", lambda weight: False)
        rows = sampled(policy)
        expected = [gradient.clone() for gradient in backward(policy, rows, 3)]
    assert torch.equal(sampled(policy).action, rows.action) and torch.equal(sampled(policy).behavior.logp, rows.behavior.logp)
    with one_update(), monkeypatch.context() as context:
        context.setattr(gradient_sums, "serves", lambda weight: False)
        found = backward(policy, rows, 3)
    assert all(map(torch.equal, found, expected))


def test_sampling_and_learning_read_one_set_that_follows_the_weights(half: None) -> None:
    policy = policy_of("llama")
    engine = TorchEngine(policy)
    rows = sampled(policy, engine)
    held, shown = policy.body.held, engine._weights  # type: ignore[union-attr]
    places = {matrix.low.data_ptr() for matrix in held.matrices}
    assert all(block.qkv.low.data_ptr() in places and block.down.low.data_ptr() in places for block in shown.blocks)
    assert shown.head.data_ptr() == held.matrices[-1].low.data_ptr()
    with torch.no_grad():
        policy.evaluate(rows)
    assert policy.body.held is held
    optimizer = torch.optim.AdamW(policy.model.parameters(), lr=0.05, fused=True)
    with one_update():
        before = policy.evaluate(rows).logp
        before.sum().backward()
    optimizer.step()
    with one_update():
        after = policy.evaluate(rows).logp
    fresh = policy_of("llama")
    fresh.load_weights(policy.weights())
    assert not torch.equal(after, before) and torch.equal(after, fresh.evaluate(rows).logp)
    again = sampled(policy, engine)
    assert engine._weights is shown and torch.equal(again.action, sampled(fresh).action)


def test_weights_are_copied_once_in_an_update_and_passes_elsewhere_keep_their_own(half: None) -> None:
    policy = policy_of("llama")
    rows = sampled(policy)
    copied: list[int] = []
    real = held_weights.torch_private.foreach_copy_
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(held_weights.torch_private, "foreach_copy_", lambda a, b: (copied.append(len(a)), real(a, b)))
        with one_update():
            backward(policy, rows, 3)
        assert len(copied) == 1
    first = policy.evaluate(rows.take_rows(torch.arange(4))).logp  # as whoever adds up losses of several passes does
    with torch.no_grad():
        policy.evaluate(rows)
        sampled(policy)
    second = policy.evaluate(rows.take_rows(torch.arange(4, 8))).logp
    (first.sum() + second.sum()).backward()


def test_a_second_speaker_does_not_write_over_the_weights_that_learn(half: None) -> None:
    policy = policy_of("llama")
    other = policy.frozen_copy()
    with torch.no_grad():
        for parameter in other.model.parameters():
            parameter.mul_(1.2)
    assert other.body is not policy.body
    engine = TorchEngine(policy)
    mine = sampled(policy, engine)
    theirs = sampled(policy, engine, by=other)
    with one_update():
        learned = policy.evaluate(mine).logp
    assert torch.equal(learned, policy.evaluate(mine).logp)
    assert torch.equal(sampled(policy, engine).action, mine.action) and not torch.equal(theirs.action, mine.action)
    assert torch.equal(theirs.action, sampled(other).action)


@pytest.mark.parametrize("kind", ["llama", "gemma"])
def test_addresses_stay_for_graphs_and_only_norms_are_copied(kind: str, half: None) -> None:
    policy = policy_of(kind)
    body = policy.body
    assert body is not None
    with torch.no_grad():
        weights = Weights(body, 20, torch.bfloat16, fixed=True)
        tensors = [weights.embedding, weights.last_norm, weights.head, *(block.before for block in weights.blocks)]
        tensors += [block.gate_up.low for block in weights.blocks]
        before = [tensor.data_ptr() for tensor in tensors]
        for parameter in policy.model.parameters():
            parameter.mul_(1.5)
        weights.refresh()
    assert [tensor.data_ptr() for tensor in tensors] == before and body.held is not None
    assert weights.head.data_ptr() == body.held.matrices[-1].low.data_ptr()
    expected = body.layers[0].mlp.gate_proj.weight.to(torch.bfloat16)
    assert torch.equal(weights.blocks[0].gate_up.low[: len(expected)], expected)
    assert torch.equal(weights.blocks[0].before, body.layers[0].input_layernorm.weight + body.norm_offset)
    assert torch.equal(weights.head, body.head.weight.to(torch.bfloat16))


# -- copies that never move ------------------------------------------------------------------------------------------------


def referred(policy: LanguageModel, **parts: Reference) -> References:
    return References(find("grpo").derive(references=tuple(parts.items())), policy, None)


@pytest.mark.parametrize("kind", KINDS)
def test_a_copy_that_never_moves_is_held_in_the_precision_of_products(kind: str, half: None) -> None:
    """And says to the bit what the policy says, so that the distance to the start begins at zero."""
    policy = policy_of(kind)
    tied = policy.model.lm_head.weight is policy.model.model.embed_tokens.weight
    assert tied == (kind == "gemma")
    references = referred(policy, before=Snapshot(), average=MovingAverage())
    (start,), (older, _), (average,) = (references.kept[name] for name in (START, "before", "average"))
    rows = sampled(policy)
    with torch.no_grad():
        expected = policy.evaluate(rows, frozenset({"entropy"}))
        for copy in (start, older, average):
            found = copy.evaluate(rows, frozenset({"entropy"}))
            assert torch.equal(found.logp, expected.logp) and torch.equal(found.entropy, expected.entropy)
    assert all(parameter.dtype == torch.float32 for one in (policy, average) for parameter in one.model.parameters())
    for copy in (start, older):
        low = {name for name, parameter in copy.model.named_parameters() if parameter.dtype == torch.bfloat16}
        assert "model.layers.1.mlp.down_proj.weight" in low and "model.layers.0.self_attn.q_proj.weight" in low
        assert ("lm_head.weight" in low) == (not tied)
        assert not any("norm" in name or "embed" in name for name in low)
        assert (
            blocks_of(copy.body, torch.bfloat16)[0].qkv.low.data_ptr()
            == copy.model.model.layers[0].self_attn.q_proj.weight.data_ptr()
        )


def test_snapshots_are_saved_and_come_back_to_the_bit(half: None) -> None:
    policy = policy_of("llama")
    references = referred(policy, before=Snapshot())
    with torch.no_grad():
        for parameter in policy.model.parameters():
            parameter.mul_(1.3)
    references.renew(find("grpo").derive(references=(("before", Snapshot()),)), {}, 2, 0.0)
    again = referred(policy_of("llama"), before=Snapshot())
    again.load_state(references.state())
    rows = sampled(policy)
    with torch.no_grad():
        for theirs, ours in zip(references.kept["before"], again.kept["before"], strict=True):
            assert torch.equal(theirs.evaluate(rows).logp, ours.evaluate(rows).logp)
            assert ours.model.model.layers[0].mlp.up_proj.weight.dtype == torch.bfloat16


def test_a_copy_can_speak(half: None) -> None:
    policy = policy_of("llama")
    copy = policy.frozen_copy()
    copy.hold_still()
    assert torch.equal(sampled(policy, by=copy).action, sampled(policy).action)
    assert torch.equal(sampled(copy).action, sampled(policy).action)


def test_an_update_that_broke_off_leaves_nothing_to_the_one_that_begins_again(half: None) -> None:
    """As where memory runs out in the second slice: some layers have added to their gradients already."""
    policy = policy_of("llama")
    rows = sampled(policy)
    with one_update():
        expected = [gradient.clone() for gradient in backward(policy, rows, 3)]
    broken = policy.model.model.layers[0].input_layernorm.weight.register_hook(lambda gradient: 1 / 0)
    with pytest.raises(ZeroDivisionError), one_update():
        backward(policy, rows, 3)
    broken.remove()
    assert policy.model.model.layers[1].mlp.down_proj.weight.grad is not None, "what lies behind it was added"
    with one_update():
        assert all(map(torch.equal, backward(policy, rows, 3), expected))
