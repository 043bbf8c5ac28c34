"""The Triton kernels on a CPU, by Triton's interpreter, each against plain torch: run by their test. Prints what it compared.

The interpreter of Triton 3.6 takes arrays of one number for numbers, which numpy has refused since 2.4: it wants an older one. When
it rounds a number up to the next power of two in eight bits it forgets to raise the exponent; so torch rounds here.
"""

from __future__ import annotations

import itertools
import math
import os

os.environ["TRITON_INTERPRET"] = "1"

from types import SimpleNamespace

import torch
import torch.nn.functional as F
import triton.language as tl
from small_models import policy_of
from triton.runtime import interpreter

from upslope.learners import eight_bit_adam
from upslope.learners.low_precision_adam import move
from upslope.policies.forward import attention_cpu, fp8
from upslope.policies.forward.fp8 import Fp8Rows
from upslope.policies.forward.packed_matrix import PackedMatrix, Scratch
from upslope.policies.forward.packing import Layout
from upslope.policies.forward.triton import launch
from upslope.rollout.decode import graph_stepper, pages
from upslope.rollout.decode import triton_kernels as kernels
from upslope.rollout.decode.draw import draw_tokens
from upslope.rollout.decode.graph_stepper import GraphStepper
from upslope.rollout.decode.pages import Seats
from upslope.rollout.decode.thin_products import Cut, ThinProducts
from upslope.rollout.engines import torch_engine
from upslope.rollout.engines.torch_engine import TorchEngine
from upslope.runtime import seeding
from upslope.types import Sampling


def attention_of_packed_tokens() -> None:
    """Forward and backward, with prompts whose gradients several programs share and with prompts that one program has."""
    prompts, owns, which = [20, 0, 35], [30, 41, 7, 18, 25], [0, 0, 1, 2, 2]
    ids = torch.zeros(sum(prompts) + sum(owns), dtype=torch.long)
    layout, heads, width = Layout(ids, ids, prompts, owns, which, torch.device("cpu")), 4, 24
    packed = torch.randn(len(ids), heads + 4, width)
    tiles = launch.Tiles(32, 16, 4, 2), launch.Tiles(16, 32, 4, 2), launch.Tiles(16, 32, 4, 2)
    launch.tiles = lambda *_: tiles  # type: ignore[assignment]
    for launch.BACK_QUERIES in (24, 2048):
        for rows_only in (False, True):
            out, logsumexps = launch.attend(packed, layout, heads, 0.2, rows_only)
            plain = attention_cpu.attend(packed, layout, heads, 0.2, rows_only)
            torch.testing.assert_close(out, plain.out, atol=1e-5, rtol=1e-5)
            grad = torch.randn_like(out)
            found = launch.attend_back(packed, out, grad, logsumexps, layout, heads, 0.2, rows_only)
            expected = attention_cpu.attend_back(packed, plain.out, grad, plain.logsumexp, layout, heads, 0.2, rows_only)
            torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def attention_of_a_newest_token() -> None:
    """Over the prompt and what was said, in one part and in several, of rows that are long, full and just begun, with a cache in
    stretches and in pages."""
    rows, heads, kv, width, room = 3, 4, 2, 32, 100
    q, prompt_kv, cache = torch.randn(rows, heads * width), torch.randn(2, 64, kv, width), torch.randn(2, rows, kv, room, width)
    prompt, start, length = torch.tensor([0, 0, 1]), torch.tensor([0, 13]), torch.tensor([13, 40])
    step = torch.tensor([70, 99, 0])
    expected = torch.zeros_like(q)
    for row in range(rows):
        at, many = start[prompt[row]], length[prompt[row]]
        k, v = torch.cat([prompt_kv[:, at : at + many].transpose(1, 2), cache[:, row, :, : step[row] + 1]], 2)
        expected[row] = F.scaled_dot_product_attention(q[row].view(kv, 2, width), k, v).flatten()
    page, across = 32, 4
    table = torch.randperm(rows * across).int().view(rows, across)
    paged = torch.zeros(2, rows * across, kv, page, width)
    for row, places in enumerate(table.tolist()):
        for number, place in enumerate(places):
            there = cache[:, row, :, number * page : (number + 1) * page]
            paged[:, place, :, : there.shape[2]] = there
    for parts, size in itertools.product((1, 2, 4, 8), (0, page)):
        out, tops, sums = torch.zeros_like(q), torch.zeros(rows, heads, parts), torch.zeros(rows, heads, parts)
        shares = out if parts == 1 else torch.zeros(rows, heads, parts, width)
        said, stretch = (paged, page) if size else (cache, room)
        kernels.attend[(parts, kv, rows)](
            q, *prompt_kv, *said, shares, tops, sums, prompt, start, length, step, table, across, width**-0.5, stretch, 16, kv, 2,
            16, width, width, 16, parts, "ieee", size, False,
        )  # fmt: skip
        if parts > 1:
            kernels.merge_parts[(rows, heads)](
                tops, sums, shares, out, prompt, length, step, 16, heads, width, width, 16, parts, False
            )
        torch.testing.assert_close(out, expected, atol=1e-5, rtol=1e-5)


def products_of_few_rows() -> None:
    """In shares, which the next norm adds up with a bias; and through a gate."""
    rows, features, inner = 5, 100, 200
    x, weight, stream = torch.randn(rows, inner), torch.randn(2 * features, inner), torch.randn(rows, features)
    bias, norm = torch.randn(2, features)
    out = torch.zeros(1, rows, features)
    kernels.thin_product[(2, 1)](x, weight, out, out, out, rows, features, inner, 1, "silu", 16, 64, 32, False, False)
    gate, up = (x @ weight.t()).split(features, 1)
    torch.testing.assert_close(out[0], F.silu(gate) * up, atol=1e-3, rtol=1e-3)
    shares, seen = torch.zeros(4, rows, features), torch.zeros(rows, features)
    kernels.thin_product[(2, 4)](x, weight, shares, shares, shares, rows, features, inner, 4, "none", 16, 64, 32, False, False)
    torch.testing.assert_close(shares.sum(0), gate, atol=1e-4, rtol=1e-4)
    total = stream + gate + bias
    sizes = (1e-6, rows, features, 128, 4, True)
    before, eight = stream.clone(), Fp8Rows.blank(rows, features, torch.device("cpu"))
    kernels.add_shares_and_norm[(rows,)](stream, shares, bias, norm, seen, seen, stream, *sizes, False, False)
    torch.testing.assert_close(stream, total, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(seen, F.rms_norm(total, (features,), norm, 1e-6), atol=1e-4, rtol=1e-4)
    kernels.add_shares_and_norm[(rows,)](before, shares, bias, norm, seen, *eight, *sizes, True, False)
    same_in_eight_bits(eight, fp8.quantize(seen))


convert = interpreter._convert_float


def converted(numbers, source, target, rounding):
    if (source, target) != (tl.float32, tl.float8e4nv):
        return convert(numbers, source, target, rounding)
    return torch.from_numpy(numbers).to(torch.float8_e4m3fn).view(torch.uint8).numpy()


interpreter._convert_float = converted


def same_in_eight_bits(found: Fp8Rows, expected: Fp8Rows) -> None:
    """But for numbers that lie just between two codes."""
    torch.testing.assert_close(found.scales, expected.scales, atol=0.0, rtol=1e-6)
    apart = found.codes.float() != expected.codes.float()
    assert apart.float().mean() < 0.01
    torch.testing.assert_close(found.codes.float(), expected.codes.float(), atol=2**-6, rtol=2**-3)


def products_in_eight_bits() -> None:
    """Rows of any size as codes; products of few rows of these, in shares and through a gate."""
    rows, features, inner = 5, 100, 200
    x, weight = torch.randn(rows, inner) * torch.logspace(-2, 1, rows)[:, None], torch.randn(2 * features, inner)
    x[2] = 0.0
    for each in (x, weight, x.bfloat16(), torch.randn(3, 9000)):
        found = Fp8Rows.blank(*each.shape, torch.device("cpu"))
        launch.quantize_fp8(each, *found)
        same_in_eight_bits(found, fp8.quantize(each))
    given, held = fp8.quantize(x), fp8.quantize(weight)
    expected = fp8.dequantize(given, torch.float32) @ fp8.dequantize(held, torch.float32).t()
    gate, up = expected.split(features, 1)
    cuts = tuple({kind: Cut(64, 32, 4, 1) for kind in ("plain", "gate", "short gate")} for _ in range(2))
    shares, out = torch.zeros(4 * rows * features), torch.zeros(rows, features)
    thin = ThinProducts(rows, shares, False, cuts)
    found, many = thin.product(given, Fp8Rows(held.codes[:features], held.scales[:features]))
    found = found[: many * rows * features].view(many, rows, features).sum(0)
    torch.testing.assert_close(found, gate, atol=1e-4, rtol=1e-4)
    thin.gated(given, held, "silu", out)
    torch.testing.assert_close(out, F.silu(gate) * up, atol=1e-3, rtol=1e-3)
    assert many > 1


def draws() -> None:
    """From a vocabulary in several stretches, at both ends of the distribution too."""
    rows, vocabulary, block, many = 6, 301, 64, 8
    logits, uniforms = torch.randn(rows, vocabulary) * 3, torch.rand(rows, 4)
    uniforms[0, 0], uniforms[1, 0] = 0.0, 1 - 1e-7
    samplings = (Sampling(4), Sampling(4, 1.3), Sampling(4, 0.7, top_k=20, top_p=0.9, min_p=0.01), Sampling(4, 0.0))
    for sampling in samplings:
        greedy, cold = sampling.temperature == 0, 1 / (sampling.temperature or 1.0)
        seen, places = torch.zeros(4, rows, many), torch.zeros(rows, many, dtype=torch.int32)
        kernels.survey[(rows, -(-vocabulary // block))](logits, *seen, places, vocabulary, cold, greedy, block, many)
        tokens, logp, entropy = torch.zeros(rows, 4, dtype=torch.long), torch.zeros(rows, 4), torch.zeros(rows, 4)
        step, said, ended = (torch.zeros(rows, dtype=kind) for kind in (torch.long, torch.long, torch.int8))
        kernels.draw[(rows,)](
            logits, *seen, places, uniforms, tokens, torch.zeros(rows, 4), logp, entropy, torch.arange(rows), step, said, ended,
            torch.tensor([-1]), torch.full((rows,), 4), vocabulary, 4, 4, cold, float(sampling.top_k), sampling.top_p,
            math.log(sampling.min_p) if sampling.min_p else 0.0, 1, greedy, 0 < sampling.top_k < vocabulary, sampling.top_p < 1,
            sampling.min_p > 0, 30, block, many,
        )  # fmt: skip
        expected = draw_tokens(logits, sampling, uniforms[:, 0])
        assert torch.equal(tokens[:, 0], expected.token) and step.tolist() == [1] * rows
        torch.testing.assert_close(logp[:, 0], expected.logp, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(entropy[:, 0], expected.entropy, atol=1e-5, rtol=1e-5)


def answers_with_a_cache_in_stretches_and_in_pages() -> None:
    """Whole answers by the stepper of GPUs, its steps made one by one and not replayed; of so few pages that a row is put back."""
    policy, sampling, numbers = policy_of("qwen3"), Sampling(20), seeding.uniforms((4, 20), 1)
    plain = TorchEngine(policy).generate([[1, 5, 9], [1, 4, 4, 8]], 2, sampling, numbers)
    back: list[int] = []

    class Stepped(GraphStepper):
        def _recorded(self, size):
            return SimpleNamespace(replay=lambda: self._step(size))

        def make_room(self):
            found = super().make_room()
            back.extend(found)
            return found

    torch_engine.graphs_help, torch_engine.GraphStepper = lambda _: True, Stepped
    graph_stepper.SIZES, graph_stepper.PAGE, pages.PAGE, graph_stepper.ATTEND_BLOCK = (4,), 8, 8, 16
    pages.Pages.vacancies = lambda self, rows: min(len(rows), self.left)  # hasty: rows are put back
    pages.Pages._too_many = lambda self: []
    for places in (Seats(4, 0), Seats(4, 6)):
        engine = TorchEngine(policy)
        engine._seats = lambda *_, places=places: places
        found = engine.generate([[1, 5, 9], [1, 4, 4, 8]], 2, sampling, numbers)
        assert torch.equal(found.tokens, plain.tokens) and bool(back) == bool(places.pages)
        torch.testing.assert_close(found.logp, plain.logp, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(found.entropy, plain.entropy, atol=1e-5, rtol=1e-5)


def answers_sampled_in_eight_bits() -> None:
    """By torch's product of codes and by ours, with biases, norms of heads and adapters beside: as in plain torch."""
    cuts = tuple({kind: Cut(16, 16, 4, 1) for kind in ("plain", "gate", "short gate")} for _ in range(2))
    sampling, numbers = Sampling(12), seeding.uniforms((4, 12), 1)
    for kind in ("qwen2-full", "qwen3", "apart"):
        policy = policy_of("qwen2-full" if kind == "apart" else kind)
        if kind == "apart":
            policy.add_lora(2, seed=0)
            policy.hold_apart(torch.float32)
        both = [TorchEngine(policy, precision="fp8") for _ in range(3)]
        both[0].max_rows = 4
        asked = ([[1, 5, 9], [1, 4, 4, 8]], 2, sampling, numbers)
        torch_engine.graphs_help = lambda _: False
        plain = both[0].generate(*asked)
        torch_engine.graphs_help = lambda _: True
        for engine, ours in zip(both[1:], (False, True), strict=True):
            made = ThinProducts if ours else lambda *_: None
            ThinProducts.of = staticmethod(lambda rows, out, early, _, made=made: made(rows, out, early, cuts))
            engine._seats = lambda *_: Seats(4, 0)
            found = engine.generate(*asked)
            assert torch.equal(found.tokens, plain.tokens), kind
            torch.testing.assert_close(found.logp, plain.logp, atol=0.02, rtol=0.02)


def an_update_with_moments_in_bfloat16() -> None:
    """The parameters as in plain torch; moments are one of two neighbours, about every second the upper one."""
    held, grad, mean, square = torch.randn(3000), torch.randn(3000), torch.randn(3000).bfloat16(), torch.rand(3000).bfloat16()
    plain = held.clone(), mean.clone(), square.clone()
    numbers = {"lr": 0.01, "beta1": 0.9, "beta2": 0.99, "correction": 0.7, "eps": 1e-8, "decay": 0.99}
    launch.adam(held, grad, mean, square, **numbers, seed=5)
    move(plain[0], grad, *plain[1:], **numbers, bits=torch.zeros(2, 3000, dtype=torch.int32))
    torch.testing.assert_close(held, plain[0], atol=1e-6, rtol=1e-6)
    for found, lower in zip((mean, square), plain[1:], strict=True):
        torch.testing.assert_close(found, lower, atol=0.0, rtol=2**-7)
        assert 0.45 < (found != lower).float().mean() < 0.55


def matrices_in_four_bits() -> None:
    """One above the other, of several groups and with short last blocks, for products in either precision."""
    parts = [torch.randn(rows, 100) for rows in (400, 7, 33)]
    for dtype in (torch.float32, torch.bfloat16):
        packed = PackedMatrix.of(parts, torch.device("cpu"), dtype, Scratch())
        found, expected = torch.zeros(440 * 100, dtype=dtype), packed.unpacked()
        launch.unpack_nf4(packed.codes, packed.scales, packed.tops, packed.offsets, packed.places, found)
        # The interpreter cuts off what bfloat16 has no place for; a GPU rounds.
        torch.testing.assert_close(found.view(440, 100), expected, atol=0.0, rtol=0.0 if dtype == torch.float32 else 2**-7)
        assert expected.std() > 0.5


def updates_with_moments_in_eight_bits() -> None:
    """From nothing on, of several blocks and of a short last one: parameters, codes and scales as in plain torch."""
    numbers = {"lr": 0.01, "first": 0.1, "second": 0.01, "correction": 0.7, "eps": 1e-8, "decay": 0.99}
    tables = eight_bit_adam.tables(torch.device("cpu"))
    for size in (4096, 4097, 5000):
        blocks = -(-size // eight_bit_adam.BLOCK)
        ours = [torch.linspace(-1, 1, size)]
        for _ in range(2):
            ours += [torch.zeros(size, dtype=torch.uint8), torch.zeros(blocks)]
        plain = [each.clone() for each in ours]
        for _ in range(3):
            grad = torch.randn(size) * torch.logspace(-4, 0, size)
            launch.adam_8bit(ours[0], grad, *ours[1:], tables, **numbers)
            eight_bit_adam.move(plain[0], grad, eight_bit_adam.Moment(*plain[1:3]), eight_bit_adam.Moment(*plain[3:]), **numbers)
            torch.testing.assert_close(ours[0], plain[0], atol=1e-6, rtol=1e-6)
            for found, expected in zip(ours[1:], plain[1:], strict=True):
                if found.dtype == torch.uint8:  # fused or not, a product is another in its last bit
                    assert (found != expected).float().mean() < 1e-3 and (found.int() - expected.int()).abs().max() <= 1
                else:
                    torch.testing.assert_close(found, expected, atol=0.0, rtol=1e-6)
        assert plain[1].unique().numel() > 200


if __name__ == "__main__":
    torch.manual_seed(0)
    for compare in (
        attention_of_packed_tokens,
        attention_of_a_newest_token,
        products_of_few_rows,
        products_in_eight_bits,
        draws,
        answers_with_a_cache_in_stretches_and_in_pages,
        answers_sampled_in_eight_bits,
        an_update_with_moments_in_bfloat16,
        updates_with_moments_in_eight_bits,
        matrices_in_four_bits,
    ):
        compare()
        print(compare.__name__)
