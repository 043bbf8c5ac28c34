"""pass@k of finished runs: each is sampled once on the same held-out problems, and the counts stay in its folder.

    python -m upslope.report.compare.sampling K PROBLEMS RUN...

is what a comparison starts; one process takes several runs, since loading torch takes longer than sampling a small model.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from upslope.errors import UserError
from upslope.plain_data import JsonDict
from upslope.report.compare.running import ended_with_us, launch
from upslope.runtime.files import write_json
from upslope.runtime.statistics import pass_at_k

FILE = "samples-at-k.json"
PROBLEMS = 100


def default_k(model: str) -> int:
    """Answers per problem: sampling a tiny model costs next to nothing."""
    return 16 if model.split(":")[0] == "tiny" else 8


def counts(path: Path) -> JsonDict | None:
    """What was sampled of a run: ``problems``, ``samples`` and how many were ``right`` of each; None if nothing was."""
    try:
        found = json.loads((path / FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) and found.get("right") else None


def curve(sampled: JsonDict) -> dict[int, float]:
    """pass@1, pass@2, pass@4 and so on, up to what was sampled."""
    n = int(sampled["samples"])
    ks = sorted({*(2**i for i in range(n.bit_length())), n})
    return {k: pass_at_k([n] * len(sampled["right"]), sampled["right"], k) for k in ks}


def missing(paths: Sequence[Path], k: int) -> list[Path]:
    """Text runs that have not been sampled with at least ``k`` answers per problem."""
    return [path for path in paths if (counts(path) or {"samples": 0})["samples"] < k]


def sample_all(paths: Sequence[Path], k: int, *, workers: int, threads: int, say: Callable[[str], None]) -> list[str]:
    """Samples the runs, shared out among processes; what went wrong, if anything. Ctrl-C leaves the rest unsampled."""
    shares = [list(paths[start::workers]) for start in range(min(workers, len(paths)))]
    say(f"sampling {len(paths)} finished run{'s' if len(paths) != 1 else ''} for pass@{k}")
    module = [sys.executable, "-P", "-m", "upslope.report.compare.sampling", str(k), str(PROBLEMS)]
    processes = [launch([*module, *map(str, share)], subprocess.DEVNULL, threads) for share in shares]
    told = f"stopped while finished runs were sampled for pass@{k}. The same command goes on; --k 0 leaves it out."
    with ended_with_us(processes, told):
        for process in processes:
            process.wait()
    return [f"{path} could not be sampled for pass@{k}" for path in missing(paths, k)]


def sample(path: Path, k: int, problems: int = PROBLEMS) -> JsonDict:
    """Samples one run and keeps what came out."""
    from upslope.rollout.evaluation import evaluate_text
    from upslope.run import Run
    from upslope.runtime.run_folder import RunFolder
    from upslope.runtime.threads import torch_threads

    folder = RunFolder.open(path)
    run = Run(folder)
    settings = run.plan.settings
    with torch_threads(settings.threads or 1):
        policy = run.policy
        assert run.components is not None
        task = run.components.task
        found = evaluate_text(
            task, policy, problems=problems, max_tokens=settings.max_tokens or task.max_tokens, samples=k,
            temperature=settings.temperature, stop=settings.stops,
        )  # fmt: skip
    kept = {
        "checkpoint": (run.checkpoint or folder.latest()).name,
        "problems": len(found.problems),
        "samples": k,
        "temperature": settings.temperature,
        "right": [sum(row) for row in found.correct],
    }
    write_json(path / FILE, kept)
    return kept


def main(words: Sequence[str]) -> int:
    k, problems, *paths = words
    failed = 0
    for path in paths:
        try:
            sample(Path(path), int(k), int(problems))
        except UserError as error:
            print(f"upslope: {path}: {error}", file=sys.stderr)
            failed = 2
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
