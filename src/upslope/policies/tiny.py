"""A Llama of about a million parameters with a character tokenizer, made on the spot: for the demo, for tests and for laptops."""

from __future__ import annotations

import string
from typing import Any

import torch

from upslope.errors import UserError, did_you_mean
from upslope.plain_data import JsonDict
from upslope.policies.language_model import LanguageModel
from upslope.runtime import seeding

ALPHABET = string.printable[:95] + "\n"
"""Printable ASCII from digits to the space, and the newline."""
SPECIALS = {"pad_token": "<pad>", "bos_token": "<bos>", "eos_token": "<eos>", "unk_token": "<unk>"}
POSITIONS = 512


def tiny(
    seed: int, *, layers: int = 2, width: int = 192, heads: int = 4, experts: int = 0, alphabet: str = ALPHABET
) -> LanguageModel:
    """An untrained model: the same seed and sizes give the same bits, whatever was drawn before.

    Args:
        seed: Of the initial weights.
        layers: More learn longer dependencies and cost time in proportion.
        width: Features per position; the cost grows with its square. A multiple of twice ``heads``.
        heads: Attention heads.
        experts: 0 is a plain model. With 3 or more each layer has so many experts, half as wide, of which a token takes two.
        alphabet: The characters it can read and write, each once. A shorter one trains faster; others become unknown.
    """
    if layers < 1 or heads < 1 or width < 1 or width % (2 * heads):
        raise UserError(f"no tiny model with layers={layers}, width={width}, heads={heads}: all must be positive and the width "
                        f"a multiple of {2 * max(heads, 1)} (twice the heads).")  # fmt: skip
    if experts in (1, 2) or experts < 0:
        raise UserError(f"no tiny model with experts={experts}: 0, or at least 3, as each token takes two of them.")
    tokenizer = character_tokenizer(alphabet)
    sizes = {
        "vocab_size": len(tokenizer),
        "hidden_size": width,
        "intermediate_size": -(-width * 8 // 3 // 32) * 32 // (2 if experts else 1),
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "max_position_embeddings": POSITIONS,
        "tie_word_embeddings": True,
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
    }
    # Modules draw their weights from the global generator: it is borrowed and put back.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seeding.mix(seed, "tiny", layers, width, heads))
        model = _untrained(sizes, experts)
    return LanguageModel(model.float(), tokenizer, "tiny")


def _untrained(sizes: JsonDict, experts: int) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM, MixtralConfig, MixtralForCausalLM

    if not experts:
        return LlamaForCausalLM(LlamaConfig(**sizes))
    config = MixtralConfig(**sizes, num_local_experts=experts, num_experts_per_tok=2, sliding_window=None)
    return MixtralForCausalLM(config)


def tiny_from_spec(options: str, seed: int) -> LanguageModel:
    """The model of a spec such as ``tiny:layers=4,width=128``, given what stands behind the colon."""
    known = ("layers", "width", "heads", "experts")
    sizes: JsonDict = {}
    for option in filter(None, options.split(",")):
        name, _, value = option.partition("=")
        if name not in known:
            raise UserError(
                f"model 'tiny:{options}': no option named {name!r}.{did_you_mean(name, known)} It has: {', '.join(known)}."
            )
        if not value.isdecimal():
            raise UserError(f"model 'tiny:{options}': {name} must be a whole number, not {value!r}; write for example {name}=4.")
        sizes[name] = int(value)
    return tiny(seed, **sizes)


def character_tokenizer(alphabet: str = ALPHABET) -> Any:
    """One token per character, ``<bos>`` before the text; decoding gives back exactly what was encoded."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    if not alphabet or len(set(alphabet)) != len(alphabet):
        raise UserError(f"the alphabet {alphabet!r} must hold at least one character and each of them once.")
    vocabulary = {token: number for number, token in enumerate([*SPECIALS.values(), *alphabet])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=SPECIALS["unk_token"]))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    start = SPECIALS["bos_token"]
    tokenizer.post_processor = processors.TemplateProcessing(single=f"{start} $A", special_tokens=[(start, vocabulary[start])])
    # A prompt that spells out "<eos>" means these five characters, not the end of the sequence.
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_max_length=POSITIONS,
        padding_side="left",
        split_special_tokens=True,
        clean_up_tokenization_spaces=False,
        **SPECIALS,
    )
