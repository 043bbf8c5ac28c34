"""How many GPUs should sample and how many learn, and how far ahead: ``python bench/cluster_plan.py``.

Simulates steps of a run on hundreds of GPUs from the step times that ``bench/scaling.py --device cuda`` measured on one. Workers
take shares in order, each as long as its longest answer; whoever holds other weights than an assignment names fetches them first; a
step is learned from when all its shares are there; the shares of step s are given out when step s - 1 - K has been learned. That is
`--pace exact` of `upslope.rollout`. First the simulation is held against that very code, with workers and a learner that sleep
(``cluster_check.py``), and against ``bench/async_step.py``.

Assumed, not measured: learning divides evenly over its GPUs but for one sum of gradients a step; weights go out as a tree does.
"""

from __future__ import annotations

import argparse
import heapq
import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import cluster_check
import machine
import numpy as np
from side_by_side import RESULTS, command

IMAGE = Path(__file__).resolve().parent.parent / "docs" / "images" / "cluster-plan.png"
BYTES_PER_PARAMETER = 4
"""Weights are published in float32."""
AHEAD = (0, 1, 2, 4)
CLUSTERS = (8, 16, 32, 64, 128, 256, 512)
COLOURS = ("#D55E00", "#0072B2", "#009E73", "#CC79A7")
LINKS = {"10 Gbit/s": 1.25e9, "100 Gbit/s": 12.5e9, "400 Gbit/s": 50e9}


@dataclass(frozen=True)
class Timeline:
    """What a simulated run did.

    Fields:
        seconds: Of all its steps.
        sampling: Share of the workers' time in which they sampled.
        learning: Share of the learner's time in which it learned.
    """

    seconds: float
    sampling: float
    learning: float


def simulate(shares: Sequence[Sequence[float]], learning: Sequence[float], workers: int, ahead: int, sync: float = 0.0) -> Timeline:
    """Steps of a run at an exact pace.

    Args:
        shares: By step, the seconds of each of its shares.
        learning: By step, the seconds of learning from it.
        ahead: K of ``--max-staleness``.
        sync: Seconds that a worker takes to get other weights.
    """
    free = [(0.0, number) for number in range(workers)]
    holds = [-1] * workers
    busy, learned = 0.0, [0.0]  # when each version was there; version 0 is the start
    for step, (pieces, lesson) in enumerate(zip(shares, learning, strict=True)):
        version = max(step - ahead, 0)
        given, ready = learned[version], 0.0
        for seconds in pieces:
            since, number = heapq.heappop(free)
            begin = max(since, given) + (sync if holds[number] != version else 0.0)
            holds[number], busy = version, busy + seconds
            heapq.heappush(free, (begin + seconds, number))
            ready = max(ready, begin + seconds)
        learned.append(max(learned[-1], ready) + lesson)
    total = learned[-1]
    return Timeline(total, busy / (total * workers), sum(learning) / total)


# -- from one GPU to many --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Work:
    """A run on a cluster.

    Fields:
        answers: Of a step.
        tokens: Mean length of an answer.
        spread: Standard deviation of the logarithm of lengths.
        longest: At most so many tokens, in means.
        parameters: Of the model.
        link: Bytes a second between two machines.
    """

    answers: int = 16384
    tokens: int = 512
    spread: float = 0.5
    longest: float = 4.0
    parameters: int = 134_515_008
    link: float = 12.5e9
    steps: int = 40
    seed: int = 0

    @property
    def size(self) -> int:
        """Bytes of the weights."""
        return self.parameters * BYTES_PER_PARAMETER


@dataclass(frozen=True)
class Costs:
    """What one GPU takes, as measured.

    Fields:
        position: Seconds of one more token for every row of an engine call, by rows.
        learning: Seconds of learning, by token.
    """

    position: Callable[[float], float]
    learning: float

    @classmethod
    def measured(cls, points: Sequence[dict[str, Any]]) -> Costs:
        """From the sweeps of ``bench/scaling.py`` over batches and lengths."""
        batches = [point for point in points if point["sweep"] == "batch"]
        lengths = [point for point in points if point["sweep"] == "length"]
        tokens = next(point["x"] for point in lengths if point["tokens"] == batches[2]["tokens"])  # what the batches' answers have
        rows = [point["x"] for point in batches]
        seconds = [(point["phases"]["sampling"] + point["phases"]["reward"]) / tokens for point in batches]
        longest = max(lengths, key=lambda point: point["x"])
        learning = sum(longest["phases"][phase] for phase in ("forward", "backward", "optimiser", "other")) / longest["tokens"]
        return cls(lambda count: float(np.interp(count, rows, seconds)) * max(1.0, count / rows[-1]), learning)


@cache
def drawn(work: Work) -> np.ndarray:
    """Lengths of answers, by step."""
    normal = np.random.default_rng(work.seed).normal(-0.5 * work.spread**2, work.spread, (work.steps, work.answers))
    return np.exp(normal).clip(max=work.longest) * work.tokens


def planned(work: Work, costs: Costs, samplers: int, learners: int, ahead: int) -> Timeline:
    """A run with so many GPUs for each."""
    lengths = drawn(work)
    pieces = [np.array_split(step, samplers) for step in lengths]
    shares = [[float(piece.max()) * costs.position(len(piece)) for piece in step] for step in pieces]
    exchange = 2 * work.size / work.link if learners > 1 else 0.0  # a ring sends and receives each gradient once
    learning = [float(step.sum()) * costs.learning / learners + exchange for step in lengths]
    return simulate(shares, learning, samplers, ahead, sync_seconds(work.size, work.link, samplers))


def sync_seconds(size: float, link: float, receivers: int) -> float:
    """Weights to all receivers, each of which hands them on: a tree."""
    return size / link * math.ceil(math.log2(receivers + 1))


def best_split(work: Work, costs: Costs, gpus: int, ahead: int) -> dict[str, Any]:
    """The number of samplers with which a step takes least."""
    tried = sorted({round(gpus * share) for share in np.linspace(0.05, 0.95, 19)} - {0, gpus})
    found = {count: planned(work, costs, count, gpus - count, ahead) for count in tried}
    samplers = min(found, key=lambda count: found[count].seconds)
    line = found[samplers]
    used = (line.sampling * samplers + line.learning * (gpus - samplers)) / gpus
    return {
        "gpus": gpus, "ahead": ahead, "samplers": samplers, "step_seconds": line.seconds / work.steps, "used": used,
        "answers_per_second": work.answers * work.steps / line.seconds, **asdict(line),
    }  # fmt: skip


def in_turns(work: Work, costs: Costs, gpus: int) -> dict[str, Any]:
    """All GPUs sample, then all learn, without any weights sent: what a split has to beat. A run of ours does not do it on
    several machines."""
    lengths = drawn(work)
    sampling = [[float(piece.max()) * costs.position(len(piece)) for piece in np.array_split(step, gpus)] for step in lengths]
    learning = [float(step.sum()) * costs.learning / gpus for step in lengths]
    exchange = 2 * work.size / work.link * work.steps if gpus > 1 else 0.0
    total = sum(map(max, sampling)) + sum(learning) + exchange
    used = (sum(map(sum, sampling)) / gpus + sum(learning)) / total
    return {"gpus": gpus, "step_seconds": total / work.steps, "used": used, "answers_per_second": work.answers * work.steps / total}


# -- the page --------------------------------------------------------------------------------------------------------------


def plot(found: list[dict[str, Any]], splits: list[dict[str, Any]], turns: list[dict[str, Any]]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(13, 3.7), layout="constrained")
    for ahead, colour in zip(AHEAD, COLOURS, strict=True):
        own = [each for each in found if each["ahead"] == ahead]
        left.plot([each["gpus"] for each in own], [each["used"] for each in own], "o-", color=colour, label=f"K = {ahead}")
        own = [each for each in splits if each["ahead"] == ahead]
        share = [each["samplers"] / each["gpus"] for each in own]
        middle.plot(share, [each["answers_per_second"] / 1000 for each in own], "o-", color=colour, markersize=3)
    left.plot(
        [each["gpus"] for each in turns], [each["used"] for each in turns], "--", color="#999999", label="in turns, same GPUs"
    )  # fmt: skip
    left.set(xscale="log", xlabel="GPUs, at the best split", ylabel="share of GPU time at work", ylim=(0, 1))
    left.set_xticks(CLUSTERS, [str(count) for count in CLUSTERS])
    left.legend()
    middle.set(xlabel=f"share of {splits[0]['gpus']} GPUs that sample", ylabel="thousand answers a second", ylim=(0, None))
    sizes = np.array([0.135, 1.5, 8, 32, 70]) * 1e9
    for (name, link), colour in zip(LINKS.items(), COLOURS, strict=False):
        right.plot(
            sizes / 1e9, [sync_seconds(size * BYTES_PER_PARAMETER, link, 64) for size in sizes], "o-", color=colour, label=name
        )
    right.set(xscale="log", yscale="log", xlabel="parameters, in billions", ylabel="seconds to 64 workers (arithmetic)")
    right.legend()
    for axes in (left, middle, right):
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    IMAGE.parent.mkdir(exist_ok=True)
    figure.savefig(IMAGE, dpi=110)
    plt.close(figure)


def beside_async_step(told: dict[str, Any]) -> dict[str, float]:
    """The measured step that samples while it learns beside what this says of it: at least the longer half, at most both."""
    both = next(each["seconds"] for each in told["settings"]["peer"] if each["threads"] == 1)
    return {"in_turns": both, "one_ahead": told["ours"], "least": both / 2, "most": both}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--answers", type=int, default=Work.answers, help="of a step")
    parser.add_argument("--tokens", type=int, default=Work.tokens, help="of an answer, on average")
    parser.add_argument("--spread", type=float, default=Work.spread, help="standard deviation of the logarithm of lengths")
    parser.add_argument("--link", type=float, default=Work.link, help="bytes a second between machines")
    parser.add_argument("--steps", type=int, default=Work.steps)
    parser.add_argument("--split-of", type=int, default=256, metavar="GPUS", help="the cluster whose splits are shown")
    parser.add_argument("--no-check", action="store_true", help="leave out the comparison with workers that sleep")
    asked = parser.parse_args()
    work = Work(asked.answers, asked.tokens, asked.spread, link=asked.link, steps=asked.steps)
    measured = json.loads((RESULTS / "scaling_cuda.json").read_text())
    costs = Costs.measured(measured["points"])
    checks = [] if asked.no_check else cluster_check.compared(simulate)
    found = [best_split(work, costs, gpus, ahead) for ahead in AHEAD for gpus in CLUSTERS]
    gpus, splits = asked.split_of, list[dict[str, Any]]()
    for ahead in AHEAD:
        for samplers in sorted({round(gpus * share) for share in np.linspace(0.05, 0.95, 19)}):
            line = planned(work, costs, samplers, gpus - samplers, ahead)
            speed = work.answers * work.steps / line.seconds
            splits.append({"gpus": gpus, "ahead": ahead, "samplers": samplers, "answers_per_second": speed, **asdict(line)})
    turns = [in_turns(work, costs, count) for count in CLUSTERS]
    plot(found, splits, turns)
    told = {
        "row": "cluster_plan", "simulated": True, "command": command(), "date": time.strftime("%Y-%m-%d"), "work": asdict(work),
        "measured_on": measured["machine"] | {"command": measured["command"], "date": measured["date"]},
        "learning_seconds_per_token": costs.learning, "sync_seconds_64": sync_seconds(work.size, work.link, 64),
        "checks": checks, "async_step": beside_async_step(json.loads((RESULTS / "async_step.json").read_text())),
        "best": found, "splits": splits, "in_turns": turns, "machine": machine.describe(),
    }  # fmt: skip
    (RESULTS / "cluster_plan.json").write_text(json.dumps(told, indent=1) + "\n")
    for each in checks:
        both = f"{each['measured']:.2f} s, simulated {each['simulated']:.2f} s"
        print(f"{each['workers']} sleeping workers, K = {each['ahead']}: {both}")
    for each in found:
        print(f"{each['gpus']:4d} GPUs, K = {each['ahead']}: {each['samplers']:3d} sample, {each['used']:.0%} of GPU time at work")


if __name__ == "__main__":
    main()
