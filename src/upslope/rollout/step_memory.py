"""Memory of a training step on text, estimated before it is taken.

Counted is what grows with the settings and the model: the optimiser's numbers, copies of weights, what sampling keeps of prompts
and answers, what the backward pass keeps of a slice. The estimate is meant to be right within a factor of two and errs on the low
side: a run that would fit is worth more than a warning that came early. The model's own weights are in memory already, and are not
counted; neither is what a checkpoint takes while it is written.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch

from upslope.errors import UserError
from upslope.policies.forward.activation_cache import ActivationCache
from upslope.policies.forward.logprobs import CHUNK_FLOATS, GPU_CHUNK_FLOATS
from upslope.policies.forward.plain import attends_fully
from upslope.policies.language_model import LanguageModel
from upslope.rollout.decode.stepper import COPIED
from upslope.rollout.engines.torch_engine import TorchEngine
from upslope.runtime.memory import CURES, free_bytes

UNKNOWN_PROMPT = 64
"""Tokens that a prompt is taken to have where prompts are made on the spot."""


@dataclass(frozen=True)
class StepSizes:
    """What a step asks for."""

    tasks: int
    samples: int
    max_tokens: int
    prompts: Sequence[int] = ()
    """Tokens of the prompts that may be asked."""
    copies: int = 0
    """Of the whole model: what the policy is compared with."""
    sampled_here: bool = True
    """And not by a server, or an engine with memory of its own."""
    learners: int = 1
    """Processes that learn together."""

    @property
    def longest(self) -> list[int]:
        """Tokens of the longest prompts that can meet in a step."""
        return heapq.nlargest(self.tasks, self.prompts) or [UNKNOWN_PROMPT] * self.tasks

    @property
    def rows(self) -> int:
        return self.tasks * self.samples


@dataclass(frozen=True)
class StepMemory:
    """Bytes a step takes beside the model."""

    optimiser: int
    """Gradients and Adam's two moments."""
    copies: int
    """Models the policy is compared with, and weights put together for the products of sampling and learning."""
    kept: int
    """What sampling keeps for learning."""
    sampling: int
    """Caches of prompts and rows, logits and the widest layer."""
    learning: int
    """What the backward pass keeps of a slice, and its logits."""
    learners: int = 0
    """What all further learners take, each with a model of its own; a GPU is for one of them."""

    @property
    def total(self) -> int:
        """Sampling and learning follow each other; the rest stays."""
        return self.optimiser + self.copies + self.kept + max(self.sampling, self.learning) + self.learners

    def __str__(self) -> str:
        shown = [f.name for f in fields(self) if f.name != "learners" or self.learners]
        return ", ".join(f"{name} {gigabytes(getattr(self, name))}" for name in shown)


def check_memory(policy: LanguageModel, sizes: StepSizes) -> None:
    """Refuses a step that takes more memory than there is."""
    try:
        needed, on_gpu = step_memory(policy, sizes), policy.device.type == "cuda"
    except (AttributeError, TypeError):  # a model that calls its sizes by other names: nothing can be foreseen
        return
    free = torch.cuda.mem_get_info(policy.device)[0] if on_gpu else free_bytes()
    if needed.total > free:
        longest = f" Its longest prompt has {max(sizes.prompts)} tokens." if sizes.prompts else ""
        raise UserError(
            f"a step would take about {gigabytes(needed.total)} beside the model ({needed}), and {gigabytes(free)} are free"
            f"{' on the GPU' if on_gpu else ''}.{longest} {CURES}, or with shorter prompts."
        )


def step_memory(policy: LanguageModel, sizes: StepSizes) -> StepMemory:
    """The memory of a step of this policy."""
    learned = sum(p.numel() * p.element_size() for group in policy.trainable().values() for p in group)
    own = sum(p.numel() * p.element_size() for p in policy.model.parameters())
    estimate = _Own(policy, sizes) if policy.body is not None else _Plain(policy, sizes)
    copies = sizes.copies * (learned if policy.adapted else own) + estimate.weights()
    kept, sampling = (estimate.kept(), estimate.sampling()) if sizes.sampled_here else (0, 0)
    further = 0 if policy.device.type == "cuda" else sizes.learners - 1
    learning = estimate.learning()
    return StepMemory(3 * learned, copies, kept, sampling, learning, further * (own + 3 * learned + copies + learning))


class _Estimate:
    """StepSizes of a model, by the names that `transformers` gives them."""

    def __init__(self, policy: LanguageModel, sizes: StepSizes):
        config = policy.model.config.get_text_config()
        self.policy, self.sizes, self.engine = policy, sizes, TorchEngine(policy)
        self.layers, self.width, self.vocabulary = config.num_hidden_layers, config.hidden_size, config.vocab_size
        self.inner = getattr(config, "intermediate_size", None) or 4 * self.width
        self.heads = config.num_attention_heads
        self.eager = getattr(config, "_attn_implementation", None) == "eager"
        self.size = policy.compute_dtype.itemsize
        self.longest = sizes.longest
        self.key_bytes = self.engine._token_bytes() // 2
        """Of a token's keys and values in all layers."""

    def logits(self, tokens: int, copies: int) -> int:
        """Several copies of a chunk of logits in float32."""
        most = GPU_CHUNK_FLOATS if self.policy.device.type == "cuda" else CHUNK_FLOATS
        return 4 * copies * min(tokens * self.vocabulary, max(most, self.vocabulary))


class _Own(_Estimate):
    """Our own decoder: prompts are kept once, nothing is padded, attention keeps no scores."""

    def weights(self) -> int:
        """Matrices of one input are put together, once for sampling and once for learning; on a GPU all are, in half precision."""
        assert self.policy.body is not None
        layer, body = self.policy.body.layers[0], self.policy.body
        joined = [layer.self_attn.q_proj, layer.self_attn.k_proj, layer.self_attn.v_proj, layer.mlp.gate_proj, layer.mlp.up_proj]
        single = [layer.self_attn.o_proj, layer.mlp.down_proj]
        count = [sum(getattr(part, "base_layer", part).weight.numel() for part in parts) for parts in (joined, single)]
        if self.size != body.head.weight.element_size():
            whole = self.layers * sum(count) + 2 * body.head.weight.numel()
            return 2 * self.size * whole
        merged = sum(count) if self.policy.adapted else 0  # with adapters each matrix is computed anew
        return self.size * self.layers * (2 * count[0] + merged)

    def _at_once(self) -> int:
        engine, room = self.engine, self.sizes.max_tokens
        return max(1, min(self.sizes.rows, engine.max_rows, engine._memory() // engine._row_bytes(room)))

    def _prompt_tokens(self) -> int:
        """Of the prompts that are read together."""
        return min(sum(self.longest), max(self.longest[0], self.engine._memory() // (2 * self.key_bytes)))

    def kept(self) -> int:
        policy, body, sizes = self.policy, self.policy.body, self.sizes
        assert body is not None
        if policy.recompute or not ActivationCache.serves(body) or self._prompt_tokens() < sum(self.longest):
            return 0
        size = ActivationCache.size(body, policy.compute_dtype, sum(self.longest), sizes.rows * sizes.max_tokens)
        return size if size <= policy.slice_bytes // 2 else 0

    def sampling(self) -> int:
        tokens, rows, room = self._prompt_tokens(), self._at_once(), self.sizes.max_tokens
        padded = len(self.longest) * self.longest[0] if tokens == sum(self.longest) else tokens
        cached = rows * (room + (self.longest[0] if self.longest[0] <= COPIED or self.policy.device.type != "cpu" else 0))
        query = self.layers * self.width * self.size  # lies beside keys and values
        layer = self.size * tokens * (3 * self.inner + 4 * self.width)
        return tokens * (self.key_bytes + query) + (padded + cached) * self.key_bytes + layer + 20 * rows * self.vocabulary

    def learning(self) -> int:
        policy, sizes = self.policy, self.sizes
        group = self.longest[0] + sizes.samples * sizes.max_tokens
        tokens = min(sum(self.longest) + sizes.rows * sizes.max_tokens, max(policy.token_budget(), group))
        token = self.layers * (self.size * (4 * self.width + 2 * self.inner) + 8 * self.width)
        token = token // 4 if policy.recompute else token
        fresh = self.kept() or tokens * token  # what was kept is copied, unless all rows are equally long
        return fresh + 4 * tokens * (6 * self.width + 3 * self.inner) + self.logits(tokens, 3)


class _Plain(_Estimate):
    """A model that `transformers` computes: rows are padded to the longest, each with its prompt and whole logits."""

    def weights(self) -> int:
        return 0

    def kept(self) -> int:
        return 0

    def _scores(self, rows: int, queries: int, keys: int, copies: int) -> int:
        """Of one layer's attention: so many copies written out, or only a mask and its copy in the precision of products."""
        return rows * queries * keys * (4 * self.heads * copies if self.eager else 1 + 4)

    def sampling(self) -> int:
        sizes, longest = self.sizes, self.longest[0]
        text = longest + sizes.max_tokens
        fit = max(1, self.engine._memory() // max(1, sizes.samples * self.engine._row_bytes(text)))
        prompts = min(sizes.tasks, fit)
        rows = prompts * sizes.samples
        layer = 4 * prompts * longest * (6 * self.width + 3 * self.inner)
        reading = self._scores(prompts, longest, longest, 4) + layer + prompts * longest * self.key_bytes
        return max(reading, 2 * rows * text * self.key_bytes + 20 * rows * self.vocabulary)

    def learning(self) -> int:
        sizes, longest, room = self.sizes, self.longest[0], self.sizes.max_tokens
        rows = max(1, min(sizes.rows, self.policy.token_budget() // (longest + room)))
        # Equal prompts are computed once, and their keys and values handed to each row.
        shared = sizes.samples > 1 and attends_fully(self.policy.model)
        prompts = -(-rows // sizes.samples) if shared else rows
        handed = 2 * rows * (longest + room) * self.key_bytes if shared else 0
        token = 4 * self.layers * (16 * self.width + 2 * self.inner)
        copies = self.layers + 2  # the backward pass needs those of every layer
        scores = self._scores(prompts, longest, longest, copies) + self._scores(rows, room, longest + room, copies)
        return (prompts * longest + rows * room) * token + handed + scores + 4 * 3 * rows * room * self.vocabulary


def gigabytes(count: int) -> str:
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.0f} MiB"
