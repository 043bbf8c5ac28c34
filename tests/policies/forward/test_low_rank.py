"""Adapters beside weights that never change: what is sampled and learned is what merged weights give, and nothing is merged."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
import torch
from small_models import PROMPTS, policy_of, rows_of
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from upslope.errors import UserError
from upslope.objective.references import MovingAverage, Snapshot, Start
from upslope.policies import LanguageModel
from upslope.policies.forward.low_rank import joined, lay_together, low_rank_parts, low_ranks
from upslope.rollout.decode.pages import Seats
from upslope.rollout.engines.torch_engine import TorchEngine
from upslope.runtime import seeding
from upslope.types import Sampling, Trajectories

pytest.importorskip("peft", reason="LoRA needs the extra upslope[lora]")
torch.set_num_threads(1)

KINDS = ("llama", "qwen2-full", "qwen3", "gemma")
N, TOKENS = 4, 10


def moved(policy: LanguageModel, seed: int) -> LanguageModel:
    """The policy with its adapters a step further, somewhere."""
    random = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in policy.trainable()["policy"]:
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=random))
    return policy


def both(kind: str, dtype: torch.dtype = torch.float32) -> tuple[LanguageModel, LanguageModel]:
    """A policy whose adapters are merged, and the same one with them apart."""
    merged, apart = policy_of(kind), policy_of(kind)
    for policy in (merged, apart):
        policy.add_lora(3, seed=0)
        moved(policy, 1)
    apart.hold_apart(dtype)
    assert apart.body is not None and apart.body.apart and merged.body is not None and not merged.body.apart
    return merged, apart


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


def frozen(policy: LanguageModel) -> dict[str, Tensor]:
    return {name: value for name, value in policy.model.named_parameters() if "lora_" not in name}


# -- the same numbers ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_learning_is_that_of_merged_weights(kind: str, recompute: bool) -> None:
    merged, apart = both(kind)
    rows = sampled(merged)
    merged.recompute = apart.recompute = recompute
    (columns, grads), (own, own_grads) = learned(merged, rows), learned(apart, rows)
    torch.testing.assert_close(own, columns, atol=1e-5, rtol=1e-5)
    for mine, theirs in zip(own_grads, grads, strict=True):
        assert mine.dtype == torch.float32
        torch.testing.assert_close(mine, theirs, atol=1e-5 * max(1.0, float(theirs.abs().max())), rtol=1e-4)
    assert all(value.grad is None and not value.requires_grad for value in frozen(apart).values())


@pytest.mark.parametrize("kind", KINDS)
def test_sampling_is_that_of_merged_weights_and_of_learning(kind: str) -> None:
    merged, apart = both(kind)
    theirs, ours = sampled(merged), sampled(apart)
    assert ours.action is not None and theirs.action is not None and torch.equal(ours.action, theirs.action)
    torch.testing.assert_close(ours.behavior.logp, theirs.behavior.logp, atol=1e-5, rtol=1e-5)
    with torch.no_grad():
        found = apart.evaluate(ours).logp
    torch.testing.assert_close(found, ours.behavior.logp * ours.sampled, atol=1e-5, rtol=1e-5)
    assert TorchEngine(apart).probe(ours) < 1e-5


def test_what_sampling_has_kept_is_learned_from() -> None:
    _, apart = both("llama")
    rows = sampled(apart, keep=True)
    (of_sampling,) = apart.kept.passes.values()
    kept = rows.replace(inputs=dataclasses.replace(rows.inputs, kept=of_sampling.numbers))
    for mine, theirs in zip(learned(apart, kept), learned(apart, rows), strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-4, rtol=1e-4)


def test_in_half_precision_both_sides_say_the_same_to_its_rounding() -> None:
    merged, apart = both("llama", torch.bfloat16)
    assert {value.dtype for value in frozen(apart).values()} == {torch.bfloat16} and apart.compute_dtype == torch.bfloat16
    assert {value.dtype for value in apart.trainable()["policy"]} == {torch.float32}
    rows = sampled(apart)
    assert TorchEngine(apart).probe(rows) < 0.05
    with torch.no_grad():
        apart_from = (apart.evaluate(rows).logp - merged.evaluate(rows).logp).abs()
    assert float(apart_from.max()) > 1e-4 and float(apart_from.mean()) < 0.05
    _, grads = learned(apart, rows)
    _, expected = learned(merged, rows)
    for mine, theirs in zip(grads, expected, strict=True):
        cosine = torch.nn.functional.cosine_similarity(mine.flatten(), theirs.flatten(), dim=0)
        assert mine.dtype == torch.float32 and float(cosine) > 0.97


# -- nothing is merged -----------------------------------------------------------------------------------------------------


class Sizes(TorchDispatchMode):
    """Notes every tensor that is made with as many numbers as a matrix of the model, in memory of its own."""

    def __init__(self, policy: LanguageModel):
        super().__init__()
        own = frozen(policy)
        self.homes = {value.untyped_storage().data_ptr() for value in own.values()}
        layers = [value for name, value in own.items() if ".layers." in name and value.dim() == 2]
        fused = [Tensor.new_empty(layers[0], 2 * policy.model.config.intermediate_size, policy.model.config.hidden_size)]
        self.shapes = {tuple(shape) for value in (*layers, *fused) for shape in (value.shape, value.t().shape)}
        self.made: list[tuple[str, tuple[int, ...], torch.dtype]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        for each in found if isinstance(found, (tuple, list)) else [found]:
            large = isinstance(each, Tensor) and tuple(each.shape) in self.shapes
            if large and each.untyped_storage().data_ptr() not in self.homes:
                self.made.append((str(func), tuple(each.shape), each.dtype))
        return found


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_no_matrix_is_made_anew(dtype: torch.dtype) -> None:
    """Neither merged, nor in another precision, nor as a gradient; of merged adapters all of them are."""
    merged, apart = both("llama", dtype)
    rows = sampled(merged)
    with Sizes(apart) as seen:
        learned(apart, rows)
        sampled(apart)
    assert seen.made == []
    with Sizes(merged) as seen:
        learned(merged, rows)
    assert len(seen.made) >= 2 * 7 * 2, "a merged matrix and its gradient for each of seven matrices in two layers"


def test_the_weights_are_held_once_where_they_stay() -> None:
    _, apart = both("qwen2-full", torch.bfloat16)
    body = apart.body
    assert body is not None
    inner = body.layers[0].self_attn
    parts = [inner.q_proj.base_layer.weight, inner.k_proj.base_layer.weight, inner.v_proj.base_layer.weight]
    whole = joined(parts, torch.bfloat16)
    assert whole.data_ptr() == parts[0].data_ptr() and torch.equal(whole, torch.cat(parts))
    before = {name: value.data_ptr() for name, value in frozen(apart).items()}
    own = {value.untyped_storage().data_ptr(): value.untyped_storage().nbytes() for value in frozen(apart).values()}
    assert sum(own.values()) == sum(value.numel() * 2 for value in frozen(apart).values()), "nothing is there twice"
    moved(apart, 2).to("cpu")
    sampled(apart)
    assert {name: value.data_ptr() for name, value in frozen(apart).items()} == before
    weights = TorchEngine(apart)._ready(body, [(1, 2)], Seats(1, 0), 4).weights
    assert weights.blocks[0].qkv.low.data_ptr() == parts[0].data_ptr() and weights.head.data_ptr() == body.head.weight.data_ptr()


def test_only_adapters_can_be_apart() -> None:
    with pytest.raises(UserError, match="has no adapters that could be computed beside its weights"):
        policy_of("llama").hold_apart(torch.float32)
    unknown = policy_of("gpt2")
    unknown.adapted = True
    with pytest.raises(UserError, match="has no adapters that could be computed"):
        unknown.hold_apart(torch.float32)


# -- references ------------------------------------------------------------------------------------------------------------


def references(policy: LanguageModel) -> Iterator[tuple[str, LanguageModel]]:
    """The start, a snapshot and a moving average of a policy that has learned since."""
    start = policy.frozen_copy()
    parts = {"start": Start(), "snapshot": Snapshot(), "average": MovingAverage(decay=0.7)}
    kept = {name: part.begin(policy, start) for name, part in parts.items()}
    for step in (2, 3):
        moved(policy, step)
        kept |= {name: parts[name].renew(kept[name], policy) for name in ("snapshot", "average")}
    moved(policy, 9)
    for name, copies in kept.items():
        for each in copies:
            yield name, each  # type: ignore[misc]


def test_references_are_other_adapters_on_the_same_weights() -> None:
    merged, apart = both("llama")
    rows = sampled(merged)
    here = {value.untyped_storage().data_ptr() for value in frozen(apart).values()}
    before = 0
    for (name, theirs), (_, ours) in zip(references(merged), references(apart), strict=True):
        with torch.no_grad():
            expected, found = theirs.evaluate(rows).logp, ours.evaluate(rows).logp
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5, msg=lambda text, name=name: f"{name}: {text}")
        assert {value.untyped_storage().data_ptr() for value in frozen(ours).values()} == here, name
        assert all("lora_" in key for key in ours.weights()) and ours.apart
        before += float((expected - merged.evaluate(rows).logp.detach()).abs().max()) > 1e-3
    assert before >= 3, "each differs from what the policy has become"


def test_a_copy_samples_in_the_place_of_the_policy() -> None:
    """With the same memory for the weights, and its own adapters at the addresses that recorded graphs read."""
    merged, apart = both("llama")
    engine, uniforms = TorchEngine(apart), seeding.uniforms((len(PROMPTS), TOKENS), 7)
    earlier = [policy.frozen_copy() for policy in (merged, apart)]
    for policy in (merged, apart):
        moved(policy, 5)
    now = engine.generate(PROMPTS, 1, Sampling(TOKENS), uniforms)
    kept = engine._weights
    then = engine.generate(PROMPTS, 1, Sampling(TOKENS), uniforms, by=earlier[1])
    assert engine._weights is kept
    for found, policy in ((now, merged), (then, earlier[0])):
        expected = TorchEngine(policy).generate(PROMPTS, 1, Sampling(TOKENS), uniforms)
        assert torch.equal(found.tokens, expected.tokens)
        torch.testing.assert_close(found.logp, expected.logp, atol=1e-5, rtol=1e-5)
    stranger = both("llama")[1]
    assert kept is not None and stranger.body is not None and not kept.serves(stranger.body), "its weights are elsewhere"
    assert not kept.serves(merged.body)  # type: ignore[arg-type]


# -- putting adapters together ---------------------------------------------------------------------------------------------


def test_adapters_of_matrices_that_share_an_input_are_one_product() -> None:
    random = torch.Generator().manual_seed(0)
    sizes = [[(5, 2), (3, 2), (3, 2)], [(7, 4)]]
    several = [
        [(torch.randn(r, 6, generator=random), torch.randn(rows, r, generator=random), 0.5 * r) for rows, r in each]
        for each in sizes
    ]
    x = torch.randn(4, 6, generator=random)
    for found, together in zip(low_ranks(several, torch.float32), several, strict=True):
        expected = torch.cat([scale * (x @ a.t()) @ b.t() for a, b, scale in together], 1)
        torch.testing.assert_close((x @ found.a.t()) @ found.b.t(), expected)
        assert found.scales == tuple(scale for _, _, scale in together) and len(found.parts) == 2 * len(together)
        assert all(mine is theirs for mine, theirs in zip(found.parts, [*_column(together, 0), *_column(together, 1)], strict=True))


def _column(together: Iterable[tuple[Any, ...]], number: int) -> list[Any]:
    return [each[number] for each in together]


def test_what_lies_together_is_not_copied_and_what_does_not_is() -> None:
    parts = [torch.nn.Parameter(torch.randn(rows, 3), requires_grad=False) for rows in (2, 4)]
    numbers = [part.clone() for part in parts]
    assert joined(parts, torch.float32).data_ptr() != parts[0].data_ptr()
    lay_together(parts, torch.device("cpu"), torch.float32)
    assert joined(parts, torch.float32).data_ptr() == parts[0].data_ptr()
    assert all(torch.equal(part, number) for part, number in zip(parts, numbers, strict=True))
    place = parts[0].data_ptr()
    lay_together(parts, torch.device("cpu"), torch.float32)
    assert parts[0].data_ptr() == place and joined(parts, torch.bfloat16).dtype == torch.bfloat16
    strangers = [copy.deepcopy(part) for part in parts]
    assert joined(strangers, torch.float32).data_ptr() != strangers[0].data_ptr()


def test_parts_are_those_of_peft() -> None:
    apart = both("llama")[1]
    (found,) = low_rank_parts([apart.body.layers[0].mlp.down_proj])  # type: ignore[union-attr]
    assert found[0].shape == (3, 24) and found[1].shape == (16, 3) and found[2] == 2.0
