"""What a run costs beside its steps: sixty GRPO steps of SmolLM2 on sums asked in words, from prompt to prompt, part by part.

``python bench/prompt_to_prompt.py --out bench/results/prompt_to_prompt.json`` runs the command as a user would, in a process of its
own, several times in a row; the first of them compiles what later ones find. A part is what lies between two moments that a run
tells its watcher of. ``--large --steps 4 --checkpoint-every 4 --times 2 --out bench/results/prompt_to_prompt_large.json`` does it
with 3.1 billion random weights that are read from a folder, answers of 256 tokens, and tells the disk's rate beside it.
"""

from __future__ import annotations

import argparse
import atexit
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from machine import describe

REWARD = """
import re

def score(prompts, responses, answers):
    found = [re.findall(r"-?\\d+", response.replace(",", "")) for response in responses]
    return [float(bool(numbers) and numbers[-1] == answer) for numbers, answer in zip(found, answers)]
"""
ANY_REWARD = """
def score(prompts, responses, answers):
    return [sum(map(ord, response)) % 97 / 97 for response in responses]
"""
NOTE = "What is left on the disk counts the model's own file, to which the run's first weights are a link."
MOMENTS = ("imported", "set up", "evaluated", "first step", "last step", "evaluated again", "ended", "left")
FLAGS = ["--model", "smollm2", "--tasks-per-step", "64", "--samples-per-task", "8", "--max-tokens", "24", "--lr", "2e-6"]
LARGE = {"vocab_size": 151936, "hidden_size": 2048, "intermediate_size": 11008, "num_hidden_layers": 36, "num_attention_heads": 16,
         "num_key_value_heads": 2, "tie_word_embeddings": True, "bos_token_id": 1, "eos_token_id": 2}  # fmt: skip
"""The shape of 3.1 billion parameters."""


def large_flags(folder: Path) -> list[str]:
    """Writes a model of random weights in bfloat16; the flags that train it."""
    import transformers
    from text_work import word_tokenizer

    if not (folder / "config.json").exists():
        with torch.device("cuda"):
            model = transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**LARGE)).bfloat16()
        model.save_pretrained(folder)
        word_tokenizer(LARGE["vocab_size"]).save_pretrained(folder)
        del model
        torch.cuda.empty_cache()
    return ["--model", str(folder), "--tasks-per-step", "16", "--samples-per-task", "8", "--max-tokens", "256", "--lr", "1e-6"]


def disk_rate(folder: Path, gigabytes: int = 4) -> float:
    """GB that are written in a second."""
    piece, file = os.urandom(1 << 26), folder / "rate"
    began = time.time()
    with file.open("wb") as out:
        for _ in range(gigabytes * 10**9 // len(piece)):
            out.write(piece)
        out.flush()
        os.fsync(out.fileno())
    seconds = time.time() - began
    file.unlink()
    return gigabytes / seconds


def files(folder: Path, reward: str) -> list[str]:
    rows = [{"prompt": f"What is {a} + {b}?", "answer": str(a + b)} for a in range(11, 99, 2) for b in range(12, 99, 3)]
    (folder / "sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "last_number.py").write_text(reward)
    return ["--task", str(folder / "sums.jsonl"), "--reward", f"{folder / 'last_number.py'}:score"]


def child(words: list[str]) -> None:
    """The command, with a note of when each moment was."""
    began, noted = float(os.environ["BEGAN"]), {}

    def note(moment: str) -> None:
        noted[moment] = time.time() - began

    import upslope.cli
    from upslope.report import live

    note("imported")

    class Noting(live.LiveTable):
        def began(self, run, components):
            note("set up")
            super().began(run, components)

        def evaluated(self, step, result):
            note("evaluated again" if "last step" in noted else "evaluated")
            super().evaluated(step, result)

        def stepped(self, step, metrics):
            note("last step" if "first step" in noted else "first step")
            super().stepped(step, metrics)

        def ended(self, summary):
            note("ended")
            super().ended(summary)

    def tell() -> None:
        note("left")
        written = [line for line in Path("/proc/self/io").read_text().splitlines() if line.startswith("write_bytes")]
        print(json.dumps({"moments": noted, "written": int(written[0].split()[1]) if written else 0}), file=sys.stderr)

    live.LiveTable = Noting
    atexit.register(tell)
    sys.argv = ["upslope", *words]
    sys.exit(upslope.cli.main())


def measure(steps: int, model: list[str], reward: str, further: list[str]) -> dict[str, object]:
    """One run: seconds of each part, bytes written, bytes left on the disk."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        words = ["train", "dr-grpo" if reward is ANY_REWARD else "grpo", *files(folder, reward), *model, "--steps", str(steps)]
        words += ["--out", str(folder / "run"), "--quiet", *further]
        began = time.time()
        done = subprocess.run(
            [sys.executable, __file__, "--child", *words], env={**os.environ, "BEGAN": str(began)}, capture_output=True, text=True
        )
        seconds = time.time() - began
        if done.returncode:
            sys.exit(done.stderr)
        told = json.loads(done.stderr.strip().splitlines()[-1])
        summary = json.loads((folder / "run" / "summary.json").read_text())
        moments = [*(told["moments"][name] for name in MOMENTS), seconds]
        parts = {
            name: round(after - before, 2)
            for name, before, after in zip(
                ("importing", "setting up", "first evaluation", "first step", "other steps", "last evaluation", "ending",
                 "report", "leaving"),
                [0.0, *moments[:-1]], moments, strict=True,
            )
        }  # fmt: skip
        inodes = {file.stat().st_ino: file.stat().st_size for file in (folder / "run").rglob("*") if file.is_file()}
        return {
            "seconds": round(seconds, 2), "parts": parts, "written_gb": round(told["written"] / 1e9, 2),
            "left_gb": round(sum(inodes.values()) / 1e9, 2), "score": [summary["score_before"], summary["score_after"]],
        }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--large", action="store_true", help="3.1 billion parameters; needs a GPU of 80 GB and 45 GB of disk")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "random-3b", help="of the large model's files")
    parser.add_argument("--out", help="a JSON file for the result")
    flags, further = parser.parse_known_args()
    model, reward = (large_flags(flags.folder), ANY_REWARD) if flags.large else (FLAGS, REWARD)
    runs = []
    for _ in range(flags.times):
        runs.append(measure(flags.steps, model, reward, further))
        print(json.dumps(runs[-1]), flush=True)
    command = " ".join(["python", "bench/prompt_to_prompt.py", *sys.argv[1:]])
    machine = describe("cuda" if torch.cuda.is_available() else "cpu")
    about = f"{flags.steps} steps of GRPO on sums asked in words, 64 problems x 8 answers of up to 24 tokens, SmolLM2."
    disk = {}
    if flags.large:
        about = f"{flags.steps} steps of Dr. GRPO, 16 problems x 8 answers of 256 tokens, 3.1 billion random weights."
        disk = {"disk_gb_per_second": round(disk_rate(flags.folder), 2)}
    result = disk | {
        "row": "prompt_to_prompt_large" if flags.large else "prompt_to_prompt",
        "command": command,
        "about": about,
        "machine": machine,
        "note": NOTE,
        "steps": flags.steps,
        "runs": runs,
    }
    if flags.out:
        Path(flags.out).write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    if "--child" in sys.argv:
        child(sys.argv[sys.argv.index("--child") + 1 :])
    else:
        main()
