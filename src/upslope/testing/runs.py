"""Short runs of a method: the same seed gives the same curve, and a run that was stopped ends as one that was not."""

from __future__ import annotations

import json
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.torch import load_file
from torch import Tensor

from upslope.errors import Remark
from upslope.experience.dataset import Dataset
from upslope.experience.episodes import Episode, Episodes
from upslope.plan import Plan
from upslope.run import Watcher, resume, start
from upslope.runtime.reward_text import reward_texts
from upslope.runtime.settings import Settings
from upslope.tasks import load_task, task_domain
from upslope.testing.batches import expect
from upslope.testing.drawn import kinds
from upslope.testing.table_nets import small
from upslope.types import Ended, Method, Metrics

TEXT: Mapping[str, Any] = {
    "steps": 4, "tasks_per_step": 3, "samples_per_task": 4, "updates_per_step": 2, "max_tokens": 4, "warm_start": 0.0,
    "eval_problems": 4, "checkpoint_every": 2, "eval_every": 3,
}  # fmt: skip
CONTROL: Mapping[str, Any] = {"steps": 4, "envs": 2, "horizon": 24, "passes": 2, "eval_problems": 2, "checkpoint_every": 2}
STORED: Mapping[str, Any] = {
    "steps": 4, "envs": 2, "horizon": 16, "updates_per_step": 8, "minibatch": 16, "eval_problems": 2, "checkpoint_every": 2,
}  # fmt: skip
"""Of methods that learn from stored experience."""
PENDULUM = "gym:Pendulum-v1:max_episode_steps=25"
"""Episodes that are cut while a run acts; of the whole 200 steps, evaluations took most of a run."""
MODEL = "tiny:layers=1,width=32"
CLOCK = frozenset({"seconds", "seconds_sampling", "tokens_per_second", "updates_per_second", "memory"})
"""Metrics that no seed can repeat."""
LETTERS = "def score(prompts, responses, answers):\n    return [sum(map(str.isalpha, r)) / 4 for r in responses]\n"
"""Pays an untrained model for letters, so that every group has a signal."""


VARIED = "reverse:length=2"
"""For methods that make problems of others, which no file can do."""


def needs_variants(method: Method) -> bool:
    """Whether a method makes harder, easier or other problems of those a task has."""
    return any("variants" in part.needs_of_task for _, part in method.parts())


def sums() -> list[dict[str, Any]]:
    """Problems with all that a method may ask of a task."""
    return [
        {
            "prompt": f"{i}+{i}=",
            "answer": str(2 * i),
            "category": "odd" if i % 2 else "even",
            "difficulty": len(str(i)),
            "hints": [str(2 * i)[:1], str(2 * i)],
            "documents": [f"{i}+{i} is {2 * i}."],
            "chosen": str(2 * i),
            "rejected": str(2 * i + 1),
            "revisions": [{"generated": str(2 * i + 1), "revised": str(2 * i), "severity": 1 + i % 3, "error": "perception"}],
        }
        for i in range(20)
    ]


@dataclass(frozen=True)
class Ground:
    """What the runs train on; left empty, a second's work in which every group has a signal.

    A method of stored experience then has small networks and begins to learn after a few steps; one made for datasets gets random
    episodes, and acts from the third step on.
    """

    task: str = ""
    reward: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)

    def plan(self, method: Method, folder: Path, **settings: Any) -> Plan:
        """A run of the method, with files of its own in ``folder`` where no task was given."""
        if method.learner == "actor-critic":
            return self._stored(method, folder, **settings)
        task, reward = self.task, self.reward
        if not task and method.family == "control":
            task = "gym:CartPole-v1"
        elif not task:
            (folder / "data.jsonl").write_text("".join(json.dumps(line) + "\n" for line in sums()))
            (folder / "letters.py").write_text(LETTERS)
            task = VARIED if needs_variants(method) else str(folder / "data.jsonl")
            reward = f"{folder / 'letters.py'}:score"
        control = task_domain(task) == "control"
        given = Settings(**{**(CONTROL if control else TEXT), **settings, **self.settings})
        return Plan(method, task, "tiny" if control else MODEL, given, reward_texts(reward))

    def _stored(self, method: Method, folder: Path, **settings: Any) -> Plan:
        kind = kinds(method)[0]
        task = self.task or {"continuous": PENDULUM, "discrete": "gym:CartPole-v1"}[kind]
        sizes, data = dict(STORED), ""
        if method.offline or any(getattr(part, "needs_dataset", False) for _, part in method.parts()):
            sizes, data = sizes | {"offline_steps": 2}, str(random_dataset(task).save(folder / "random"))
        waits = {f"{path}.steps": 8 for path, part in method.held("acting") if getattr(part, "steps", 0) > 8}
        given = Settings(**{**sizes, **settings, **self.settings})
        return Plan(small(method).with_knobs(waits), task, "tiny", given, dataset=data)


def random_dataset(task: str, episodes: int = 6, longest: int = 20) -> Dataset:
    """Random episodes of an environment."""
    loaded: Any = load_task(task)
    env, space, found = loaded.make(1, 1), loaded.action_space, []
    space.seed(0)
    for number in range(episodes):
        observations, actions, rewards, ended = [env.reset(0, number)], list[Any](), list[float](), Ended.TRUNCATED
        while len(rewards) < longest and ended == Ended.TRUNCATED:
            actions.append(space.sample())
            stepped = env.step(np.stack(actions[-1:]), range(1))
            observations.append(stepped.observation[0])
            rewards.append(float(stepped.reward[0]))
            ended = Ended.TERMINATED if stepped.terminated[0] else Ended.TRUNCATED
        columns = np.stack(observations), np.stack(actions), np.array(rewards, np.float32)
        found.append(Episode(*columns, ended, pieces=loaded.layout.pieces))
    env.close()
    return Dataset.of(Episodes.of(found), "random", env=task)


class Breaks(Watcher):
    """Fails like a crash right after a step's line was logged."""

    def __init__(self, step: int):
        self.step = step

    def stepped(self, step: int, metrics: Metrics) -> None:
        if step == self.step:
            raise Crash


class Crash(Exception):
    """What a `Breaks` raises."""


def result(folder: Path) -> tuple[dict[str, Tensor], list[dict], list[dict]]:
    """Final weights of a run, its metrics without the clock, its samples."""
    last = sorted((folder / "checkpoints").glob("step-*"))[-1]
    weights = {
        name: tensor
        for file in last.glob("*.safetensors")
        if "learner" not in file.name
        for name, tensor in load_file(file).items()
    }
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    metrics = [{key: value for key, value in line.items() if key not in CLOCK} for line in lines]
    samples = folder / "samples.jsonl"
    return weights, metrics, [json.loads(line) for line in samples.read_text().splitlines()] if samples.exists() else []


def experience(folder: Path) -> dict[str, bytes]:
    """What a run keeps of what it saw, file by file."""
    return {file.name: file.read_bytes() for file in sorted((folder / "experience").glob("*"))}


def assert_same_run(one: Path, other: Path) -> None:
    """Two runs ended with the same weights, and logged the same."""
    (weights, metrics, samples), (weights_, metrics_, samples_) = result(one), result(other)
    for mine, theirs in zip(metrics, metrics_, strict=False):
        changed = sorted(key for key in {*mine, *theirs} if mine.get(key) != theirs.get(key))
        expect(not changed, f"at step {mine.get('step')} they differ in {', '.join(changed[:5])}")
    expect(len(metrics) == len(metrics_), f"one logged {len(metrics)} lines, the other {len(metrics_)}")
    expect(samples == samples_, "the samples differ")
    expect(weights.keys() == weights_.keys() and weights, "they kept different tensors")
    expect(experience(one) == experience(other), "the stored experience differs")
    for name, tensor in weights.items():
        expect(tensor.equal(weights_[name]), f"the weights {name} differ by up to {(tensor - weights_[name]).abs().max():.3g}")


def seeds(method: Method, ground: Ground) -> None:
    """The same seed gives the same curve to the last bit, and another does not."""
    with _folder() as folder:
        for name, seed in (("one", 1), ("same", 1), ("other", 2)):
            steps = 1 + max(1, len(method.stages))
            start(ground.plan(method, folder, steps=steps, eval_every=0, seed=seed), out=folder / name)
        assert_same_run(folder / "one", folder / "same")
        expect(result(folder / "one")[1] != result(folder / "other")[1], "another seed gives the same curve")


def resumes(method: Method, ground: Ground) -> None:
    """A run that crashed and was resumed ends as one that never stopped, to the last bit."""
    with _folder() as folder:
        whole = start(ground.plan(method, folder), out=folder / "whole")
        learned = [record.get("grad_norm", 0) or record.get("updates", 0) for record in whole.metrics]
        expect(any(learned), "no step had a gradient: nothing was learned")
        with suppress(Crash):
            start(ground.plan(method, folder), out=folder / "cut", watcher=Breaks(3))
        resume(folder / "cut")
        assert_same_run(whole.path, folder / "cut")


@contextmanager
def _folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="upslope-check-") as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore", Remark)
        yield Path(folder)


IN_RUNS: Mapping[str, tuple[str, Callable[[Method, Ground], None]]] = {
    "seeds": ("the same seed gives the same curve, another does not", seeds),
    "resume": ("a run that crashed and was resumed ends as one that never stopped", resumes),
}
"""What is checked in short runs: by name, what it says and how."""
