"""A model as one GGUF file, which llama.cpp and programs built on it read: weights, sizes, tokenizer and chat template.

Names of tensors and the places of metadata are the `gguf` package's, which llama.cpp's authors write. Left out: quantised weights
(``llama-quantize`` makes them of this file), families other than Llama, Qwen2 and Qwen3, and positions that are scaled. llama.cpp's
own ``convert_hf_to_gguf.py`` knows more of them, and reads the folder that is exported beside.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from upslope.errors import MissingExtra, UserError, pip_install
from upslope.plain_data import JsonDict
from upslope.policies.language_model import LanguageModel

FAMILIES = ("llama", "qwen2", "qwen3")
"""Families as `transformers` and llama.cpp both call them."""
ELSEWHERE = "Leave --gguf out, and give the exported folder to llama.cpp's convert_hf_to_gguf.py."
QWEN2_SPLIT = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
LLAMA3_SPLIT = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"


def check_gguf(policy: LanguageModel) -> None:
    """Refuses what cannot be written, before anything is.

    Raises:
        MissingExtra: if the package gguf is not installed.
        UserError: if the model's family or its tokenizer is none of those that are known here.
    """
    try:
        import gguf  # noqa: F401
    except ImportError:
        raise MissingExtra("gguf is", pip_install("gguf")) from None
    config = policy.model.config
    if config.model_type not in FAMILIES:
        raise UserError(f"--gguf: a {config.model_type} model is not written here, only {', '.join(FAMILIES)}. {ELSEWHERE}")
    rope = _rope(config)
    if rope.get("rope_type", "default") != "default":
        raise UserError(f"--gguf: positions scaled as {rope['rope_type']!r} are not written here. {ELSEWHERE}")
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    if kinds != {"full_attention"}:
        raise UserError(f"--gguf: layers of kind {sorted(kinds - {'full_attention'})[0]!r} are not written here. {ELSEWHERE}")
    _split_name(policy.tokenizer)


def write_gguf(policy: LanguageModel, folder: Path, file: Path, dtype: str) -> None:
    """Writes the file.

    Args:
        policy: what `check_gguf` has let pass.
        folder: where its tokenizer and config were saved.
        dtype: of matrices; vectors (norms, biases) are float32, as llama.cpp has them.
    """
    import gguf

    config = policy.model.config
    writer = gguf.GGUFWriter(file, config.model_type)
    _write_sizes(writer, config, policy.name, dtype)
    _write_tokenizer(writer, policy, folder)
    architecture = next(key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == config.model_type)
    names = gguf.get_tensor_name_map(architecture, config.num_hidden_layers)
    for name, value in _distinct(policy.model):
        found = names.get_name(name, try_suffixes=(".weight", ".bias"))
        if found is None:
            raise UserError(f"--gguf: llama.cpp has no place for the tensor {name!r}. {ELSEWHERE}")
        _add_tensor(writer, found, _rotated(name, value, config), dtype)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _write_sizes(writer: Any, config: Any, name: str, dtype: str) -> None:
    import gguf

    heads = config.num_attention_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // heads
    writer.add_name(name)
    writer.add_file_type({"float32": gguf.LlamaFileType.ALL_F32, "float16": gguf.LlamaFileType.MOSTLY_F16}.get(
        dtype, gguf.LlamaFileType.MOSTLY_BF16))  # fmt: skip
    writer.add_vocab_size(config.vocab_size)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(width)
    writer.add_value_length(width)
    writer.add_rope_dimension_count(width)
    writer.add_rope_freq_base(float(_rope(config).get("rope_theta") or 10000.0))
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)


def _write_tokenizer(writer: Any, policy: LanguageModel, folder: Path) -> None:
    """Vocabulary, merges, special tokens and chat template; places of the vocabulary without a token are filled."""
    import gguf

    tokenizer = policy.tokenizer
    added = tokenizer.added_tokens_decoder
    by_id = {number: word for word, number in tokenizer.get_vocab().items()}
    words, kinds = [], []
    for number in range(policy.model.config.vocab_size):
        words.append(by_id.get(number, f"[PAD{number}]"))
        if number not in by_id:
            kinds.append(gguf.TokenType.UNUSED)
        elif number in added:
            kinds.append(gguf.TokenType.CONTROL if added[number].special else gguf.TokenType.USER_DEFINED)
        else:
            kinds.append(gguf.TokenType.NORMAL)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(_split_name(tokenizer))
    writer.add_token_list(words)
    writer.add_token_types(kinds)
    gguf.SpecialVocab(folder, load_merges=True, n_vocab=len(words)).add_to_gguf(writer, quiet=True)


def _split_name(tokenizer: Any) -> str:
    """What llama.cpp calls the way in which a tokenizer cuts text before it merges bytes.

    Raises:
        UserError: if it is no byte-level BPE, or one that is cut in another way: llama.cpp would read other tokens.
    """
    whole: JsonDict = json.loads(tokenizer.backend_tokenizer.to_str()) if getattr(tokenizer, "is_fast", False) else {}
    if whole.get("model", {}).get("type") != "BPE" or whole["model"].get("byte_fallback"):
        kind = whole.get("model", {}).get("type") or type(tokenizer).__name__
        raise UserError(
            f"--gguf: llama.cpp's tokenizers merge bytes (BPE), and this model's is {kind!r} (tiny's is one of characters). "
            "Leave --gguf out: transformers and vLLM read the exported folder."
        )
    cut = whole.get("pre_tokenizer") or {}
    parts = cut.get("pretokenizers", [cut])
    patterns = [part["pattern"].get("Regex", "") for part in parts if part.get("type") == "Split"]
    kinds = [part.get("type") for part in parts]
    if any(LLAMA3_SPLIT in pattern for pattern in patterns):
        return "llama-bpe"
    if any(QWEN2_SPLIT in pattern for pattern in patterns):
        return "qwen2"
    if kinds == ["Digits", "ByteLevel"] and parts[0].get("individual_digits"):
        return "smollm"
    if kinds == ["ByteLevel"] and parts[0].get("use_regex", True):
        return "gpt-2"
    raise UserError(f"--gguf: the tokenizer cuts text in a way that is not known here ({'+'.join(map(str, kinds))}). {ELSEWHERE}")


def _distinct(model: Any) -> list[tuple[str, Tensor]]:
    """All tensors by name, tied ones under their first name: llama.cpp takes the embeddings for a head that is not there."""
    return [(name, value.detach()) for name, value in model.named_parameters()]


def _rotated(name: str, value: Tensor, config: Any) -> Tensor:
    """A tensor as llama.cpp wants it. For Llama its rotary embedding takes neighbours as pairs, `transformers` takes halves of a
    head: rows of queries and keys change places. For Qwen both take halves."""
    count = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}.get(name.split(".")[-2])
    if config.model_type != "llama" or count is None:
        return value
    pairs = value.reshape(count, 2, value.shape[0] // count // 2, *value.shape[1:])
    return pairs.transpose(1, 2).reshape(value.shape)


def _add_tensor(writer: Any, name: str, value: Tensor, dtype: str) -> None:
    import gguf

    value = value.cpu().contiguous()
    if value.dim() == 1 or dtype == "float32":
        writer.add_tensor(name, value.float().numpy())
    elif dtype == "float16":
        writer.add_tensor(name, value.half().numpy())
    else:  # numpy has no bfloat16: its bytes
        raw = value.bfloat16().view(torch.uint8).numpy()
        writer.add_tensor(name, raw, raw_shape=raw.shape, raw_dtype=gguf.GGMLQuantizationType.BF16)


def _rope(config: Any) -> JsonDict:
    """How positions become angles."""
    found = getattr(config, "rope_parameters", None) or {}
    return dict(found)
