"""The measurements of stored experience as a list for `job_queue.py`, the most wanted first.

    python bench/off_policy_jobs.py --peers cuda > jobs.json
    python bench/job_queue.py run jobs.json --out FOLDER --cores 16 --gpu 14 --minutes 24

Minutes are those expected of one core beside fifteen busy others, or of a GPU that others use too.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

CLAIM_MINUTES = {
    "rlpd": 6, "h2o": 4, "td3-bc": 4, "famo2o": 3, "sac": 2.5, "cal-ql": 2.5, "prdc": 2.5, "serl": 5, "double-dqn": 2.5, "iql": 2,
    "cql": 1, "h2o-hopper": 7, "prdc-maze": 6, "serl-cube": 6, "serl-without-resets": 4,
}  # fmt: skip
"""Of a seed."""
PEER_MINUTES = {"td3": (11, 24), "sac": (12, 24), "td3-bc": (3, 7), "iql": (3, 9), "cql": (2, 9)}
"""Of a run beside us, on a GPU and on a core."""
LONG = {"sac": ("gym:HalfCheetah-v5", 20), "td3": ("gym:Hopper-v5", 17)}


def long_runs(python: str, device: str) -> Iterator[dict[str, Any]]:
    """A million steps each: eight environments, an update for each step of one."""
    for method, (task, minutes) in LONG.items():
        train = (
            f"{python} -m upslope train {method} --task {task} --device {device} --steps 50 --envs 8 "
            f"--horizon 2500 --updates-per-step 20000 --eval-every 2 --eval-problems 5 --checkpoint-every 2 --record none "
            f"--quiet --out $OUT/{method}-1m"
        )
        yield job(f"{method}-1m", train, gpu=1, minutes=minutes)


def returns(python: str, device: str, peers: str) -> Iterator[dict[str, Any]]:
    """Returns beside Stable-Baselines3 and d3rlpy, a job a run."""
    script = f"{python} bench/off_policy_returns.py --processes 1 --seeds 1 --work $OUT/returns"
    for online in (True, False):
        methods = [method for method in PEER_MINUTES if (method in LONG) == online]
        for seed in range(3):
            for method in methods:
                minutes = PEER_MINUTES[method][peers == "cpu"]
                given = f"--only {method} --sides peers --first-seed {seed} --device {peers}"
                yield job(f"{method}-peer-{seed}", f"{script} {given}", gpu=float(peers == "cuda"), minutes=minutes)
        for seed in range(3):
            for method in methods:
                given = f"--only {method} --sides ours --first-seed {seed} --device {device}"
                yield job(f"{method}-ours-{seed}", f"{script} {given}", gpu=1, minutes=3)


def claims(python: str, names: dict[str, list[int]]) -> Iterator[dict[str, Any]]:
    """A job for each claim and seed; the first seed of each, then the second: time that runs out leaves fewer seeds, not claims."""
    script = f"{python} bench/claims/many.py run --workers 1 --minutes $MINUTES --seeds 1"
    for turn in range(max(map(len, names.values()), default=0)):
        for name in sorted((name for name in names if turn < len(names[name])), key=lambda name: -CLAIM_MINUTES.get(name, 4)):
            seed = names[name][turn]
            given = f"--first-seed {seed} --out $OUT/claims/{name}-{seed}"
            yield job(f"claim-{name}-{seed}", f"{script} {given} {name}", minutes=CLAIM_MINUTES.get(name, 4))


def job(name: str, command: str, gpu: float = 0.0, minutes: float = 0.0) -> dict[str, Any]:
    """One entry of the list; of every one of these a part is of use."""
    return {"name": name, "command": command, "cores": 1, "gpu": gpu, "minutes": minutes, "partial": True}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", choices=("cuda", "cpu"), default="cuda", help="where the other libraries compute (cuda)")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="where we do (cuda)")
    parser.add_argument("--python", default=shlex.quote(sys.executable), help="the interpreter of the jobs (this one)")
    parser.add_argument("--claims", action="append", default=[], metavar="NAME=SEEDS", help="as in h2o=3,4; repeatable")
    parser.add_argument("--before", action="append", default=[], metavar="FILE", help="a list whose jobs come first; repeatable")
    given = parser.parse_args(arguments)
    wanted = {name: [int(seed) for seed in seeds.split(",")] for name, seeds in (each.split("=") for each in given.claims)}
    jobs = [each for file in given.before for each in json.loads(Path(file).read_text())]
    jobs += [*long_runs(given.python, given.device), *returns(given.python, given.device, given.peers)]
    jobs += claims(given.python, wanted)
    json.dump(jobs, sys.stdout, indent=1)


if __name__ == "__main__":
    main()
