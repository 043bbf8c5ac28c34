"""The memory of a run, estimated before it is taken: by kind, and against what was measured."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from model_families import small_config, small_model
from qwen_shapes import H200, shape

import upslope as up
from upslope.errors import UserError
from upslope.learners.offloaded_adam import lane_bytes
from upslope.policies.forward.activation_cache import ActivationCache
from upslope.policies.forward.footprint import activation_cache_bytes
from upslope.policies.model_shape import ModelShape
from upslope.policies.tiny import character_tokenizer, tiny
from upslope.runtime.settings import Settings
from upslope.setting_up import set_up
from upslope.setting_up.text_sizes import TextSizes
from upslope.sizes import card, estimate
from upslope.sizes.card import Card
from upslope.sizes.estimate import host_problem, loading_problem
from upslope.sizes.memory import (
    ACTIVATIONS,
    CACHE,
    COPIES,
    GATHERED,
    GRADS,
    LOW,
    MOMENTS,
    OTHERS,
    OWN,
    PACKED,
    UNPACKED,
    WEIGHTS,
    memory_of,
    slice_tokens,
)
from upslope.sizes.settle import _changes, fits, nearest, settled
from upslope.sizes.work import MOMENTS as MOMENT_BYTES
from upslope.sizes.work import Work

GIB = 2**30
CPU, GPU = Card("cpu", 64 * GIB, "a machine"), Card("cuda", H200, "an H200")
PROMPTS = [64] * 16


def kinds(name: str, card: Card = GPU, **work) -> dict[str, float]:
    sizes = {"tasks": 16, "samples": 8, "max_tokens": 512, "prompts": PROMPTS, "slice_tokens": 4096, **work}
    return {kind: size / GIB for kind, size in memory_of(shape(name), Work(**sizes), card).kinds.items()}


def test_a_step_takes_more_with_everything_that_makes_it_larger():
    tall = ModelShape.of(tiny(0).model, ours=True)

    def total(**changes) -> int:
        return memory_of(tall, replace(plain, **changes), CPU).total

    plain = Work(8, 4, 64, [100] * 20)
    before, weights = total(), 4 * tall.parameters
    assert total(tasks=16) > before and total(samples=8) > before and total(max_tokens=128) > before
    assert total(prompts=[100] * 19 + [400]) > before
    assert total(prompts=[100] * 20 + [3]) == before, "only those that can meet in a step count, the longest first"
    assert total(copies=2) == before + 2 * weights
    assert total(sampled_here=False) < before
    two = total(learners=2) - before
    assert two >= 4 * weights and total(learners=3) == before + 2 * two
    adapted = total(lora=2)
    assert total(lora=2, copies=2) == adapted + 2 * 4 * tall.adapters(2), "copies share what never moves"
    assert memory_of(tall, plain, CPU).kinds[MOMENTS] == 2 * weights


def test_parts_are_divided_among_learners():
    """Of 1.5 billion parameters each learner has its part; the first one whole set beside, to sample with."""
    count, tall = shape("1.5B").parameters, shape("1.5B")
    plan = Work(16, 8, 512, PROMPTS, copies=1, learners=4, shard=True)
    found = memory_of(tall, plan, GPU).kinds
    assert found[GRADS] == found[COPIES] == 4 * -(-count // 4) and found[MOMENTS] == 8 * -(-count // 4)
    assert found[WEIGHTS] == 4 * count + 4 * -(-count // 4) and found[LOW] == 2 * (tall.joined + tall.single + 2 * tall.head)
    ends, layer = tall.head + tall.width, (count - tall.head - tall.width) // tall.layers
    assert found[GATHERED] == 2 * (3 * layer + 2 * ends) + 4 * max(layer, ends)
    assert OTHERS not in found and GATHERED not in memory_of(tall, replace(plan, shard=False), GPU).kinds
    beside = memory_of(tall, plan, CPU).kinds
    held = 3 * sum(4 * -(-count // 4) * kind for kind in (1, 1, 2, 1))  # weights, gradients, moments, a copy
    assert held < beside[OTHERS] < held + 3 * (beside[GATHERED] + beside[ACTIVATIONS]) + 3
    assert memory_of(tall, replace(plan, learners=2), CPU).kinds[GRADS] == 4 * -(-count // 2)
    assert settled(tall, plan, GPU).slice_tokens == slice_tokens(tall, plan, GPU) > 0, "all learners are cut alike"
    assert not any("--lora" in flags or "adam" in flags or "--recompute" in flags for flags, _ in _changes(plan))


def test_kinds_on_a_gpu_written_out():
    """All weights of 1.5 billion parameters: masters, gradients, two moments in float32; one set in bfloat16, which sampling and
    learning read."""
    count, tall = shape("1.5B").parameters, shape("1.5B")
    found = memory_of(tall, Work(16, 8, 512, PROMPTS, slice_tokens=4096), GPU).kinds
    assert found[WEIGHTS] == found[GRADS] == 4 * count and found[MOMENTS] == 8 * count
    assert found[LOW] == 2 * (tall.joined + tall.single + tall.vocabulary * tall.width)
    assert tall.joined + tall.single + tall.vocabulary * tall.width == pytest.approx(count, rel=1e-3)
    rows = 28 * 2 * 128 * 2 * 512 * 128 * 2
    assert rows < found[CACHE] < 1.3 * rows
    assert OTHERS not in found and COPIES not in found and found[OWN] > 0


@pytest.mark.parametrize(("name", "tied"), [("1.5B", True), ("7.6B", False)])
def test_copies_that_never_move_are_held_in_half_precision(name: str, tied: bool):
    """But for norms, biases and the embedding, which is the head of a model that ties both."""
    tall = shape(name)
    assert tall.tied == tied
    low = tall.joined + tall.single + (0 if tied else tall.head)
    plan = Work(16, 8, 512, PROMPTS, copies=3, moved_copies=1, slice_tokens=4096)
    found = memory_of(tall, plan, GPU).kinds[COPIES]
    assert found == 4 * tall.parameters + 2 * (4 * (tall.parameters - low) + 2 * low)
    assert memory_of(tall, replace(plan, precise=True), GPU).kinds[COPIES] == 12 * tall.parameters
    assert memory_of(tall, plan, CPU).kinds[COPIES] == 12 * tall.parameters


def test_beside_adapters_the_weights_are_held_once_in_half_precision():
    found, tall = memory_of(shape("7.6B"), Work(16, 8, 256, PROMPTS, lora=32, slice_tokens=2048), GPU).kinds, shape("7.6B")
    adapters = 32 * 28 * (2 * (3584 + 512) + 2 * (3584 + 3584) + 2 * (3584 + 18944) + 18944 + 3584)
    assert tall.adapters(32) == adapters
    assert found[WEIGHTS] == found[GRADS] == 4 * adapters and found[MOMENTS] == 8 * adapters
    assert found[LOW] == 2 * (tall.parameters + adapters)
    assert sum(found.values()) < 30 * GIB


MEASURED = json.loads((Path(__file__).parents[2] / "bench/results/gpu_sizes.json").read_text())["points"]
FRAGMENTED = "7.6B:16x8x256+lora32+slices2048"
"""Slices of 7 answers, with one prompt or two: their sizes change, and what the allocator keeps of each no count foresees."""


@pytest.mark.parametrize("point", [each for each in MEASURED if each["row"] != FRAGMENTED], ids=lambda point: point["row"])
def test_the_estimate_is_what_was_measured_on_an_h200(point: dict):
    """What torch reserved at the most, and CUDA's own."""
    name, sizes = point["row"].split("+")[0].split(":")
    tasks, samples, tokens = map(int, sizes.split("x"))
    held_in = "bfloat16" if "+bf16" in point["row"] else "8bit" if "+adam8" in point["row"] else "float32"
    work = Work(
        tasks, samples, tokens, [64] * tasks, lora=32 if "+lora32" in point["row"] else 0, recompute=point["recompute"],
        slice_tokens=point["slice_tokens"], moment_bytes=MOMENT_BYTES[held_in], packed="+nf4" in point["row"],
        fp8="+fp8" in point["row"],
    )  # fmt: skip
    found = memory_of(shape({"3.1B": "3B"}.get(name, name)), work, GPU)
    assert found.total / GIB == pytest.approx(point["reserved_gib"] + found.kinds[OWN] / GIB, rel=0.1)


def test_all_weights_of_7_6_billion_fit_with_few_tokens_and_with_more_only_if_moments_take_less():
    tall, long = shape("7.6B"), Work(16, 8, 2048, PROMPTS)
    found = kinds("7.6B", tasks=4, samples=4, max_tokens=64)
    assert found[WEIGHTS] + found[LOW] + found[GRADS] + found[MOMENTS] == pytest.approx(18 * tall.parameters / GIB, rel=0.001)
    assert sum(found.values()) * GIB < H200
    assert memory_of(tall, settled(tall, replace(long, recompute="all"), GPU), GPU).total > H200
    low = settled(tall, replace(long, moment_bytes=MOMENT_BYTES["bfloat16"]), GPU)
    assert memory_of(tall, low, GPU).total < H200


def test_fewer_layers_kept_take_less_and_moments_in_fewer_bytes_too():
    found = [kinds("3B", recompute=layers)[ACTIVATIONS] for layers in ("off", 12, "all")]
    assert found[0] > found[1] > found[2]
    assert kinds("3B", moment_bytes=4.0)[MOMENTS] == kinds("3B")[MOMENTS] / 2
    assert kinds("3B", moment_bytes=MOMENT_BYTES["8bit"])[MOMENTS] == pytest.approx(kinds("3B")[MOMENTS] * (1 / 4 + 1 / 256))
    assert kinds("3B", precise=True)[WEIGHTS] > kinds("3B")[WEIGHTS] and LOW not in kinds("3B", precise=True)


def test_offloaded_moments_are_counted_where_they_are():
    exact, away = kinds("7.6B"), kinds("7.6B", offloaded=True)
    assert {name for name in exact if exact[name] != away[name]} == {MOMENTS}
    assert away[MOMENTS] * GIB == lane_bytes(10**10) and lane_bytes(10**10) == 2**29
    assert kinds("1.5B", CPU, offloaded=True) == kinds("1.5B", CPU)


def test_moments_that_the_host_cannot_hold_are_refused(monkeypatch):
    work, here = Work(16, 8, 512, PROMPTS, offloaded=True, slice_tokens=4096), Card("cuda", H200, "an H200", (9, 0))
    monkeypatch.setattr(estimate, "free_bytes", lambda: 50 * 2**30)
    told = host_problem(shape("7.6B"), work, here)
    assert told.startswith("Adam's moments would take 56.7 GiB of the host's memory (--adam-states offload), of which 50.0 GiB are")
    assert "--adam-states bfloat16 or 8bit" in told
    with pytest.raises(UserError, match="of the host's memory"):
        TextSizes._check(shape("7.6B"), work, here)
    assert not host_problem(shape("1.5B"), work, here) and not host_problem(shape("7.6B"), replace(work, lora=32), here)
    assert not host_problem(shape("7.6B"), replace(work, offloaded=False), here), "they are on the card"
    assert not host_problem(shape("7.6B"), work, Card("cuda", H200, "elsewhere")), "its host is not here"


def test_a_base_in_four_bits_written_out():
    """Of 7.6 billion parameters: codes and scales of the layers' matrices; embedding, head and norms in bfloat16; one matrix
    unpacked, gate and up."""
    tall, work = shape("7.6B"), Work(16, 8, 256, PROMPTS, lora=32, packed=True, slice_tokens=2048)
    found, whole = memory_of(tall, work, GPU).kinds, memory_of(tall, replace(work, packed=False), GPU).kinds
    numbers, adapters = tall.joined + tall.single, tall.adapters(32)
    assert found[PACKED] == numbers // 2 + numbers // 64 + numbers // 16384 * 32
    assert found[LOW] == 2 * (tall.parameters - numbers + adapters) and found[UNPACKED] == 2 * 2 * 18944 * 3584
    assert found[PACKED] + found[LOW] + found[UNPACKED] < 0.45 * whole[LOW]
    others = {*found} - {PACKED, UNPACKED, LOW}
    assert others == {*whole} - {LOW} and all(found[kind] == whole[kind] for kind in others)
    beside = memory_of(tall, work, CPU).kinds
    assert beside[WEIGHTS] == 4 * (tall.parameters - numbers + 3 * adapters) and beside[UNPACKED] == 2 * found[UNPACKED]
    assert LOW not in beside and PACKED not in memory_of(replace(tall, ours=False), work, GPU).kinds


def test_a_model_that_the_host_cannot_hold_until_it_is_packed_is_refused(monkeypatch):
    work, here = Work(16, 8, 512, PROMPTS, lora=32, packed=True), Card("cuda", H200, "an H200", (9, 0))
    monkeypatch.setattr(estimate, "free_bytes", lambda: 10 * 2**30)
    told = loading_problem(shape("7.6B"), work, here)
    assert told.startswith("with --base-precision nf4 the model is read into the host's memory first, in bfloat16: 14.2 GiB, of")
    assert not loading_problem(shape("1.5B"), work, here) and not loading_problem(shape("7.6B"), replace(work, packed=False), here)
    assert not loading_problem(shape("7.6B"), work, Card("cuda", H200, "elsewhere")), "its host is not here"
    assert "in float32: 28.4 GiB, of which 10.0 GiB are free" in loading_problem(shape("7.6B"), work, here, exact=True)


def test_on_a_cpu_what_loading_takes_is_no_cure():
    """7.6 billion parameters take 28 GiB until they are packed, and 8 beside adapters then."""
    work = Work(4, 2, 64, PROMPTS, lora=32, packed=True)
    machine = Card("cpu", 24 * 2**30, "this machine's free memory")
    assert fits(memory_of(shape("7.6B"), work, machine), machine)
    told = loading_problem(shape("7.6B"), work, machine)
    assert "in float32: 28.4 GiB, of which 24.0 GiB are free. Free some, or take a smaller --model." in told
    assert nearest(shape("7.6B"), replace(work, packed=False), machine) is None
    larger = replace(machine, total=30 * 2**30)
    assert not loading_problem(shape("7.6B"), work, larger)
    found = nearest(shape("7.6B"), replace(work, packed=False), larger)
    assert found is not None and found[0] == "--base-precision nf4"


def test_slices_are_those_of_the_policy():
    policy = tiny(0)
    tall = ModelShape.of(policy.model, ours=True)
    assert slice_tokens(tall, Work(1000, 8, 64, [100]), CPU) == policy.token_budget()
    assert slice_tokens(tall, Work(2, 2, 64, [100]), CPU) == 2 * 2 * 64 + 100, "no more than there is"
    assert slice_tokens(tall, Work(8, 8, 64, [100], slice_tokens=32), CPU) == 164, "a row is never cut"
    assert slice_tokens(tall, Work(8, 8, 64, [100], slice_tokens=32, by_group=True), CPU) == 612
    assert activation_cache_bytes(tall, 4, 70, 900) == ActivationCache.size(policy.body, policy.compute_dtype, 70, 900)


def test_a_very_long_prompt_on_a_model_without_a_limit_is_refused_before_it_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(card, "free_bytes", lambda: 16 * GIB)
    model = tmp_path / "bloom"
    small_model(small_config("bloom", vocab_size=128)).save_pretrained(model)
    character_tokenizer().save_pretrained(model)
    rows = [{"prompt": "x" * 40_000 * (n == 7) + str(n), "answer": "1"} for n in range(12)]
    (tmp_path / "p.jsonl").write_text("\n".join(map(json.dumps, rows)))
    with pytest.raises(UserError) as problem:
        up.train("grpo", str(tmp_path / "p.jsonl"), reward="exact", model=str(model), max_tokens=8, out=tmp_path / "run")
    said = str(problem.value)
    assert re.search(r"the run would take about \d+.\d GiB .* and 16.0 GiB are free. Its longest prompt has 40,002 tokens", said)
    assert "\n" not in said and not (tmp_path / "run").exists()
    method, settings = up.method("grpo"), Settings(max_tokens=8)
    set_up(method, str(tmp_path / "p.jsonl"), str(model), settings, "exact", for_training=False)


MEASURED = """
import gc, json, re, sys
from pathlib import Path
import upslope as up
from upslope.setting_up.text_sizes import TextSizes

def status(key):
    return int(re.search(key + r":\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) * 1024

seen = {}

def check(sizes):
    found = sizes.estimate()
    seen["estimate"] = found.total - sum(p.numel() * p.element_size() for p in sizes.policy.model.parameters())
    gc.collect()
    seen["before"] = status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew

TextSizes.check = check
folder, model, settings = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
up.train("grpo", folder + "/p.jsonl", reward=folder + "/reward.py:score", model=model, out=folder + "/run", **settings)
print(json.dumps([seen["estimate"], status("VmHWM") - seen["before"]]))
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="the peak of a process is read from Linux")
@pytest.mark.parametrize(
    ("kind", "sizes", "prompt"),
    [
        ("llama", {"hidden_size": 384, "intermediate_size": 1024, "vocab_size": 4000, "max_position_embeddings": 512}, 60),
        ("bloom", {"hidden_size": 64, "vocab_size": 2000}, 1500),
    ],
)
def test_the_estimate_is_within_a_factor_of_two_of_the_peak(kind, sizes, prompt, tmp_path):
    small_model(small_config(kind, **sizes)).save_pretrained(tmp_path / "model")
    character_tokenizer().save_pretrained(tmp_path / "model")
    rows = [{"prompt": f"{n:02}" + "x" * (prompt - 2), "answer": "1"} for n in range(12)]
    (tmp_path / "p.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "reward.py").write_text(
        "def score(prompts, responses, answers):\n    return [float((sum(map(ord, r)) + i) % 3) for i, r in enumerate(responses)]\n"
    )
    settings = {"steps": 2, "tasks_per_step": 4, "samples_per_task": 4, "max_tokens": 24, "eval_problems": 2, "threads": 1}
    command = [sys.executable, "-W", "ignore", "-c", MEASURED, str(tmp_path), str(tmp_path / "model"), json.dumps(settings)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    estimate, peak = json.loads(done.stdout.splitlines()[-1])
    assert 0.5 < estimate / peak < 2, f"estimated {estimate / 2**20:.0f} MiB, took {peak / 2**20:.0f} MiB"
