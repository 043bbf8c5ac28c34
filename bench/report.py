"""Writes docs/performance.md and its plots from bench/results/*.json: ``python bench/report.py``."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import machine
from side_by_side import RESULTS

DOCS = Path(__file__).resolve().parents[1] / "docs"
ROWS = {
    "grpo_short": "GRPO step, short prompts",
    "grpo_long_prompt": "GRPO step, few-shot prompts",
    "grpo_early_stop": "GRPO step, early stops",
    "grpo_smollm2": "GRPO step, 135M on the CPU",
    "sft_short": "supervised fine-tuning, short rows",
    "dpo_short": "DPO update, short pairs",
    "dpo_long_prompt": "DPO update, long prompts",
    "online_dpo": "online DPO step",
    "guided_step": "guidance beside GRPO, both ours, by sampled token",
    "async_step": "a step that samples while it learns beside one that waits, both ours",
    "scored_step": "a step scored while others are learned from beside one that waits, both ours",
    "ppo_cartpole": "PPO, CartPole",
    "ppo_halfcheetah": "PPO, HalfCheetah",
    "sac_updates": "SAC, stored experience",
    "td3_updates": "TD3, stored experience",
    "td3_bc_updates": "TD3+BC, stored experience",
    "iql_updates": "IQL, stored experience",
    "weights_sync": "weights of 135M parameters to a worker beside a PUT to a server, both ours",
    "sandbox_programs": "sandboxed programs, warm pool",
    "gpu_sampling": "GPU: sampling, 135M",
    "gpu_grpo": "GPU: GRPO step, 135M",
    "gpu_grpo_large": "GPU: GRPO step, 1.5B",
    "gpu_sft": "GPU: supervised fine-tuning, 135M",
    "gpu_dpo": "GPU: DPO update, 135M",
    "gpu_async": "GPU: a step that samples while it learns beside one that waits, both ours",
}
"""Every row there is a script for, and what plots call it."""
WHY = {
    "sft_short": "Both sides make the same matrix products and attention, which are 54% of our update: with nothing else left "
    "in it the ratio would be 1.9.",
    "dpo_short": "Both sides make the same matrix products and attention, which are 62% of our update on two threads of a "
    "Neoverse-N1 (212 of 343 ms where it was taken apart): with nothing else left in it the ratio would be 2.2.",
    "dpo_long_prompt": "With each prompt computed once for both sides of its pair 55% of the tokens are left, which by itself is a "
    "ratio of 1.8.",
    "online_dpo": "Of our step 55% is sampling, 24 tokens of 32 rows, and most of that is calls rather than products: there are "
    "few rows to share them. Products and attention are 41% of the step (125 of 306 ms).",
    "async_step": "There are two cores. The step that waits learns with both, from what sampling has computed; beside a worker "
    "learning has one, computes the rows anew with weights of its own, and is then the longer part by itself.",
    "gpu_async": "Both processes share one GPU. The step that waits spends 0.27 s sampling and 0.24 s learning; a step ahead the "
    "learner waits 0.07 s for rows. Three quarters of the sampling are hidden, and the step is no shorter, as the GPU does both.",
    "td3_updates": "Measured before updates on a CPU were replayed from a recording. Both sides make the same matrix products, "
    "which were 55% of our update.",
    "sac_updates": "Measured before updates on a CPU were replayed from a recording. Both sides make the same matrix products, "
    "which were 54% of our update (11.4 of 21.1 ms where it was taken apart).",
    "iql_updates": "Measured before updates on a CPU were replayed from a recording. Both sides make the same matrix products, "
    "which were 55% of our update (11.3 of 20.7 ms where it was taken apart).",
}
"""What was found where a row did not reach what was wanted of it, by profile."""
BESIDE_ENDS = "1.5B:16x8x512"
"""The row whose tokens a second those of answers that end early are compared with."""
SCALING = {"scaling": "on the CPU", "scaling_cuda": "on the GPU"}

Results = dict[str, dict[str, Any]]


def load(folder: Path) -> Results:
    """All results of a folder, by row."""
    found = [json.loads(file.read_text()) for file in sorted(folder.glob("*.json"))]
    return {each["row"]: each for each in found if "row" in each}  # curves of learning have pages of their own


def page(results: Results) -> str:
    """The whole page."""
    parts = [INTRODUCTION, table({name: results.get(name) for name in ROWS})]
    if any(results.get(name, {}).get("ratio") is not None for name in ROWS):
        parts.append("![How many times as fast, with the quartiles over paired windows](performance.png)")
    parts.append(reached(results))
    parts += [_row_section(results[name]) for name in ROWS if name in results]
    parts += [_scaling_section(name, results[name]) for name in SCALING if name in results]
    if drafts := [results[name] for name in ("speculation", "speculation_2") if name in results]:
        parts.append(_drafts_section(drafts))
    if "gpu_sizes" in results:
        parts.append(_sizes_section(results["gpu_sizes"]))
    if "prompt_to_prompt" in results:
        parts.append(_prompt_section(results["prompt_to_prompt"]))
    if "prompt_to_prompt_large" in results:
        parts.append(_large_run_section(results["prompt_to_prompt_large"]))
    parts.append(HOW)
    return "\n\n".join(parts) + "\n"


def _sizes_section(result: dict[str, Any]) -> str:
    """Steps of models of half a billion parameters and more, beside what the card allows."""
    wanted = {
        "1.5B:16x8x512": ("50%", "45%"), "1.5B:8x8x2048": ("55%", "45%"), "0.5B:8x8x4096": ("45%", ""),
        "3.1B:16x8x256+recompute": ("", "45%"), "7.6B:16x8x256+lora32": ("", "40%"),
    }  # fmt: skip
    lines = [
        "| work | sampling, tokens/s | of the limit | wanted | learning, s | MFU | wanted | MFU, computed | memory | estimated |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for each in result["points"]:
        if "error" in each:
            lines.append(f"| {each['row']} | {' '.join(each['error'])} | | | | | | | | |")
            continue
        sampling, learning = wanted.get(each["row"], ("", ""))
        lines.append(
            f"| {each['row']} | {each['sampling_tokens_s']:,.0f} | {each['of_the_bytes_limit']:.0%} | {sampling} | "
            f"{each['learning_s']:.2f} | {each['mfu']:.0%} | {learning} | {each['mfu_computed']:.0%} | "
            f"{each['reserved_gib']:.1f} GiB | {each['estimated_gib']:.1f} GiB |"
        )
    ends = [each for each in result.get("early_ends", ()) if "error" not in each]
    whole = {each["row"]: each["sampling_tokens_s"] for each in [*result["points"], *ends] if "error" not in each}
    for each in ends:
        other, wanted_share = (f"{each['row']}+stretches", "") if each["row"].endswith("+early") else (BESIDE_ENDS, "80%")
        beside = each["sampling_tokens_s"] / whole[other] if other in whole and "+stretches" not in each["row"] else None
        share = ("", "") if beside is None else (f"{beside:.0%} of `{other}`", wanted_share)
        lines.append(
            f"| {each['row']} | {each['sampling_tokens_s']:,.0f} | {' | '.join(share)} | | | | | {each['reserved_gib']:.1f} GiB | |"
        )
    early = " Answers of a row with `+ends` end after between 64 and so many tokens; nothing is learned." if ends else ""
    if any("+early" in each["row"] for each in ends):
        early += " With `+early` half of them end before the geometric mean of the two; with `+stretches` no memory is shared."
    return "\n".join(
        [
            "## Real sizes on one GPU",
            "",
            "Our side alone: random weights in the shapes of Qwen2, prompts of 64 tokens, `dr-grpo` as it comes; a row is "
            "`MODEL:PROMPTSxSAMPLESxTOKENS`. The bytes' limit is all weights and the keys and values of every row read once for "
            "each token at 4.8 TB/s. MFU counts 6 operations (4 with adapters) for each parameter and token, prompts with every "
            f"row, against 989 TFLOP/s.{early}",
            "",
            *lines,
            "",
            f"{result['machine']['card']}, torch {result['machine']['torch']}: `{result['command']}`, {result['date']}. "
            f"{result.get('note', '')}".rstrip(),
        ]
    )


def _drafts_section(results: list[dict[str, Any]]) -> str:
    """Sampling with drafts beside sampling without, by number of threads."""
    lines = [
        "| work | threads | `--speculate` | times as fast, by prompt | median | drafted tokens accepted |",
        "|---|---|---|---|---|---|",
    ]
    for result in results:
        for name, each in result["found"].items():
            ratios = ", ".join(f"{ratio:.2f}" for ratio in each["ratios"])
            share = "none drafted" if each["drafts_accepted"] is None else f"{each['drafts_accepted']:.0%}"
            cells = (name, result["threads"], each["speculate"], ratios, f"**{each['ratio']:.2f}**", share)
            lines.append(f"| {' | '.join(map(str, cells))} |")
    first = results[0]
    return "\n".join(
        [
            "## Drafts",
            "",
            f"Ours with drafts beside ours without: SmolLM2-135M, up to {first['tokens']} tokens, in turns in one process; on one "
            f"thread by the processor's time, on two by the clock. {machine.in_words(first['machine'])}.",
            "",
            *lines,
            "",
            "; ".join(f"`{result['command']}`, {result['date']}" for result in results) + ".",
        ]
    )


def _prompt_section(result: dict[str, Any]) -> str:
    """Where the time of a short run goes, from prompt to prompt."""
    runs = {"now": result["runs"], **({"before": result["before"]["runs"]} if "before" in result else {})}
    last = {name: each[-1] for name, each in runs.items()}
    lines = [f"| part | {' | '.join(f'{name}, s' for name in last)} |", f"|---|{'---|' * len(last)}"]
    for part in last["now"]["parts"]:
        seconds = " | ".join(f"{each['parts'].get(part, 0):.1f}" for each in last.values())
        lines.append(f"| {part} | {seconds} |")
    totals = " | ".join(f"**{each['seconds']:.1f}**" for each in last.values())
    disk = " | ".join(f"{each['written_gb']:.1f} / {each['left_gb']:.1f}" for each in last.values())
    lines += [f"| all | {totals} |", f"| GB written / left | {disk} |"]
    first = result["runs"][0]["seconds"]
    scores = " and ".join(sorted({f"{each['score'][0]:.2f} to {each['score'][1]:.2f}" for each in result["runs"]}))
    return "\n".join(
        [
            "## A short run, from prompt to prompt",
            "",
            f"{result['about']} {machine.in_words(result['machine'])}. The last of {len(result['runs'])} runs in a row; the first, "
            f"which compiles what the others find, took {first:.1f} s. The score went from {scores}.",
            "",
            *lines,
            "",
            f"`{result['command']}`. {result.get('note', '')}".rstrip(),
        ]
    )


def _large_run_section(result: dict[str, Any]) -> str:
    """A short run of a large model: what is left of it beside its steps and what the disk takes for the last checkpoint."""
    last = result["runs"][-1]
    steps = last["parts"]["first step"] + last["parts"]["other steps"]
    writing = last["written_gb"] / result["disk_gb_per_second"]
    rest = last["seconds"] - steps - writing
    parts = [f"| {part} | {seconds:.1f} |" for part, seconds in last["parts"].items()]
    return "\n".join(
        [
            "## A short run of 3.1 billion parameters, from prompt to prompt",
            "",
            f"{result['about']} {machine.in_words(result['machine'])}. Of {last['seconds']:.1f} s its steps take {steps:.1f}; "
            f"{last['written_gb']:.1f} GB are written, which takes {writing:.1f} at the {result['disk_gb_per_second']:.2f} GB/s "
            f"that were measured right behind it. The other **{rest:.1f} s** are to be at most 25.",
            "",
            "| part | s |",
            "|---|---|",
            *parts,
            f"| all | **{last['seconds']:.1f}** |",
            "",
            f"`{result['command']}`. {result.get('note', '')}".rstrip(),
        ]
    )


INTRODUCTION = """# Performance

Generated by `python bench/report.py` from `bench/results/`; `make bench` measures the CPU rows anew and writes this page.

Each row is one piece of work done by this library and by another one, in turns unless it says otherwise, in one run on one
machine. Every side has processes of its own; it counts at the better of its settings, such as one and two threads. A figure
is the median over at least five windows of work, in brackets the quartiles; the ratio says how many times as fast we are, of
the medians, with the quartiles over paired windows. Both sides count what they did (samples, tokens, tokens with a gradient,
environment steps, updates), and no ratio is given unless the counts agree. "With our switches" is a second ratio, against the
other library in a process that was set up as ours sets itself up on ARM (torch without oneDNN, its allocator keeping freed
memory): it tells how much comes from our code alone. Where a row was also measured on another processor, both ratios stand
here. Memory on a CPU is the peak of resident memory above what set-up left, on a GPU the peak that torch allocated."""


HOW = """## Where the time is saved

- **A prompt is computed once** for all its answers, in sampling and in learning; of its last layer only keys and values are.
- **Nothing is computed for padding.** Tokens are packed; attention alone sees rows, and on a GPU not even that.
- **Logits are never kept.** Log-probabilities and entropies come from hidden states in chunks, and the backward pass computes
  the chunks again (`policies/forward/logprobs.py`). A layer is a handful of nodes with their backward passes written out
  (`policies/forward/layer_ops.py`); on a GPU all between the products are Triton kernels
  (`policies/forward/triton/kernels.py`), and attention reads a prompt's keys where they lie, for all its rows, forward and
  back (`policies/forward/triton/attention_kernels.py`).
- **Learning from fresh answers makes no forward pass** on a CPU: sampling has computed all of it with the same weights, and
  wrote it down where learning reads it (`policies/forward/activation_cache.py`); the backward pass begins at once. Not where
  answers are compared with a reference policy: there both must be computed alike.
- **Rows without a gradient are not computed**, nor are passes whose columns nobody reads or whose coefficient is 0.
- **An update is cut as little as memory allows**: each slice launches a whole pass, during which a GPU waits that has few tokens
  (`policies/slice_budget.py`).
- **An answer that is continued alone says several tokens at a time** on a CPU, where n-grams tell them beforehand and they are what
  would be drawn (`rollout/decode/speculation.py`, [Drafts](engines.md#drafts)).
- **Answers that have ended leave**: the next one that waits takes the place, or the batch shrinks. On a GPU rows that would
  wait for memory share pages of it (`rollout/decode/pages.py`), and a decoding step
  is one CUDA graph with Triton kernels between the products: the keys of a long row are walked by several programs at once, and
  many look at a stretch of the vocabulary each before one draws (temperature, top-k, top-p, min-p) and gives the
  log-probability and the entropy (`rollout/decode/triton_kernels.py`). Of up to 64 rows the products too are kernels of ours
  (`rollout/decode/thin_products.py`), each launched before the one before it has ended.
- **Control**: weights in one vector, network and its gradient in numpy, and a method's loss recorded once a step and repeated
  (`learners/updates/replay.py`): thousands of updates on 64 decisions cost calls, not arithmetic.
- **Switches of the process**, on ARM: torch without oneDNN (`runtime/threads.py`), and an allocator that keeps freed memory,
  where its default hands pages back after 10 ms and gets them again in the next step (`__init__.py`).

Other models than Llama, Mistral, Qwen2, Qwen3 and Gemma, layers that attend to a window only, and models with a tensor or a
setting that our decoder does not know (biases of the inner layer, for example) run through `transformers`: right, and slower;
a warning says so once."""


def table(rows: Mapping[str, dict[str, Any] | None]) -> str:
    """One line per row; one that was not measured says so."""
    lines = ["| work | ours | peer | ratio | memory, ours | memory, peer | wanted |", "|---|---|---|---|---|---|---|"]
    for name, found in rows.items():
        if found is None:
            lines.append(f"| {ROWS[name]} | not measured yet | | | | | |")
            continue
        cells = [found["work"], _figure(found, "ours"), _figure(found, "peer"), _ratio(found)]
        cells += [_memory(found["memory_ours"]), _memory(found["memory_peer"]), found["goal"].removesuffix(" is wanted")]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _figure(found: Mapping[str, Any], role: str) -> str:
    if found[role] is None:
        return f"{found[f'{role}_name']}: not measured"
    spread = f"{_number(found[f'{role}_low'])} to {_number(found[f'{role}_high'])}"
    return f"{_number(found[role])} {found['unit']} ({spread}), {found[f'{role}_setting']}"


def _ratio(found: Mapping[str, Any]) -> str:
    if found["ratio"] is None:
        return "none"
    mark = "" if found["idle"] else ", machine not idle"
    borrowed = f"; {found['borrowed']['ratio']:.2f} with our switches" if "borrowed" in found else ""
    others = "".join(f"; {each['ratio']:.2f} on {_processor(each)}" for each in found.get("elsewhere", ()))
    return f"**{found['ratio']:.2f}** ({found['ratio_low']:.2f} to {found['ratio_high']:.2f}{mark}){borrowed}{others}"


def _processor(found: Mapping[str, Any]) -> str:
    """Whose it is, in a word: what distinguishes two machines of a table."""
    return str(found["machine"]["cpu"]).replace("(R)", "").split(" Processor")[0].split(" @")[0].strip()


def _memory(mebibytes: float | None) -> str:
    if mebibytes is None:
        return "not measured"
    return f"{mebibytes / 1024:.1f} GiB" if mebibytes >= 1024 else f"{mebibytes:.0f} MiB"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _why(name: str) -> str:
    return f" {WHY[name]}" if name in WHY else ""


def reached(results: Results) -> str:
    """What was aimed at and not reached, plainly; and what was not measured."""
    lines = []
    for name, words in ROWS.items():
        found = results.get(name)
        if found is None:
            lines.append(f"- {words}: not measured yet.")
        elif found["ratio"] is None:
            lines.append(f"- {words}: only our side was measured; there is no ratio.")
        elif found["wanted"] is not None and found["ratio"] < found["wanted"]:
            lines.append(f"- {words}: {found['ratio']:.2f} times as fast; {found['goal']}. Not reached.{_why(name)}")
        for each in (found or {}).get("elsewhere", ()):
            if found and found["wanted"] is not None and each["ratio"] < found["wanted"]:
                why = _why(name) if (found["ratio"] or 0.0) >= found["wanted"] else ""  # else it was said
                lines.append(f"- {words}: on {_processor(each)} {each['ratio']:.2f} times as fast. Not reached there.{why}")
        with_switches = (found or {}).get("borrowed", {}).get("ratio")
        if found is not None and with_switches is not None and found["wanted"] is not None and with_switches < found["wanted"]:
            lines.append(f"- {words}: beside the other library with our switches, {with_switches:.2f} times as fast.")
        if found is not None and found["least"] is not None and found["ours"] < found["least"]:
            lines.append(f"- {words}: {_number(found['ours'])} {found['unit']}; {found['goal']}. Not reached.")
        if found is not None and found["most_memory"] is not None and found["memory_ours"] > found["most_memory"]:
            lines.append(f"- {words}: {_memory(found['memory_ours'])} of memory; {found['goal']}. Not reached.")
        if found is not None and not found["idle"]:
            busy = max(found["others_before"], found["others_during"])
            lines.append(f"- {words}: measured while other processes kept {busy:.2f} cores busy, so its figures are provisional.")
        if found is not None and not found.get("equal_return", {"equal": True})["equal"]:
            lines.append(f"- {words}: the returns after the longer run differ by more than noise.")
    heading = "## What is missing"
    return f"{heading}\n\n" + (
        "\n".join(lines) if lines else "Every row was measured on an idle machine and reached what was wanted."
    )


def _row_section(found: Mapping[str, Any]) -> str:
    """Where the figures of a row come from."""
    by_setting = [(found[f"{role}_name"], each) for role, tried in found["settings"].items() for each in tried]
    settings = "; ".join(f"{side} ({each['label']}) {_number(each['seconds'])} s" for side, each in by_setting)
    counts = ", ".join(f"{name.replace('_', ' ')} {_number(count)}" for name, count in found["counts"]["ours"].items())
    near = ", ".join(f"{name.replace('_', ' ')} within {allowed:.0%}" for name, allowed in found["checked"]["near"].items())
    checked = ", ".join(name.replace("_", " ") for name in found["checked"]["exact"])
    lines = [
        f"## {ROWS[found['row']]}",
        f"{found['work'][0].upper()}{found['work'][1:]}. Wanted: {found['goal'].removesuffix(' is wanted')}.",
        f"- command: `{found['command']}`, {found['date']}",
        f"- machine: {machine.in_words(found['machine'])}; {'idle' if found['idle'] else '**not idle**'}",
        f"- versions: {_versions(found['versions'])}",
        f"- seconds for a unit of work, by setting: {settings}",
        f"- done by our side in the measured windows: {counts}",
        f"- same on both sides: {checked}{f'; {near}' if near else ''}",
    ]
    if not found.get("in_turns", True):
        lines.append("- one side after the other, each with the machine to itself")
    for each in found.get("elsewhere", ()):
        lines.append(
            f"- on {machine.in_words(each['machine'])}, {each['date']}: {_number(each['ours'])} against {_number(each['peer'])} "
            f"{each['unit']}, {each['ratio']:.2f} times as fast ({each['ratio_low']:.2f} to {each['ratio_high']:.2f}"
            f"{'' if each['idle'] else ', machine not idle'})"
        )
    if "note" in found:
        lines.append(f"- note: {found['note']}")
    if "equal_return" in found:
        lines.append(_returns(found["equal_return"]))
    return "\n\n".join(lines[:2]) + "\n\n" + "\n".join(lines[2:])


def _returns(told: Mapping[str, Any]) -> str:
    ours, peer = (f"{told[role]['mean']:.1f} ± {told[role]['spread']:.1f}" for role in ("ours", "peer"))
    verdict = "within two standard errors of each other" if told["equal"] else "more than two standard errors apart"
    return (
        f"- return of greedy episodes after {told['env_steps']:,} steps, mean and spread over {len(told['ours']['seeds'])} seeds: "
        f"{ours}, peer {peer}, {verdict} (`{told['command']}`)"
    )


def _versions(found: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in found.items())


def _scaling_section(name: str, found: Mapping[str, Any]) -> str:
    """How a step grows."""
    lines = ["| what varies | size | s a step (quartiles) | mostly | memory |", "|---|---|---|---|---|"]
    for each in found["points"]:
        whole = sum(each["phases"].values())
        parts = sorted(each["phases"].items(), key=lambda item: -item[1])[:2]
        mostly = ", ".join(f"{phase} {spent / whole:.0%}" for phase, spent in parts)
        spread = f"{_number(each['seconds_low'])} to {_number(each['seconds_high'])}"
        lines.append(
            f"| {each['sweep']} | {each['label']} | {_number(each['seconds'])} ({spread}) | {mostly} | {_memory(each['memory'])} |"
        )
    idle = "" if found["idle"] else " The machine was **not idle**: these figures are provisional."
    told = (
        f"Our side alone, {found['threads']} thread{'s' if found['threads'] > 1 else ''}, on {machine.in_words(found['machine'])}: "
        f"`{found['command']}`, {found['date']}.{idle}"
    )
    image = f"![Step time, where it goes, and memory]({_picture(name)})"
    return "\n\n".join([f"## How a step grows, {SCALING[name]}", told, image, "\n".join(lines)])


def _picture(name: str) -> str:
    return f"performance-{name.replace('_', '-')}.png"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the results (bench/results)")
    parser.add_argument("--docs", type=Path, default=DOCS, help="folder of the page and the plots (docs)")
    given = parser.parse_args()
    write(load(given.results), given.docs)


def write(results: Results, folder: Path) -> None:
    """The page and the plots it shows."""
    from report_plots import plot_ratios, plot_scaling

    folder.mkdir(parents=True, exist_ok=True)
    measured = {ROWS[name]: results[name] for name in ROWS if results.get(name, {}).get("ratio") is not None}
    if measured:
        plot_ratios(measured, folder / "performance.png")
    for name in SCALING:
        if name in results:
            plot_scaling(results[name], folder / _picture(name))
    (folder / "performance.md").write_text(page(results), encoding="utf-8")


if __name__ == "__main__":
    main()
