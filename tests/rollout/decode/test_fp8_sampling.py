"""Sampling in eight bits on a CPU: what is drawn and recorded is what a model of `transformers` with rounded products says."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from small_models import PROMPTS, policy_of, step
from torch import Tensor, nn

from upslope.policies.forward import fp8
from upslope.policies.language_model import LanguageModel
from upslope.policies.model_shape import ModelShape
from upslope.policies.tiny import tiny
from upslope.rollout.decode import footprint
from upslope.rollout.decode.footprint import fp8_bytes
from upslope.rollout.decode.graph_stepper import GraphStepper
from upslope.rollout.decode.pages import Seats
from upslope.rollout.decode.weights import Weights
from upslope.rollout.engines.torch_engine import TorchEngine
from upslope.runtime import seeding
from upslope.types import Sampling

torch.set_num_threads(1)

ROUNDED = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj", "down_proj")
TOKENS = 12


@contextmanager
def rounding(model: Any) -> Iterator[None]:
    """A model of `transformers` whose products are of numbers in eight bits, but for those behind attention and in the head."""
    modules = [module for name, module in model.named_modules() if name.endswith(ROUNDED) and isinstance(module, nn.Linear)]
    weights = [module.weight.data for module in modules]
    hooks = [module.register_forward_pre_hook(lambda _, given: (in_eight_bits(given[0]),)) for module in modules]
    for module in modules:
        module.weight.data = in_eight_bits(module.weight.data)
    yield
    for module, weight, hook in zip(modules, weights, hooks, strict=True):
        module.weight.data = weight
        hook.remove()


def in_eight_bits(x: Tensor) -> Tensor:
    """By hand: nothing of the library's."""
    scale = x.abs().amax(-1, keepdim=True) / 448
    return ((x / scale).to(torch.float8_e4m3fn).float() * scale).where(scale > 0, 0.0)


def logits_of(model: Any, prompt: list[int], answer: list[int]) -> Tensor:
    """Of each token of an answer: the prompt but for its last token is read as it is, then token after token in eight bits."""
    cache, found = None, []
    if prompt[:-1]:
        cache = model(torch.tensor([prompt[:-1]]), use_cache=True).past_key_values
    with rounding(model):
        for token in [prompt[-1], *answer[:-1]]:
            seen = model(torch.tensor([[token]]), past_key_values=cache, use_cache=True)
            cache = seen.past_key_values
            found.append(seen.logits[0, -1])
    return torch.stack(found)


@pytest.mark.parametrize("kind", ["llama", "qwen2-full", "qwen3", "gemma"])
def test_what_is_recorded_is_what_a_rounded_model_says(kind):
    policy = policy_of(kind)
    sampling, numbers = Sampling(TOKENS, 0.8), seeding.uniforms((2 * len(PROMPTS), TOKENS), 1)
    done = TorchEngine(policy, precision="fp8").generate(PROMPTS, 2, sampling, numbers)
    exact = TorchEngine(policy).generate(PROMPTS, 2, sampling, numbers)
    asked = [prompt for prompt in PROMPTS for _ in range(2)]
    apart, away = [], []
    with torch.no_grad():
        for row, prompt in enumerate(asked):
            answer = done.tokens[row, : int(done.sampled[row].sum())].tolist()
            logp = (logits_of(policy.model, prompt, answer) / 0.8).log_softmax(-1)
            chosen = logp[torch.arange(len(answer)), answer]
            apart.append((chosen - done.logp[row, : len(answer)]).abs())
            torch.testing.assert_close(-(logp.exp() * logp).sum(1), done.entropy[row, : len(answer)], atol=0.05, rtol=0.05)
            away.append((exact.logp[row, 0] - done.logp[row, 0]).abs())
    # Two ways to add up give another last digit, which now and then is another code: by a sixteenth of one number.
    assert torch.cat(apart).median() < 1e-5 and torch.cat(apart).mean() < 0.2 * torch.stack(away).mean()
    assert torch.stack(away).mean() > 0.01, "else nothing is rounded"


def test_drafts_change_nothing_and_nothing_is_kept_for_learning():
    policy, numbers = policy_of("llama"), seeding.uniforms((10, TOKENS), 1)
    engine = TorchEngine(policy, precision="fp8")
    plain = engine.generate(PROMPTS, 2, Sampling(TOKENS), numbers, keep=True)
    drafted = TorchEngine(policy, speculate=3, precision="fp8").generate(PROMPTS, 2, Sampling(TOKENS), numbers)
    assert plain.kept is None and torch.equal(plain.tokens, drafted.tokens)
    torch.testing.assert_close(plain.logp, drafted.logp, atol=1e-4, rtol=1e-4)


def test_it_says_how_far_it_is_from_the_policy():
    policy, numbers = policy_of("llama"), seeding.uniforms((10, TOKENS), 1)
    exact, engine = TorchEngine(policy), TorchEngine(policy, precision="fp8")
    exact.generate(PROMPTS, 2, Sampling(TOKENS), numbers)
    assert exact.metrics() == {} == engine.metrics()
    done = engine.generate(PROMPTS, 2, Sampling(TOKENS), numbers)
    told = engine.metrics()
    assert 0.01 < told["engine_gap"] < told["engine_gap_worst"] < 3
    again = engine.generate(PROMPTS, 2, Sampling(TOKENS), numbers)
    assert torch.equal(again.logp, done.logp) and engine.metrics() == told and engine.metrics() == {}
    engine.generate(PROMPTS, 2, Sampling(TOKENS), numbers)
    engine.generate(PROMPTS, 2, Sampling(TOKENS, 0.5), numbers)
    both = engine.metrics()
    assert both["engine_gap"] != told["engine_gap"] and both["engine_gap_worst"] >= told["engine_gap_worst"], "of both calls"
    assert done.approximate and not exact.generate(PROMPTS, 1, Sampling(2), numbers[:5, :2]).approximate
    engine.generate(PROMPTS, 2, Sampling(TOKENS, 0.0), numbers)
    assert engine.metrics() == {}, "of what is not drawn from the whole distribution nothing can be said"
    assert not engine.generate(PROMPTS, 2, Sampling(TOKENS), numbers, by=policy.frozen_copy()).approximate
    assert engine.metrics() == {}, "nor of what another has sampled"


def with_adapters() -> LanguageModel:
    pytest.importorskip("peft", reason="LoRA needs the extra upslope[lora]")
    policy = policy_of("qwen2-full")
    policy.add_lora(2, seed=0)
    policy.hold_apart(torch.float32)
    return policy


@pytest.mark.parametrize("how", ["all weights", "adapters apart"])
def test_codes_stay_where_they_are_and_follow_the_weights(how):
    """What recorded graphs read; of adapters' matrices nothing changes."""
    policy = with_adapters() if how == "adapters apart" else policy_of("qwen2-full")
    body: Any = policy.body
    weights = Weights(body, 16, torch.float32, fixed=True, in_eight_bits=True)
    kinds = ("qkv", "gate_up", "down")
    matrices = [getattr(block, kind) for block in weights.step_blocks for kind in kinds]
    places, before = [m.fp8.codes.data_ptr() for m in matrices], [m.fp8.codes.float() for m in matrices]
    step(policy, 1)
    weights.refresh()
    now = [getattr(block, kind) for block in weights.step_blocks for kind in kinds]
    assert [m.fp8.codes.data_ptr() for m in now] == places
    for matrix, old in zip(now, before, strict=True):
        assert torch.equal(matrix.fp8.codes.float(), fp8.quantize(matrix.low).codes.float())
        assert torch.equal(matrix.fp8.codes.float(), old) == (how == "adapters apart")
    assert all(block.out.fp8 is None for block in weights.step_blocks)
    assert all(getattr(block, kind).fp8 is None for block in weights.blocks for kind in kinds), "prompts are read as they are"


def test_adapters_beside_codes_are_added_as_they_are():
    policy, numbers = with_adapters(), seeding.uniforms((10, TOKENS), 1)
    step(policy, 1)
    rounded, exact = TorchEngine(policy, precision="fp8"), TorchEngine(policy)
    found, expected = (each.generate(PROMPTS, 2, Sampling(TOKENS), numbers) for each in (rounded, exact))
    first = (found.logp - expected.logp).abs()[:, 0]
    assert 0.001 < first.mean() < 0.5
    step(policy, 2)
    moved = rounded.generate(PROMPTS, 2, Sampling(TOKENS), numbers)
    assert not torch.equal(moved.tokens, found.tokens)
    fresh = TorchEngine(policy, precision="fp8").generate(PROMPTS, 2, Sampling(TOKENS), numbers)
    assert torch.equal(moved.tokens, fresh.tokens) and torch.equal(moved.logp, fresh.logp)


def test_the_footprint_is_what_is_allocated():
    policy = tiny(0)
    shape = ModelShape.of(policy.model, ours=True)
    for graphs in (True, False):
        weights = Weights(policy.body, 64, torch.float32, fixed=graphs, in_eight_bits=True)
        matrices = [matrix for block in weights.step_blocks for matrix in (block.qkv, block.gate_up, block.down)]
        held = sum(each.fp8.codes.nbytes + each.fp8.scales.nbytes + (0 if graphs else each.low.nbytes) for each in matrices)
        assert held == fp8_bytes(shape, 4, on_gpu=graphs)
    weights = Weights(policy.body, 64, torch.float32, fixed=True, in_eight_bits=True)
    plain = Weights(policy.body, 64, torch.float32, fixed=True)
    for rows in (3, 100, 300):
        counted = [footprint.cache_bytes(shape, 4, Seats(rows, 0), 20, [5], True, eight) for eight in (True, False)]
        made = [GraphStepper(each, Seats(rows, 0), 20) for each in (weights, plain)]
        found = [buffers(each) for each in made]
        assert counted[0] - counted[1] == found[0] - found[1] > 0


def buffers(stepper: GraphStepper) -> int:
    """Of those that numbers in eight bits make more or larger."""
    eight = [each for rows in (stepper._seen8, stepper._active8) if rows is not None for each in rows]
    return sum(each.nbytes for each in (stepper._shares_out, *eight))
