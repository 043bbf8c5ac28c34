"""A run's result for other programs: the same logits there, written whole or not at all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import upslope as up
from upslope.cli import main
from upslope.errors import Remark, UserError
from upslope.policies import LanguageModel
from upslope.policies.gguf_file import check_gguf, write_gguf

torch.set_num_threads(1)

SMALL = {
    "tasks_per_step": 2, "samples_per_task": 4, "eval_problems": 4, "warm_start": 0.0, "warmup": 0, "record": "none", "steps": 2,
    "lr": 0.02, "max_tokens": 8,
}  # fmt: skip
IDS = torch.tensor([[1, 5, 9, 30, 12, 7]])


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A task whose reward even an untrained model earns at times, so that weights move: how many letters an answer has."""
    folder = tmp_path_factory.mktemp("task")
    (folder / "problems.jsonl").write_text("".join(f'{{"prompt": "word {number}", "answer": "a"}}\n' for number in range(20)))
    rewarded = "def score(prompts, responses, answers):\n    return [sum(map(str.isalpha, r)) / 8 for r in responses]\n"
    (folder / "letters.py").write_text(rewarded)
    return {**SMALL, "task": str(folder / "problems.jsonl"), "reward": f"{folder / 'letters.py'}:score"}


@pytest.fixture(scope="module")
def whole(small: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> up.Run:
    """A run of all weights that kept its best."""
    out = tmp_path_factory.mktemp("whole") / "run"
    return up.train(
        "grpo", **small, model="tiny:layers=1,width=32", keep="best:score", keep_checkpoints=2, checkpoint_every=1, out=out
    )


@pytest.fixture(scope="module")
def adapted(small: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> up.Run:
    """A run with adapters."""
    return up.train("grpo", **small, model="tiny:layers=2,width=32", lora=4, out=tmp_path_factory.mktemp("adapted") / "run")


def logits(model: Any, ids: torch.Tensor = IDS) -> torch.Tensor:
    with torch.no_grad():
        return model(ids).logits.float()


def loaded(folder: Path, **how: Any) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, **how).eval()


def test_a_run_with_adapters_is_a_folder_for_peft(adapted: up.Run, tmp_path: Path) -> None:
    from peft import PeftConfig, PeftModel

    folder = Path(adapted.export(tmp_path / "adapters")["folder"])
    assert {file.name for file in folder.iterdir()} >= {
        "adapter_config.json",
        "adapter_model.safetensors",
        "tokenizer.json",
        "base",
    }
    assert not (folder / "model.safetensors").exists()
    base = loaded(Path(PeftConfig.from_pretrained(folder).base_model_name_or_path))
    before = logits(base)
    theirs = PeftModel.from_pretrained(base, str(folder)).eval()
    own = logits(up.load(adapted.path).policy.model)
    torch.testing.assert_close(logits(theirs), own, atol=1e-5, rtol=1e-5)
    assert (own - before).abs().max() > 1e-3, "else nothing was learned, and nothing is compared"


def test_merged_adapters_are_a_model_of_their_own(adapted: up.Run, tmp_path: Path) -> None:
    found = up.load(adapted.path).export(tmp_path / "merged", merge=True, dtype="float32")
    assert found == {"folder": str(tmp_path / "merged"), "holds": "model", "dtype": "float32", "checkpoint": "step-000002"}
    folder = Path(found["folder"])
    assert not (folder / "adapter_config.json").exists() and (folder / "generation_config.json").is_file()
    torch.testing.assert_close(logits(loaded(folder)), logits(up.load(adapted.path).policy.model), atol=1e-5, rtol=1e-5)


def test_a_model_on_disk_is_named_as_the_base_of_its_adapters(whole: up.Run, small: dict[str, Any], tmp_path: Path) -> None:
    from peft import PeftConfig, PeftModel

    run = up.train("grpo", **small, model=str(whole.folder.latest()), lora=2, out=tmp_path / "run")
    folder = Path(run.export(tmp_path / "adapters")["folder"])
    named = PeftConfig.from_pretrained(folder).base_model_name_or_path
    assert Path(named) == whole.folder.latest() and not (folder / "base").exists()
    theirs = PeftModel.from_pretrained(loaded(Path(named)), str(folder)).eval()
    torch.testing.assert_close(logits(theirs), logits(run.policy.model), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("dtype", "held"), [("", torch.bfloat16), ("float16", torch.float16), ("float32", torch.float32)])
def test_weights_have_the_precision_asked_for(whole: up.Run, tmp_path: Path, dtype: str, held: torch.dtype) -> None:
    model = loaded(whole.export(tmp_path / "out", dtype=dtype)["folder"])
    assert model.dtype == held
    own = loaded(whole.folder.best)
    assert all(torch.equal(a.to(held), b) for a, b in zip(own.parameters(), model.parameters(), strict=True))


def test_a_chat_template_goes_along(whole: up.Run, small: dict[str, Any], tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    source = tmp_path / "chat"
    model, tokenizer = loaded(whole.folder.latest()), AutoTokenizer.from_pretrained(whole.folder.latest())
    tokenizer.chat_template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    model.save_pretrained(source)
    tokenizer.save_pretrained(source)
    run = up.train("grpo", **small, model=str(source), out=tmp_path / "run")
    folder = run.export(tmp_path / "out")["folder"]
    assert AutoTokenizer.from_pretrained(folder).chat_template == tokenizer.chat_template


def test_which_checkpoint_is_taken(whole: up.Run, tmp_path: Path) -> None:
    def same(folder: Path, checkpoint: Path) -> bool:
        pairs = zip(loaded(folder).parameters(), loaded(checkpoint).parameters(), strict=True)
        return all(torch.equal(a, b) for a, b in pairs)

    last, first = whole.folder.latest(), whole.folder.checkpoint(1)
    for asked, meant in (("", whole.folder.best), ("best", whole.folder.best), ("last", last), ("2", last), ("1", first)):
        assert same(whole.export(tmp_path / f"out-{asked}", checkpoint=asked, dtype="float32")["folder"], meant)
    assert not same(last, first)
    with pytest.raises(UserError, match=r"--checkpoint '7' is not there: give best, last or a step. .* has best, 1, 2\."):
        whole.export(tmp_path / "none", checkpoint="7")


def test_what_cannot_be_is_refused_and_nothing_is_written(
    whole: up.Run, adapted: up.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = tmp_path / "full"
    full.mkdir()
    (full / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match="is not empty"):
        whole.export(full)
    with pytest.raises(UserError, match="is a file"):
        whole.export(full / "notes.txt")
    with pytest.raises(UserError, match="--dtype 'bf16' is none of bfloat16, float16, float32"):
        whole.export(tmp_path / "out", dtype="bf16")
    with pytest.raises(UserError, match=r"--gguf holds whole weights, and .* trained adapters. Give --merge too"):
        adapted.export(tmp_path / "out", gguf=True)
    with pytest.raises(UserError, match="kept no best checkpoint"):
        adapted.export(tmp_path / "out", checkpoint="best")
    with pytest.raises(UserError, match="this model's is 'WordLevel'"):
        whole.export(tmp_path / "out", gguf=True)
    monkeypatch.setattr("upslope.run.exporting.write_model", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        whole.export(tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["full"] and (full / "notes.txt").read_text() == "mine"


def test_merge_without_adapters_is_only_remarked_on(whole: up.Run, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.warns(Remark, match="--merge is not needed"):
        whole.export(tmp_path / "empty", merge=True)
    assert (tmp_path / "empty" / "model.safetensors").is_file()


def test_the_command_prints_the_folder(adapted: up.Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    to = tmp_path / "out"
    assert main(["export", str(adapted.path), "--merge", "--to", str(to)]) == 0
    assert capsys.readouterr().out == f"model in bfloat16, of checkpoint step-000002\n{to}\n" and loaded(to).dtype == torch.bfloat16
    assert main(["export", str(adapted.path), "--to", str(to)]) == 2
    assert "is not empty" in capsys.readouterr().err


def test_the_flags_of_text_do_not_go_with_an_environment(tmp_path: Path) -> None:
    run = up.train("ppo", "gym:CartPole-v1", steps=1, envs=1, horizon=8, passes=1, eval_problems=1, out=tmp_path / "run")
    with pytest.raises(UserError, match="--merge goes with text; gym:CartPole-v1 is an environment"):
        run.export(tmp_path / "policy.onnx", merge=True)


# -- GGUF --------------------------------------------------------------------------------------------------------------------


def byte_level_tokenizer(split: str) -> Any:
    """A small byte-level BPE, cut as SmolLM2's, GPT-2's or Qwen's are."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    made = Tokenizer(models.BPE())
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=split != "qwen2")
    qwen = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    before = {
        "gpt-2": level,
        "smollm": pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), level]),
        "qwen2": pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(qwen), "isolated"), level]),
    }
    made.pre_tokenizer, made.decoder = before[split], decoders.ByteLevel()
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=special, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    made.train_from_iterator(["the cat sat on the mat, the hat and the other thing " * 3], trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=made, eos_token="<|im_end|>", bos_token="<|im_start|>", pad_token="<|endoftext|>",
        chat_template="{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}",
    )  # fmt: skip


def small_model(kind: str, tied: bool) -> LanguageModel:
    import transformers as hf

    tokenizer = byte_level_tokenizer({"llama": "smollm", "qwen2": "qwen2", "qwen3": "gpt-2"}[kind])
    sizes = {"vocab_size": 310, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
             "num_key_value_heads": 2, "max_position_embeddings": 64, "initializer_range": 0.3, "tie_word_embeddings": tied,
             "eos_token_id": tokenizer.eos_token_id, "bos_token_id": tokenizer.bos_token_id}  # fmt: skip
    rope = {"rope_parameters": {"rope_type": "default", "rope_theta": 5000.0}}
    config, model = {
        "llama": (hf.LlamaConfig(**sizes, **rope), hf.LlamaForCausalLM),
        "qwen2": (hf.Qwen2Config(**sizes, **rope), hf.Qwen2ForCausalLM),
        "qwen3": (hf.Qwen3Config(**sizes, **rope, head_dim=128), hf.Qwen3ForCausalLM),
    }[kind]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        made = model(config).float()
        for name, value in made.named_parameters():
            if name.endswith("bias"):
                torch.nn.init.normal_(value)
    return LanguageModel(made, tokenizer, kind)


@pytest.mark.parametrize(
    ("kind", "tied", "dtype"),
    [("llama", True, "float32"), ("llama", False, "bfloat16"), ("qwen2", True, "float16"), ("qwen3", False, "float32")],
)
def test_a_gguf_file_read_back_gives_the_same_logits(kind: str, tied: bool, dtype: str, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    policy = small_model(kind, tied)
    check_gguf(policy)
    for value in policy.model.parameters():  # what such a file can hold
        value.data = value.data.to(getattr(torch, dtype)).float()
    policy.model.save_pretrained(tmp_path)
    policy.tokenizer.save_pretrained(tmp_path)
    write_gguf(policy, tmp_path, tmp_path / "model.gguf", dtype)
    only = tmp_path / "alone"
    only.mkdir()
    (tmp_path / "model.gguf").rename(only / "model.gguf")
    model = loaded(only, gguf_file="model.gguf", dtype=torch.float32)
    torch.testing.assert_close(logits(model), logits(policy.model), atol=1e-4, rtol=1e-4)
    theirs, text = AutoTokenizer.from_pretrained(only, gguf_file="model.gguf"), "the other cat, and that"
    assert theirs(text).input_ids == policy.tokenizer(text).input_ids and theirs.chat_template == policy.tokenizer.chat_template
    assert theirs.eos_token_id == policy.tokenizer.eos_token_id


def test_what_llama_cpp_would_misread_is_refused_by_name() -> None:
    import transformers as hf

    policy = small_model("llama", True)
    policy.model.config.rope_parameters = {"rope_type": "llama3", "rope_theta": 5000.0, "factor": 8.0}
    with pytest.raises(UserError, match="positions scaled as 'llama3' are not written here"):
        check_gguf(policy)
    policy.model.config = hf.GPT2Config()
    with pytest.raises(UserError, match="a gpt2 model is not written here, only llama, qwen2, qwen3"):
        check_gguf(policy)
