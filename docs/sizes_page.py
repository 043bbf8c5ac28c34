"""The page of what fits (``docs/sizes.md``), which `generate` writes: a table made by the estimator, and measured points."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from upslope.policies.model_shape import ModelShape
from upslope.sizes.card import Card
from upslope.sizes.examples import EXAMPLES, example_shape
from upslope.sizes.memory import OWN, memory_of
from upslope.sizes.settle import fits, settled
from upslope.sizes.work import MOMENTS, Work

CARDS = (8, 16, 24, 48, 80, 141)
LENGTHS = (512, 2048, 8192)
PROMPT, TASKS, SAMPLES, RANK = 256, 16, 8, 32
H200 = int(139.8 * 2**30)
HELD_IN = {"bf16": "bfloat16", "adam8": "8bit"}
"""Moments of a measured run, by what its row says."""
RESULTS = Path(__file__).parents[1] / "bench" / "results"
MEASURED, UPDATES, PAGES = (RESULTS / f"{name}.json" for name in ("gpu_sizes", "adam_states", "pages_plan"))

ABOUT = """`upslope train ... --dry-run` says of your own model, task and settings what a run takes and whether it fits, before
anything is loaded: parameters held and trained, memory by kind, disk, tokens of a step. It reads the model's
configuration and the headers of its files: a folder with `config.json` and tokenizer is enough. `--device cuda
--memory 80GB` asks for a GPU that is not there; `--json` is for programs. What does not fit ends with exit code 3
and the nearest setting that works. The same lines stand at
the start of every run, and a run that would not fit is refused with the same words. From Python it is
`up.estimate(...)`, with the arguments of `up.train`.

```sh
upslope train dr-grpo --task reverse --dry-run
upslope train dr-grpo --task reverse --model tiny --device cuda --memory 24GB --dry-run
```
"""

HOW = f"""The table is made by that estimator (`make docs`), for models shaped like Qwen2 and steps of {TASKS} problems with
{SAMPLES} answers each, prompts of {PROMPT} tokens, a method without a reference (`dr-grpo`) and settings left as they
come. Numbers are GiB of memory in all; *again N* says that N layers are recomputed (`--recompute auto`); - does not
fit in any slice. A card of 80 GB is counted as 80 x 10^9 bytes, which every card sold as such has."""

BYTES = (
    ("weights, float32", "4 a parameter; beside adapters on a GPU only those of the adapters"),
    ("weights, bfloat16", "2 a parameter on a GPU, where sampling and learning read one set"),
    ("weights, 8 bits", "with `--sampling-precision fp8` 1 more for the layers' matrices but those behind attention; on a CPU 5"),
    ("weights, 4 bits", "0.52 a parameter of the layers' matrices, with `--base-precision nf4`; the others stay as they are"),
    ("a matrix unpacked", "of these the largest of a layer, in the precision of products"),
    ("gradients", "4 for each parameter that learns; with `--shard` these, moments and references are divided by `--learners`"),
    (
        "Adam's moments",
        "8 for each parameter that learns, 4 with `--adam-states bfloat16`, 2.03 with `--adam-states 8bit` (tensors of fewer "
        "than 4,096 numbers have 8 there, which is not counted); with `--adam-states offload` 0.5 GiB in all, and 8 for each in "
        "the host's memory",
    ),
    (
        "references and snapshots",
        "of each copy (a method with a KL to its start has one) 4 a parameter that learns; on a GPU "
        "2 for those of the layers' matrices, unless it is an average that moves",
    ),
    ("layers put together", "with `--shard`: two layers, embedding and head, with their gradients until they are divided again"),
    ("activations", "what the backward pass keeps of a slice (`--slice-tokens`, `--recompute`), and its largest layer or the head"),
    ("keys and values", "of all rows that are sampled at once; where some would wait, in pages of what is free"),
    ("CUDA's own", "its context and the libraries' workspaces"),
)
KINDS = """Weights and gradients are exact, and moments but for those of small tensors in eight bits. Activations and keys and
values are counted from what the passes keep and allocate; tests hold the count within 2% of what autograd keeps, and to
the byte of what decoding allocates. What no count can know, CUDA's own and what the allocator leaves unused between
blocks, are two constants; with them the runs above were foreseen within 10% of what torch reserved, but for the one
whose slices change their size: blocks that it freed did not fit the next. The context itself was not measured apart.

## How a run is cut

On a GPU the tokens of a slice and the layers that are recomputed follow from the plan and the card's total memory,
never from what happens to be free: slices are as large as keep the GPU busy and the card holds, and as few layers are
recomputed as will do. Both stand in `run.toml`, so that a resumed run is cut alike on whatever card. `--recompute N`,
`all` or `off` and `--slice-tokens N` set them. On a CPU slices take 4 GiB and nothing is recomputed unless asked for:
it would switch off what sampling keeps for learning.

Keys and values of the rows that are sampled at once take up to a sixth of the card, or, where rows would wait for
memory, all that the plan leaves but for 15% (the sixth again where a judge, a reward model or somebody who answers in the
policy's place is on the card too, which no plan counts). Where that does not hold all of them, each as long as it may be,
they share it in pages of 64 tokens. A row takes a page when it has filled the one before, and as many rows begin as there
will be pages for, by how long the answers were that have ended and how far the others came. Where more go on than that,
the row that began last is put back. It begins again, with its own random numbers, once there are pages for all that it
had said and more; its tokens are the same but for the rounding of how many rows are computed together. Servers
put none back. On an H200 rows with pages are as likely as the policy says, and the same twice; what pages save there is
not measured. By the bytes that 1.5 billion parameters and their keys and values read there (`python bench/pages_plan.py`), {rows}
answers of at most {room:,} tokens take {shares} of the time that they take where {whole} are sampled at once.

The optimiser's moments, keys and values and the graphs of sampling are allocated before the first step: what does not
fit ends there. If memory runs out in an update all the same, its gradients are dropped, slices are halved and the
whole update begins again; it is said once, the checkpoint keeps the smaller bound, and the result is the same to
rounding. Where not even one row (one group, for methods that look at whole groups) fits, the run ends with the
setting that would make it fit."""


NF4 = """`--base-precision nf4` (with `--lora`) holds the layers' matrices in four bits and unpacks one at a time into one buffer,
both to sample and to learn: [how](runs.md#adapters). Measured on an H200 with 7.6 billion parameters, 16 x 8 answers of 256 tokens
and adapters of rank 32: sampling takes 2.0 times as long as in bfloat16 (3.65 s and 1.81), learning as long (2.52 s and 2.50), and
17.8 GiB were reserved in place of 25.9. By arithmetic:

Sampling reads every matrix once for each token that its rows take a step further, which with few rows is all it waits for. In
bfloat16 that is 2 bytes a parameter. Packed, 0.52 are read, 2 written and 2 read again: 4.52, 2.26 times as many. Of 7.6 billion
parameters 6.5 billion are in such matrices: 13 GB a step become 29.5, which at 4.2 TB/s (an H200) is 3.1 ms and 7.0. Keys, values
and the head come on top in either case, so whole steps are slowed down by less, those with many rows or long answers least.

Learning unpacks each matrix twice a slice, for the forward and the backward pass, and once more where a layer is recomputed: 2.52
bytes a parameter each time, 3.9 ms. With adapters the products of a slice of 2,176 tokens take 114 ms at half of the card's rated
speed, so that unpacking twice is 7% of that, and less in larger slices.

On a CPU matrices are unpacked to float32: SmolLM2-135M said 7.5 tokens a second in 8 answers side by side, where adapters merged
into whole weights let it say 20, and 41 in 64 answers, where it said 73 (one thread, on a machine that others used too).

What it costs in quality was looked at on one small task only: `--lora 16` for 60 steps on the built-in `tiny`, which began at 0.42
of `reverse`. Held-out accuracy came to 0.964, 0.940 and 0.946 (three seeds) beside weights in float32, and to 0.938, 0.938 and
0.942 beside four bits, with 500 problems each. Before any training the loss of SmolLM2-135M, a very small model whose weights come
from a file of four bits already, rises from 3.58 to 3.79 nats a token on 4,096 tokens of this project's README. No larger model has
been trained this way yet."""
ADAM = """SmolLM2-135M came to the same held-out scores on two tasks with moments in float32, bfloat16 and 8 bits: with three
seeds they are at most 0.05 apart ([measured](claims/adam-states.md)). A long run, a larger model and rates other than those tried
there were not looked at. In eight bits the card's bandwidth alone would be 2 ms of an update; 169 of the 290 tensors have a launch
of their own, the small others share torch's. A second moment that is too small for its block is held as the smallest value and not
as zero, which shortens steps where torchao's would grow to thousands of rates; the runs were made before that was so."""
LONG = """SmolLM2-135M with answers of up to 1,024 tokens on [three tasks](claims/smollm2-long.md): rewards rose on all of them,
accuracy on one, where it is not shown to be above that of one answer for all."""


def sizes_page() -> list[str]:
    """The page's blocks."""
    shapes = {name: example_shape(example) for name, example in EXAMPLES.items()}
    blocks = [ABOUT.strip(), "## What fits", HOW]
    tables = (("All weights", 0, "float32"), ("All weights, `--adam-states 8bit`", 0, "8bit"),
              (f"Adapters of rank {RANK}", RANK, "float32"),
              (f"Adapters of rank {RANK}, `--base-precision nf4`", RANK, "float32"))  # fmt: skip
    for title, rank, moments in tables:
        packed = "nf4" in title
        rows = [_row(name, shape, room, rank, moments, packed) for name, shape in shapes.items() for room in LENGTHS]
        blocks += [f"### {title}", _table(("model", "answers of", *(f"{card} GB" for card in CARDS)), rows)]
    points = [_point(shapes, point) for point in json.loads(MEASURED.read_text())["points"]]
    told = """Runs on an H200 (139.8 GiB), prompts of 64 tokens, in slices of so many tokens (`python bench/gpu_sizes.py`). Measured
is the most that torch had reserved; the estimate is without CUDA's own."""
    updates = json.loads(UPDATES.read_text())
    timed = f"""An update of AdamW on {updates["parameters"] / 1e6:.0f} million parameters, on an H200 (`{updates["command"]}`,
torch {updates["torch"]}). *Apart* is how far the weights are from those of float32 after 23 updates by random gradients, as a share
of the way they went; torchao's own is one call a tensor, compiled."""
    sides = [_side(name, side) for name, side in updates["sides"].items()]
    return [*blocks, "## Measured", told, _table(("run", "slices", "measured", "estimated"), points), LONG, "## What it is made of",
            _table(("kind", "bytes"), list(BYTES)), KINDS.format(**_pages()), "## A base in four bits", NF4,
            "## Adam's moments", timed,
            _table(("moments", "bytes a parameter", "an update", "apart"), sides), ADAM]  # fmt: skip


def _row(name: str, shape: ModelShape, room: int, rank: int, moments: str, packed: bool) -> tuple[str, ...]:
    found = []
    for size in CARDS:
        card = Card("cuda", size * 10**9, f"{size} GB")
        held = {"lora": rank, "packed": packed, "moment_bytes": MOMENTS[moments]}
        work = settled(shape, Work(TASKS, SAMPLES, room, [PROMPT] * TASKS, recompute="auto", **held), card)
        memory = memory_of(shape, work, card)
        again = work.layers_again(shape.layers)
        told = "" if not again else ", again all" if again == shape.layers else f", again {again}"
        found.append(f"{memory.total / 2**30:.0f}{told}" if fits(memory, card) else "-")
    return name, f"{room:,}", *found


def _point(shapes: dict[str, ModelShape], point: dict[str, Any]) -> tuple[str, ...]:
    """A measured run in words, and what the estimator says of it."""
    (name, sizes), *flags = (part.split(":") for part in point["row"].split("+"))
    name, chosen = {"3.1B": "3B"}.get(name, name), {flag[0] for flag in flags}
    tasks, samples, tokens = map(int, sizes.split("x"))
    moments = next((held_in for flag, held_in in HELD_IN.items() if flag in chosen), "float32")
    rank = 32 if "lora32" in chosen else 0
    work = Work(tasks, samples, tokens, [64] * tasks, lora=rank, packed="nf4" in chosen, fp8="fp8" in chosen,
                moment_bytes=MOMENTS[moments], recompute=point["recompute"], slice_tokens=point["slice_tokens"])  # fmt: skip
    told = f"`--lora {rank}`" if rank else "all weights"
    told += ", `--base-precision nf4`" if work.packed else ""
    told += ", `--sampling-precision fp8`" if work.fp8 else ""
    told += f", `--adam-states {moments}`" if moments != "float32" else ""
    told += ", `--recompute all`" if point["recompute"] == "all" else ""
    memory = memory_of(shapes[name], work, Card("cuda", H200, "H200"))
    return (f"{name}: {told}, {tasks} x {samples} answers of {tokens:,}", f"{point['slice_tokens']:,}",
            f"{point['reserved_gib']:.1f} GiB", f"{(memory.total - memory.kinds[OWN]) / 2**30:.1f} GiB")  # fmt: skip


def _pages() -> dict[str, str | int]:
    """What pages of the cache should save, by counting bytes."""
    told = json.loads(PAGES.read_text())
    shares = [f"{each['pages_s'] / each['stretches_s']:.2f} ({name})" for name, each in told["found"].items()]
    return {"rows": told["rows"], "room": told["room"], "whole": told["stretches"]["rows"], "shares": ", ".join(shares)}


def _side(name: str, side: dict[str, float]) -> tuple[str, ...]:
    """How an update was measured with moments of one kind."""
    apart = f"{side['apart']:.2%}" if side["apart"] else "-"
    return name, f"{side['moment_bytes_a_parameter']:.2f}", f"{side['seconds'] * 1000:.1f} ms", apart


def _table(header: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    return "\n".join("| " + " | ".join(line) + " |" for line in (header, ("---",) * len(header), *rows))
