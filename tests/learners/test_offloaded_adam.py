"""Moments in the host's memory give the updates, the files and the runs that moments beside the parameters give."""

from __future__ import annotations

import gc

import pytest
import torch

import upslope as up
from upslope.learners import offloaded_adam
from upslope.learners.offloaded_adam import OffloadedAdam
from upslope.runtime.snapshots import HostMemory
from upslope.testing.runs import Breaks, Crash, assert_same_run

HOW = {"lr": 1e-2, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1}
SIZES = ((70, 5), (7,), (128,), (1, 3))


def parameters() -> list[torch.nn.Parameter]:
    random = torch.Generator().manual_seed(0)
    return [torch.nn.Parameter(torch.randn(size, generator=random)) for size in SIZES]


def slopes(step: int, several: list[torch.nn.Parameter]) -> None:
    for number, parameter in enumerate(several):
        parameter.grad = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(100 * step + number))
    several[step % 4].grad = None  # not every parameter has one in every update


def trained(optimizer: torch.optim.Optimizer, several: list[torch.nn.Parameter], steps: range) -> None:
    for step in steps:
        slopes(step, several)
        optimizer.param_groups[0]["lr"] = 1e-2 / (step + 1)
        optimizer.step()


def check_same(one: torch.optim.Optimizer, ours: list[torch.nn.Parameter], other: torch.optim.Optimizer, theirs: list) -> None:
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
    held, expected = one.state_dict()["state"], other.state_dict()["state"]
    assert held.keys() == expected.keys() and held[0].keys() == expected[0].keys()
    assert all(torch.equal(held[key][name], expected[key][name]) for key in expected for name in expected[key])


@pytest.mark.parametrize("streamed", [False, True], ids=["in-place", "in-stretches"])
def test_updates_are_adamws_to_the_bit(streamed, monkeypatch):
    ours, theirs = parameters(), parameters()
    low, exact = OffloadedAdam([{"params": ours}], **HOW), torch.optim.AdamW(theirs, **HOW, fused=True)
    if streamed:  # as on a GPU, but for the streams
        monkeypatch.setattr(OffloadedAdam, "_elsewhere", staticmethod(lambda parameter: True))
        monkeypatch.setattr(offloaded_adam, "CHUNK", 64)
    trained(low, ours, range(9))
    trained(exact, theirs, range(9))
    check_same(low, ours, exact, theirs)


def test_saved_in_the_middle_it_ends_in_the_same_bits_and_can_be_read_as_float32():
    whole = parameters()
    one = OffloadedAdam([{"params": whole}], **HOW)
    trained(one, whole, range(10))
    cut = parameters()
    first = OffloadedAdam([{"params": cut}], **HOW)
    trained(first, cut, range(5))
    for kind in (OffloadedAdam, torch.optim.AdamW):
        rest = [torch.nn.Parameter(parameter.detach().clone()) for parameter in cut]
        second = kind([{"params": rest}], **HOW, **({"fused": True} if kind is torch.optim.AdamW else {}))
        second.load_state_dict({**second.state_dict(), "state": first.state_dict()["state"]})
        trained(second, rest, range(5, 10))
        check_same(second, rest, one, whole)


def test_moments_are_in_one_piece_of_memory_that_is_given_back(monkeypatch):
    closed = []
    monkeypatch.setattr(HostMemory, "close", lambda self: closed.append(self))
    several = parameters()
    low = OffloadedAdam([{"params": several}], **HOW)
    low.make_state(several[0])
    states = [low.state[each][name] for each in several for name in offloaded_adam.MOMENTS]
    assert len({each.untyped_storage().data_ptr() for each in states}) == 1 and all(each.dtype == torch.float32 for each in states)
    assert all(not each.any() for each in states) and low.make_state(several[2])["step"] == 0
    del low, states
    gc.collect()
    assert len(closed) == 1


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_streams_of_a_gpu_give_the_updates_of_moments_on_it(monkeypatch):
    monkeypatch.setattr(offloaded_adam, "CHUNK", 1 << 12)
    ours, theirs = ([torch.nn.Parameter(torch.linspace(-1, 1, size, device="cuda")) for size in (100_000, 7)] for _ in range(2))
    away, exact = OffloadedAdam([{"params": ours}], **HOW), torch.optim.AdamW(theirs, **HOW, fused=True)
    for _ in range(20):
        for one, other in zip(ours, theirs, strict=True):
            one.grad = torch.randn_like(one)
            other.grad = one.grad.clone()
        away.step()
        exact.step()
    assert all(torch.equal(one, other) for one, other in zip(ours, theirs, strict=True))
    held, expected = away.state_dict()["state"], exact.state_dict()["state"]
    assert all(each["exp_avg"].is_pinned() for each in held.values())
    assert all(torch.equal(held[key]["exp_avg_sq"], expected[key]["exp_avg_sq"].cpu()) for key in held)


def test_a_run_with_offloaded_moments_is_the_run_with_float32_and_resumes_to_the_bit(tmp_path):
    (tmp_path / "letters.py").write_text(
        "def score(prompts, responses, answers):\n    return [len(set(r)) / 4 for r in responses]\n"
    )
    asked = {
        "task": "reverse:length=2", "reward": f"{tmp_path / 'letters.py'}:score", "model": "tiny:layers=1,width=16", "steps": 4,
        "tasks_per_step": 3, "samples_per_task": 4, "updates_per_step": 2, "warm_start": 0.0, "eval_problems": 4, "lr": 1e-3,
        "max_tokens": 4, "checkpoint_every": 2, "eval_every": 0, "record": "none", "audit": "off",
    }  # fmt: skip
    exact = up.train("dr-grpo", **asked, out=tmp_path / "exact")
    assert any(each.get("grad_norm", 0.0) > 0 for each in exact.metrics)
    with pytest.raises(Crash):
        up.train("dr-grpo", **asked, adam_states="offload", out=tmp_path / "cut", watcher=Breaks(3))
    up.resume(tmp_path / "cut")
    assert_same_run(exact.path, tmp_path / "cut")
    kept = [path / "checkpoints" / "step-000004" / "learner.safetensors" for path in (exact.path, tmp_path / "cut")]
    assert kept[0].read_bytes() == kept[1].read_bytes()
