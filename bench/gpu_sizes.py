"""Steps at real sizes on one GPU: ``python bench/gpu_sizes.py [1.5B:16x8x512 ...] [--out FILE]``.

Random weights in the shapes of Qwen2, prompts of 64 tokens, `dr-grpo` as it comes. A row is ``MODEL:PROMPTSxSAMPLESxTOKENS`` with
``+lora32``, with that ``+nf4`` (a base in four bits), ``+recompute``, ``+slices4096``, ``+bf16`` or ``+adam8`` (Adam's moments
in bfloat16 or 8 bits), ``+fp8`` (sampled in eight bits) behind it; each has a process of its own. Of a row with ``+ends`` answers
end after between 64 and so many tokens, each after its own number, and nothing is learned; with ``+early`` half of them end before
the geometric mean of the two. Where rows would wait for memory they share pages of it, with ``+stretches`` they wait. Told of each:

- sampling, in tokens a second, and what share of the bytes' limit that is: all weights in bfloat16, and the keys and values of
  every row, read once for each token at the card's rated bandwidth (``+fp8`` reads about half: its share may pass 100%);
- learning, and the share of the card's rated bfloat16 speed: 6 operations (4 with adapters) for each parameter and token, prompts
  counted with every row as a peer would compute them (``mfu``), or for the tokens that are really computed (``mfu_computed``);
- memory, as torch reserved it at the most.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

PROMPT = 64
CHOSEN = ("recompute", "slice_tokens", "adam_states", "base_precision", "sampling_precision")
"""Settings that a row may choose."""
HELD_IN = {"bf": "bfloat16", "adam": "8bit"}
"""Moments by the letters of their flag."""
BANDWIDTH, FLOPS = 4.8e12, 989e12
"""Of an H200."""
ROWS = (
    "1.5B:16x8x512", "1.5B:16x8x512+slices2816", "1.5B:8x8x2048", "0.5B:8x8x4096", "3.1B:16x8x256+recompute", "3.1B:16x8x512",
    "7.6B:16x8x256+lora32", "7.6B:4x4x64+bf16", "1.5B:64x8x2048+ends", "1.5B:64x4x16384+early",
    "1.5B:64x4x16384+early+stretches",
)  # fmt: skip
SHORTEST = 64
"""Of answers that end early."""


@dataclass(frozen=True)
class Shape:
    """Of a Qwen2 model."""

    layers: int
    width: int
    heads: int
    key_heads: int
    inner: int
    vocabulary: int = 151936
    tied: bool = True

    @property
    def head_width(self) -> int:
        return self.width // self.heads

    @property
    def key_bytes(self) -> int:
        """Of a token's keys and values in bfloat16."""
        return 4 * self.layers * self.key_heads * self.head_width


SHAPES = {
    "0.5B": Shape(24, 896, 14, 2, 4864),
    "1.5B": Shape(28, 1536, 12, 2, 8960),
    "3.1B": Shape(36, 2048, 16, 2, 11008),
    "7.6B": Shape(28, 3584, 28, 4, 18944, 152064, tied=False),
    "14B": Shape(48, 5120, 40, 8, 13824, 152064, tied=False),
}


@dataclass(frozen=True)
class Work:
    """A row."""

    name: str
    model: str
    prompts: int
    samples: int
    tokens: int
    settings: dict[str, Any]

    @staticmethod
    def of(name: str) -> Work:
        found = re.fullmatch(r"([\d.]+B):(\d+)x(\d+)x(\d+)((?:\+\w+)*)", name)
        if found is None or found[1] not in SHAPES:
            raise SystemExit(f"{name!r} is no row. Write one as 1.5B:16x8x512+lora32, with a model of {', '.join(SHAPES)}.")
        settings: dict[str, Any] = {}
        for each in found[5].split("+")[1:]:
            kind, rank = re.fullmatch(r"([a-z]+)(\d*)", each).groups()  # type: ignore[union-attr]
            if kind in HELD_IN:
                settings["adam_states"] = HELD_IN[kind]
            elif each == "nf4":
                settings["base_precision"] = each
            elif each == "fp8":
                settings["sampling_precision"] = each
            else:
                settings["slice_tokens" if kind == "slices" else kind] = int(rank) if rank else "all"
        return Work(name, found[1], int(found[2]), int(found[3]), int(found[4]), settings)

    @property
    def rows(self) -> int:
        return self.prompts * self.samples

    @property
    def only_samples(self) -> bool:
        return "ends" in self.settings or "early" in self.settings


def policy_of(work: Work) -> Any:
    """A model of the shape with random weights, and a tokenizer of as many made-up words."""
    import torch
    from text_work import never_stopping, word_tokenizer
    from transformers import Qwen2Config, Qwen2ForCausalLM

    from upslope.policies import LanguageModel

    shape = SHAPES[work.model]
    config = Qwen2Config(
        vocab_size=shape.vocabulary, hidden_size=shape.width, intermediate_size=shape.inner, num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads, num_key_value_heads=shape.key_heads, tie_word_embeddings=shape.tied,
        max_position_embeddings=32768, rope_theta=1e6, bos_token_id=1, eos_token_id=2, pad_token_id=2,
    )  # fmt: skip
    torch.manual_seed(0)
    with torch.device("cuda"):
        model = Qwen2ForCausalLM(config)
    policy = never_stopping(LanguageModel(model, word_tokenizer(shape.vocabulary), work.model))
    return policy


def measured(work: Work, steps: int, profile: bool = False) -> dict[str, Any]:
    """A step to warm up, then the median of some."""
    import torch
    from text_sides import AskedInOrder
    from text_work import Sizes, TextWork

    import upslope as up
    from upslope.learners.policy_gradient import PolicyGradient
    from upslope.policies.model_shape import ModelShape
    from upslope.rollout.engines.torch_engine import TorchEngine
    from upslope.rollout.text import TextRollout
    from upslope.runtime.settings import Settings
    from upslope.sizes.card import Card
    from upslope.sizes.memory import memory_of
    from upslope.sizes.settle import settled
    from upslope.sizes.work import Work as StepWork
    from upslope.types import Sampling

    shape, policy = SHAPES[work.model], policy_of(work)
    parameters = sum(parameter.numel() for parameter in policy.model.parameters())
    if rank := work.settings.get("lora"):
        policy.add_lora(rank, seed=0)
        policy.hold_apart(torch.bfloat16, "cuda", packed="base_precision" in work.settings)
        policy.before_packing.clear()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()  # random weights were drawn in float32
    given = TextWork(
        model="random", sizes=Sizes(vocabulary=shape.vocabulary), prompts=work.prompts, samples=work.samples, prompt_tokens=PROMPT,
        max_tokens=work.tokens, device="cuda",
    )  # fmt: skip
    settings = Settings(
        steps=100, tasks_per_step=work.prompts, samples_per_task=work.samples, max_tokens=work.tokens, watch_kl=False,
        lr=1e-9, warm_start=0.0, device="cuda",
    ).resolved("text", "random", max_tokens=work.tokens)  # fmt: skip
    in_eight_bits = "sampling_precision" in work.settings
    method = up.method("dr-grpo+asyncflow" if in_eight_bits else "dr-grpo")
    card, layout = Card.here("cuda"), ModelShape.of(policy.model, ours=True)
    asked = replace(settings, lora=rank or 0, **{name: work.settings[name] for name in CHOSEN if name in work.settings})
    planned = settled(layout, StepWork.of(asked, method, work.tokens, [PROMPT] * work.prompts), card)
    policy.recompute, policy.slices.tokens = planned.layers_again(shape.layers), planned.slice_tokens or 0
    rollout = TextRollout(
        AskedInOrder(given), policy, tasks=work.prompts, samples=work.samples, sampling=Sampling(max_tokens=work.tokens), seed=0
    )
    if in_eight_bits:
        rollout.engine = TorchEngine(policy, precision="fp8")
    learner = PolicyGradient(method, policy, rollout, asked)
    whole: list[float] = []
    sampling: list[float] = []
    told: dict[str, float] = {}
    for step in range(1, steps + 2):
        begun = time.perf_counter()
        told = learner.step(step)
        sampling.append(told["seconds_sampling"])
        torch.cuda.synchronize()
        whole.append(time.perf_counter() - begun)
    if profile:
        show_profile(learner, steps + 2)
    order = sorted(range(1, steps + 1), key=lambda step: whole[step])
    middle = order[len(order) // 2]
    sampled, learned = sampling[middle], whole[middle] - sampling[middle]
    tokens = work.rows * work.tokens
    read = work.tokens * _weight_bytes(policy, shape) + tokens * (PROMPT + work.tokens / 2) * shape.key_bytes
    operations = (4 if rank else 6) * parameters
    return {
        "row": work.name,
        "parameters": parameters,
        "step_s": whole[middle],
        "sampling_s": sampled,
        "sampling_tokens_s": tokens / sampled,
        "of_the_bytes_limit": read / BANDWIDTH / sampled,
        "learning_s": learned,
        "mfu": operations * work.rows * (PROMPT + work.tokens) / learned / FLOPS,
        "mfu_computed": operations * (work.prompts * PROMPT + tokens) / learned / FLOPS,
        "reserved_gib": torch.cuda.max_memory_reserved() / 2**30,
        "estimated_gib": memory_of(layout, planned, card).total / 2**30,
        "slice_tokens": planned.slice_tokens,
        "recompute": planned.recompute,
        "steps": [round(each, 3) for each in whole],
        **({"engine_gap": told["engine_gap"]} if in_eight_bits else {}),
    }


def sampled(work: Work, steps: int) -> dict[str, Any]:
    """Answers that end after between `SHORTEST` and all tokens: a call to warm up, then the median of some."""
    import torch

    from upslope.rollout.engines.torch_engine import TorchEngine
    from upslope.types import Sampling

    shape, policy = SHAPES[work.model], policy_of(work)
    engine = TorchEngine(policy, precision=work.settings.get("sampling_precision", "auto"))
    drawn = torch.Generator().manual_seed(0)
    asked = torch.randint(5, shape.vocabulary, (work.prompts, PROMPT), generator=drawn).tolist()
    prompts = [prompt for prompt in asked for _ in range(work.samples)]  # a limit belongs to a prompt: each row is asked by itself
    engine.paged = "stretches" not in work.settings
    limits = _limits(work, drawn)
    seconds: list[float] = []
    for _ in range(steps + 1):
        uniforms = torch.rand(work.rows, work.tokens, generator=drawn)
        torch.cuda.synchronize()
        begun = time.perf_counter()
        done = engine.generate(prompts, 1, Sampling(max_tokens=work.tokens), uniforms, limits)
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - begun)
    took, tokens = sorted(seconds[1:])[steps // 2], sum(limits)
    assert int(done.sampled.sum()) == tokens
    return {
        "row": work.name,
        "sampling_s": took,
        "sampling_tokens_s": tokens / took,
        "tokens": tokens,
        "at_once": engine._seats(work.rows, work.tokens, mixed=False)._asdict(),
        "reserved_gib": torch.cuda.max_memory_reserved() / 2**30,
        "steps": [round(each, 3) for each in seconds],
    }


def _limits(work: Work, drawn: Any) -> list[int]:
    """After how many tokens each answer ends."""
    import torch

    if "early" not in work.settings:
        return torch.randint(SHORTEST, work.tokens + 1, (work.rows,), generator=drawn).tolist()
    return (SHORTEST * (work.tokens / SHORTEST) ** torch.rand(work.rows, generator=drawn)).long().tolist()


def _weight_bytes(policy: Any, shape: Shape) -> int:
    """What one token reads: all matrices in bfloat16; of an untied table of embeddings only a row."""
    held = {id(p): p.numel() for name, p in policy.model.named_parameters() if "lora_" not in name}
    return 2 * (sum(held.values()) - (0 if shape.tied else shape.vocabulary * shape.width))


def show_profile(learner: Any, step: int) -> None:
    """What takes the time of a step on the GPU, by kernel."""
    import torch
    from torch.profiler import ProfilerActivity

    with torch.profiler.profile(activities=[ProfilerActivity.CUDA]) as found:
        learner.step(step)
        torch.cuda.synchronize()
    kernels = sorted(found.key_averages(), key=lambda each: -each.device_time_total)[:30]
    for each in kernels:
        print(f"{each.device_time_total / 1e6:8.3f} s {each.count:8d}  {each.key[:110]}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("rows", nargs="*", default=ROWS)
    parser.add_argument("--steps", type=int, default=2, help="measured steps of each row")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--here", action="store_true", help="measure the first row in this process and print it")
    parser.add_argument("--profile", action="store_true", help="with --here: also what takes the time")
    flags = parser.parse_args()
    if flags.here:
        work = Work.of(flags.rows[0])
        found_here = sampled(work, flags.steps) if work.only_samples else measured(work, flags.steps, flags.profile)
        print("found", json.dumps(found_here), flush=True)
        return
    found = []
    for name in flags.rows:
        Work.of(name)
        done = subprocess.run(
            [sys.executable, __file__, name, "--here", "--steps", str(flags.steps)], capture_output=True, text=True
        )
        line = next((line for line in done.stdout.splitlines() if line.startswith("found ")), None)
        found.append(json.loads(line[6:]) if line else {"row": name, "error": done.stderr.strip().splitlines()[-1:]})
        print(json.dumps(found[-1]), flush=True)
    if flags.out:
        import torch

        card = torch.cuda.get_device_properties(0)
        command = f"python bench/gpu_sizes.py {' '.join(flags.rows)} --steps {flags.steps}"
        described = {"card": card.name, "memory_gib": card.total_memory / 2**30, "torch": torch.__version__}
        shapes = {name: asdict(shape) for name, shape in SHAPES.items()}
        told = {"row": "gpu_sizes", "command": command, "date": time.strftime("%Y-%m-%d"), "machine": described, "shapes": shapes}
        ends = [each for each in found if Work.of(each["row"]).only_samples]
        told |= {"points": [each for each in found if each not in ends], "early_ends": ends}
        flags.out.write_text(json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    main()
