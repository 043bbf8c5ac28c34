"""The torch engine against full forward passes, exact distributions and itself cut differently."""

from __future__ import annotations

import math

import pytest
import torch
from small_models import KINDS, PROMPTS, policy_of, rows_of

from upslope.errors import UserError
from upslope.policies import LanguageModel, load_language_model
from upslope.policies.tiny import tiny
from upslope.rollout.decode import stepper as stepper_module
from upslope.rollout.decode.plain import Stream
from upslope.rollout.decode.stepper import Stepper
from upslope.rollout.engines.torch_engine import TorchEngine
from upslope.runtime import seeding
from upslope.types import Sampling

torch.set_num_threads(1)


def truncated(logits: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    """Probabilities after truncation, one token at a time and without a tensor operation to share with the engine."""
    share = (logits.double() / sampling.temperature).softmax(-1).tolist()
    order = sorted(range(len(share)), key=lambda token: -share[token])
    order = order[: sampling.top_k] if sampling.top_k else order
    total, mass, kept = sum(share[token] for token in order), 0.0, []
    for token in order:
        if mass < sampling.top_p and share[token] >= sampling.min_p * share[order[0]]:
            kept.append(token)
        mass += share[token] / total
    result = torch.zeros(len(share), dtype=torch.float64)
    for token in kept:
        result[token] = share[token] / sum(share[other] for other in kept)
    return result


@torch.no_grad()
def next_logits(policy: LanguageModel, ids: list[int]) -> torch.Tensor:
    return policy.model(torch.tensor([ids]), use_cache=False).logits[0, -1]


@pytest.mark.parametrize("kind", KINDS)
def test_recorded_logp_and_entropy_are_those_of_a_full_forward_pass(kind):
    policy, sampling = policy_of(kind), Sampling(14, temperature=1.3)
    done = TorchEngine(policy).generate(PROMPTS, 6, sampling, seeding.uniforms((30, 14), 1))
    lengths = done.sampled.sum(1)
    assert lengths.min() < 6 and lengths.max() == 14, "the case must hold early stops and rows that reach the limit"
    view = policy.evaluate(rows_of(policy, PROMPTS, 6, done, 1.3), frozenset({"entropy"}))
    torch.testing.assert_close(done.logp, view.logp, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(done.entropy, view.entropy, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("plain", [False, True], ids=["ours", "transformers"])
def test_groups_may_differ_in_size(kind, plain):
    """Each row says what it says alone; and where all are of one size it makes no difference how that is said."""
    policy, sampling, each = policy_of(kind), Sampling(9), [3, 1, 4, 1, 2]
    policy.plain, uniforms, engine = plain, seeding.uniforms((11, 9), 5), TorchEngine(policy)
    done = engine.generate(PROMPTS, each, sampling, uniforms)
    owners = [prompt for prompt, own in zip(PROMPTS, each, strict=True) for _ in range(own)]
    for row, prompt in enumerate(owners):
        alone = engine.generate([prompt], 1, sampling, uniforms[row : row + 1])
        length = alone.tokens.shape[1]
        assert done.tokens[row, :length].tolist() == alone.tokens[0].tolist() and done.finish[row] == alone.finish[0]
    equal, said = (engine.generate(PROMPTS, n, sampling, seeding.uniforms((10, 9), 6)) for n in (2, [2] * 5))
    assert torch.equal(equal.tokens, said.tokens) and torch.equal(equal.logp, said.logp)


def test_groups_of_different_sizes_may_be_cut_into_chunks_and_stopped_by_texts():
    policy, uniforms, each = policy_of("llama"), seeding.uniforms((11, 9), 5), [3, 1, 4, 1, 2]
    whole, cut = TorchEngine(policy), TorchEngine(policy)
    cut.memory_bytes = 1  # a prompt at a time
    free = whole.generate(PROMPTS, each, Sampling(9), uniforms)
    stop = policy.decode([int(free.tokens[9, 1])]) or policy.decode([int(free.tokens[4, 1])])
    one, two = (engine.generate(PROMPTS, each, Sampling(9, stop=(stop,)), uniforms) for engine in (whole, cut))
    assert one.finish == two.finish and one.finish != free.finish
    assert [row[: int(n)] for row, n in zip(one.tokens.tolist(), one.sampled.sum(1), strict=True)] == [
        row[: int(n)] for row, n in zip(two.tokens.tolist(), two.sampled.sum(1), strict=True)
    ]
    with pytest.raises(UserError, match="2 numbers of completions, the smallest 1, for 5 prompts"):
        whole.generate(PROMPTS, [1, 2], Sampling(9), uniforms)
    with pytest.raises(UserError, match="the smallest 0"):
        whole.generate(PROMPTS, [3, 0, 4, 1, 3], Sampling(9), uniforms)
    with pytest.raises(UserError, match="n=1 to 4"):
        whole.generate(PROMPTS, each, Sampling(9), uniforms[:5])


@pytest.mark.parametrize("kind", KINDS)
def test_no_row_depends_on_the_rows_beside_it(kind):
    """Batched, padded, shared prompts and dropped rows against one call per row."""
    policy, sampling = policy_of(kind), Sampling(14)
    uniforms = seeding.uniforms((30, 14), 2)
    engine = TorchEngine(policy)
    done = engine.generate(PROMPTS, 6, sampling, uniforms)
    for row in range(30):
        alone = engine.generate([PROMPTS[row // 6]], 1, sampling, uniforms[row : row + 1])
        length = alone.tokens.shape[1]
        assert done.tokens[row, :length].tolist() == alone.tokens[0].tolist()
        assert done.finish[row] == alone.finish[0]
        assert done.sampled[row].sum() == length and (done.tokens[row, length:] == policy.pad_id).all()
        torch.testing.assert_close(done.logp[row, :length], alone.logp[0], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(10, 0.8, top_k=4),
        Sampling(10, 1.2, top_p=0.7),
        Sampling(10, min_p=0.2),
        Sampling(10, 1.5, top_k=8, top_p=0.8, min_p=0.05),
    ],
    ids=str,
)
def test_truncated_draws_record_the_renormalised_distribution(sampling):
    policy = policy_of("qwen3")
    done = TorchEngine(policy).generate(PROMPTS, 3, sampling, seeding.uniforms((15, 10), 3))
    for row in range(15):
        ids = list(PROMPTS[row // 3])
        for place in range(int(done.sampled[row].sum())):
            share, token = truncated(next_logits(policy, ids), sampling), int(done.tokens[row, place])
            assert share[token] > 0
            assert done.logp[row, place] == pytest.approx(math.log(share[token]), abs=1e-4)
            assert done.entropy[row, place] == pytest.approx(-sum(p * math.log(p) for p in share.tolist() if p), abs=1e-4)
            ids.append(token)


@pytest.mark.parametrize(
    "sampling",
    [Sampling(2), Sampling(2, 1.7), Sampling(2, top_k=5), Sampling(2, 1.3, top_p=0.9), Sampling(2, 2.0, min_p=0.1)],
    ids=str,
)
def test_tokens_come_with_the_frequencies_of_the_distribution(sampling):
    from scipy.stats import chisquare

    policy, prompt, n = policy_of("llama"), PROMPTS[1], 6000
    done = TorchEngine(policy).generate([prompt], n, sampling, seeding.uniforms((n, 2), 4))
    first = done.tokens[:, 0]
    commonest = int(first.bincount().argmax())
    for ids, drawn in ((prompt, first), ([*prompt, commonest], done.tokens[first == commonest, 1])):
        share = truncated(next_logits(policy, ids), sampling)
        counts = drawn.bincount(minlength=len(share)).double()
        assert counts[share == 0].sum() == 0
        # Rare tokens are pooled: the test's approximation needs five expected of each.
        rare = share * len(drawn) < 5
        seen, expected = [*counts[~rare].tolist()], [*(share[~rare] * len(drawn)).tolist()]
        if share[rare].sum() * len(drawn) >= 5:
            seen, expected = [*seen, float(counts[rare].sum())], [*expected, float(share[rare].sum() * len(drawn))]
        else:
            expected = [value * sum(seen) / sum(expected) for value in expected]
        assert chisquare(seen, expected).pvalue > 1e-3


def test_the_frequency_test_notices_a_wrong_temperature():
    from scipy.stats import chisquare

    policy, n = policy_of("llama"), 6000
    done = TorchEngine(policy).generate([PROMPTS[1]], n, Sampling(1, 1.2), seeding.uniforms((n, 1), 4))
    share = truncated(next_logits(policy, PROMPTS[1]), Sampling(1, 1.0))
    common = share * n >= 5
    counts = done.tokens[:, 0].bincount(minlength=23).double()[common]
    assert chisquare(counts.tolist(), (share[common] / share[common].sum() * counts.sum()).tolist()).pvalue < 1e-6


def test_the_same_numbers_give_the_same_bits():
    policy, uniforms = policy_of("gemma2"), seeding.uniforms((10, 9), 5)
    one, two = (TorchEngine(policy).generate(PROMPTS, 2, Sampling(9), uniforms) for _ in range(2))
    assert torch.equal(one.tokens, two.tokens) and torch.equal(one.logp, two.logp) and torch.equal(one.entropy, two.entropy)
    other = TorchEngine(policy).generate(PROMPTS, 2, Sampling(9), seeding.uniforms((10, 9), 6))
    assert other.tokens.shape != one.tokens.shape or not torch.equal(other.tokens, one.tokens)


def test_greedy_takes_the_likeliest_token_and_is_certain():
    policy = policy_of("llama")
    done = TorchEngine(policy).generate([PROMPTS[1]], 1, Sampling(6, temperature=0), seeding.uniforms((1, 6), 0))
    ids = list(PROMPTS[1])
    for token in done.tokens[0].tolist():
        assert token == int(next_logits(policy, ids).argmax())
        ids.append(token)
    assert done.logp.abs().max() == 0 and done.entropy.abs().max() == 0


@pytest.mark.parametrize("kind", ["gpt2", "gemma2"])
def test_a_cache_that_cannot_drop_rows_keeps_them(kind, monkeypatch):
    policy, uniforms = policy_of(kind), seeding.uniforms((30, 14), 7)
    dropped = TorchEngine(policy).generate(PROMPTS, 6, Sampling(14), uniforms)
    monkeypatch.setattr(Stream, "keep", lambda self, index: False)
    kept = TorchEngine(policy).generate(PROMPTS, 6, Sampling(14), uniforms)
    assert torch.equal(kept.tokens, dropped.tokens) and kept.finish == dropped.finish
    torch.testing.assert_close(kept.logp, dropped.logp, atol=1e-5, rtol=1e-4)


def test_ended_rows_leave_the_batch_and_a_prompt_is_computed_once(monkeypatch):
    policy, read, sizes = policy_of("llama"), [], []
    logits, memory = Stepper.logits, stepper_module.prompt_memory
    monkeypatch.setattr(Stepper, "logits", lambda self, count: sizes.append(count) or logits(self, count))
    monkeypatch.setattr(stepper_module, "prompt_memory", lambda *given: read.append(len(given[2])) or memory(*given))
    TorchEngine(policy).generate(PROMPTS, 6, Sampling(14), seeding.uniforms((30, 14), 8))
    assert read == [2 + 6 + 0 + 4], "five prompts, two of them the same, without their last tokens"
    assert sizes[0] == 30 and sizes[-1] < 30 and sizes == sorted(sizes, reverse=True)


@pytest.mark.parametrize("kind", ["llama", "qwen2-full", "qwen3", "gemma"])
@pytest.mark.parametrize("copied", [0, 3, 48])
def test_neither_waiting_for_a_place_nor_where_prompts_lie_changes_what_is_drawn(kind, copied, monkeypatch):
    policy, uniforms = policy_of(kind), seeding.uniforms((30, 14), 12)
    whole = TorchEngine(policy).generate(PROMPTS, 6, Sampling(14), uniforms)
    monkeypatch.setattr(stepper_module, "COPIED", copied)
    engine = TorchEngine(policy)
    engine.max_rows = 7
    few = engine.generate(PROMPTS, 6, Sampling(14), uniforms)
    assert torch.equal(whole.tokens, few.tokens) and whole.finish == few.finish
    torch.testing.assert_close(whole.logp, few.logp, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(whole.entropy, few.entropy, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_a_stop_string_ends_a_row_where_it_is_complete(kind):
    policy, uniforms = policy_of(kind), seeding.uniforms((30, 14), 13)
    policy.stop_ids = frozenset({2})
    free = TorchEngine(policy).generate(PROMPTS, 6, Sampling(14), uniforms)
    texts = [policy.decode(row[: int(length)]) for row, length in zip(free.tokens, free.sampled.sum(1), strict=True)]
    stop = next(text[i : i + 2] for text in texts for i in range(2, len(text) - 4))
    held = TorchEngine(policy).generate(PROMPTS, 6, Sampling(14, stop=(stop,)), uniforms)
    cut = 0
    for row, text in enumerate(texts):
        length = int(held.sampled[row].sum())
        said = policy.decode(held.tokens[row, :length])
        assert said == (text[: text.index(stop) + 2] if stop in text else text)
        assert (held.finish[row] == "stop") == (stop in text or free.finish[row] == "stop")
        torch.testing.assert_close(held.logp[row, :length], free.logp[row, :length], atol=1e-5, rtol=1e-4)
        assert not held.sampled[row, length:].any() and (held.tokens[row, length:] == policy.pad_id).all()
        cut += stop in text
    assert 0 < cut < len(texts)


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_a_stop_string_complete_with_the_last_token_that_fits_is_a_stop(kind):
    policy, uniforms = policy_of(kind), seeding.uniforms((30, 6), 13)
    policy.stop_ids = frozenset({2})
    free = TorchEngine(policy).generate(PROMPTS, 6, Sampling(6), uniforms)
    row = free.finish.index("length")
    text = policy.decode(free.tokens[row])
    assert text[-2:] not in text[:-1]
    held = TorchEngine(policy).generate(PROMPTS, 6, Sampling(6, stop=(text[-2:],)), uniforms)
    assert held.finish[row] == "stop" and int(held.sampled[row].sum()) == 6


def test_chunks_of_prompts_do_not_change_what_is_drawn():
    policy, uniforms = policy_of("qwen2"), seeding.uniforms((20, 8), 9)
    whole, cut = TorchEngine(policy), TorchEngine(policy)
    cut.memory_bytes = 1
    one, two = (engine.generate(PROMPTS, 4, Sampling(8), uniforms) for engine in (whole, cut))
    assert list(cut._chunks(PROMPTS, [4] * 5, 8)) == [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5)]
    assert list(whole._chunks(PROMPTS, [4] * 5, 8)) == [(0, 5)]
    assert torch.equal(one.tokens, two.tokens) and one.finish == two.finish


def test_columns_sampled_in_inference_mode_can_enter_a_loss():
    policy = policy_of("llama")
    with torch.inference_mode():
        done = TorchEngine(policy).generate(PROMPTS, 2, Sampling(5), seeding.uniforms((10, 5), 10))
    view = policy.evaluate(rows_of(policy, PROMPTS, 2, done, 1.0))
    ((view.logp - done.logp).exp() * done.sampled).sum().backward()
    assert any(p.grad is not None and p.grad.abs().sum() > 0 for p in policy.trainable()["policy"])


@pytest.mark.parametrize("kind", ["llama", "gemma2"])
def test_the_probe_is_small_for_the_same_weights_and_large_for_others(kind):
    policy = policy_of(kind)
    engine = TorchEngine(policy)
    rows = rows_of(policy, PROMPTS, 2, engine.generate(PROMPTS, 2, Sampling(9, 0.7), seeding.uniforms((10, 9), 11)), 0.7)
    assert engine.probe(rows) < 1e-4
    changed = policy.frozen_copy()
    changed.model.get_output_embeddings().weight.mul_(1.1)
    stale = TorchEngine(changed)
    stale.policy = _Mixed(changed, policy)  # Samples with one model, is compared with the other.
    assert stale.probe(rows) > 1e-2


class _Mixed(LanguageModel):
    def __init__(self, samples: LanguageModel, evaluates: LanguageModel):
        self.__dict__.update(samples.__dict__)
        self.evaluate = evaluates.evaluate  # type: ignore[method-assign]


def test_sync_continues_with_the_new_policy():
    first, second = tiny(0, layers=1, width=16, heads=2), tiny(1, layers=1, width=16, heads=2)
    engine = TorchEngine(first)
    engine.sync(second)
    uniforms = seeding.uniforms((4, 6), 0)
    got = engine.generate([[1, 9]], 4, Sampling(6), uniforms)
    assert torch.equal(got.logp, TorchEngine(second).generate([[1, 9]], 4, Sampling(6), uniforms).logp)


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_tokens": 0},
        {"temperature": -0.5},
        {"top_k": -1},
        {"top_p": 0.0},
        {"top_p": 1.5},
        {"min_p": -0.1},
        {"temperature": math.nan},
    ],
)
def test_nonsense_is_refused_with_its_value(wrong):
    with pytest.raises(UserError, match=f"{next(iter(wrong))}={next(iter(wrong.values()))}"):
        Sampling(**{"max_tokens": 4, **wrong})


def test_a_model_that_has_blown_up_is_not_sampled_from():
    policy = tiny(0, layers=1, width=16, heads=2)
    with torch.no_grad():
        policy.model.lm_head.weight[3, 0] = torch.nan
    with pytest.raises(UserError, match="learning rate"):
        TorchEngine(policy).generate([[1, 9]], 2, Sampling(3), seeding.uniforms((2, 3), 0))


def test_calls_that_cannot_work_say_why():
    engine = TorchEngine(policy_of("llama"))
    with pytest.raises(UserError, match=r"\[2, 4\]"):
        engine.generate([[1]], 2, Sampling(4), torch.zeros(2, 3))
    with pytest.raises(UserError, match="no tokens"):
        engine.generate([[]], 1, Sampling(4), torch.zeros(1, 4))
    with pytest.raises(UserError, match="64 positions"):
        engine.generate([[1] * 10], 1, Sampling(60), torch.zeros(1, 60))


@pytest.mark.slow
def test_smollm2_answers_and_agrees_with_its_full_forward_pass():
    policy = load_language_model("smollm2", 0)
    prompts = [policy.encode("What is the capital of France?"), policy.encode("Say hello.")]
    engine = TorchEngine(policy)
    greedy = engine.generate(prompts, 1, Sampling(12, temperature=0), torch.zeros(2, 12))
    assert "Paris" in policy.decode(greedy.tokens[0])
    done = engine.generate(prompts, 2, Sampling(12, 0.7), seeding.uniforms((4, 12), 0))
    view = policy.evaluate(rows_of(policy, prompts, 2, done, 0.7), frozenset({"entropy"}))
    torch.testing.assert_close(done.logp, view.logp, atol=1e-3, rtol=1e-3)
    torch.testing.assert_close(done.entropy, view.entropy, atol=1e-3, rtol=1e-3)


def test_rows_of_other_engines_are_cut_where_our_own_stops():
    from upslope.rollout.engines.external import Recorded, as_completions, cut_at_stops

    policy, uniforms = policy_of("llama"), seeding.uniforms((30, 14), 13)
    policy.stop_ids = frozenset({2})
    free = TorchEngine(policy).generate(PROMPTS, 6, Sampling(14), uniforms)
    lengths = [int(length) for length in free.sampled.sum(1)]
    texts = [policy.decode(row[:length]) for row, length in zip(free.tokens, lengths, strict=True)]
    stop = next(text[i : i + 2] for text in texts for i in range(2, len(text) - 4))
    rows = [
        Recorded(free.tokens[row, :length].tolist(), free.logp[row, :length].tolist(), None, free.finish[row])
        for row, length in enumerate(lengths)
    ]
    held = TorchEngine(policy).generate(PROMPTS, 6, Sampling(14, stop=(stop,)), uniforms)
    cut = as_completions(cut_at_stops(rows, policy, Sampling(14, stop=(stop,))), policy)
    assert cut.finish == held.finish and sum(len(row.tokens) for row in rows) > int(cut.sampled.sum())
    assert torch.equal(cut.tokens, held.tokens) and torch.equal(cut.sampled, held.sampled)
    assert cut_at_stops(rows, policy, Sampling(14)) == rows
