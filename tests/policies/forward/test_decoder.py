"""Our own forward pass against that of `transformers`, and its nodes against plain autograd."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from upslope.policies.adapters import folded
from upslope.policies.forward import attention, attention_cpu, layer_ops
from upslope.policies.forward.architecture import architecture
from upslope.policies.forward.attention import attend
from upslope.policies.forward.decoder import hidden_states
from upslope.policies.forward.layer_ops import Matrix
from upslope.policies.forward.logprobs import chosen_logp
from upslope.policies.forward.packing import Layout, lay_out
from upslope.policies.language_model import LanguageModel
from upslope.policies.tiny import character_tokenizer

FAMILIES = ("Llama", "Mistral", "Qwen2", "Qwen3", "Gemma")
SIZES = {"vocab_size": 53, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4,
         "num_key_value_heads": 2, "max_position_embeddings": 64, "eos_token_id": 2, "pad_token_id": 0}  # fmt: skip


def model_of(family: str, **changes):
    import transformers as hf

    sizes = {**SIZES, **({} if family == "Qwen2" else {"head_dim": 8}), **changes}
    if family == "Mistral":
        sizes.setdefault("sliding_window", None)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        model = getattr(hf, f"{family}ForCausalLM")(getattr(hf, f"{family}Config")(**sizes))
        for parameter in model.parameters():  # norms and biases away from their trivial starts
            parameter.data.add_(0.1 * torch.randn_like(parameter))
    return model


def ragged():
    """Seven rows of three prompts, in groups of two, three and two; one prompt is a single token."""
    random = torch.Generator().manual_seed(0)
    prompt, mask, row = torch.zeros(7, 7, dtype=torch.long), torch.zeros(7, 7, dtype=torch.long), 0
    for length, rows in ((5, 2), (1, 3), (7, 2)):
        ids = torch.randint(3, 53, (length,), generator=random)
        for _ in range(rows):
            prompt[row, 7 - length :], mask[row, 7 - length :] = ids, 1
            row += 1
    return prompt, mask, torch.randint(3, 53, (7, 6), generator=random), torch.tensor([6, 3, 1, 4, 6, 2, 5])


def by_transformers(model, prompt, mask, action, extent):
    """What the head is given at each wanted position, row after row."""
    ids, seen = torch.cat([prompt, action[:, :-1]], 1), torch.cat([mask, torch.ones_like(action[:, :-1])], 1)
    out = model.model(input_ids=ids, attention_mask=seen, position_ids=(seen.cumsum(1) - 1).clamp_min(0)).last_hidden_state
    return torch.cat([row[: int(length)] for row, length in zip(out[:, -action.shape[1] :], extent, strict=True)])


@pytest.mark.parametrize("recompute", [0, 1, 99])
@pytest.mark.parametrize("family", FAMILIES)
def test_hidden_states_and_gradients_are_those_of_transformers(family, recompute):
    model, rows = model_of(family).double(), ragged()
    body = architecture(model)
    assert body is not None
    ours, theirs = hidden_states(body, lay_out(*rows), torch.float64, recompute), by_transformers(model, *rows)
    # transformers norms in float32 whatever the weights are, hence not closer.
    torch.testing.assert_close(ours, theirs, atol=3e-6, rtol=3e-6)
    slope = torch.randn(ours.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    parameters = list(model.model.parameters())
    for mine, plain in zip(
        torch.autograd.grad(ours, parameters, slope), torch.autograd.grad(theirs, parameters, slope), strict=True
    ):
        torch.testing.assert_close(mine, plain, atol=2e-5 * float(plain.abs().max()), rtol=1e-4)


def test_prompts_are_computed_once_and_padding_never():
    layout = lay_out(*ragged())
    assert layout.prompts == [4, 0, 6] and layout.shared == 10, "all of each prompt but its last token, once"
    assert len(layout.ids) == 10 + 6 + 3 + 1 + 4 + 6 + 2 + 5
    assert layout.which == [0, 0, 1, 1, 1, 2, 2]


def sees(layout: Layout):
    """A token sees its prompt's tokens up to its own place and its own row's up to itself."""
    prompt = torch.tensor([g for g, length in enumerate(layout.prompts) for _ in range(length)] + [-1] * sum(layout.owns))
    row = torch.tensor([-1] * layout.shared + [r for r, length in enumerate(layout.owns) for _ in range(length)])
    group = torch.tensor(layout.which)[row.clamp_min(0)]
    of = torch.where(row < 0, prompt, group)
    same_prompt = (prompt.unsqueeze(0) == of.unsqueeze(1)) & (row.unsqueeze(0) < 0)
    same_row = (row.unsqueeze(0) == row.unsqueeze(1)) & (row.unsqueeze(0) >= 0)
    return (same_prompt | same_row) & (layout.places.unsqueeze(0) <= layout.places.unsqueeze(1))


def dense(q, k, v, layout: Layout, scale):
    """Attention written out."""
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
    scores = torch.einsum("qhw,khw->hqk", q, k) * scale
    return torch.einsum("hqk,khw->qhw", scores.masked_fill(~sees(layout), -torch.inf).softmax(-1), v)


def by_spans(packed, layout: Layout, heads, scale, rows_only):
    """What the kernels do with spans and blocks: each block's queries on what stands before the span and on the span up to them."""
    kv, out = (packed.shape[1] - heads) // 2, torch.zeros(len(packed), heads, packed.shape[2], dtype=packed.dtype)
    blocks = layout.blocks(4)[layout.prompt_blocks(4) if rows_only else 0 :]
    for span, begin in blocks.tolist():
        first, length, before, many, *_ = layout.spans[span].tolist()
        asking = slice(first + begin, first + min(begin + 4, length))
        there = torch.cat([packed[before : before + many], packed[first : asking.stop]])
        q, k, v = (x.transpose(0, 1) for x in (packed[asking, :heads], there[:, heads : heads + kv], there[:, heads + kv :]))
        k, v = (x.repeat_interleave(heads // kv, 0) for x in (k, v))
        shown = torch.ones(q.shape[1], k.shape[1], dtype=torch.bool).tril(k.shape[1] - q.shape[1])
        out[asking] = F.scaled_dot_product_attention(q, k, v, attn_mask=shown, scale=scale).transpose(0, 1)
    return out[layout.shared if rows_only else 0 :]


@pytest.mark.parametrize("how", ["merged", "copied", "spans", "torch"])
def test_every_way_to_attend_is_attention_written_out(how, monkeypatch):
    layout, random = lay_out(*ragged()), torch.Generator().manual_seed(2)
    packed = torch.randn(len(layout.ids), 8, 8, generator=random, dtype=torch.float64, requires_grad=True)
    monkeypatch.setattr(attention_cpu, "COPIED", 0 if how == "merged" else 99)
    ways = {"spans": by_spans, "torch": attention._by_torch}
    expected = dense(*packed.split([4, 2, 2], 1), layout, 0.3)
    slope = torch.randn(expected.shape, generator=random, dtype=torch.float64)
    for rows_only, own in ((False, slice(None)), (True, slice(layout.shared, None))):
        found = ways.get(how, attend)(packed, layout, 4, 0.3, rows_only)
        torch.testing.assert_close(found, expected[own])
        mine, plain = (torch.autograd.grad(x, packed, slope[own], retain_graph=True)[0] for x in (found, expected[own]))
        torch.testing.assert_close(mine, plain)


@pytest.mark.parametrize("most", [3, 4, 100])
@pytest.mark.parametrize("rows_only", [False, True])
def test_gradients_of_keys_are_sums_of_the_shares_that_programs_have(most, rows_only):
    """What the kernels do with `Layout.back_work`: each share from the span's own queries, or from some that look back at it."""
    layout, random = lay_out(*ragged()), torch.Generator().manual_seed(2)
    packed = torch.randn(len(layout.ids), 3, 8, generator=random, dtype=torch.float64, requires_grad=True)
    out = attention._by_torch(packed, layout, 1, 0.3, rows_only)
    slope = torch.randn(out.shape, generator=random, dtype=torch.float64)
    expected = torch.autograd.grad(out, packed, slope)[0][:, 1:]
    shift, (q, k, v) = layout.shared if rows_only else 0, packed.detach().unbind(1)
    grad, score = torch.zeros_like(q), q @ k.t() * 0.3
    grad[shift:] = slope[:, 0]
    work, sums, shares = layout.back_work(4, most)
    found, parts = torch.zeros_like(expected), torch.zeros(max(1, shares), 4, 2, 8, dtype=torch.float64)
    weights = score.masked_fill(~sees(layout), -torch.inf).softmax(-1)
    mean = (grad * (weights @ v)).sum(1, keepdim=True)  # of each output and its grad
    for span, begin, own, since, until, place in work.tolist():
        first, length, *_, behind, _ = layout.spans[span].tolist()
        at = slice(first + begin, first + min(begin + 4, length))
        asked = [*range(first + begin, first + length)] if own and first >= shift else []
        asked += range(behind + since, behind + until)
        weight, to_out = weights[asked][:, at], grad[asked]
        to_score = weight * (to_out @ v[at].t() - mean[asked]) * 0.3
        gradient = torch.stack([to_score.t() @ q[asked], weight.t() @ to_out], 1)
        if place < 0:
            found[at] = gradient
        else:
            parts[place, : len(gradient)] = gradient
    for span, begin, place, count in sums.tolist():
        first, length = layout.spans[span, :2].tolist()
        at = slice(first + begin, first + min(begin + 4, length))
        found[at] = parts[place : place + count].sum(0)[: at.stop - at.start]
    assert bool(shares) == (most < 100)
    torch.testing.assert_close(found, expected)


def test_spans_know_what_looks_back_at_them():
    layout = lay_out(*ragged())
    behind = layout.spans[:, 4:].tolist()
    assert behind[:3] == [[10, 9], [19, 11], [30, 7]], "the rows of each prompt, one behind the other"
    assert [many for _, many in behind[3:]] == [0] * 7


@pytest.mark.parametrize("activation", layer_ops.ACTIVATIONS)
def test_the_nodes_backward_passes_are_the_derivatives_of_their_forward_passes(activation):
    random = torch.Generator().manual_seed(3)

    def drawn(*shape):
        return torch.randn(*shape, generator=random, dtype=torch.float64, requires_grad=True)

    x, delta, norm, bias = drawn(5, 6), drawn(5, 6), drawn(6), drawn(12)
    first, second, down = drawn(4, 6), drawn(8, 6), drawn(6, 6)
    cos, sin = torch.randn(5, 1, 4, dtype=torch.float64), torch.randn(5, 1, 4, dtype=torch.float64)

    def run(x, delta, norm, first, second, bias, down):
        matrix = Matrix.of((first, second), torch.float64)
        bias = Matrix.of((bias[:4], bias[4:]), torch.float64)
        x, _ = layer_ops.normed_linear(x, None, norm, 1e-5, matrix, bias)
        x, both = layer_ops.normed_linear(x, delta, norm, 1e-5, matrix, bias)
        out = layer_ops.gated_linear(
            both, layer_ops.gate_activation(both, activation), activation, Matrix.of((down,), torch.float64)
        )
        out = layer_ops.linear(out, Matrix.of((down,), torch.float64))
        return x, layer_ops.apply_rope(both.view(5, 3, 4), cos, sin, 2), out

    assert torch.autograd.gradcheck(run, (x, delta, norm, first, second, bias, down))


@pytest.mark.parametrize("heat", [None, 0.7])
def test_logp_and_entropy_from_hidden_states_are_those_of_whole_logits(heat, monkeypatch):
    monkeypatch.setattr("upslope.policies.forward.logprobs.CHUNK_FLOATS", 3 * 11)  # three decisions at a time
    random = torch.Generator().manual_seed(4)
    hidden = torch.randn(10, 5, generator=random, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(11, 5, generator=random, dtype=torch.float64, requires_grad=True)
    ids = torch.randint(11, (10,), generator=random)
    heats = None if heat is None else torch.full((10,), heat, dtype=torch.float64)
    found = chosen_logp(hidden, weight, ids, heats, True, torch.float64)
    logp = (hidden @ weight.t() / (heat or 1.0)).log_softmax(1)
    torch.testing.assert_close(found["logp"], logp.gather(1, ids.unsqueeze(1)).squeeze(1))
    torch.testing.assert_close(found["entropy"], -(logp.exp() * logp).sum(1))

    def columns(hidden, weight):
        return tuple(chosen_logp(hidden, weight, ids, heats, True, torch.float64).values())

    assert torch.autograd.gradcheck(columns, (hidden, weight))
    assert "entropy" not in chosen_logp(hidden, weight, ids, heats, False, torch.float64)


@pytest.mark.parametrize(
    ("family", "changes", "why"),
    [
        ("Mistral", {"sliding_window": 4}, "window"),
        ("Llama", {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}}, "dynamic"),
        ("GPT2", {}, "only Llama"),
    ],
)
def test_what_is_not_understood_is_left_to_transformers_and_said_once(family, changes, why, monkeypatch):
    import transformers as hf

    monkeypatch.setattr("upslope.policies.forward.architecture._said", set())
    if family == "GPT2":
        model = hf.GPT2LMHeadModel(hf.GPT2Config(vocab_size=23, n_embd=16, n_layer=1, n_head=2, n_positions=32))
    else:
        model = model_of(family, **changes)
    with pytest.warns(UserWarning, match=why):
        assert architecture(model) is None
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert architecture(model) is None


def test_gradients_of_adapters_are_those_of_transformers():
    pytest.importorskip("peft", reason="LoRA needs the extra upslope[lora]")
    policy = LanguageModel(model_of("Llama").double(), character_tokenizer("abc"), "llama")
    policy.add_lora(4, seed=0)
    parameters, random = policy.trainable()["policy"], torch.Generator().manual_seed(6)
    with torch.no_grad():
        for parameter in parameters:
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=random, dtype=torch.float64))
    assert policy.body is not None
    ours, theirs = hidden_states(policy.body, lay_out(*ragged()), torch.float64), by_transformers(policy.model, *ragged())
    slope = torch.randn(ours.shape, generator=random, dtype=torch.float64)
    for mine, plain in zip(*(torch.autograd.grad(x, parameters, slope) for x in (ours, theirs)), strict=True):
        torch.testing.assert_close(mine, plain, atol=2e-5 * float(plain.abs().max()), rtol=1e-4)


def test_adapters_are_sampled_and_learned_and_saved(tmp_path):
    pytest.importorskip("peft", reason="LoRA needs the extra upslope[lora]")
    from transformers import AutoModelForCausalLM

    policy = LanguageModel(model_of("Llama"), character_tokenizer("abc"), "llama")
    before = policy.frozen_copy()
    policy.add_lora(4, seed=0)
    names = [name for name, parameter in policy.model.named_parameters() if parameter.requires_grad]
    assert names and all("lora_" in name for name in names)
    prompt, mask, action, extent = ragged()
    body = policy.body
    assert body is not None
    fresh = hidden_states(body, lay_out(prompt, mask, action, extent), torch.float32)
    plain = by_transformers(before.model, prompt, mask, action, extent)
    torch.testing.assert_close(fresh, plain, atol=1e-5, rtol=1e-4)
    with torch.no_grad():
        for parameter in policy.trainable()["policy"]:
            parameter.add_(0.1 * torch.randn_like(parameter))
    moved = hidden_states(body, lay_out(prompt, mask, action, extent), torch.float32)
    assert (moved - plain).abs().max() > 1e-2
    moved.square().sum().backward()
    assert all(parameter.grad is not None and parameter.grad.abs().sum() > 0 for parameter in policy.trainable()["policy"])
    torch.testing.assert_close(moved, by_transformers(policy.model, prompt, mask, action, extent), atol=1e-5, rtol=1e-4)
    assert set(folded(policy.model)) == set(dict(before.model.named_parameters())), "what servers are sent has the plain names"
    policy.save(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    torch.testing.assert_close(moved, by_transformers(loaded, prompt, mask, action, extent), atol=1e-5, rtol=1e-4)
    again = LanguageModel(model_of("Llama"), character_tokenizer("abc"), "llama")
    again.add_lora(4, seed=1)
    again.load(tmp_path)
    for mine, theirs in zip(policy.trainable()["policy"], again.trainable()["policy"], strict=True):
        assert torch.equal(mine, theirs)
