"""Learning from what sampling computed: the same columns and gradients as from a forward pass of its own, or that pass itself."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from small_models import PROMPTS, policy_of, rows_of

from upslope.learners.policy_gradient import PolicyGradient
from upslope.methods import find
from upslope.policies import LanguageModel, language_model
from upslope.policies.forward import activation_cache
from upslope.policies.forward.activation_cache import ActivationCache, CacheWriter
from upslope.policies.tiny import tiny
from upslope.rollout.engines.torch_engine import TorchEngine
from upslope.rollout.text import TextRollout
from upslope.rollout.text_rows import join_text
from upslope.runtime import seeding
from upslope.runtime.settings import Settings
from upslope.tasks import load_task
from upslope.tasks.text import Scores
from upslope.types import Sampling, Trajectories, View

torch.set_num_threads(1)

N, TOKENS = 4, 12
LONG = [[1, *(3 + (7 * place + number) % 20 for place in range(50 - 9 * number))] for number in range(3)]
"""Prompts that rows share while they are sampled and learned from, of different lengths."""


@pytest.fixture
def passes(monkeypatch) -> list[bool]:
    """Of each forward pass that learning makes, whether it was spared."""
    seen: list[bool] = []
    whole = language_model.hidden_states

    def hidden_states(*given):
        seen.append(given[4] is not None)
        return whole(*given)

    monkeypatch.setattr(language_model, "hidden_states", hidden_states)
    return seen


def sampled(policy: LanguageModel, prompts: list[list[int]], most_rows: int = 99) -> Trajectories:
    engine = TorchEngine(policy)
    engine.max_rows = most_rows
    uniforms = seeding.uniforms((len(prompts) * N, TOKENS), 7)
    done = engine.generate(prompts, N, Sampling(TOKENS, temperature=0.8), uniforms, keep=True)
    rows = rows_of(policy, prompts, N, done, 0.8)
    return rows.replace(inputs=dataclasses.replace(rows.inputs, kept=done.kept))


def learned(policy: LanguageModel, rows: Trajectories) -> list[torch.Tensor]:
    """Log-probabilities and entropies, and the gradients of a loss of both."""
    view = policy.evaluate(rows, frozenset({"entropy"}))
    assert view.entropy is not None
    weight = seeding.uniforms(tuple(view.logp.shape), 3).to(view.logp.dtype)
    parameters = policy.trainable()["policy"]
    slopes = torch.autograd.grad(((view.logp + 0.3 * view.entropy) * weight).sum(), parameters, allow_unused=True)
    return [view.logp, view.entropy, *(slope for slope in slopes if slope is not None)]


def forgotten(rows: Trajectories) -> Trajectories:
    return rows.replace(inputs=dataclasses.replace(rows.inputs, kept=None))


@pytest.mark.parametrize("most_rows", [99, 5])
@pytest.mark.parametrize("prompts", [PROMPTS, LONG, [[1, 5, 9], [1, 4, 4]]], ids=["ragged", "long", "equal"])
@pytest.mark.parametrize("kind", ["llama", "qwen2-full", "gemma"])
def test_columns_and_gradients_are_those_of_a_pass_of_its_own(kind, prompts, most_rows, passes):
    policy = policy_of(kind).to(dtype=torch.float64)
    if prompts is not PROMPTS and prompts is not LONG:
        policy.stop_ids = frozenset()  # all rows of full length: nothing is moved
    rows = sampled(policy, prompts, most_rows)
    if most_rows == 99 and policy.stop_ids:
        assert len(set(rows.lengths().tolist())) > 2, "rows end early, and others take their places"
    spared, made = learned(policy, rows), learned(policy, forgotten(rows))
    assert passes == [True, False]
    for mine, plain in zip(spared, made, strict=True):
        torch.testing.assert_close(mine, plain, atol=1e-10, rtol=1e-9)


@pytest.mark.parametrize("prompts", [PROMPTS, LONG, [[1, 5, 9], [1, 4, 4]]], ids=["ragged", "long", "equal"])
def test_half_precision_is_as_near_as_a_pass_of_its_own(prompts, passes):
    """Both against float32 with the same weights: what was kept is no further away than rounding to bfloat16 takes any pass."""
    policy = policy_of("llama").to(dtype=torch.bfloat16)
    rows = sampled(policy, prompts)
    spared, made = learned(policy, rows), learned(policy, forgotten(rows))
    assert passes == [True, False]
    exact = learned(policy.to(dtype=torch.float32), forgotten(rows))
    for mine, own, truth in zip(*([x.detach().float() for x in found] for found in (spared, made, exact)), strict=True):
        allowed = 2 * (own - truth).norm() + 0.02 * truth.norm()
        assert float((mine - truth).norm()) <= float(allowed)


def test_a_part_of_the_rows_in_another_order(passes):
    policy = policy_of("llama").to(dtype=torch.float64)
    rows = sampled(policy, PROMPTS)
    some = rows.take_rows(torch.tensor([17, 16, 3, 0, 8, 9]))
    for mine, plain in zip(learned(policy, some), learned(policy, forgotten(some)), strict=True):
        torch.testing.assert_close(mine, plain, atol=1e-10, rtol=1e-9)
    with torch.no_grad():
        looked = policy.evaluate(some).logp
    torch.testing.assert_close(looked, policy.evaluate(forgotten(some)).logp, atol=1e-10, rtol=1e-9)
    assert passes == [True, False, True, False]


def test_a_weight_that_moved_a_token_that_changed_and_another_pass_are_noticed(passes):
    policy = policy_of("llama")
    rows = sampled(policy, PROMPTS)
    assert rows.action is not None
    other = rows.action.clone()
    other[0, 0] = 3 if int(other[0, 0]) != 3 else 4
    policy.evaluate(rows.replace(action=other, sampled=torch.ones_like(rows.sampled)))
    assert passes == [False], "these are not the tokens that were sampled"
    again = sampled(policy, PROMPTS)
    policy.evaluate(rows)
    policy.evaluate(again)
    assert passes == [False, True, True], "two calls of one step"
    TorchEngine(policy).sync(policy)
    policy.evaluate(again)
    assert passes[3:] == [False], "of another step"
    again = sampled(policy, PROMPTS)
    with torch.no_grad():
        policy.trainable()["policy"][3].mul_(1.01)
    policy.evaluate(again)
    assert passes[-1] is False and not policy.kept.passes


def test_rows_that_are_compared_are_looked_at_alike(passes):
    """The KL to a policy with the same weights has no gradient, not even of rounding: Adam would make a whole step of it."""
    policy = policy_of("llama")
    rows = sampled(policy, PROMPTS)
    start = View(policy.frozen_copy().evaluate(rows).logp.detach())
    found = policy.evaluate(rows.replace(reference={"start": start})).logp
    assert torch.equal(found, start.logp) and passes == [False, False]


def test_an_optimiser_that_does_not_count_its_changes_is_noticed(passes):
    policy = policy_of("llama")
    rows = sampled(policy, PROMPTS)
    parameters = policy.trainable()["policy"]
    optimizer = torch.optim.AdamW(parameters, lr=1e-4, fused=True)
    policy.evaluate(rows).logp.sum().backward()
    versions = [parameter._version for parameter in parameters]
    optimizer.step()
    assert versions == [parameter._version for parameter in parameters], "torch does not, or this test is no longer needed"
    policy.evaluate(rows)
    assert passes == [True, False]


def test_what_is_kept_is_bounded_and_only_for_learning():
    policy = policy_of("llama")
    assert sampled(policy, PROMPTS).inputs.kept is not None
    assert not policy.frozen_copy().kept.passes
    names = [*policy.kept.passes]
    TorchEngine(policy).generate(PROMPTS, 2, Sampling(5), seeding.uniforms((10, 5), 1))
    assert [*policy.kept.passes] == names, "an evaluation keeps nothing"
    body = policy.body
    assert body is not None
    shared = sum(len(prompt) - 1 for prompt in {tuple(prompt) for prompt in PROMPTS})
    needed = ActivationCache.size(body, torch.float32, shared, len(PROMPTS) * N * TOKENS)
    policy.kept.forget()
    (kept,) = (sampled(policy, PROMPTS) and policy.kept).passes.values()
    assert needed == sum(tensor.numel() * tensor.element_size() for layer in kept.layers for tensor in layer)
    policy.slice_bytes = 2 * needed - 1
    assert sampled(policy, PROMPTS).inputs.kept is None, "more than half of what learning may take"
    policy.slice_bytes, policy.recompute = 2 * needed, True
    assert sampled(policy, PROMPTS).inputs.kept is None, "whoever recomputes has no memory to spare"
    policy.recompute = False
    assert sampled(policy, PROMPTS).inputs.kept is not None
    assert sampled(policy_of("qwen3"), PROMPTS).inputs.kept is None, "its heads are normed between product and attention"


@pytest.fixture
def calls_cost_nothing(monkeypatch) -> None:
    """So few tokens as here would not be worth a pass."""
    monkeypatch.setattr(activation_cache, "CALLS", 0)


def together(*batches: Trajectories) -> Trajectories:
    return join_text([batch.replace(info=[{}] * batch.rows) for batch in batches])


def test_rows_of_several_calls_of_a_step_are_each_learned_from_by_their_own_pass(passes, calls_cost_nothing):
    policy = policy_of("llama").to(dtype=torch.float64)
    first, second = sampled(policy, PROMPTS), sampled(policy, LONG)
    mixed = together(first, second).take_rows(torch.tensor([17, first.rows + 2, 16, 3, first.rows, 0, first.rows + 1]))
    for mine, plain in zip(learned(policy, mixed), learned(policy, forgotten(mixed)), strict=True):
        torch.testing.assert_close(mine, plain, atol=1e-10, rtol=1e-9)
    assert passes == [True, True, False]


def test_parts_of_a_few_tokens_are_not_worth_a_pass_each(passes):
    policy = policy_of("llama").to(dtype=torch.float64)
    policy.evaluate(together(*(sampled(policy, PROMPTS) for _ in range(3))))
    assert passes == [False]


def test_rows_that_nobody_kept_are_computed_apart_unless_they_share_too_much_with_the_others(passes, calls_cost_nothing):
    policy = policy_of("llama").to(dtype=torch.float64)
    mine = sampled(policy, PROMPTS)
    other = forgotten(sampled(policy, [[1, 7, 7, 3]]))
    rows = together(mine, other)
    found = learned(policy, rows)
    assert passes == [True, False]
    for own, plain in zip(found, learned(policy, forgotten(rows)), strict=True):
        torch.testing.assert_close(own, plain, atol=1e-10, rtol=1e-9)
    long = sampled(policy, [[1, *range(3, 12)] * 4])  # one row of it and a stranger: the prompt is nearly all there is to compute
    pair = together(long.take_rows(torch.tensor([0])), forgotten(long.take_rows(torch.tensor([1]))))
    passes.clear()
    policy.evaluate(pair)
    assert passes == [False], "apart they would compute the prompt twice"


def test_the_passes_of_a_step_are_bounded_together_and_the_oldest_make_room():
    policy = policy_of("llama")
    sampled(policy, PROMPTS)
    (size,) = (kept.bytes for kept in policy.kept.passes.values())
    policy.kept.forget()
    policy.slice_bytes = 5 * size  # two passes in half of it, and not three
    names = [sampled(policy, PROMPTS).inputs.kept[0] >> activation_cache.ROWS for _ in range(3)]
    assert [*policy.kept.passes] == [int(name) for name in names[1:]]


def test_passes_with_other_weights_do_not_stay_beside_a_new_one(passes):
    policy = policy_of("llama")
    old = sampled(policy, PROMPTS)
    with torch.no_grad():
        policy.trainable()["policy"][3].mul_(1.01)
    new = sampled(policy, PROMPTS)
    policy.evaluate(new)
    policy.evaluate(old)
    assert passes == [True, False] and len(policy.kept.passes) == 1


def test_one_stretch_is_written_to_only_by_all_rows_in_order_and_equally_far():
    body = policy_of("llama").body
    assert body is not None
    kept = ActivationCache(body, torch.float32, [0], torch.zeros(4, dtype=torch.long), room=3)
    every, alive = torch.arange(4), torch.ones(4, dtype=torch.bool)

    def step(rows: torch.Tensor, steps: list[int], alive: torch.Tensor = alive) -> int | None:
        return CacheWriter(kept, rows, torch.tensor(steps), rows, alive[: len(rows)]).step

    assert step(every, [1, 1, 1, 1]) == 1
    assert step(every.roll(-2), [0, 0, 1, 1]) is None, "places side by side, of two steps"
    assert step(every.flip(0), [1, 1, 1, 1]) is None and step(every, [1, 1, 1, 2]) is None and step(every[:3], [1, 1, 1]) is None
    assert step(every, [1, 1, 1, 1], torch.tensor([True, True, True, False])) is None


def test_memory_is_used_again():
    policy = policy_of("llama")
    engine, uniforms = TorchEngine(policy), seeding.uniforms((len(PROMPTS) * N, TOKENS), 7)

    def addresses() -> list[int]:
        engine.sync(policy)
        engine.generate(PROMPTS, N, Sampling(TOKENS), uniforms, keep=True)
        (kept,) = policy.kept.passes.values()
        return [tensor.data_ptr() for layer in kept.layers for tensor in layer]

    whole = addresses()
    assert addresses() == whole
    engine.sync(policy)
    engine.generate(PROMPTS[:2], N, Sampling(TOKENS), uniforms[: 2 * N], keep=True)
    (kept,) = policy.kept.passes.values()
    assert kept.layers[0][0].data_ptr() == whole[0], "fewer rows"
    assert addresses() == whole, "none of it was lost"


def by_letters(texts: list[str]) -> Scores:
    """Rewards that differ within nearly any group."""
    return Scores([float(sum(map(ord, text)) % 7) for text in texts], [False] * len(texts))


@pytest.mark.parametrize(("updates", "expected"), [(1, [True]), (2, [True, True, False])])
def test_a_learner_makes_no_forward_pass_before_its_first_update(updates, expected, passes, monkeypatch):
    """With two updates: the look before, the first and the second, after which the policy has moved."""

    def trained(keeping: bool) -> tuple[list[torch.Tensor], list[bool]]:
        if not keeping:
            monkeypatch.setattr(ActivationCache, "serves", staticmethod(lambda body: False))
        passes.clear()
        policy, task = tiny(0, width=32), load_task("reverse:length=2")
        monkeypatch.setattr(type(task), "score", lambda _, problems, texts: by_letters(texts))
        rollout = TextRollout(task, policy, tasks=4, samples=4, sampling=Sampling(5), seed=1)
        chosen = Settings(
            steps=3, lr=0.01, warmup=10, tasks_per_step=4, samples_per_task=4, updates_per_step=updates, watch_kl=False
        )
        settings = chosen.resolved("text", "tiny", max_tokens=5)
        learner = PolicyGradient(find("grpo").derive(regularize=None), policy, rollout, settings)
        for step in (1, 2):
            learner.step(step)
        return [parameter.detach().clone() for parameter in policy.trainable()["policy"]], list(passes)

    spared, made = trained(True), trained(False)
    assert spared[1] == expected * 2 and not any(made[1])
    for mine, plain in zip(spared[0], made[0], strict=True):
        torch.testing.assert_close(mine, plain, atol=2e-5, rtol=1e-3)


def test_a_step_that_asks_again_makes_no_forward_pass_either(passes, calls_cost_nothing, monkeypatch):
    """Groups that fail are asked again with a hint: half of the rows come from the first call and half from the second."""
    policy, task = tiny(0, width=32), load_task("reverse:length=2")
    asked: list[int] = []

    def score(_, problems, texts) -> Scores:
        paid, again = by_letters(texts).reward, bool(asked)
        asked.append(len(texts))
        return Scores([x * (again or problem.id % 2) for x, problem in zip(paid, problems, strict=True)], [False] * len(texts))

    monkeypatch.setattr(type(task), "score", score)
    rollout = TextRollout(task, policy, tasks=6, samples=4, sampling=Sampling(5), seed=1)
    chosen = Settings(steps=3, lr=0.01, tasks_per_step=6, samples_per_task=4, updates_per_step=1, watch_kl=False)
    settings = chosen.resolved("text", "tiny", max_tokens=5)
    learner = PolicyGradient(find("ghpo"), policy, rollout, settings)
    found = learner.step(1)
    assert found["further_samples"] > 0 and len(passes) == 2 and all(passes)


def test_adapters_learn_from_what_was_kept(passes):
    pytest.importorskip("peft", reason="LoRA needs the extra upslope[lora]")
    policy = policy_of("llama")
    policy.add_lora(2, seed=0)
    with torch.no_grad():
        for parameter in policy.trainable()["policy"]:
            parameter.add_(0.1)
    rows = sampled(policy, PROMPTS)
    for mine, plain in zip(learned(policy, rows), learned(policy, forgotten(rows)), strict=True):
        torch.testing.assert_close(mine, plain, atol=1e-4, rtol=1e-3)
    assert passes == [True, False]
