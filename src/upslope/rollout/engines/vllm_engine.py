"""Rollouts from vLLM in this process, where it is installed.

Written against vLLM's documented interface (``LLM.generate`` with token prompts and one `SamplingParams` per prompt,
``LLM.apply_model``, ``LLM.reset_prefix_cache``) and tested against a stand-in for it.
"""

from __future__ import annotations

import importlib.util
import itertools
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from upslope.errors import MissingExtra, UserError, pip_install
from upslope.policies.adapters import folded
from upslope.policies.language_model import LanguageModel
from upslope.rollout.engine_gap import gap_metrics
from upslope.rollout.engines.external import Recorded, as_completions, cut_at_stops, ended, seed_of
from upslope.runtime.environment import default_environment
from upslope.types import Completions, Metrics, Sampling, samples_each

MOST_POSITIONS = 16_384
"""Room for a prompt and its completion: vLLM wants memory for the longest, and models promise far more than runs use."""


class VLLMEngine:
    """Samples with vLLM's own copy of the policy, on the same GPU.

    Log-probabilities are vLLM's ``processed_logprobs``: those of the distribution sampled from, with temperature and truncation in
    it. vLLM draws with seeds of its own, so a run repeats only as far as vLLM does. It gives no entropies.

    Args:
        policy: What is trained. It is written to a temporary folder once, from which vLLM builds its model.
        memory_share: Of the GPU's memory, for vLLM's weights and cache; the rest is the learner's.
    """

    follows = True
    gives_entropy = False

    def __init__(self, policy: LanguageModel, memory_share: float = 0.4):
        if importlib.util.find_spec("vllm") is None:
            raise MissingExtra("vllm is", pip_install("vllm"))
        # With the engine in this process, weights are handed over as they are, without a copy through another process.
        with default_environment({"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}):
            self._start(policy, memory_share)

    def _start(self, policy: LanguageModel, memory_share: float) -> None:
        import vllm

        self.vllm, self.policy = vllm, policy
        self._fresh = False
        self._told: Metrics = {}
        config = policy.model.config.get_text_config()
        with tempfile.TemporaryDirectory(prefix="upslope-vllm-") as folder:
            policy.save_merged(Path(folder))
            self.llm: Any = vllm.LLM(
                model=folder,
                dtype=str(policy.model.dtype).removeprefix("torch."),
                gpu_memory_utilization=memory_share,
                max_model_len=min(getattr(config, "max_position_embeddings", None) or MOST_POSITIONS, MOST_POSITIONS),
                logprobs_mode="processed_logprobs",
                seed=0,
            )

    def sync(self, policy: LanguageModel) -> None:
        """Hands the weights over; what was cached of prompts belongs to the old ones and is dropped."""
        self.policy = policy
        weights = list(folded(policy.model).items())

        def load(model: Any) -> None:
            model.load_weights(weights)

        with torch.no_grad():
            self.llm.apply_model(load)
        self.llm.reset_prefix_cache()
        self._fresh = True

    def generate(
        self, prompts: Sequence[list[int]], n: int | Sequence[int], sampling: Sampling, uniforms: Tensor,
        limits: Sequence[int] | None = None, keep: bool = False,
    ) -> Completions:  # fmt: skip
        """As `upslope.rollout.engines.torch_engine.TorchEngine.generate`; ``uniforms`` only give the seeds."""
        if not self._fresh:
            self.sync(self.policy)
        limits = [sampling.max_tokens] * len(prompts) if limits is None else [min(own, sampling.max_tokens) for own in limits]
        each = samples_each(n, len(prompts))
        begin = [0, *itertools.accumulate(each)]
        settings = [
            self.vllm.SamplingParams(
                n=each[place],
                max_tokens=limit,
                temperature=sampling.temperature,
                top_k=sampling.top_k or -1,
                top_p=sampling.top_p,
                min_p=sampling.min_p,
                seed=seed_of(uniforms[begin[place] : begin[place + 1]]),
                stop_token_ids=sorted(self.policy.stop_ids),
                logprobs=0,  # that of the sampled token alone
                detokenize=False,
            )
            for place, limit in enumerate(limits)
        ]
        asked = [{"prompt_token_ids": list(prompt)} for prompt in prompts]
        answers = self.llm.generate(asked, settings, use_tqdm=False)
        rows = [self._row(each) for answer in answers for each in sorted(answer.outputs, key=lambda output: output.index)]
        if len(rows) != sum(each):
            raise UserError(f"vLLM gave {len(rows)} completions where {sum(each)} were asked for.")
        self._told = gap_metrics(self.policy, prompts, n, sampling, as_completions(rows, self.policy))
        return as_completions(cut_at_stops(rows, self.policy, sampling), self.policy)

    def metrics(self) -> Metrics:
        """Of the last call: how far vLLM's log-probabilities are from the policy's (``engine_gap``)."""
        return self._told

    def _row(self, output: Any) -> Recorded:
        if output.logprobs is None:
            raise UserError("this vLLM returned no log-probabilities though they were asked for; update it.")
        tokens = list(output.token_ids)
        logp = [float(places[token].logprob) for token, places in zip(tokens, output.logprobs, strict=True)]
        length = ended(tokens, self.policy.stop_ids)
        stopped = length > 0 and tokens[length - 1] in self.policy.stop_ids
        return Recorded(tokens[:length], logp[:length], None, "stop" if stopped else "length")
