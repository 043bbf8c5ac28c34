"""What both sides of a GRPO row are given: a model with the same weights, the same prompts in the same order, the same reward."""

from __future__ import annotations

import math
import string
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

ALPHABET = string.ascii_lowercase + string.digits + " .,:;=+-*/()\n"
"""49 characters; with the four special tokens of the tiny model's tokenizer a vocabulary of 53."""
STOP_SHARE = 0.1083
"""The probability of the stop token at each place with which answers of at most 32 tokens have a mean length of 9."""
SILENT = 0.5
"""What every answer to a prompt without signal earns."""
QUIET_MARK = "+"
"""In a prompt without signal."""
POOL = 2048
"""Different prompts, in steps of which both sides go through them."""


@dataclass(frozen=True)
class Sizes:
    """The shape of a Llama; by default that of SmolLM2-135M."""

    vocabulary: int = 49152
    width: int = 576
    inner: int = 1536
    layers: int = 30
    heads: int = 9
    key_heads: int = 3


@dataclass(frozen=True)
class TextWork:
    """A GRPO step.

    Fields:
        model: ``tiny`` (4 layers, width 128, 53 characters), ``smollm2``, or ``random``: random weights of the given ``sizes``,
            by default SmolLM2's, for machines that do not have its file.
        prompts, samples: groups in a step, and answers in a group.
        prompt_tokens: tokens of a prompt, the start token among them (``smollm2`` has a chat template that decides).
        stops: ``never`` (every answer has full length) or ``early`` (the stop token has the probability `STOP_SHARE` throughout).
        silent: every second prompt earns the same whatever the answer, so that its group has no signal.
    """

    model: Literal["tiny", "smollm2", "random"] = "tiny"
    sizes: Sizes = Sizes()
    prompts: int = 16
    samples: int = 8
    prompt_tokens: int = 6
    max_tokens: int = 24
    stops: Literal["never", "early"] = "never"
    silent: bool = False
    device: str = "cpu"
    seed: int = 0
    settings: tuple[tuple[str, Any], ...] = ()
    """Further `Settings` of our side, by name."""

    def policy(self) -> Any:
        """The model as our library holds it; the other side takes ``.model`` and ``.tokenizer`` of it."""
        if self.model == "tiny":
            from upslope.policies.tiny import tiny

            policy = tiny(self.seed, layers=4, width=128, heads=4, alphabet=ALPHABET)
        elif self.model == "smollm2":
            from upslope.policies.smollm2 import load_smollm2

            policy = load_smollm2()
        else:
            policy = random_model(self.seed, self.sizes, self.device)
        return (stopping_early if self.stops == "early" else never_stopping)(policy).to(self.device)

    def texts(self) -> list[str]:
        """The prompts, in the order in which they are asked."""
        rng = np.random.default_rng(self.seed)
        letters = np.array(list(string.ascii_lowercase))
        return [self._text(number, rng.choice(letters, 4)) for number in range(POOL // self.prompts * self.prompts)]

    def _text(self, number: int, word: np.ndarray) -> str:
        question = f"{QUIET_MARK if self.silent and number % 2 else '='}{''.join(word)}"
        rng = np.random.default_rng([self.seed, number])
        if self.model == "random":
            return " ".join(f"w{token}" for token in rng.integers(3, self.sizes.vocabulary, self.prompt_tokens))
        if self.model == "smollm2":
            return f"Reverse the letters {question[1:]}, then write five words that begin with them."
        missing = self.prompt_tokens - 1 - len(question)
        # Examples of the prompt's own: a prefix that all prompts share would be a different, easier kind of work.
        drawn = rng.integers(26, size=(missing // 11 + 1, 4))
        words = ["".join(string.ascii_lowercase[letter] for letter in letters) for letters in drawn]
        examples = "".join(f"{word}={word[::-1]}.\n" for word in words)
        return examples[len(examples) - missing :] + question


def worth(prompts: Sequence[str], responses: Sequence[str]) -> list[float]:
    """A reward fast to compute, in which any two answers differ: the mean of a fixed number for each character."""
    return [SILENT if QUIET_MARK in prompt else _mean_worth(text) for prompt, text in zip(prompts, responses, strict=True)]


def _mean_worth(text: str) -> float:
    return sum(ord(character) * 0.6180339887498949 % 1.0 for character in text) / max(len(text), 1)


# -- models ----------------------------------------------------------------------------------------------------------------


def never_stopping(policy: Any) -> Any:
    """The same with a stop token just outside of what the model can say, so that every answer has full length on both sides."""
    from upslope.policies import LanguageModel

    model, tokenizer = policy.model, policy.tokenizer
    pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id
    outside = f"<end {model.config.vocab_size}>"
    tokenizer.add_tokens([f"<unused {number}>" for number in range(len(tokenizer), model.config.vocab_size)])
    tokenizer.add_special_tokens({"eos_token": outside})
    tokenizer.pad_token_id = pad
    assert tokenizer.eos_token_id == model.config.vocab_size
    for settings in (model.config, model.generation_config):
        settings.eos_token_id, settings.pad_token_id = tokenizer.eos_token_id, pad
    return LanguageModel(model, tokenizer, policy.name)


def stopping_early(policy: Any) -> Any:
    """The same with weights under which the stop token is equally likely, about `STOP_SHARE`, wherever an answer stands.

    One feature of the residual stream is made the same for every token and every layer forbidden to write to it; it dominates
    the last normalisation. All logits rise by the same amount through it, the stop token's by a little more.
    """
    import torch

    model, size, stop = policy.model, policy.model.config.vocab_size, policy.tokenizer.eos_token_id
    with torch.no_grad():
        model.get_input_embeddings().weight[:, 0] = 1.0
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight[0] = 0.0
            layer.mlp.down_proj.weight[0] = 0.0
        # Texts as the model itself writes them: every token but the stop token, about equally often.
        seen = torch.randint(size, (64, 16), generator=torch.Generator().manual_seed(0))
        seen[seen == stop] = policy.tokenizer.bos_token_id
        feature = float(model.model(input_ids=seen).last_hidden_state[..., 0].mean())
        for _ in range(4):  # towards the share that is wanted; the odds are nearly linear in the weight
            share = float(model(input_ids=seen).logits.softmax(-1)[..., stop].mean())
            model.get_output_embeddings().weight[stop, 0] += (_log_odds(STOP_SHARE) - _log_odds(share)) / feature
    return policy


def _log_odds(share: float) -> float:
    return math.log(share / (1 - share))


def random_model(seed: int, sizes: Sizes, device: str = "cpu") -> Any:
    """A Llama of these sizes with random weights, and a tokenizer of as many made-up words."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from upslope.policies import LanguageModel

    config = LlamaConfig(
        vocab_size=sizes.vocabulary, hidden_size=sizes.width, intermediate_size=sizes.inner, num_hidden_layers=sizes.layers,
        num_attention_heads=sizes.heads, num_key_value_heads=sizes.key_heads, max_position_embeddings=8192, rope_theta=100000.0,
        rms_norm_eps=1e-5, tie_word_embeddings=True, bos_token_id=1, eos_token_id=2, pad_token_id=2,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        with torch.device(device):
            model = LlamaForCausalLM(config)
    return LanguageModel(model, word_tokenizer(sizes.vocabulary), "random")


def word_tokenizer(vocabulary: int) -> Any:
    """A tokenizer of so many made-up words."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = ["<unk>", "<bos>", "<eos>", *(f"w{number}" for number in range(3, vocabulary))]
    inner = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=inner, unk_token="<unk>", bos_token="<bos>", eos_token="<eos>", pad_token="<eos>", padding_side="left"
    )
