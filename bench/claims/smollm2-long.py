"""SmolLM2-135M learns with room for long answers: three tasks of reasoning-gym, up to 1,024 tokens an answer, on one GPU.

    python bench/claims/smollm2-long.py run --out FOLDER --workers 3 --minutes 60    # FOLDER/<task>.json, a curve each
    python bench/claims/smollm2-long.py run --out FOLDER --workers 3 --minutes 60    # again: what is not finished goes on
    python bench/claims/smollm2-long.py page --out FOLDER                            # docs/claims/smollm2-long.md from them

The three tasks run at the same time, each in a process of its own. A curve is written anew after every step, so that of a run that
is stopped from outside everything is there but the score at its end. A run whose time is over ends itself and is judged then.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import multiprocessing
import os
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from claim_page import versions_here
from harness import PAGES

from upslope.runtime.statistics import Interval, bootstrap_interval, difference_interval

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from curve_file import CurveFile

NAME = "smollm2-long"
METHOD = "dr-grpo"
SETTINGS: dict[str, Any] = {
    "model": "smollm2", "device": "cuda", "tasks_per_step": 16, "samples_per_task": 8, "max_tokens": 1024, "temperature": 0.7,
    "lr": 5e-6, "eval_problems": 200, "watch_kl": False, "record": "none", "threads": 2, "slice_tokens": 16384,
}  # fmt: skip
SMOKE: dict[str, Any] = {
    "device": "cpu", "tasks_per_step": 2, "samples_per_task": 2, "max_tokens": 16, "eval_problems": 4, "threads": 1,
    "slice_tokens": None, "checkpoint_every": "none",
}  # fmt: skip
KEPT = ("reward", "reward_correct", "length", "longest", "entropy", "grad_norm", "constant_groups", "seconds", "seconds_sampling",
        "tokens_per_second")  # fmt: skip
ENDS = 10
"""Steps at the beginning and at the end over which rewards, lengths and times are averaged."""


@dataclasses.dataclass(frozen=True)
class Task:
    """One run: a task, how many steps of it are planned, and what it asks for."""

    name: str
    spec: str
    steps: int
    about: str


TASKS = (
    Task("sudoku", "reasoning-gym:sudoku:min_empty=4,max_empty=8", 100, "a 9 x 9 grid with 4 to 8 empty cells, 161 tokens"),
    Task(
        "letter_jumble",
        "reasoning-gym:letter_jumble:min_words=8,max_words=20,min_corruption_level=0.1,max_corruption_level=0.3",
        100,
        "8 to 20 words with letters out of place",
    ),
    Task("knights_knaves", "reasoning-gym:knights_knaves:n_people=2", 200, "who of two people tells the truth"),
)
CHOSEN = """\
How the tasks were chosen: the untrained model answered 5 training problems of each candidate four times, at temperature 0.7 and
with at most 128 tokens. Reward, share of problems whose four rewards differ, tokens an answer: sudoku 0.002, 0.6, 60; letter_jumble
0.014, 0.6, 55; knights_knaves 0.10, 0.4, 44. These are different things to ask for, the rewards of many problems differ, and the
answers are of tens of tokens; that of sudoku has 161, so that it must become longer. Not taken: spell_backward (0.10, 0.8, 33),
whose answers are single words; time_intervals (0.027, 0.2, 49), word_sorting (0.017, 0.2, 50) and mini_sudoku (0.001, 0.2, 45),
where fewer problems tell answers apart; gsm_symbolic (0.01, 0, 98; told to reason first 0.01, 0, 88), sentence_reordering (0.05,
0, 27), number_sorting, game_of_life, manipulate_matrix, propositional_logic and word_sequence_reversal (0, 0, 34 to 114), where
none did. At temperature 1, tried on five of them, most answers were no sentences. Nothing was trained before the settings were
fixed. Two earlier runs were lost before their curves were kept. In the second sudoku had not ended its 200 steps in the time there
was; the 200 steps were then given to knights_knaves, whose take less time, and nothing else was changed."""

RULES = """\
What answers without thought get on the 200 held-out problems, full marks and reward: sudoku with every empty cell a 5: 0, 0.840,
and copied as it stands 0, 0.084; letter_jumble copied as it stands 0, 0.058; knights_knaves with one answer for all at most 0.28,
0.57, or 0.245, 0.61. Less than that is the form of an answer, learned; only what is above it is more."""


class Curve(CurveFile):
    """Writes down what comes out, step by step, and ends the run in time for it to be judged.

    Args:
        samples: the run's own file of answers, which knows how each of them ended.
        ends: when the run and its last evaluation are to be over, in seconds of the clock.
    """

    def __init__(self, file: Path, samples: Path, ends: float, about: dict[str, Any]):
        super().__init__(file, about)
        self.found = {"examples": [], "judging": 0.0} | self.found
        self.samples, self.ends = samples, ends

    def on_step(self, step: int, metrics: dict[str, Any]) -> bool:
        point = {"step": step} | {key: round(float(metrics[key]), 5) for key in KEPT if key in metrics}
        answers = [each for each in last_records(self.samples) if each["step"] == step]
        if answers:  # all of them, or as good as all
            point["cut"] = round(float(np.mean([each["finish"] == "length" for each in answers])), 5)
            shown = {key: answers[0][key] for key in ("step", "prompt", "answer", "response", "reward")}
            self.found["examples"] = [*self.found["examples"][:1], shown]
        self.take("training", point)
        if step % 5 == 0 or step == 1:
            print(self.found["task"], self.found["training"][-1], flush=True)
        return time.time() + metrics["seconds"] + self.found["judging"] < self.ends

    def on_evaluation(self, step: int, result: dict[str, Any]) -> None:
        if step == 0:
            self.found["judging"] = time.monotonic() - self.began  # with the loading of the model, so rather more than it takes
        self.take("evaluations", {"step": step} | {key: result[key] for key in ("score", "low", "high", "reward", "problems")})
        print(self.found["task"], self.found["evaluations"][-1], flush=True)

    def on_end(self, summary: dict[str, Any]) -> None:
        self.found["ended"] = {key: summary[key] for key in ("steps", "seconds", "tokens", "ended_early") if key in summary}
        self.write()


def last_records(file: Path, most: int = 2**23) -> list[dict[str, Any]]:
    """The last lines of a file of JSON lines, as many as there are in so many bytes."""
    if not file.exists():
        return []
    with file.open("rb") as opened:
        skipped = max(file.stat().st_size - most, 0)
        opened.seek(skipped)
        lines = opened.read().splitlines()
    return [json.loads(line) for line in lines[skipped > 0 :]]


# -- the runs --------------------------------------------------------------------------------------------------------------


def run_task(task: Task, out: Path, runs: Path, until: float, smoke: bool) -> None:
    """Trains on one task until it is finished or its time is over; a run that is there goes on."""
    os.environ["OMP_NUM_THREADS"] = "1"
    import torch

    import upslope as up

    torch.set_float32_matmul_precision("high")  # TF32 where it is not bfloat16: the weights stay float32
    settings = SETTINGS | (SMOKE if smoke else {})
    steps, answers = 2 if smoke else task.steps, settings["tasks_per_step"] * settings["samples_per_task"]
    about = {
        "task": task.name,
        "spec": task.spec,
        "method": METHOD,
        "planned": steps,
        "settings": settings,
        "with": versions_here(),
    }
    folder = runs / task.name
    curve = Curve(out / f"{task.name}.json", folder / "samples.jsonl", until, about)
    if (folder / "run.toml").exists():
        up.resume(folder, steps=steps if (folder / "summary.json").exists() else None, callbacks=[curve])
    else:
        up.train(METHOD, task.spec, out=folder, steps=steps, samples_logged=answers, callbacks=[curve], **settings)


def _worker(jobs: Any, *given: Any) -> None:
    """Works through tasks until there are none; one that fails does not take the others with it."""
    while (task := jobs.get()) is not None:
        try:
            run_task(task, *given)
        except Exception:
            print(f"{task.name}:", traceback.format_exc(), flush=True)


def run(out: Path, runs: Path, workers: int, minutes: float, smoke: bool) -> None:
    """Runs what is not finished, each task in a process of its own, until its time is over."""
    out.mkdir(parents=True, exist_ok=True)
    runs.mkdir(parents=True, exist_ok=True)
    finished = {name for name, found in load(out).items() if found.get("ended", {}).get("steps", 0) >= found["planned"]}
    context = multiprocessing.get_context("spawn")
    jobs = context.Queue()
    for task in [task for task in TASKS if task.name not in finished] + [None] * workers:
        jobs.put(task)
    given = (jobs, out, runs, time.time() + 60 * minutes, smoke)
    processes = [context.Process(target=_worker, args=given) for _ in range(workers)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()


def load(out: Path) -> dict[str, dict[str, Any]]:
    """The curves that are there, by task."""
    files = {task.name: out / f"{task.name}.json" for task in TASKS}
    return {name: json.loads(file.read_text(encoding="utf-8")) for name, file in files.items() if file.exists()}


# -- the page --------------------------------------------------------------------------------------------------------------


def ends(found: dict[str, Any], key: str) -> tuple[float, float]:
    """The mean over the first steps and over the last."""
    values = [each[key] for each in found["training"] if key in each]
    return (float(np.mean(values[:ENDS])), float(np.mean(values[-ENDS:]))) if values else (float("nan"), float("nan"))


def rise(found: dict[str, Any]) -> tuple[float, Interval]:
    """The reward of the last steps less that of the first, with an interval over steps; their problems differ."""
    values = [each["reward"] for each in found["training"]]
    first, last = values[:ENDS], values[-ENDS:]
    before, after = float(np.mean(first)), float(np.mean(last))
    return after - before, difference_interval(before, bootstrap_interval(first), after, bootstrap_interval(last))


def moved(interval: Interval, up: str) -> str:
    """In a word, whether a difference excludes zero."""
    return up if interval.low > 0 else "fell" if interval.high < 0 else "not shown"


def said_of(found: dict[str, Any]) -> list[str]:
    """What came out, in two lines: of held-out problems, and of the samples of training."""
    done, planned, (first, last) = len(found["training"]), found["planned"], (found["evaluations"][0], found["evaluations"][-1])
    steps = f"{found['task']}, {done} of {planned} steps"
    if last["step"] == 0:
        lines = [f"- {METHOD}: {steps}, greedy accuracy: **not judged**, the run was stopped before its last evaluation."]
    else:
        at = "" if last["step"] == done else f" at step {last['step']}"
        spans = (Interval(each["low"], each["high"]) for each in (first, last))
        gain = difference_interval(first["score"], next(spans), last["score"], next(spans))
        lines = [
            f"- {METHOD}: {steps}, greedy accuracy on {last['problems']} held-out problems{at}: **{moved(gain, 'learned')}** "
            f"({first['score']:.3f} before, {last['score']:.3f} after, difference {gain.low:+.3f} to {gain.high:+.3f})."
        ]
    if done >= 2 * ENDS:
        mean, span = rise(found)
        lines.append(
            f"- {METHOD}: {steps}, reward of samples in the last steps above that in the first: **{moved(span, 'rose')}** "
            f"(difference {mean:+.3f}, interval over steps {span.low:+.3f} to {span.high:+.3f})."
        )
    return lines


def table(every: Sequence[dict[str, Any]]) -> list[str]:
    names = ("task", "steps", "greedy accuracy", "greedy reward", "reward of samples", "full marks of samples", "tokens an answer",
             "cut at the limit", "entropy", "seconds a step (sampling)", "minutes")  # fmt: skip
    lines = ["| " + " | ".join(names) + " |", "|---" * len(names) + "|"]
    for found in every:
        first, last = found["evaluations"][0], found["evaluations"][-1]
        cells = [found["task"], f"{len(found['training'])} of {found['planned']}"]
        cells += [f"{first['score']:.3f} ({first['low']:.3f} to {first['high']:.3f})"]
        cells[-1] += f" → {last['score']:.3f} ({last['low']:.3f} to {last['high']:.3f})" if last["step"] else " → not judged"
        cells += [f"{first['reward']:.3f} → {last['reward']:.3f}" if last["step"] else f"{first['reward']:.3f} → not judged"]
        for key, digits in (("reward", 3), ("reward_correct", 3), ("length", 0), ("cut", 3), ("entropy", 2)):
            cells += [" → ".join(f"{value:.{digits}f}" for value in ends(found, key))]
        (began, ended), sampling = ends(found, "seconds"), ends(found, "seconds_sampling")[1]
        cells += [f"{began:.1f} → {ended:.1f} ({sampling:.1f})", f"{found['minutes']:.0f}"]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def page(out: Path, pages: Path) -> None:
    """Page, plot and numbers, from the curves that are there."""
    every = [found for found in load(out).values() if found["evaluations"] and found["training"]]
    if not every:
        raise SystemExit(f"no curves in {out}: run first.")
    settings = every[0]["settings"]
    answers = f"{settings['tasks_per_step']} problems x {settings['samples_per_task']} answers a step"
    given = ", ".join(f"{key} {value}" for key, value in settings.items())
    planned = "; ".join(f"{task.steps} steps of `{task.spec}` ({task.about})" for task in TASKS)
    lines = [
        f"# {METHOD}: SmolLM2-135M with room for long answers, one seed",
        "",
        "SmolLM2-135M-Instruct (`--model smollm2`, full fine-tuning, nothing before it) on three tasks of reasoning-gym, "
        f"{answers} of up to {settings['max_tokens']:,} tokens, with `{METHOD}`: answers differ much in length, and it divides by "
        "neither that nor the spread of a group. One run of each task with one seed: nothing here is an interval over seeds.",
        "",
        f"Planned: {planned}. Run: " + "; ".join(_told(found) for found in every) + ".",
        f"Settings: {given}, seed 0.",
        "",
        *CHOSEN.splitlines(),
        "",
        *RULES.splitlines(),
        "",
        "## in these settings",
        "",
        *[line for found in every for line in said_of(found)],
        "",
        *table(every),
        "",
        "*Greedy accuracy*: share of held-out problems answered with full marks, in parentheses its 95% interval over problems; "
        "*learned* means that the interval of the difference lies above 0. *Greedy reward*: the same answers with "
        f"partial marks. The other columns are of training's samples: mean of the first {ENDS} steps → mean of the last {ENDS}. "
        "*Rose* means that the difference of the two rewards has an interval above 0, drawn over steps.",
        "",
        f"![curves]({NAME}.png)",
        "",
        *[line for found in every for line in _examples(found)],
        f"*Made by `python bench/claims/{NAME}.py run --out FOLDER` and `page --out FOLDER`, on one GPU beside other jobs "
        f"({every[0]['with']}). Numbers: [data/{NAME}.json](data/{NAME}.json).*",
        "",
    ]
    (pages / "data").mkdir(parents=True, exist_ok=True)
    (pages / f"{NAME}.md").write_text("\n".join(lines), encoding="utf-8")
    text = json.dumps({"name": NAME, "method": METHOD, "settings": settings, "runs": every}, indent=None)
    (pages / "data" / f"{NAME}.json").write_text(text + "\n", encoding="utf-8")
    plot(every, pages / f"{NAME}.png")


def _told(found: dict[str, Any]) -> str:
    done = len(found["training"])
    if done >= found["planned"]:
        return f"{found['task']} as planned"
    how = "its time was over" if "ended_early" in found.get("ended", {}) else "it was stopped"
    return f"{found['task']} {done} steps, then {how}"


def _examples(found: dict[str, Any], most: int = 600) -> list[str]:
    """One answer of the first step and one of the last, of whatever problem came first."""
    lines = [f"## {found['task']}: what it says", ""]
    for each in found["examples"]:
        said = each["response"] if len(each["response"]) <= most else each["response"][:most] + " ..."
        lines += [f"Step {each['step']}, reward {each['reward']:.2f}, expected `{' / '.join(each['answer'].splitlines())}`:", ""]
        lines += ["    " + line for line in said.splitlines()] + [""]
    return lines


def plot(every: Sequence[dict[str, Any]], path: Path) -> None:
    """Reward and length of the samples against steps, each point the mean of five, the single steps behind them."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(2, len(every), figsize=(4 * len(every), 5.5), squeeze=False, sharex="col")
    for column, found in enumerate(every):
        for row, (key, label) in enumerate((("reward", "reward"), ("length", "tokens an answer"))):
            axis, values = axes[row, column], np.array([each[key] for each in found["training"]])
            axis.plot(np.arange(len(values)) + 1, values, linewidth=0.6, alpha=0.4, color=f"C{row}")
            if len(values) >= 5:
                axis.plot(np.arange(len(values) - 4) + 3, np.convolve(values, np.ones(5) / 5, mode="valid"), color=f"C{row}")
            axis.set_ylim(bottom=0)
            axis.grid(alpha=0.3)
            axis.set_ylabel(label if column == 0 else "")
        axes[0, column].set_title(found["task"], fontsize=9)
    figure.supxlabel("step")
    figure.tight_layout()
    figure.savefig(path, dpi=90, metadata={"Software": None})
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("run", "page"))
    parser.add_argument("--out", type=Path, required=True, help="folder of the curves")
    parser.add_argument("--runs", type=Path, help="folder of the runs with their checkpoints, about 4 GiB each (OUT/runs)")
    parser.add_argument("--workers", type=int, default=3, help="tasks at a time on the GPU")
    parser.add_argument("--minutes", type=float, default=60.0, help="by when the runs are ended and judged")
    parser.add_argument("--pages", type=Path, default=PAGES, help="folder of the page (docs/claims)")
    parser.add_argument("--smoke", action="store_true", help="only see that it runs: two steps of four short answers on the CPU")
    given = parser.parse_args()
    if given.what == "run":
        run(given.out, given.runs or given.out / "runs", given.workers, given.minutes, given.smoke)
    else:
        page(given.out, given.pages)


if __name__ == "__main__":
    main()
