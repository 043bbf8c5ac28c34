"""A pool of Ray actors that sample: the workers of `upslope.rollout.workers`, on whichever machines a cluster has.

What an actor needs of the run's folder travels through Ray's object store into a temporary folder of its own; the weights go the
same way, once per version. All that goes over is bytes of `upslope.runtime.messages`, or one array; Ray's own types stay in here
and in `upslope.rollout.ray_cluster`.
"""

from __future__ import annotations

import importlib
import os
import platform
import shutil
import tempfile
import time
import warnings
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from upslope.errors import UserError
from upslope.plain_data import JsonDict
from upslope.rollout import ray_cluster
from upslope.rollout.replica import Replica, failure
from upslope.rollout.sampling_crew import SamplingCrew, WorkerPlan
from upslope.runtime.messages import Message, decoded, encoded
from upslope.runtime.process_file import say_workers
from upslope.runtime.run_parcel import outside, packed_run, unpack_run
from upslope.runtime.shared_weights import checksum, fill, layout, views
from upslope.runtime.worker_process import PATIENCE, WorkerLost, raise_if_it_failed
from upslope.types import Assignment

MAKER = "upslope.run.worker:of_run"
"""Makes policy and rollouts of a folder, in the actor. By name: it is of a higher layer than this."""
LIFE = "life"
"""The group of an actor's threads that answers while another one samples."""
ALIVE_SECONDS = 1.0
PREFIX = "upslope-worker-"


# -- in the actor ----------------------------------------------------------------------------------------------------------


class SamplingActor:
    """What runs in an actor. Whatever goes wrong is said, not raised: Ray would wrap it.

    Args:
        maker: What makes the policy and the rollouts, as ``module:name``; it is given a folder and whether to trust its code.
    """

    def __init__(self, maker: str = MAKER):
        self.maker = maker
        self.folder = ""
        self.replica: Replica

    def start(self, parcel: np.ndarray) -> bytes:
        """Unpacks what has travelled and makes a replica from it."""
        try:
            _sweep()
            self.folder = tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-")
            run = Path(self.folder) / "run"
            run.mkdir()
            unpack_run(parcel.tobytes(), run)
            # The machine of the run trusts the code that it sent; this one need not remember that.
            os.environ["XDG_STATE_HOME"] = self.folder
            module, _, name = self.maker.partition(":")
            self.replica = Replica(*getattr(importlib.import_module(module), name)(run, True))
            return encoded(Message("ready", _about_here()))
        except BaseException as problem:
            return encoded(failure(problem))

    def fulfil(self, asked: bytes, weights: np.ndarray | None) -> bytes:
        """Takes other weights, if there are some, and samples."""
        try:
            told = decoded(asked).data
            assignment = Assignment.from_table(told["assignment"])
            if weights is not None:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # the store's memory may not be written, and is not
                    room = torch.from_numpy(weights)
                self.replica.load(views(room, told["weights"]), assignment.version)
            return encoded(self.replica.answer(assignment))
        except Exception as problem:
            return encoded(failure(problem))

    def alive(self) -> None:
        """Answers, so that a long sample can be told from a hung actor."""

    def leave(self) -> None:
        """Leaves nothing behind; the actor is killed after this."""
        shutil.rmtree(self.folder, ignore_errors=True)
        _sweep()


def _sweep() -> None:
    """Deletes what killed actors have left on this machine."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*-*"):
        pid = folder.name.removeprefix(PREFIX).partition("-")[0]
        if pid.isdigit() and not Path(f"/proc/{pid}").exists() and Path("/proc/self").exists():
            shutil.rmtree(folder, ignore_errors=True)


def _about_here() -> JsonDict:
    import ray

    from upslope import __version__

    node = ray.get_runtime_context().get_node_id()
    return {
        "pid": os.getpid(), "host": platform.node(), "node": node, "versions": {"upslope": __version__, "torch": torch.__version__},
    }  # fmt: skip


# -- in the run's process --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class WeightsInStore:
    """One version in the object store.

    Fields:
        array: Ray's reference to all of them in one array of bytes.
        table: What stands where in it.
    """

    array: Any
    table: JsonDict
    checksum: int


class StoredWeights:
    """The versions of a policy's weights that somebody may still have to sample with, each once in Ray's object store."""

    def __init__(self, ray: Any) -> None:
        self.ray = ray
        self.versions: dict[int, WeightsInStore] = {}

    @property
    def newest(self) -> int | None:
        return max(self.versions, default=None)

    def publish(self, version: int, weights: Mapping[str, Tensor], needed: Iterable[int]) -> None:
        wanted = {*needed}
        # Ray frees what nobody refers to any more.
        self.versions = {number: kept for number, kept in self.versions.items() if number in wanted}
        table, size = layout(weights)
        room = torch.empty(size, dtype=torch.uint8)
        fill(room, table, weights)
        self.versions[version] = WeightsInStore(self.ray.put(room.numpy()), table, checksum(weights))

    def close(self) -> None:
        self.versions = {}


class RayWorker:
    """An actor at work.

    Args:
        name: For people.
        actor: Ray's handle of it.
        parcel: Ray's reference to what it needs of the run's folder.
    """

    def __init__(self, ray: Any, name: str, actor: Any, parcel: Any):
        self.ray, self.name, self.actor = ray, name, actor
        self.version: int | None = None
        self.pid, self.host, self.node = 0, "", ""
        self._ready, self._left = actor.start.remote(parcel), None

    def wait_until_ready(self, seconds: float) -> None:
        told = self._heard(self._ready, seconds).data
        self.pid, self.host, self.node = told["pid"], told["host"], told["node"]
        _check_versions(self.host, told["versions"])

    def fulfil(self, assignment: Assignment, weights: WeightsInStore | None, silent_seconds: float) -> JsonDict:
        told: JsonDict = {"assignment": assignment.table()}
        if weights is not None:
            told["weights"] = weights.table
        asked = encoded(Message("fulfil", told))
        return self._heard(self.actor.fulfil.remote(asked, weights and weights.array), silent_seconds).data

    def _heard(self, answer: Any, silent_seconds: float) -> Message:
        """What a call gives; while it lasts, the actor is asked every second whether it is there."""
        ray = self.ray
        sign, heard = None, time.monotonic()
        try:
            while not ray.wait([answer], timeout=ALIVE_SECONDS)[0]:
                if sign is not None and ray.wait([sign], timeout=0)[0]:
                    sign, heard = None, time.monotonic()
                if sign is None:
                    sign = self._life("alive")
                if time.monotonic() - heard > silent_seconds:
                    raise WorkerLost("worker_hung", f"{self.name} said nothing for {silent_seconds:g} s")
            message = decoded(ray.get(answer, timeout=silent_seconds))
        except ray.exceptions.GetTimeoutError:
            raise WorkerLost("worker_hung", f"what {self.name} answered did not arrive in {silent_seconds:g} s") from None
        except (ray.exceptions.RayError, ConnectionError, ValueError) as problem:
            raise self._lost(problem) from None
        raise_if_it_failed(self.name, message)
        return message

    def _life(self, method: str) -> Any:
        return getattr(self.actor, method).options(concurrency_group=LIFE).remote()

    def _lost(self, problem: BaseException) -> WorkerLost:
        said = " ".join((str(problem).strip() or type(problem).__name__).split())[:300]
        there = [node["NodeID"] for node in self.ray.nodes() if node["Alive"]]
        kind = "node_lost" if self.node and self.node not in there else "worker_died"
        return WorkerLost(kind, f"{self.name} is gone: {said}")

    def leave(self) -> None:
        with suppress(Exception):  # it may be gone already
            self._left = self._life("leave")

    def end(self) -> None:
        with suppress(Exception):
            if self._left is not None:
                self.ray.wait([self._left], timeout=PATIENCE)
        with suppress(Exception):
            self.ray.kill(self.actor, no_restart=True)


def _check_versions(host: str, theirs: Mapping[str, str]) -> None:
    """Rows must be the same wherever they were sampled; other versions round differently, if they understand each other at all."""
    from upslope import __version__

    for package, ours in (("upslope", __version__), ("torch", torch.__version__)):
        if theirs[package] != ours:
            raise UserError(f"{host}, a machine of the cluster, has {package} {theirs[package]}, and here it is {ours}. "
                            "Install the same on all of them.")  # fmt: skip


class RayPool(SamplingCrew[RayWorker, WeightsInStore]):
    """Fulfils assignments in Ray actors (`upslope.rollout.pool.Pool`).

    Args:
        plan: What they are.
        where: ``ray`` or ``ray://HOST:PORT``.
        gpus: Of each.
        maker: See `SamplingActor`.

    Raises:
        UserError: if the cluster is not there, or does not have what the run's plan names.
    """

    def __init__(self, plan: WorkerPlan, where: str = "ray", gpus: float = 0.0, maker: str = MAKER):
        self.ray, self.maker = ray_cluster.connect(where), maker
        ray_cluster.check_paths(where, outside(plan.folder))
        self._parcel = self.ray.put(np.frombuffer(packed_run(plan.folder), dtype=np.uint8))
        # Lost ones are replaced here, where it is counted; and what they had is given out again.
        self._kind = self.ray.remote(
            num_cpus=1, num_gpus=gpus, max_restarts=0, max_task_retries=0, concurrency_groups={LIFE: 1}
        )(SamplingActor)  # fmt: skip
        super().__init__(plan, StoredWeights(self.ray))

    def launch(self, number: int) -> RayWorker:
        return RayWorker(self.ray, f"worker {number}", self._kind.remote(self.maker), self._parcel)

    def launched(self) -> None:
        here = platform.node()
        say_workers(self.folder, [each.pid for each in self.workers.values() if each.pid and each.host == here])

    @property
    def where_they_speak(self) -> str:
        return "Ray's logs ('ray logs', or session_latest/logs in its temporary folder on each machine)"
