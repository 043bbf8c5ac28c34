from __future__ import annotations

import json

import pytest
import torch

import upslope as up
from upslope.learners.low_precision_adam import LowPrecisionAdam, move, rounded
from upslope.testing.runs import Breaks, Crash, assert_same_run, sums


def made(seed: int = 0, **how):
    parameters = [torch.nn.Parameter(torch.linspace(-1, 1, size)) for size in (300, 7)]
    return parameters, LowPrecisionAdam([{"params": parameters}], seed=seed, lr=1e-2, betas=(0.9, 0.999), eps=1e-8, **how)


def slopes(step: int, parameters) -> None:
    for number, parameter in enumerate(parameters):
        parameter.grad = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(100 * step + number))


def test_numbers_are_rounded_to_a_neighbour_the_closer_the_more_often():
    x = torch.tensor([1.0, 1.001, -3.3, 1e-30, 0.0])
    bits = torch.randint(2**16, (20_000, 1), dtype=torch.int32, generator=torch.Generator().manual_seed(0))
    found = rounded(x.expand(20_000, -1).contiguous(), bits)
    assert torch.equal(found.to(torch.bfloat16).float(), found), "all of them are numbers of bfloat16"
    below = x.abs() * 2**-7  # the distance of neighbours, or less
    assert bool(((found - x).abs() <= below).all())
    torch.testing.assert_close(found.mean(0), x, atol=0.0, rtol=2e-4)
    assert torch.equal(found[:, 0], torch.ones(20_000)), "what bfloat16 can hold stays"


def test_a_first_update_is_adams():
    """At rate 0.1, gradient 2: the moments are 0.1 * 2 = 0.2 and 0.001 * 4 = 0.004, and 1 - 0.1 * (0.2 / 0.1) / 2 is left, 0.9."""
    parameter, mean, square = torch.tensor([1.0]), torch.zeros(1, dtype=torch.bfloat16), torch.zeros(1, dtype=torch.bfloat16)
    numbers = {"lr": 0.1 / (1 - 0.9), "beta1": 0.9, "beta2": 0.999, "correction": (1 - 0.999) ** 0.5, "eps": 0.0, "decay": 1.0}
    move(parameter, torch.tensor([2.0]), mean, square, **numbers, bits=torch.zeros(2, 1, dtype=torch.int32))
    torch.testing.assert_close(parameter, torch.tensor([0.9]), atol=1e-6, rtol=0.0)
    assert float(mean) == pytest.approx(0.2, rel=2**-7) and float(square) == pytest.approx(0.004, rel=2**-7)


def test_it_follows_torchs_adamw():
    ours, low = made(weight_decay=0.1)
    theirs = [torch.nn.Parameter(parameter.detach().clone()) for parameter in ours]
    exact = torch.optim.AdamW(theirs, lr=1e-2, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.1)
    for step in range(60):
        slopes(step, ours)
        slopes(step, theirs)
        low.step()
        exact.step()
    moved = torch.cat([their.detach() for their in theirs]) - torch.cat([torch.linspace(-1, 1, size) for size in (300, 7)])
    apart = torch.cat([our.detach() - their.detach() for our, their in zip(ours, theirs, strict=True)])
    assert apart.norm() < 0.02 * moved.norm(), "moments of eight bits, rounded without bias"
    assert low.state[ours[0]]["exp_avg"].dtype == torch.bfloat16


def test_second_moments_move_where_rounding_to_the_nearest_would_hold_them():
    """After gradients of 1 come gradients of 0.5: in 3,000 updates at 0.999 the moment falls to 0.25 + 0.75 * 0.0497 = 0.287."""
    parameters, low = made()
    parameter, state = parameters[0], low.state
    parameter.grad = torch.full_like(parameter, 0.5)
    low.step()
    state[parameter]["exp_avg_sq"].fill_(1.0)
    nearest = torch.ones(300, dtype=torch.bfloat16)
    for _ in range(3000):
        low.step()
        nearest.copy_(nearest.float() * 0.999 + 0.001 * 0.25)
    assert float(state[parameter]["exp_avg_sq"].float().mean()) == pytest.approx(0.287, rel=0.02)
    assert float(nearest.float().mean()) > 0.9


def test_saved_in_the_middle_it_ends_in_the_same_bits():
    whole, one = made(seed=3)
    cut, first = made(seed=3)
    for step in range(10):
        slopes(step, whole)
        one.step()
    for step in range(5):
        slopes(step, cut)
        first.step()
    rest = [torch.nn.Parameter(parameter.detach().clone()) for parameter in cut]
    second = LowPrecisionAdam([{"params": rest}], seed=3, lr=1e-2, betas=(0.9, 0.999), eps=1e-8)
    second.load_state_dict(first.state_dict())
    for step in range(5, 10):
        slopes(step, rest)
        second.step()
    assert all(torch.equal(a, b) for a, b in zip(whole, rest, strict=True))
    other, elsewhere = made(seed=4)
    for step in range(10):
        slopes(step, other)
        elsewhere.step()
    assert not torch.equal(whole[0], other[0]), "another seed rounds otherwise"


def test_a_run_with_moments_in_bfloat16_resumes_to_the_bit(tmp_path):
    (tmp_path / "data.jsonl").write_text("".join(json.dumps(line) + "\n" for line in sums()))
    (tmp_path / "letters.py").write_text(
        "def score(prompts, responses, answers):\n    return [len(set(r)) / 4 for r in responses]\n"
    )
    asked = {
        "task": str(tmp_path / "data.jsonl"), "reward": f"{tmp_path / 'letters.py'}:score", "model": "tiny:layers=1,width=32",
        "steps": 4, "tasks_per_step": 3, "samples_per_task": 4, "updates_per_step": 2, "max_tokens": 4, "warm_start": 0.0,
        "eval_problems": 4, "checkpoint_every": 2, "eval_every": 0,
    }  # fmt: skip
    whole = up.train("dr-grpo", **asked, adam_states="bfloat16", out=tmp_path / "whole")
    with pytest.raises(Crash):
        up.train("dr-grpo", **asked, adam_states="bfloat16", out=tmp_path / "cut", watcher=Breaks(3))
    up.resume(tmp_path / "cut")
    assert_same_run(whole.path, tmp_path / "cut")
    exact = up.train("dr-grpo", **asked, out=tmp_path / "exact")
    ours, theirs = ([each["grad_norm"] for each in run.metrics if "grad_norm" in each] for run in (whole, exact))
    assert ours and ours != theirs and ours == pytest.approx(theirs, rel=0.1)
