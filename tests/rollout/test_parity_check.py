"""Which models our own decoder takes, and whether what it does not take is computed rightly or refused."""

from __future__ import annotations

import warnings

import pytest
import torch
from model_families import small_config, small_model

from upslope.errors import UserError
from upslope.policies import load_language_model
from upslope.policies.forward.architecture import architecture
from upslope.policies.language_model import LanguageModel
from upslope.policies.tiny import character_tokenizer
from upslope.rollout import parity_check
from upslope.rollout.engines.torch_engine import TorchEngine
from upslope.rollout.parity_check import check_policy
from upslope.types import Sampling

pytestmark = pytest.mark.slow

OWN = ("llama", "mistral", "qwen2", "qwen3", "gemma")
CAN_BE_TRAINED = (
    "apertus", "arcee", "bert", "bloom", "cohere", "cohere2", "deepseek_v2", "deepseek_v3", "exaone4", "falcon", "gemma", "gemma2",
    "gemma3_text", "glm", "glm4", "gpt2", "gpt_bigcode", "gpt_neox", "gpt_oss", "gptj", "granite", "granitemoe", "helium", "llama",
    "minicpm3", "ministral", "mistral", "mixtral", "mpt", "nemotron", "olmo", "olmo2", "olmo3", "olmoe", "opt", "phi", "phi3",
    "phimoe", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "seed_oss", "smollm3", "stablelm", "starcoder2", "xglm",
)  # fmt: skip
CANNOT_BE_TRAINED = (
    "mamba",
    "falcon_mamba",
    "rwkv",
    "xlstm",
    "recurrent_gemma",
    "openai-gpt",
    "xlnet",
    "bart",
    "roberta",
    "whisper",
)
UNREASONABLE = ("blt", "gemma3", "gemma4", "gemma4_text", "git", "got_ocr2", "moss_transcribe_diarize", "phi4_multimodal", "xlm",
                "longcat_flash", "falcon_h1", "inkling_text", "roc_bert")  # fmt: skip
"""No sizes of theirs that we know make them small, or fit together; or they take many seconds."""


def policy_of(kind: str, **changes) -> LanguageModel:
    return LanguageModel(small_model(small_config(kind, **changes)), character_tokenizer("abc"), kind)


def by_whole_passes(policy: LanguageModel, prompt: list[int], tokens: torch.Tensor) -> torch.Tensor:
    """Log-probabilities of an answer by one pass of `transformers` over all of it."""
    with torch.no_grad():
        ids = torch.tensor([*prompt, *tokens.tolist()])
        logp = policy.model(input_ids=ids.unsqueeze(0)).logits[0].float().log_softmax(1)
    return logp[len(prompt) - 1 : -1].gather(1, tokens.unsqueeze(1)).squeeze(1)


def largest_gap(policy: LanguageModel) -> float:
    """Of the log-probabilities that sampling records from those of whole passes, over prompts of three lengths."""
    policy.stop_ids = frozenset()
    prompts = [[5, 9, 33, 7], [12], [40, 41, 6, 8, 22, 51, 11]]
    uniforms = torch.rand(6, 5, generator=torch.Generator().manual_seed(0))
    found = TorchEngine(policy).generate(prompts, 2, Sampling(max_tokens=5), uniforms)
    expected = [by_whole_passes(policy, prompts[row // 2], tokens) for row, tokens in enumerate(found.tokens)]
    return float((found.logp - torch.stack(expected)).abs().max())


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"mlp_bias": True}, "mlp.down_proj.bias"),
        ({"a_setting_of_tomorrow": 0.5}, "'a_setting_of_tomorrow'"),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}}, "partial_rotary_factor"),
        ({"is_encoder_decoder": True}, "is_encoder_decoder"),
    ],
)
def test_a_llama_with_what_our_decoder_does_not_know_is_left_to_transformers(changes, why, monkeypatch):
    monkeypatch.setattr("upslope.policies.forward.architecture._said", set())
    config = small_config("llama", **changes)
    model = small_model(config) if "partial" not in why else small_model(small_config("llama"))
    model.config = config
    with pytest.warns(UserWarning, match=why):
        assert architecture(model) is None


def test_the_biases_of_the_inner_layer_count_in_sampling_and_in_learning():
    policy = policy_of("llama", mlp_bias=True, attention_bias=True)
    assert largest_gap(policy) < 1e-4
    rows = parity_check.probe_rows(policy)
    policy.evaluate(rows).logp.sum().backward()
    for name, parameter in policy.model.named_parameters():
        if "mlp" in name and name.endswith("bias"):
            assert parameter.grad is not None and parameter.grad.abs().sum() > 0, name


@pytest.mark.parametrize("kind", OWN)
def test_a_tensor_or_a_buffer_that_is_not_known_is_not_ignored(kind):
    for spoil in (
        lambda model: model.model.layers[1].mlp.register_parameter("extra", torch.nn.Parameter(torch.ones(3))),
        lambda model: model.model.register_parameter("extra", torch.nn.Parameter(torch.ones(3))),
        lambda model: model.model.register_buffer("extra", torch.ones(3)),
        lambda model: setattr(model.model.layers[2].self_attn.o_proj, "bias", torch.nn.Parameter(torch.ones(32))),
        lambda model: setattr(model.model.layers[2].self_attn, "q_norm", torch.nn.LayerNorm(8)),
    ):
        model = small_model(small_config(kind, **({"sliding_window": None} if kind == "mistral" else {})))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert architecture(model) is not None
            spoil(model)
            assert architecture(model) is None


def other_values(value):
    """What a setting could be instead."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, float):
        return [value * 2 + 0.25]
    if value is None:
        return [True, 3]
    return ["silu", "gelu", "gelu_new", "relu"] if value in ("silu", "gelu_pytorch_tanh") else []


@pytest.mark.parametrize("kind", OWN)
def test_whatever_a_config_sets_our_decoder_agrees_or_is_not_taken(kind):
    """Every setting of the family away from its default, one at a time."""
    plain = {"sliding_window": None} if kind == "mistral" else {}
    own = 0
    for name, value in small_config(kind, **plain).to_dict().items():
        for other in other_values(value):
            try:
                policy = policy_of(kind, **plain | {name: other})
                by_whole_passes(policy, [5, 9], torch.tensor([3, 4]))
            except Exception:  # a value that transformers itself cannot work with
                continue
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                taken = architecture(policy.model) is not None
            if taken:
                own += 1
                assert largest_gap(policy) < 1e-4, f"{name}={other}"
    assert own > 5


def test_a_decoder_that_is_off_is_given_up_and_the_figure_is_said(monkeypatch):
    policy = policy_of("llama")
    small = parity_check._copied(policy, torch.float32)
    assert small.model.model.layers[0].mlp.up_proj.weight.data_ptr() == policy.model.model.layers[0].mlp.up_proj.weight.data_ptr()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not check_policy(policy).plain
    changed = architecture(policy.model)
    monkeypatch.setattr(
        "upslope.policies.language_model.architecture", lambda model: type(changed)(**vars(changed) | {"model": model, "eps": 0.5})
    )
    policy._body = None
    with pytest.warns(UserWarning, match=r"differ by [\d.e-]+ from it, more than 0.0001"):
        check_policy(policy)
    assert policy.plain and policy.body is None and policy.frozen_copy().body is None
    assert largest_gap(policy) < 1e-4


def test_rounding_is_no_mistake(monkeypatch):
    monkeypatch.setattr(parity_check, "LARGEST_GAP", 1e-8)  # less than float32 can hold
    policy = policy_of("llama")
    with torch.no_grad():
        small = parity_check._copied(policy, torch.float32)
        rows = parity_check.probe_rows(small)
        assert parity_check._gap(small, rows, parity_check.whole_passes(small, rows)) > 1e-8
    monkeypatch.setattr(parity_check, "LARGEST_GAP", 1e-6)
    assert parity_check._own_gap(policy, torch.float64) <= 1e-6
    monkeypatch.setattr(parity_check, "_own_gap", lambda policy, dtype: 1.0 if dtype == torch.float32 else 0.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not check_policy(policy).plain


def test_an_engine_that_is_off_is_found_although_learning_is_right(monkeypatch):
    from upslope.rollout.decode.weights import Weights

    policy, refresh = policy_of("llama"), Weights.refresh

    def spoilt(self):
        refresh(self)
        self.last_norm = self.last_norm * 1.01

    monkeypatch.setattr(Weights, "refresh", spoilt)
    with pytest.warns(UserWarning, match="differ by"):
        assert check_policy(policy).plain


def test_the_probe_draws_nothing_and_changes_no_weight():
    policy = policy_of("qwen3")
    policy.add_value_head(0)
    before, state = {name: value.clone() for name, value in policy.weights().items()}, torch.get_rng_state()
    heads, model, config = policy.heads, policy.model, policy.model.config.to_dict()
    check_policy(policy)
    assert torch.equal(state, torch.get_rng_state())
    assert policy.heads is heads and policy.model is model and model.config.to_dict() == config
    assert all(torch.equal(value, before[name]) for name, value in policy.weights().items())
    assert not policy.kept.passes and not policy.plain


@pytest.mark.parametrize("kind", ["qwen2", "gemma"])
def test_a_large_model_is_looked_at_through_its_first_and_last_layer(kind, monkeypatch):
    monkeypatch.setattr(parity_check, "LARGE", 1000)
    policy = policy_of(kind).to(dtype=torch.bfloat16)
    small = parity_check._copied(policy, torch.float32)
    layers = small.model.model.layers
    assert len(layers) == 2 and small.model.config.num_hidden_layers == 2 and len(policy.model.model.layers) == 4
    assert {parameter.dtype for parameter in small.model.parameters()} == {torch.float32}
    assert torch.equal(layers[1].mlp.up_proj.weight, policy.model.model.layers[3].mlp.up_proj.weight.float())
    assert small.model.lm_head.weight is small.model.model.embed_tokens.weight or kind == "qwen2"
    rows = parity_check.probe_rows(small)
    with torch.no_grad():
        assert parity_check._gap(small, rows, parity_check.whole_passes(small, rows)) < 1e-5
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not check_policy(policy).plain


def test_adapters_are_looked_at_too():
    pytest.importorskip("peft", reason="LoRA needs the extra upslope[lora]")
    policy = policy_of("llama")
    policy.add_lora(2, seed=0)
    with torch.no_grad():
        for parameter in policy.trainable()["policy"]:
            parameter.add_(0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not check_policy(policy).plain


@pytest.mark.parametrize("kind", ["mamba", "bart", "gemma4_unified_text"])
def test_models_that_cannot_be_sampled_rightly_are_refused_in_one_line(kind):
    policy = policy_of(kind)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(UserError, match="cannot be trained here") as problem:
            check_policy(policy)
    assert "\n" not in str(problem.value) and "Llama" in str(problem.value)


def test_a_bidirectional_model_is_refused():
    config = small_config("bert")
    config.is_decoder = False
    policy = LanguageModel(small_model(config), character_tokenizer("abc"), "bert")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(UserError, match="cannot be trained here"):
            check_policy(policy)


@pytest.mark.slow
def test_of_all_families_each_is_computed_rightly_or_refused():
    """Sampling records the log-probabilities of a whole pass of `transformers`, or the model is refused when it is loaded."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as FAMILIES

    found: dict[str, list[str]] = {"own": [], "plain": [], "refused": [], "not built": []}
    for kind in FAMILIES:
        if kind in UNREASONABLE:
            continue
        try:
            policy = policy_of(kind, **({"sliding_window": None} if kind == "mistral" else {}))
        except Exception:  # our sizes do not fit together in this family
            found["not built"].append(kind)
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                check_policy(policy)
            except UserError:
                found["refused"].append(kind)
                continue
            found["plain" if policy.body is None else "own"].append(kind)
            assert largest_gap(policy) < 1e-4, kind
    assert sorted(found["own"]) == sorted(OWN)
    assert not {*CAN_BE_TRAINED} - {*found["own"], *found["plain"]}, "families that worked no longer do"
    assert {*CANNOT_BE_TRAINED} <= {*found["refused"]}
    assert len(found["not built"]) < 20, found["not built"]


def test_a_model_that_was_found_right_is_not_looked_at_again_until_something_changes(tmp_path, monkeypatch):
    monkeypatch.setenv("UPSLOPE_CACHE", str(tmp_path / "cache"))
    looked: list[str] = []
    whole = parity_check.check_policy
    monkeypatch.setattr(parity_check, "check_policy", lambda policy: (looked.append(policy.name), whole(policy))[1])
    made = load_language_model("tiny:layers=1,width=16", 0)
    made.save(tmp_path / "model")
    for _ in range(2):
        parity_check.load_checked(str(tmp_path / "model"), 0)
    assert len(looked) == 1
    load_language_model("tiny:layers=1,width=16", 1).save(tmp_path / "model")
    parity_check.load_checked(str(tmp_path / "model"), 0)
    assert len(looked) == 2
    # One that our own decoder gets wrong is told of every time.
    monkeypatch.setattr(parity_check, "_own_gap", lambda policy, dtype: 1.0)
    made.save(tmp_path / "other")
    for _ in range(2):
        with pytest.warns(UserWarning, match="runs through transformers"):
            assert parity_check.load_checked(str(tmp_path / "other"), 0).plain
    assert len(looked) == 4
