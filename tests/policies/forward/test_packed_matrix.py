"""Adapters beside matrices in four bits: what is sampled and learned is what the dequantised weights give, and nothing is kept."""

from __future__ import annotations

import copy
import dataclasses
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from small_models import PROMPTS, policy_of, rows_of
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from upslope.errors import UserError
from upslope.policies import LanguageModel
from upslope.policies.adapters import folded, layer_matrices
from upslope.policies.forward import blocks, nf4
from upslope.policies.forward.blocks import blocks_of
from upslope.policies.forward.footprint import largest_matrix
from upslope.policies.forward.packed_matrix import PackedMatrix, Scratch, packed_part, plain_weight, weight_bytes
from upslope.policies.model_shape import ModelShape
from upslope.rollout.decode.weights import Weights
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


@pytest.mark.parametrize("recompute", [0, 1])
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


def test_what_sampling_has_kept_is_learned_from() -> None:
    _, packed = both("llama")
    rows = sampled(packed, keep=True)
    (of_sampling,) = packed.kept.passes.values()
    used: list[bool] = []
    own = of_sampling.products
    of_sampling.products = lambda *given: used.append(True) or own(*given)  # type: ignore[method-assign, func-returns-value]
    assert of_sampling.fresh(packed.body)
    kept = rows.replace(inputs=dataclasses.replace(rows.inputs, kept=of_sampling.numbers))
    for mine, theirs in zip(learned(packed, kept), learned(packed, rows), strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-4, rtol=1e-4)
    assert used == [True], "once, for the rows that name it"
    moved(packed, 2)
    assert not of_sampling.fresh(packed.body)
    with pytest.raises(UserError, match=r"is held in four bits; load it again to hold it in torch\.float32"):
        packed.hold_apart(torch.float32)


def test_in_half_precision_both_sides_say_the_same_to_its_rounding() -> None:
    packed = policy_of("llama")
    packed.add_lora(3, seed=0)
    packed.hold_apart(torch.bfloat16, packed=True)
    moved(packed, 1)
    assert packed.compute_dtype == torch.bfloat16 and {value.dtype for value in base(packed).values()} == {torch.bfloat16}
    rows = sampled(packed)
    assert TorchEngine(packed).probe(rows) < 0.1
    assert all(float(grad.abs().max()) > 0 and grad.dtype == torch.float32 for grad in learned(packed, rows)[1])


# -- nothing unpacked stays ------------------------------------------------------------------------------------------------


class Made(TorchDispatchMode):
    """Notes every tensor of the shape of a matrix of the model that is made outside of the scratch."""

    def __init__(self, policy: LanguageModel):
        super().__init__()
        shapes = {(rows, each.columns) for _, each in matrices(policy) for rows in (sum(each.rows), *each.rows)}
        self.shapes = shapes | {(wide, high) for high, wide in shapes}
        self.rooms = {room.data_ptr() for room in scratch_of(policy)._rooms.values()}
        self.made: list[tuple[str, tuple[int, ...]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        for each in found if isinstance(found, (tuple, list)) else [found]:
            large = isinstance(each, Tensor) and tuple(each.shape) in self.shapes and each.stride() != (0, 0)
            if large and each.untyped_storage().data_ptr() not in self.rooms:
                self.made.append((str(func), tuple(each.shape)))
        return found


def matrices(policy: LanguageModel) -> list[tuple[Any, PackedMatrix]]:
    """The modules whose weights are packed, each with the matrix it is a part of."""
    return [(module, held.matrix) for module in policy.model.modules() if (held := packed_part(module)) is not None]


def scratch_of(policy: LanguageModel) -> Scratch:
    (scratch,) = {id(each.scratch): each.scratch for _, each in matrices(policy)}.values()
    return scratch


@pytest.mark.parametrize("recompute", [0, 2])
def test_autograd_keeps_no_unpacked_matrix_and_nobody_makes_one_elsewhere(recompute: int) -> None:
    """Of merged adapters they would be there."""
    plain, packed = both("llama")
    rows, kept = sampled(packed), list[Tensor]()
    packed.recompute = plain.recompute = recompute
    learned(packed, rows)  # so that the scratch is there
    rooms = {room.data_ptr() for room in scratch_of(packed)._rooms.values()}

    def note(tensor: Tensor) -> Tensor:
        kept.append(tensor)
        return tensor

    with Made(packed) as seen, torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        learned(packed, rows)
    assert kept and not {each.untyped_storage().data_ptr() for each in kept} & rooms
    assert seen.made == []
    with Made(packed) as seen:
        learned(plain, rows)
    assert len(seen.made) >= 2 * 7, "each matrix is merged there"


def test_one_scratch_as_large_as_the_largest_matrix() -> None:
    _, packed = both("qwen2-full")
    learned(packed, sampled(packed))
    (room,) = scratch_of(packed)._rooms.values()
    assert len(room) == 2 * 24 * 16, "gate and up"
    body: Any = packed.body
    tall = ModelShape.of(packed.model, ours=True)
    assert tall is not None and largest_matrix(tall) == len(room)
    held = sum(each.held_bytes for each in {id(each): each for _, each in matrices(packed)}.values())
    assert len(blocks_of(body, torch.float32)) == 2 and held < 0.6 * (tall.joined + tall.single) + 8 * 7 * 32
    outside = sum(value.nbytes for name, value in packed.model.named_parameters() if "base_layer.weight" not in name)
    assert weight_bytes(packed.model) == held + room.nbytes + outside + 4 * 7 * 2, "one number of each weight besides"


def test_bytes_of_a_large_matrix() -> None:
    packed = PackedMatrix.of([torch.randn(512, 1024), torch.randn(256, 1024)], CPU, torch.bfloat16, Scratch())
    numbers = 768 * 1024
    assert packed.held_bytes == numbers // 2 + numbers // 64 + numbers // 16384 * (4 + 4 + 24)
    assert packed.held_bytes / numbers == pytest.approx(0.5176, abs=1e-4)


def test_packing_frees_matrix_by_matrix(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is held of a model that is in a folder falls with each: at no time is all of it there twice, or in half precision."""
    policy, held = policy_of("llama"), list[int]()
    policy.source = Path("somewhere")
    policy.add_lora(2, seed=0)
    before, pack = weight_bytes(policy.model), blocks.pack_together

    def noted(*arguments: Any) -> None:
        pack(*arguments)
        held.append(weight_bytes(policy.model))

    monkeypatch.setattr(blocks, "pack_together", noted)
    policy.hold_apart(torch.float32, packed=True)
    packing, moving = held[:8], held[8:]
    assert packing == sorted(packing, reverse=True) and before > packing[0] and set(moving) == {packing[-1] + 4 * 2 * 24 * 16}
    assert not policy.before_packing, "it is read again from its folder"


def test_threads_of_a_cpu_do_not_share_it() -> None:
    packed = PackedMatrix.of([torch.randn(8, 64)], CPU, torch.float32, Scratch())
    found = [packed.unpacked()]
    other = threading.Thread(target=lambda: found.append(packed.unpacked()))
    other.start()
    other.join()
    assert found[0].data_ptr() != found[1].data_ptr() and torch.equal(*found)
    assert packed.unpacked().data_ptr() == found[0].data_ptr()


# -- what is held ----------------------------------------------------------------------------------------------------------


def test_weights_are_their_codes_and_the_parameters_have_no_numbers() -> None:
    policy = policy_of("qwen2-full")
    policy.add_lora(2, seed=0)
    before = {name: value.clone() for name, value in layer_matrices(policy.model).items()}
    policy.hold_apart(torch.float32, packed=True)
    assert policy.before_packing.keys() == before.keys()
    for name, module in policy.model.named_modules():
        if (held := packed_part(module)) is not None:
            weight = before[f"{name.removesuffix('.base_layer')}.weight"]
            codes = nf4.quantize(weight.bfloat16())
            expected = nf4.dequantize(codes, torch.empty(weight.numel())).view_as(weight)
            assert torch.equal(held.unpacked(), expected) and torch.equal(plain_weight(module), expected)
            assert module.weight.shape == weight.shape and bool(module.weight.isnan().all())
            assert float((expected - weight).abs().max()) < 0.2 * float(weight.abs().max())
            assert torch.equal(policy.before_packing[f"{name.removesuffix('.base_layer')}.weight"], weight)
    body: Any = policy.body
    block = blocks_of(body, torch.float32)[0]
    inner = body.layers[0].self_attn
    assert (
        block.qkv.packed is not None and block.qkv.low.isnan().all() and block.qkv.low.shape == block.qkv.packed.shape == (32, 16)
    )
    whole = torch.cat([plain_weight(each.base_layer) for each in (inner.q_proj, inner.k_proj, inner.v_proj)])
    assert torch.equal(block.qkv.packed.unpacked(), whole)
    assert policy.parameter_count() == policy_of("qwen2-full").parameter_count() + sum(
        p.numel() for p in policy.trainable()["policy"]
    )


def test_copies_share_the_codes_and_sample_in_the_place_of_the_policy() -> None:
    plain, packed = both("llama")
    engine, uniforms = TorchEngine(packed), seeding.uniforms((len(PROMPTS), TOKENS), 7)
    earlier = [policy.frozen_copy() for policy in (plain, packed)]
    assert {id(each) for _, each in matrices(earlier[1])} == {id(each) for _, each in matrices(packed)}
    for policy in (plain, packed):
        moved(policy, 5)
    now = engine.generate(PROMPTS, 1, Sampling(TOKENS), uniforms)
    kept = engine._weights
    then = engine.generate(PROMPTS, 1, Sampling(TOKENS), uniforms, by=earlier[1])
    assert engine._weights is kept
    for found, policy in ((now, plain), (then, earlier[0])):
        expected = TorchEngine(policy).generate(PROMPTS, 1, Sampling(TOKENS), uniforms)
        assert torch.equal(found.tokens, expected.tokens)
        torch.testing.assert_close(found.logp, expected.logp, atol=1e-5, rtol=1e-5)
    stranger: Any = both("llama")[1].body
    assert kept is not None and not kept.serves(stranger), "its weights are elsewhere"


def test_addresses_stay() -> None:
    _, packed = both("qwen2-full")
    body: Any = packed.body
    weights = Weights(body, 16, torch.float32, fixed=True)

    def places() -> list[int]:
        return [part.data_ptr() for block in weights.blocks for each in (block.qkv, block.down)
                for part in (each.packed.codes, each.packed.unpacked(), each.adapter.a)]  # type: ignore[union-attr]  # fmt: skip

    before = places()
    moved(packed, 3)
    weights.refresh()
    packed.to("cpu")
    weights.refresh(packed.frozen_copy().body)
    assert places() == before


def test_a_policy_moves_with_its_codes() -> None:
    _, packed = both("llama")
    rows = sampled(packed)
    before = learned(packed, rows)[0]
    codes = [each.codes for _, each in matrices(packed)]
    packed.to(dtype=torch.float64)
    assert packed.compute_dtype == torch.float64
    assert all(torch.equal(each.codes, code) for (_, each), code in zip(matrices(packed), codes, strict=True))
    torch.testing.assert_close([each.float() for each in learned(packed, rows)[0]], before, atol=1e-5, rtol=1e-5)
    assert copy.deepcopy(matrices(packed)[0][1]) is matrices(packed)[0][1]


def test_folded_weights_are_those_that_were_trained() -> None:
    plain, packed = both("gemma")
    for (name, mine), theirs in zip(folded(packed.model).items(), folded(plain.model).values(), strict=True):
        torch.testing.assert_close(mine, theirs, msg=lambda text, name=name: f"{name}: {text}")
    with pytest.raises(UserError, match="has no adapters that could be computed"):
        policy_of("llama").hold_apart(torch.float32, packed=True)
