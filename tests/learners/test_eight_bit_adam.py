"""Moments in eight bits: the codes, the updates and the runs they give, beside torchao's and torch's own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

import upslope as up
from upslope.errors import UserError
from upslope.learners import eight_bit_adam
from upslope.learners.eight_bit_adam import BLOCK, EightBitAdam, Moment, dequantized, dynamic_map, move, quantize, tables
from upslope.runtime.files import load_state
from upslope.testing.runs import Breaks, Crash, assert_same_run

HOW = {"lr": 1e-2, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.1}
CPU = torch.device("cpu")
SIGNED, UNSIGNED = tables(CPU)
ZERO = 127
"""The code of zero among values with a sign."""


def parameters(*sizes: int, device: str = "cpu") -> list[torch.nn.Parameter]:
    return [torch.nn.Parameter(torch.linspace(-1, 1, size, device=device)) for size in sizes]


def slopes(step: int, several: list[torch.nn.Parameter]) -> None:
    """Gradients of four powers of ten, other ones in every step; none is so small that torchao would hold its square as zero."""
    for number, parameter in enumerate(several):
        random = torch.Generator().manual_seed(100 * step + number)
        size = len(parameter)
        noise = torch.randn(size, generator=random)
        parameter.grad = (noise.sign() * noise.abs().clamp_min(0.02) * torch.logspace(-4, 0, size)).to(parameter.device)


def trained(optimizer: torch.optim.Optimizer, several: list[torch.nn.Parameter], steps: range) -> None:
    for step in steps:
        slopes(step, several)
        optimizer.step()


def held(x: torch.Tensor, table: torch.Tensor) -> Moment:
    moment = Moment(torch.zeros(len(x), dtype=torch.uint8), torch.zeros(-(-len(x) // BLOCK)))
    quantize(x, table, moment)
    return moment


def block(*first: float) -> torch.Tensor:
    return torch.nn.functional.pad(torch.tensor(first), (0, BLOCK - len(first)))


def test_a_block_by_hand():
    """Of 2, -1, 0.5 and zeros the scale is 2; what is held are 1, -0.5, 0.25 and 0.

    With a sign the values from 0.1 to 1 are the middles of 64 parts of 0.9 / 64 = 0.0140625; 127 + 63 values lie below them, zero
    among the former, and 1 is the last. 0.5 is in part 28 (0.4 / 0.0140625 = 28.4), whose middle is 0.1 + 28.5 * 0.0140625 =
    0.50078125, of code 127 + 64 + 28 = 219, and as far below zero 127 - 92 = 35. 0.25 is in part 10, whose middle is 0.24765625, of
    code 201. Without a sign there are 128 parts of 0.00703125 over 126 values and zero: 0.25 is in part 21, whose middle is
    0.251171875, of code 127 + 21 = 148.
    """
    moment = held(block(2.0, -1.0, 0.5), SIGNED)
    assert moment.scales.tolist() == [2.0] and moment.codes.tolist() == [255, 35, 201] + [ZERO] * 253
    torch.testing.assert_close(dequantized(moment, SIGNED), block(2.0, -1.0015625, 0.4953125), atol=3e-7, rtol=0.0)
    moment = held(block(4.0, 1.0), UNSIGNED)
    assert moment.scales.tolist() == [4.0] and moment.codes.tolist() == [255, 148] + [0] * 254
    torch.testing.assert_close(dequantized(moment, UNSIGNED), block(4.0, 1.0046875), atol=3e-7, rtol=0.0)


def test_of_two_values_equally_near_it_is_the_larger_one():
    smallest = dynamic_map(signed=True)[ZERO + 1]
    assert float(smallest) == pytest.approx(0.55e-6)
    half = smallest / 2
    less, more = (torch.nextafter(half, torch.tensor(to)) for to in (0.0, 1.0))
    x = torch.stack([half, less, more, -half, -less, -more, torch.tensor(1.0), torch.tensor(-1.0)])
    assert held(x, SIGNED).codes.tolist() == [ZERO + 1, ZERO, ZERO + 1, ZERO, ZERO, ZERO - 1, 255, 0]


@pytest.mark.parametrize("table", [SIGNED, UNSIGNED], ids=["signed", "unsigned"])
def test_every_number_is_held_as_the_nearest_value(table):
    shares = torch.cat([table[0], (table[0, 1:] + table[0, :-1]) / 2 * 1.001, torch.linspace(float(table[0, 0]), 1, 30_000)])
    shares = shares[: len(shares) // BLOCK * BLOCK].clamp(max=1.0)
    shares[::BLOCK] = 1.0  # so that every scale is 3
    moment = held(3 * shares, table)
    assert moment.scales.unique().tolist() == [3.0]
    apart = (dequantized(moment, table) / 3 - shares).abs()
    nearest = (table[0] - shares[:, None]).abs().min(1).values
    torch.testing.assert_close(apart, nearest, atol=3e-7, rtol=0.0)
    assert moment.codes.unique().numel() == 256, "every code is of use"


def test_blocks_do_not_see_each_other_and_nothing_is_zero():
    large, small = torch.linspace(-1, 1, BLOCK), 1e-5 * torch.linspace(-1, 1, 100)
    both = held(torch.cat([large, small]), SIGNED)
    assert both.scales.tolist() == pytest.approx([1.0, 1e-5])
    assert torch.equal(both.codes[BLOCK:], held(small, SIGNED).codes), "a short block is a block"
    nothing = held(torch.zeros(300), UNSIGNED)
    assert nothing.scales.tolist() == pytest.approx([1e-12] * 2, rel=1e-6, abs=0.0) and not dequantized(nothing, UNSIGNED).any()


def test_a_first_update_is_adams():
    """At rate 0.1, gradient 2: the moments are 0.1 * 2 = 0.2 and 0.001 * 4 = 0.004, and 1 - 0.1 * (0.2 / 0.1) / 2 is left, 0.9."""
    parameter, mean, square = torch.ones(BLOCK), held(torch.zeros(BLOCK), SIGNED), held(torch.zeros(BLOCK), UNSIGNED)
    numbers = {"lr": 0.1 / (1 - 0.9), "first": 0.1, "second": 0.001, "correction": (1 - 0.999) ** 0.5, "eps": 0.0, "decay": 1.0}
    move(parameter, torch.full((BLOCK,), 2.0), mean, square, **numbers)
    torch.testing.assert_close(parameter, torch.full((BLOCK,), 0.9), atol=1e-6, rtol=0.0)
    assert float(mean.scales) == pytest.approx(0.2) and float(square.scales) == pytest.approx(0.004)


@pytest.mark.parametrize("small", [1e-3, 1e-4, 1e-5, 1e-6])
def test_small_gradients_beside_large_ones_do_not_throw_a_weight_away(small):
    """Of each block one gradient is 1 and the others are ``small``, every third time zero, as those of a token that is not in the
    batch. AdamW moves a weight by at most about a rate; with second moments rounded to zero 1e-4 moved one by 5,000 rates."""
    ours, how = parameters(4096), {"lr": 1e-3, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.0}
    low, steps = EightBitAdam([{"params": ours}], **how), []
    for step in range(12):
        grad = torch.full((4096,), small if step % 3 else 0.0)
        grad[::BLOCK] = 1.0
        ours[0].grad, before = grad, ours[0].detach().clone()
        low.step()
        steps.append(float((ours[0].detach() - before).abs().max()) / how["lr"])
    assert 0.9 < max(steps) < 2.0
    held_here = low.state[ours[0]]
    assert bool((held_here["exp_avg_sq"] > 0).all()), "what is not zero is not held as zero"


@pytest.mark.oracle("torchao")
def test_sixty_updates_are_torchaos(tmp_path):
    """The values of codes, and codes and scales to the bit. Parameters to 1e-5 where they move by 0.09: torchao takes the powers of
    the betas in float32, where 1 - 0.999 is off by a hundred-thousandth."""
    start, ours, exact = (parameters(4096, 32 * BLOCK) for _ in range(3))
    grads = []
    for step in range(60):
        slopes(step, start)
        grads.append([each.grad for each in start])
    given, found = tmp_path / "given.pt", tmp_path / "found.pt"
    torch.save({"starts": [each.detach() for each in start], "grads": grads, "how": HOW}, given)
    subprocess.run([sys.executable, Path(__file__).parents[1] / "beside_torchao.py", given, found], check=True)
    theirs = torch.load(found)
    for signed in (True, False):
        assert torch.equal(dynamic_map(signed), theirs["maps"][signed])
    low = EightBitAdam([{"params": ours}], **HOW)
    trained(low, ours, range(60))
    trained(torch.optim.AdamW(exact, **HOW), exact, range(60))
    for our, their, held_there, other, before in zip(ours, theirs["parameters"], theirs["held"], exact, start, strict=True):
        for name in ("exp_avg", "exp_avg_sq"):
            state, (codes, scale) = low.state[our], held_there[name]
            assert torch.equal(state[name], codes) and torch.equal(state[f"{name}_scale"], scale)
        torch.testing.assert_close(our, their, atol=1e-5, rtol=0.0, check_stride=False)
        apart, moved = (our - other).norm(), (other - before).norm()
        assert moved > 0.08 * len(our) ** 0.5
        assert 0.01 * moved < apart < 0.04 * moved, "eight bits are fewer than 32, and enough"


def test_small_parameters_move_as_torchs_to_the_bit():
    ours, theirs = parameters(4095, 7), parameters(4095, 7)
    low, exact = EightBitAdam([{"params": ours}], **HOW), torch.optim.AdamW(theirs, **HOW, fused=True)
    for step in range(9):
        for optimizer, several in ((low, ours), (exact, theirs)):
            slopes(step, several)
            several[1].grad = None if step == 4 else several[1].grad  # not every parameter has one in every update
            optimizer.param_groups[0]["lr"] = 1e-2 / (step + 1)
            optimizer.step()
    for our, their in zip(ours, theirs, strict=True):
        assert torch.equal(our, their)
        assert low.state[our].keys() == exact.state[their].keys()
        assert all(torch.equal(low.state[our][name], value) for name, value in exact.state[their].items())


def test_what_is_held_takes_two_bytes_a_number_and_of_a_small_parameter_eight():
    several = parameters(4096, 5000, 4095)
    low = EightBitAdam([{"params": several}], **HOW)
    taken = [sum(value.nbytes for name, value in low.make_state(each).items() if name != "step") for each in several]
    assert taken == [4096 * 2 + 16 * 8, 5000 * 2 + 20 * 8, 4095 * 8]
    assert all(not dequantized(Moment.of(low.state[several[0]], name), SIGNED).any() for name in ("exp_avg", "exp_avg_sq"))


def test_a_short_last_block_and_chunks_give_what_whole_ones_give(monkeypatch):
    """A parameter of 5,000 numbers moves as the first 5,000 of 5,120 move whose others have no gradient."""
    (short,), (whole,) = parameters(5000), parameters(5120)
    whole.data[:5000], whole.data[5000:] = short.data, 0.0
    low, padded = EightBitAdam([{"params": [short]}], **HOW), EightBitAdam([{"params": [whole]}], **HOW)
    for step in range(10):
        slopes(step, [short])
        whole.grad = torch.nn.functional.pad(short.grad, (0, 120))
        monkeypatch.setattr(eight_bit_adam, "CHUNK", 2 * BLOCK)
        low.step()
        monkeypatch.undo()
        padded.step()
    torch.testing.assert_close(short, whole[:5000], atol=1e-7, rtol=0.0)
    ours, theirs = low.state[short], padded.state[whole]
    for name in ("exp_avg", "exp_avg_sq"):
        assert torch.equal(ours[name], theirs[name][:5000]) and ours[name].any()
        torch.testing.assert_close(ours[f"{name}_scale"], theirs[f"{name}_scale"], atol=0.0, rtol=1e-6)


def test_saved_in_the_middle_it_ends_in_the_same_bits():
    whole, cut = parameters(5000, 7), parameters(5000, 7)
    one, first = EightBitAdam([{"params": whole}], **HOW), EightBitAdam([{"params": cut}], **HOW)
    trained(one, whole, range(10))
    trained(first, cut, range(5))
    rest = [torch.nn.Parameter(parameter.detach().clone()) for parameter in cut]
    second = EightBitAdam([{"params": rest}], **HOW)
    second.load_state_dict(first.state_dict())
    state = second.state[rest[0]]
    assert state["exp_avg"].dtype == torch.uint8 and state["exp_avg"] is not first.state[cut[0]]["exp_avg"]
    trained(second, rest, range(5, 10))
    for ours, theirs in zip(whole, rest, strict=True):
        assert torch.equal(ours, theirs)
        assert all(torch.equal(one.state[ours][name], second.state[theirs][name]) for name in one.state[ours])


def test_moments_that_were_saved_otherwise_are_refused():
    theirs, ours = parameters(4096), parameters(4096)
    exact = torch.optim.AdamW(theirs, **HOW)
    trained(exact, theirs, range(1))
    with pytest.raises(
        UserError,
        match=r"of parameter 0 are not those of --adam-states 8bit: .*'exp_avg': 'float32 \[4096\]'.* they were saved with",
    ):
        EightBitAdam([{"params": ours}], **HOW).load_state_dict(exact.state_dict())
    low = EightBitAdam([{"params": theirs}], **HOW)
    trained(low, theirs, range(1))
    partial = low.state_dict()
    partial["state"][0] = {name: value for name, value in partial["state"][0].items() if name != "exp_avg_scale"}
    with pytest.raises(UserError, match="of parameter 0 are not those of --adam-states 8bit"):
        EightBitAdam([{"params": ours}], **HOW).load_state_dict(partial)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_the_kernel_moves_as_plain_torch_does(monkeypatch):
    """From the same codes in every update; of a thousand numbers one may be rounded to the neighbour."""
    sizes = (4096, 1_000_003)
    fast, plain = parameters(*sizes, device="cuda"), parameters(*sizes)
    low, slow = EightBitAdam([{"params": fast}], **HOW), EightBitAdam([{"params": plain}], **HOW)
    for step in range(10):
        for optimizer, several in ((low, fast), (slow, plain)):
            trained(optimizer, several, range(step, step + 1))
        for ours, theirs in zip(fast, plain, strict=True):
            torch.testing.assert_close(ours.cpu(), theirs, atol=1e-6, rtol=0.0)
            for name in ("exp_avg", "exp_avg_sq"):
                found, expected = low.state[ours], slow.state[theirs]
                apart = (found[name].cpu().int() - expected[name].int()).abs()
                assert apart.max() <= 1 and apart.bool().float().mean() <= 1e-3
                torch.testing.assert_close(found[f"{name}_scale"].cpu(), expected[f"{name}_scale"], atol=0.0, rtol=1e-6)
            theirs.data.copy_(ours.data)
        slow.load_state_dict(low.state_dict())
    once = [(each.detach().clone(), {**low.state[each]}["exp_avg"].clone()) for each in fast]
    again = parameters(*sizes, device="cuda")
    twin = EightBitAdam([{"params": again}], **HOW)
    trained(twin, again, range(10))
    assert all(torch.equal(own, each) and torch.equal(codes, twin.state[each]["exp_avg"])
               for (own, codes), each in zip(once, again, strict=True)), "it repeats to the bit"  # fmt: skip


def test_a_run_with_moments_in_eight_bits_resumes_to_the_bit(tmp_path):
    (tmp_path / "letters.py").write_text(
        "def score(prompts, responses, answers):\n    return [len(set(r)) / 4 for r in responses]\n"
    )
    asked = {
        "task": "reverse:length=2", "reward": f"{tmp_path / 'letters.py'}:score", "model": "tiny:layers=1,width=48", "steps": 4,
        "tasks_per_step": 3, "samples_per_task": 4, "updates_per_step": 2, "max_tokens": 4, "warm_start": 0.0, "lr": 1e-3,
        "eval_problems": 4, "checkpoint_every": 2, "eval_every": 0, "record": "none", "audit": "off", "adam_states": "8bit",
    }  # fmt: skip
    whole = up.train("dr-grpo", **asked, out=tmp_path / "whole")
    assert any(each.get("grad_norm", 0.0) > 0 for each in whole.metrics)
    with pytest.raises(Crash):
        up.train("dr-grpo", **asked, out=tmp_path / "cut", watcher=Breaks(3))
    up.resume(tmp_path / "cut")
    assert_same_run(whole.path, tmp_path / "cut")
    moments = load_state(whole.folder.reader(whole.folder.latest()), "learner")["optimizer"]["state"].values()
    large = [each for each in moments if each["exp_avg"].numel() >= 4096]
    assert large and len(large) < len(moments), "there are parameters of both kinds"
    assert all((each["exp_avg"].dtype == torch.uint8) == (each["exp_avg"].numel() >= 4096) for each in moments)
    assert all(each["exp_avg_scale"].dtype == torch.float32 and each["exp_avg_sq_scale"].any() for each in large)
