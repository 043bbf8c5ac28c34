"""Kills runs at random moments, again and again, and demands that each ends as the run that was never disturbed: ``make torture``.

A cell is a method on a small task. Its run is trained once in peace; then once more under kill -9 (now and then SIGTERM), resumed
until it is done. Weights must be the same bit for bit, metrics and samples line for line, and every file in the folder whole. One
cell is killed while a judge is asked: its verdicts must be those of the undisturbed run, each once.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from killing_judge import KillingJudge, killed_at, live, verdicts

from upslope.runtime.checkpoint_files import CheckpointReader
from upslope.runtime.run_folder import RunFolder
from upslope.testing.runs import CLOCK

TEXT = [
    "--task", "reverse:length=2", "--model", "tiny:layers=1,width=32", "--tasks-per-step", "3", "--samples-per-task", "4",
    "--updates-per-step", "2", "--warm-start", "0.1", "--eval-problems", "8", "--checkpoint-every", "3", "--eval-every", "7",
    "--record", "all", "--steps", "40",
]  # fmt: skip
CONTROL = [
    "--task", "gym:CartPole-v1", "--envs", "2", "--horizon", "64", "--passes", "2", "--eval-problems", "2",
    "--checkpoint-every", "3", "--eval-every", "7", "--steps", "40",
]  # fmt: skip
METHODS = ("grpo", "dhpo", "remix", "spo-single-stream", "t-ppo", "polychromic", "safe", "pipo", "minirl-r2", "tempsamp-r1",
           "sft+dhpo", "mopps", "knapsack", "acereason", "pcl", "eva", "clpo", "ghpo", "scaf-grpo", "hpt", "evol-rl")  # fmt: skip
BY_CATEGORY = ("sec", "evol-rl+sec", "ghpo+sec")
MIXED = ["--task", "reverse:length=2+reverse:length=3", "--train-problems", "60", *TEXT[2:]]
"""Two categories, of problems that come back."""
KILLS = 10
"""For each cell, unless asked otherwise."""
CELLS = {
    **{method: ["train", method, *TEXT] for method in METHODS},
    **{method: ["train", method, *MIXED] for method in BY_CATEGORY},
    "grpo with adapters": ["train", "grpo", *TEXT, "--lora", "2"],
    "ppo": ["train", "ppo", *CONTROL],
    "bpo": ["train", "bpo", *CONTROL],
    "compare": [
        "compare", "grpo", "gspo", "--seeds", "1", "--k", "0", "--jobs", "1", "--task", "reverse:length=2",
        "--model", "tiny:layers=1,width=32", "--tasks-per-step", "3", "--samples-per-task", "4", "--warm-start", "0",
        "--eval-problems", "8", "--checkpoint-every", "3", "--steps", "25",
    ],
}  # fmt: skip

JUDGED = "sppo with a judge"


def upslope(words: list[str], log: Path) -> subprocess.Popen[bytes]:
    with log.open("ab") as file:
        return subprocess.Popen([sys.executable, "-m", "upslope", *words], stdout=file, stderr=file, start_new_session=True)


def peaceful(words: list[str], out: Path, log: Path) -> float:
    """Trains without a disturbance; how long it took."""
    began = time.monotonic()
    if upslope([*words, "--out", str(out), "--quiet"], log).wait() != 0:
        raise SystemExit(f"the undisturbed run failed:\n{log.read_text()[-2000:]}")
    return time.monotonic() - began


def finished(out: Path) -> bool:
    return (out / "summary.json").exists() or (out / "comparison.json").exists()


def tortured(words: list[str], out: Path, log: Path, kills: int, seconds: float, dice: random.Random) -> int:
    """The same, killed up to so many times at random moments; how often it was."""
    done = 0
    while not finished(out):
        again = words[0] == "train" and (out / "run.toml").exists()
        process = upslope(["resume", str(out), "--quiet"] if again else [*words, "--out", str(out), "--quiet"], log)
        try:
            process.wait(dice.uniform(0.1, 0.7) * seconds if done < kills else None)
        except subprocess.TimeoutExpired:
            how = signal.SIGTERM if dice.random() < 0.1 else signal.SIGKILL
            process.send_signal(how)
            process.wait()
            for child in children(out):  # a comparison that is killed leaves its run behind, which ends by itself
                child.send_signal(signal.SIGKILL)
            done += 1
            continue
        if process.returncode != 0:
            raise AssertionError(f"it ended with {process.returncode}:\n{log.read_text()[-2000:]}")
    return done


class Stray:
    """A process somebody else has started."""

    def __init__(self, pid: int):
        self.pid = pid

    def send_signal(self, number: int) -> None:
        import os

        try:
            os.kill(self.pid, number)
        except ProcessLookupError:
            return
        while Path(f"/proc/{self.pid}").exists() and "Z" not in Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2][:3]:
            time.sleep(0.05)


def children(out: Path) -> list[Stray]:
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if str(out) in file.read_bytes().decode(errors="replace"):
                found.append(Stray(int(file.parent.name)))
        except OSError:
            continue
    return found


def result(run: Path) -> tuple[dict[str, bytes], list[dict], list[str], list[str]]:
    """Weights, metrics without the clock, samples, and names of recordings."""
    files = CheckpointReader(RunFolder(run).latest())
    weights = {
        f"{name}/{key}": tensor.view(-1).numpy().tobytes()
        for name in files.names()
        if name.endswith(".safetensors") and name != "learner.safetensors"
        for key, tensor in files.read_tensors(name).items()
    }
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    metrics = [{key: value for key, value in line.items() if key not in CLOCK} for line in lines]
    samples = (run / "samples.jsonl").read_text().splitlines()
    return weights, metrics, samples, sorted(file.name for file in (run / "rollouts").glob("*"))


def same(one: Path, other: Path) -> None:
    for run in sorted(path.parent for path in one.rglob("run.toml")):
        twin = other / run.relative_to(one)
        for what, ours, theirs in zip(("weights", "metrics", "samples", "recordings"), result(run), result(twin), strict=True):
            assert ours == theirs, f"{twin} has other {what} than {run}"
        checked = subprocess.run([sys.executable, "-m", "upslope", "check", str(twin)], capture_output=True, text=True)
        assert checked.returncode == 0, checked.stdout


def judged(root: Path, kills: int, dice: random.Random) -> float:
    """A run whose judge kills it at random questions; the seconds of the undisturbed one."""
    began = time.monotonic()
    with KillingJudge() as judge:
        assert live(judge, root / "peaceful", root / "log.txt") == 0, (root / "log.txt").read_text()[-2000:]
        seconds = time.monotonic() - began
        places = sorted(dice.choices(range(1, judge.questions + 1), k=kills))
        killed_at(judge, root / "tortured", root / "log.txt", places)
    same(root / "peaceful", root / "tortured")
    assert verdicts(root / "peaceful") == verdicts(root / "tortured")
    return seconds


def disturbed(cell: str, root: Path, wanted: int, dice: random.Random) -> tuple[int, float]:
    """How often a cell's runs were killed, and the seconds of the undisturbed one."""
    if cell == JUDGED:
        return wanted, judged(root, wanted, dice)
    seconds = peaceful(CELLS[cell], root / "peaceful", root / "log.txt")
    kills = 0
    while kills < wanted:  # a run is done after a few; then it begins again
        kills += tortured(CELLS[cell], root / "tortured", root / "log.txt", wanted - kills, seconds, dice)
        same(root / "peaceful", root / "tortured")
        shutil.rmtree(root / "tortured")
    return kills, seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, help=f"in all, shared by the cells; {KILLS} for each unless given")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--cells", nargs="*", default=[*CELLS, JUDGED], choices=[*CELLS, JUDGED])
    asked = parser.parse_args()
    dice, total, kills_in_all = random.Random(asked.seed), 0, KILLS * len(asked.cells) if asked.kills is None else asked.kills
    print(f"seed {asked.seed}: {kills_in_all} kills over {len(asked.cells)} cells", flush=True)
    with tempfile.TemporaryDirectory(prefix="upslope-torture-") as folder:
        for number, cell in enumerate(asked.cells):
            root = Path(folder, cell.replace(" ", "-"))
            root.mkdir()
            wanted = (kills_in_all - total + len(asked.cells) - number - 1) // (len(asked.cells) - number)
            kills, seconds = disturbed(cell, root, wanted, dice)
            total += kills
            print(f"{cell:<22} {kills:>3} kills, the end of the undisturbed run ({seconds:.0f} s)", flush=True)
            shutil.rmtree(root)
    print(f"{total} kills, every run ended as if there had been none")


if __name__ == "__main__":
    main()
