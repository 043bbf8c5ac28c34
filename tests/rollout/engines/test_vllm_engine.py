"""The vLLM engine against a stand-in for vLLM: the calls and objects of its documentation, with our own sampling behind them."""

from __future__ import annotations

import importlib.machinery
import os
import sys
import types
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

import upslope as up
from upslope.errors import MethodError, MissingExtra
from upslope.policies import LanguageModel, load_language_model
from upslope.rollout.engines.torch_engine import TorchEngine
from upslope.rollout.engines.vllm_engine import VLLMEngine
from upslope.runtime.seeding import uniforms
from upslope.types import Sampling

torch.set_num_threads(1)

MODEL = "tiny:layers=1,width=64"


@dataclass
class SamplingParams:
    """vLLM's, as far as it is used; an argument it does not have is an error, as there."""

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    stop_token_ids: list[int] = field(default_factory=list)
    max_tokens: int | None = 16
    logprobs: int | None = None
    detokenize: bool = True


@dataclass
class Logprob:
    logprob: float
    rank: int | None = None


@dataclass
class CompletionOutput:
    index: int
    text: str
    token_ids: tuple[int, ...]
    logprobs: list[dict[int, Logprob]] | None
    finish_reason: str


@dataclass
class RequestOutput:
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]


class FakeModel:
    """A model as vLLM holds it: its own copy, changed only by ``load_weights``."""

    def __init__(self, policy: LanguageModel):
        self.policy = policy

    def load_weights(self, weights: list[tuple[str, torch.Tensor]]) -> None:
        own = dict(self.policy.model.named_parameters())
        for name, value in weights:
            own[name].data.copy_(value)


class LLM:
    made: list[LLM]

    def __init__(self, model: str, *, dtype: str = "auto", seed: int = 0, gpu_memory_utilization: float = 0.92, **kwargs: Any):
        assert set(kwargs) <= {"max_model_len", "logprobs_mode"} and os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0"
        self.dtype, self.settings = dtype, kwargs
        self.model = FakeModel(load_language_model(model, 0))
        self.cached = False
        LLM.made.append(self)

    def generate(self, prompts: list[dict[str, Any]], sampling_params: list[SamplingParams], *, use_tqdm: bool = True) -> list[Any]:
        assert len(prompts) == len(sampling_params) and not use_tqdm
        self.cached = True
        return [self._one(prompt["prompt_token_ids"], each) for prompt, each in zip(prompts, sampling_params, strict=True)]

    def _one(self, prompt: list[int], asked: SamplingParams) -> RequestOutput:
        assert asked.logprobs is not None and asked.seed is not None and asked.max_tokens is not None
        policy = self.model.policy
        policy.stop_ids = frozenset(asked.stop_token_ids)
        drawn = Sampling(asked.max_tokens, asked.temperature, max(asked.top_k, 0), asked.top_p, asked.min_p)
        done = TorchEngine(policy).generate([prompt], asked.n, drawn, uniforms((asked.n, asked.max_tokens), asked.seed))
        outputs = []
        for row in reversed(range(asked.n)):
            length = int(done.sampled[row].sum())
            tokens, logp = done.tokens[row, :length].tolist(), done.logp[row, :length].tolist()
            # Asked for none beside it, vLLM gives the sampled token's alone; others may stand beside it.
            places = [{-1: Logprob(0.0, 1), token: Logprob(value, 2)} for token, value in zip(tokens, logp, strict=True)]
            outputs.append(CompletionOutput(row, "", tuple(tokens), places, done.finish[row]))
        return RequestOutput(prompt, outputs)

    def apply_model(self, function: Any) -> list[Any]:
        return [function(self.model)]

    def reset_prefix_cache(self) -> bool:
        self.cached = False
        return True


@pytest.fixture
def vllm(monkeypatch: pytest.MonkeyPatch) -> type[LLM]:
    module = types.ModuleType("vllm")
    module.__spec__ = importlib.machinery.ModuleSpec("vllm", None)
    module.LLM, module.SamplingParams = LLM, SamplingParams  # type: ignore[attr-defined]
    LLM.made = []
    monkeypatch.setitem(sys.modules, "vllm", module)
    monkeypatch.delenv("VLLM_ENABLE_V1_MULTIPROCESSING", raising=False)
    return LLM


def test_rows_come_back_in_order_with_the_log_probabilities_of_what_was_sampled(vllm: type[LLM]) -> None:
    policy = load_language_model(MODEL, 0)
    engine = VLLMEngine(policy)
    (llm,) = vllm.made
    assert llm.settings["logprobs_mode"] == "processed_logprobs" and llm.dtype == "float32"
    assert llm.settings["max_model_len"] == policy.model.config.max_position_embeddings
    prompts, numbers = [policy.encode("abc"), policy.encode("hello"), policy.encode("abc")], uniforms((12, 8), 2)
    done = engine.generate(prompts, 4, Sampling(8, 0.8), numbers, [8, 3, 8])
    assert engine.metrics()["engine_gap_worst"] < 1e-5
    assert done.sampled[4:8].sum(1).max() <= 3 < done.sampled.sum(1).max()
    stops = torch.tensor(sorted(policy.stop_ids))
    for row, finish in enumerate(done.finish):
        last = done.tokens[row, int(done.sampled[row].sum()) - 1]
        assert (finish == "stop") == bool(torch.isin(last, stops))
    assert not torch.equal(done.tokens[:4], done.tokens[8:]), "equal prompts at different places draw differently"
    again = engine.generate(prompts, 4, Sampling(8, 0.8), numbers, [8, 3, 8])
    assert torch.equal(done.tokens, again.tokens)
    truncated = engine.generate(prompts, 4, Sampling(8, 0.8, top_k=1), numbers)
    assert truncated.logp.abs().max() == 0 and engine.metrics() == {}


def test_groups_may_differ_in_size(vllm: type[LLM]) -> None:
    policy = load_language_model(MODEL, 0)
    engine = VLLMEngine(policy)
    prompts, numbers = [policy.encode("abc"), policy.encode("hello"), policy.encode("abc")], uniforms((9, 8), 2)
    done = engine.generate(prompts, [4, 2, 3], Sampling(8, 0.8), numbers)
    assert len(done.tokens) == 9 and engine.metrics()["engine_gap_worst"] < 1e-5, "each row was compared with its own prompt"
    for place, rows in enumerate((slice(0, 4), slice(4, 6), slice(6, 9))):
        alone = engine.generate(prompts[place : place + 1], rows.stop - rows.start, Sampling(8, 0.8), numbers[rows])
        assert torch.equal(done.tokens[rows, : alone.tokens.shape[1]], alone.tokens)


def test_a_sync_hands_over_the_weights_and_drops_what_was_cached(vllm: type[LLM]) -> None:
    policy = load_language_model(MODEL, 0)
    engine = VLLMEngine(policy)
    engine.generate([[1, 9]], 2, Sampling(6), uniforms((2, 6), 0))
    (llm,) = vllm.made
    with torch.no_grad():
        next(policy.model.parameters()).mul_(1.5)
    engine.generate([[1, 9]], 2, Sampling(6), uniforms((2, 6), 0))
    assert engine.metrics()["engine_gap_worst"] > 1e-3, "it samples with its own copy until it is told"
    assert llm.cached
    engine.sync(policy)
    assert not llm.cached
    engine.generate([[1, 9]], 2, Sampling(6), uniforms((2, 6), 0))
    assert engine.metrics()["engine_gap_worst"] < 1e-5


@pytest.mark.slow
def test_a_run_on_it_follows_the_policy(vllm: type[LLM], tmp_path: Path) -> None:
    run = up.train("grpo", "reverse:length=2", model=MODEL, engine="vllm", steps=3, tasks_per_step=16, samples_per_task=4,
                   eval_problems=10, warm_start=0.3, lr=1e-3, out=tmp_path / "run")  # fmt: skip
    assert all(step["engine_gap_worst"] < 1e-4 and "entropy" not in step for step in run.metrics)
    assert any(step["grad_norm"] > 0 for step in run.metrics)
    assert len(vllm.made) == 1


def test_methods_that_need_entropies_are_refused_before_it_starts(vllm: type[LLM], tmp_path: Path) -> None:
    needing = next(m for m in up.list_methods() if "behavior.entropy" in m.needs() and m.family != "control")
    with pytest.raises(MethodError, match=r"needs 'behavior\.entropy'"):
        up.train(needing.name, "reverse:length=2", model=MODEL, engine="vllm", out=tmp_path / "run")
    assert not vllm.made


def test_without_it_the_command_to_install_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(MissingExtra, match="pip install vllm"):
        VLLMEngine(load_language_model("tiny:layers=1,width=32", 0))
