"""How many tokens go together on a GPU: as many as its memory holds beside the model, and the same for a copy."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from upslope.policies.slice_budget import GPU_SHARE, GPU_SHARE_LEFT, token_budget
from upslope.policies.tiny import tiny

GIB = 2**30


@pytest.fixture
def memory(monkeypatch):
    """Sets the memory of a GPU that is not there."""

    def of(size: int) -> None:
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(total_memory=size))

    return of


def on_gpu(layers: int = 2, **changes) -> SimpleNamespace:
    """A policy that says it is on a GPU."""
    policy = tiny(0, layers=layers, width=64, heads=2)
    said = {"adapted": False, "apart": False, "recompute": 0, "body": policy.body, "slice_bytes": policy.slice_bytes, **changes}
    said["slices"] = policy.slices
    return SimpleNamespace(model=policy.model, device=torch.device("cuda"), compute_dtype=torch.bfloat16, **said)


def kept(policy: SimpleNamespace) -> int:
    """What each token keeps for the backward pass, written out for the sizes of `on_gpu`."""
    config = policy.model.config
    return config.num_hidden_layers * (2 * (4 * 64 + 2 * config.intermediate_size) + 8 * 64)


def test_a_slice_takes_its_share_of_what_the_model_leaves(memory):
    policy = on_gpu()
    own = 4 * sum(parameter.numel() for parameter in policy.model.parameters())
    memory(80 * GIB)
    assert token_budget(policy) == (80 * GIB - 5 * own) // GPU_SHARE_LEFT // kept(policy)
    assert token_budget(on_gpu(adapted=True)) == (80 * GIB - 2 * own) // GPU_SHARE_LEFT // kept(policy)
    assert token_budget(on_gpu(adapted=True, apart=True)) == (80 * GIB - own // 2) // GPU_SHARE_LEFT // kept(policy)
    assert token_budget(on_gpu(recompute=1)) == (80 * GIB - 5 * own) // GPU_SHARE_LEFT // (kept(policy) // 4)


def test_where_the_model_leaves_little_a_slice_stays_small(memory):
    policy = on_gpu(layers=40)
    own = 4 * sum(parameter.numel() for parameter in policy.model.parameters())
    memory(6 * own)
    assert token_budget(policy) == max(512, 6 * own // GPU_SHARE // kept(policy))
    memory(5 * own // 1000)
    assert token_budget(policy) == 512, "at least that"


def test_what_transformers_computes_is_cut_as_before(memory):
    memory(80 * GIB)
    policy = on_gpu(body=None)
    config = policy.model.config
    assert token_budget(policy) == 80 * GIB // GPU_SHARE // (4 * (3 * config.vocab_size + 16 * config.num_hidden_layers * 64))


def test_a_frozen_copy_is_cut_like_the_policy(memory, monkeypatch):
    memory(24 * GIB)
    policy = tiny(0, layers=2, width=64, heads=2)
    copy = policy.frozen_copy()
    monkeypatch.setattr(type(policy), "device", torch.device("cuda"))
    assert token_budget(copy) == token_budget(policy) > 16384, "of two with the same weights the difference must be zero"


def test_what_the_plan_says_goes_before_every_rule_and_copies_share_it():
    policy = tiny(0, layers=2, width=64, heads=2)
    rule, copy = token_budget(policy), policy.frozen_copy()
    policy.slices.tokens = 100
    assert token_budget(policy) == token_budget(copy) == 100 < rule
    copy.slices.tokens = 50
    assert token_budget(policy) == 50


def test_what_makes_a_row_fit_is_what_is_not_done_yet():
    policy = tiny(0, layers=2, width=64, heads=2)
    assert "--recompute all" in policy.memory_cure(1)
    policy.recompute = 2
    assert "--max-tokens" in policy.memory_cure(1) and "--samples-per-task 4" in policy.memory_cure(8)
