"""On a GPU: graphs and kernels sample and learn what plain torch does, and weights are held once."""

from __future__ import annotations

import contextlib
import os

import pytest
import torch
from gpu_policies import different_letters, policy_of, step_of_adapters, wide_policy

import upslope as up
from upslope.policies.forward.blocks import round_to_nf4
from upslope.policies.forward.gradient_sums import one_update
from upslope.policies.forward.packed_matrix import PackedMatrix, Scratch, weight_bytes
from upslope.policies.forward.triton import launch
from upslope.policies.language_model import LanguageModel
from upslope.rollout.decode.pages import Pages, Seats
from upslope.rollout.engines import torch_engine as engine_module
from upslope.rollout.engines.torch_engine import TorchEngine
from upslope.rollout.text_rows import sampled_rows
from upslope.runtime.shared_weights import ReadWeights, SharedWeights, take_over
from upslope.types import Sampling

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

PROMPTS = [[1, 5, 9], [1, 4, 4, 8, 12, 20, 7], [1], [1, 5, 9], [1, 18, 17, 16, 15]]
DRAWS = (Sampling(20), Sampling(20, 0.8, top_k=20, top_p=0.9, min_p=0.01), Sampling(20, 0.0))


@pytest.mark.parametrize("draw", DRAWS, ids=["plain", "truncated", "greedy"])
@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3", "gemma"])
def test_graphs_and_kernels_draw_what_plain_torch_draws(kind, draw, monkeypatch):
    policy = policy_of(kind, precise=True)
    uniforms = torch.rand(60, 20, generator=torch.Generator().manual_seed(0))
    engine = TorchEngine(policy)
    engine.max_rows = 24  # fewer places than rows: the others wait
    fast, again = (engine.generate(PROMPTS, 12, draw, uniforms) for _ in range(2))
    assert torch.equal(fast.tokens, again.tokens) and torch.equal(fast.logp, again.logp)
    monkeypatch.setattr(engine_module, "graphs_help", lambda device: False)
    plain = TorchEngine(policy).generate(PROMPTS, 12, draw, uniforms)
    assert torch.equal(fast.tokens, plain.tokens) and fast.finish == plain.finish
    torch.testing.assert_close(fast.logp, plain.logp, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(fast.entropy, plain.entropy, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("rows, tokens", [(3, 40), (16, 700), (64, 300), (100, 90), (2, 8192)])
@pytest.mark.parametrize("heads, key_heads, width", [(4, 2, 128), (4, 4, 64), (4, 1, 80), (4, 2, 96), (2, 1, 256)])
def test_long_rows_and_few_rows_are_as_likely_as_the_policy_says(rows, tokens, heads, key_heads, width):
    """Parts of keys, shares of products, stretches of the vocabulary: the sampler's probabilities against learning's."""
    if tokens > 1000 and width != 128:
        pytest.skip("the longest rows are tried with heads of 128 features alone: the others take the same way")
    policy = wide_policy(heads, key_heads, width)
    engine, draw = TorchEngine(policy), Sampling(tokens, 1.0)
    prompts = [[1, *range(20, 20 + 9 * number)] for number in range(1, rows + 1)]
    uniforms = torch.rand(rows, tokens, generator=torch.Generator().manual_seed(0))
    limits = [1 + (tokens - 1) * number // max(1, rows - 1) for number in range(rows)] if rows > 3 else None
    done = engine.generate(prompts, 1, draw, uniforms, limits)
    batch = sampled_rows(policy, prompts, 1, done, draw).to("cuda")
    with torch.no_grad():
        apart = (policy.evaluate(batch).logp - done.logp.to("cuda")).abs() * batch.sampled
    assert apart.sum() / batch.sampled.sum() < 0.04, "both round to half precision, each in its own order"
    policy.precise = True
    fast = TorchEngine(policy).generate(prompts, 1, draw, uniforms, limits)
    with torch.no_grad():
        exact = (policy.evaluate(sampled_rows(policy, prompts, 1, fast, draw).to("cuda")).logp - fast.logp.to("cuda")).abs()
    assert exact.max() < 2e-3, "in float32 both sides are the same to rounding"


@pytest.mark.parametrize("precise", [True, False], ids=["float32", "bfloat16"])
def test_rows_with_a_cache_in_pages_say_what_they_say_with_one_in_stretches(precise, monkeypatch):
    monkeypatch.setattr(Pages, "vacancies", lambda self, rows: min(len(rows), self.left))  # hasty: rows are put back
    monkeypatch.setattr(Pages, "_too_many", lambda self: [])
    policy = wide_policy(vocabulary=400)
    policy.precise = precise
    prompts, numbers = [[1, *range(20, 20 + 9 * number)] for number in range(1, 41)], torch.rand(40, 700)
    limits = [30 + 17 * number for number in range(40)]
    engine, in_pages = TorchEngine(policy), TorchEngine(policy)
    in_pages._seats = lambda *_: Seats(40, 130)
    fast, paged, again = (each.generate(prompts, 1, Sampling(700), numbers, limits) for each in (engine, in_pages, in_pages))
    assert in_pages._steppers[0].pages.left == 130
    assert torch.equal(paged.tokens, again.tokens) and torch.equal(paged.logp, again.logp), "the same bits twice"
    if precise:  # how many rows are computed together changes the last digit, and now and then a draw that was as close
        apart = (fast.tokens != paged.tokens).long().cumsum(1) > 0
        assert int(apart.any(1).sum()) <= 10, "of 40 rows"
        torch.testing.assert_close(fast.logp.where(~apart, 0.0), paged.logp.where(~apart, 0.0), atol=2e-3, rtol=2e-3)
    batch = sampled_rows(policy, prompts, 1, paged, Sampling(700)).to("cuda")
    with torch.no_grad():
        apart = (policy.evaluate(batch).logp - paged.logp.to("cuda")).abs() * batch.sampled
    assert apart.sum() / batch.sampled.sum() < 0.04


def test_graphs_read_the_weights_of_now():
    policy = policy_of("llama", precise=True)
    engine, uniforms = TorchEngine(policy), torch.rand(60, 20)
    before = engine.generate(PROMPTS, 12, Sampling(20), uniforms)
    with torch.no_grad():
        for parameter in policy.model.parameters():
            parameter.mul_(1.1)
    after = engine.generate(PROMPTS, 12, Sampling(20), uniforms)
    fresh = TorchEngine(policy).generate(PROMPTS, 12, Sampling(20), uniforms)
    assert not torch.equal(before.tokens, after.tokens)
    assert torch.equal(after.tokens, fresh.tokens)


def in_four_bits(kind: str, dtype: torch.dtype) -> tuple[LanguageModel, LanguageModel]:
    """A policy whose base is in four bits, and one with adapters apart whose weights are what these stand for."""
    found = []
    for packed in (True, False):
        policy = policy_of(kind, precise=dtype is not torch.bfloat16)
        policy.add_lora(4, seed=0)
        step_of_adapters(policy, 1)
        if not packed:
            round_to_nf4(policy.body)
        policy.hold_apart(dtype, "cuda", packed)
        found.append(policy)
    return found[0], found[1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_matrices_are_unpacked_to_the_bits_of_plain_torch(dtype, monkeypatch):
    parts = [torch.randn(rows, 100, device="cuda") for rows in (400, 7, 33)]
    matrix = PackedMatrix.of(parts, torch.device("cuda", 0), dtype, Scratch())
    found = matrix.unpacked().clone()
    monkeypatch.setattr(launch, "helps", lambda x: False)
    assert torch.equal(found, matrix.unpacked()) and found.std() > 0.5
    assert torch.equal(found[400:407], matrix.part(1).to(dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3", "gemma"])
def test_a_base_in_four_bits_samples_and_learns_what_its_numbers_do(kind, dtype):
    """To the bit: before and after an update, from graphs that were recorded once and read the scratch."""
    both = in_four_bits(kind, dtype)
    engines = [TorchEngine(policy) for policy in both]
    uniforms = torch.rand(60, 20, generator=torch.Generator().manual_seed(0))
    for seed in (2, 3):
        ours, theirs = (engine.generate(PROMPTS, 12, Sampling(20), uniforms) for engine in engines)
        assert torch.equal(ours.tokens, theirs.tokens) and torch.equal(ours.logp, theirs.logp)
        rows, found = sampled_rows(both[0], PROMPTS, 12, ours, Sampling(20)).to("cuda"), []
        for policy in both:
            view = policy.evaluate(rows)
            for parameter in policy.trainable()["policy"]:
                parameter.grad = None
            (view.logp * rows.sampled).sum().backward()
            found.append(torch.cat([view.logp.flatten(), *(p.grad.flatten() for p in policy.trainable()["policy"])]))
            step_of_adapters(policy, seed)
        assert torch.equal(*found) and found[0].isfinite().all()
        both[0].to("cuda")  # where it is: what graphs read stays


def test_a_run_with_a_base_in_four_bits(tmp_path):
    rows = [{"prompt": word, "answer": word} for word in ("ab", "ba", "ca", "ac", "bc", "cb", "dd", "da")]
    small = dict(model="tiny:layers=2,width=64", device="cuda", lora=4, base_precision="nf4", steps=3, tasks_per_step=4,
                 samples_per_task=4, max_tokens=4, eval_problems=8, warm_start=0.0, checkpoint_every=1)  # fmt: skip
    run = up.train("dr-grpo", rows, reward=different_letters, **small, out=tmp_path / "run")
    assert run.policy.packed and all(0 < each["grad_norm"] < float("inf") for each in run.metrics)
    held = weight_bytes(run.policy.model)
    assert held < 2 * run.policy.parameter_count(), "in bfloat16 it would be all of that"


def with_adapters(kind: str, dtype: torch.dtype | None) -> LanguageModel:
    """A policy whose adapters have an effect: beside weights in this precision, or merged."""
    policy = policy_of(kind, precise=dtype is not torch.bfloat16)
    policy.add_lora(4, seed=0)
    step_of_adapters(policy, 1)
    if dtype is not None:
        policy.hold_apart(dtype, "cuda")
    return policy


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3", "gemma"])
def test_graphs_with_adapters_apart_draw_what_merged_weights_draw(kind):
    """Before and after an update, from graphs that were recorded once."""
    merged, apart = with_adapters(kind, None), with_adapters(kind, torch.float32)
    engines, uniforms = (TorchEngine(merged), TorchEngine(apart)), torch.rand(60, 20, generator=torch.Generator().manual_seed(0))
    graphs = None
    for seed in (2, 3):
        theirs, ours = (engine.generate(PROMPTS, 12, Sampling(20), uniforms) for engine in engines)
        assert torch.equal(ours.tokens, theirs.tokens)
        torch.testing.assert_close(ours.logp, theirs.logp, atol=1e-4, rtol=1e-4)
        graphs = graphs or dict(engines[1]._steppers[0]._graphs)
        now = engines[1]._steppers[0]._graphs  # fewer rows may be left at once than the time before, which takes another graph
        assert all(now[key] is graph for key, graph in graphs.items()), "they are replayed, not recorded again"
        for policy in (merged, apart):
            step_of_adapters(policy, seed)


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3", "gemma"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_adapters_apart_learn_what_merged_ones_learn(dtype, kind):
    merged, apart = with_adapters(kind, None), with_adapters(kind, dtype)
    done = TorchEngine(apart).generate(PROMPTS, 12, Sampling(20), torch.rand(60, 20, generator=torch.Generator().manual_seed(1)))
    rows = sampled_rows(apart, PROMPTS, 12, done, Sampling(20)).to("cuda")
    slope = torch.randn(rows.sampled.shape, device="cuda", generator=torch.Generator("cuda").manual_seed(2)) * rows.sampled
    found = []
    for policy in (merged, apart):
        view = policy.evaluate(rows, frozenset({"entropy"}))
        ((view.logp + 0.1 * view.entropy) * slope).sum().backward()
        found.append(torch.cat([p.grad.flatten() for p in policy.trainable()["policy"]]))
        assert all(p.grad is None for name, p in policy.model.named_parameters() if "lora_" not in name)
    if dtype == torch.float32:
        torch.testing.assert_close(found[1], found[0], atol=2e-4 * float(found[0].abs().max()), rtol=1e-3)
    assert torch.nn.functional.cosine_similarity(*found, dim=0) > 0.995
    assert ((view.logp - done.logp).abs() * rows.sampled).sum() / rows.sampled.sum() < 0.04


def test_weights_beside_adapters_are_on_the_gpu_once():
    apart = with_adapters("llama", torch.bfloat16)
    held = {value.untyped_storage().data_ptr(): value.untyped_storage().nbytes() for value in apart.model.parameters()}
    places = [value.data_ptr() for value in apart.model.parameters()]
    engine = TorchEngine(apart)
    engine.generate(PROMPTS, 1, Sampling(20), torch.rand(5, 20))
    apart.to("cuda")
    assert [value.data_ptr() for value in apart.model.parameters()] == places
    assert sum(held.values()) == sum(value.numel() * value.element_size() for value in apart.model.parameters())
    body = apart.body
    assert body is not None and engine._weights is not None
    assert engine._weights.blocks[0].qkv.low.data_ptr() == body.layers[0].self_attn.q_proj.base_layer.weight.data_ptr()


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3", "gemma"])
def test_half_precision_learns_in_the_direction_of_single_precision(kind):
    policy = policy_of(kind, precise=False)
    done = TorchEngine(policy).generate(PROMPTS, 12, Sampling(20), torch.rand(60, 20, generator=torch.Generator().manual_seed(1)))
    rows = sampled_rows(policy, PROMPTS, 12, done, Sampling(20)).to("cuda")
    slope = torch.randn(rows.sampled.shape, device="cuda", generator=torch.Generator("cuda").manual_seed(2)) * rows.sampled
    gradients = []
    for precise in (True, False):
        policy.precise = precise
        policy.model.zero_grad()
        view = policy.evaluate(rows, frozenset({"entropy"}))
        ((view.logp + 0.1 * view.entropy) * slope).sum().backward()
        gradients.append(torch.cat([p.grad.flatten() for p in policy.model.parameters()]))
    # bfloat16 keeps eight bits: half a percent of rounding at each of some twenty products in a row.
    assert torch.nn.functional.cosine_similarity(*gradients, dim=0) > 0.995
    assert (gradients[0] - gradients[1]).norm() < 0.1 * gradients[0].norm()
    # Of unlikely tokens single ones are off by much more, whichever path computes them; the mean is steady.
    apart = ((view.logp - done.logp).abs() * rows.sampled).sum() / rows.sampled.sum()
    assert apart < 0.04, "the sampler and the learner both round to half precision"


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3", "gemma"])
def test_kernels_learn_what_plain_torch_learns(kind, monkeypatch):
    policy = policy_of(kind, precise=True)
    prompts, draw = [*PROMPTS, [1, *range(100, 190)]], Sampling(20, 0.8)  # the last one is longer than a block
    monkeypatch.setattr(launch, "BACK_QUERIES", 64)  # so that programs share the gradients of a prompt
    done = TorchEngine(policy).generate(prompts, 12, draw, torch.rand(72, 20, generator=torch.Generator().manual_seed(3)))
    rows = sampled_rows(policy, prompts, 12, done, draw).to("cuda")
    slope = torch.randn(rows.sampled.shape, device="cuda", generator=torch.Generator("cuda").manual_seed(2)) * rows.sampled
    found = []
    for kernels in (True, False):
        if not kernels:
            monkeypatch.setattr(launch, "helps", lambda x: False)
        policy.model.zero_grad()
        view = policy.evaluate(rows, frozenset({"entropy"}))
        ((view.logp + 0.1 * view.entropy) * slope).sum().backward()
        found.append([view.logp.detach(), view.entropy.detach(), *(p.grad.clone() for p in policy.model.parameters())])
    for fast, plain in zip(*found, strict=True):
        torch.testing.assert_close(fast, plain, atol=2e-4 * float(plain.abs().max()), rtol=1e-3)


@pytest.mark.parametrize("longest", [40, 300, 1500])
def test_wide_heads_learn_what_single_precision_learns(longest, monkeypatch):
    """The tiles of half precision, and gradients of prompts in shares, in three slices."""
    policy = wide_policy()
    prompts, draw = [[1, *range(20, 80)], [1, 9]], Sampling(longest, 1.0)
    limits = [longest, longest // 3]
    done = TorchEngine(policy).generate(prompts, 6, draw, torch.rand(12, longest), limits)
    rows = sampled_rows(policy, prompts, 6, done, draw).to("cuda")
    slope = torch.randn(rows.sampled.shape, device="cuda", generator=torch.Generator("cuda").manual_seed(2)) * rows.sampled
    monkeypatch.setattr(launch, "BACK_QUERIES", 512)
    found = []
    for precise in (True, False):
        policy.precise = precise
        policy.model.zero_grad()
        for part in torch.arange(12, device="cuda").split(4):
            view = policy.evaluate(rows.take_rows(part))
            (view.logp * slope[part]).sum().backward()
        found.append(torch.cat([p.grad.flatten() for p in policy.model.parameters()]))
    assert torch.nn.functional.cosine_similarity(*found, dim=0) > 0.995
    assert (found[0] - found[1]).norm() < 0.1 * found[0].norm()


@pytest.mark.parametrize("tied", [True, False])
def test_an_update_adds_up_on_the_weights_that_sampling_reads(tied):
    """Products add to the gradients of slices before them; graphs and learning read one set of weights."""
    policy = wide_policy(tied=tied)
    engine, draw = TorchEngine(policy), Sampling(100, 1.0)
    prompts = [[1, *range(20, 80)], [1, 9]]
    uniforms = torch.rand(12, 100, generator=torch.Generator().manual_seed(0))
    rows = sampled_rows(policy, prompts, 6, engine.generate(prompts, 6, draw, uniforms), draw).to("cuda")
    found = []
    for together in (contextlib.nullcontext(), one_update()):
        policy.model.zero_grad()
        with together:
            for part in torch.arange(12, device="cuda").split(4):
                (policy.evaluate(rows.take_rows(part)).logp * torch.linspace(-1, 1, 100, device="cuda")).sum().backward()
        found.append([parameter.grad.clone() for parameter in policy.model.parameters()])
    for theirs, ours in zip(*found, strict=True):
        assert (ours - theirs).norm() < 1e-4 * theirs.norm()
    body, shown = policy.body, engine._weights
    assert body is not None and body.held is not None and shown is not None
    held = {matrix.low.data_ptr() for matrix in body.held.matrices}
    assert {shown.head.data_ptr(), *(block.gate_up.low.data_ptr() for block in shown.blocks)} <= held
    assert (shown.embedding.data_ptr() == shown.head.data_ptr()) == tied
    before = shown.head.clone()
    torch.optim.AdamW(policy.model.parameters(), lr=0.05, fused=True).step()
    after = engine.generate(prompts, 6, draw, uniforms)
    assert engine._weights is shown and not torch.equal(shown.head, before)
    assert torch.equal(after.tokens, TorchEngine(policy).generate(prompts, 6, draw, uniforms).tokens)


@pytest.mark.parametrize("tied", [True, False])
def test_a_copy_that_never_moves_says_what_the_policy_says_in_half_the_memory(tied):
    policy = wide_policy(tied=tied)
    before = torch.cuda.memory_allocated()
    copy = policy.frozen_copy()
    whole = torch.cuda.memory_allocated() - before
    copy.hold_still()
    assert torch.cuda.memory_allocated() - before < 0.8 * whole
    prompts, draw = [[1, *range(20, 80)], [1, 9]], Sampling(60, 1.0)
    done = TorchEngine(policy).generate(prompts, 6, draw, torch.rand(12, 60, generator=torch.Generator().manual_seed(0)))
    rows = sampled_rows(policy, prompts, 6, done, draw).to("cuda")
    with torch.no_grad():
        assert torch.equal(copy.evaluate(rows).logp, policy.evaluate(rows).logp)


# -- another process on the same GPU -------------------------------------------------------------------------------------------


def test_weights_go_from_gpu_to_gpu_through_shared_memory():
    given = {"w": torch.randn(5, 7, device="cuda"), "half": torch.randn(3, device="cuda").bfloat16(), "tail": torch.ones(33).cuda()}
    shared, published = SharedWeights(), ReadWeights(for_gpu=True)
    for version in (1, 2, 3, 4):
        shared.publish(version, {name: tensor + version for name, tensor in given.items()}, needed=(version - 1,))
        told = shared.versions[version]
        own = {name: torch.zeros_like(tensor) for name, tensor in given.items()}
        assert take_over(own, published.of(os.dup(told.file), told.plain())) == told.checksum
        assert all(torch.equal(own[name], tensor + version) for name, tensor in given.items())
    shared.close()


def test_a_worker_on_the_same_gpu_changes_no_weight(tmp_path):
    found = []
    for workers in (0, 1):
        run = up.train("grpo", "reverse", steps=3, device="cuda", workers=workers, reuse="off", seed=1, out=tmp_path / str(workers),
                       tasks_per_step=4, samples_per_task=4, warm_start=0.0, eval_problems=4)  # fmt: skip
        found.append({name: weight.cpu() for name, weight in run.policy.weights().items()})
    assert all(torch.equal(weight, found[1][name]) for name, weight in found[0].items())
