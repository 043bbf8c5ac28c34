"""A pool of Ray actors that sample: the workers of `upslope.rollout.workers`, on whichever machines a cluster has.

What an actor needs of the run's folder travels through Ray's object store into a temporary folder of its own; the weights go the
same way, once per version. All that goes over is bytes of `upslope.runtime.messages`, or one array; Ray's own types stay in here,
in `upslope.rollout.ray_actor` and in `upslope.rollout.ray_cluster`.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from upslope.errors import UserError
from upslope.plain_data import JsonDict
from upslope.rollout import ray_cluster
from upslope.rollout.sampling_crew import SamplingCrew, WorkerPlan
from upslope.runtime.messages import Message, decoded, encoded
from upslope.runtime.process_file import say_processes
from upslope.runtime.run_parcel import outside, packed_run
from upslope.runtime.shared_weights import fill, layout
from upslope.runtime.worker_process import PATIENCE, WorkerLost, raise_if_it_failed
from upslope.types import Assignment

MAKER = "upslope.run.worker:of_run"
"""Makes policy and rollouts of a folder, in the actor. By name: it is of a higher layer than this."""
ALIVE_SECONDS = 1.0


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
        found = fill(room, table, weights)
        self.versions[version] = WeightsInStore(self.ray.put(room.numpy()), table, found)

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
                    sign = self.actor.alive.remote()
                if time.monotonic() - heard > silent_seconds:
                    raise WorkerLost("worker_hung", f"{self.name} said nothing for {silent_seconds:g} s")
            content = ray.get(answer, timeout=silent_seconds)
        except ray.exceptions.GetTimeoutError:
            raise WorkerLost("worker_hung", f"what {self.name} answered did not arrive in {silent_seconds:g} s") from None
        except (ray.exceptions.RayError, ConnectionError) as problem:
            raise self._lost(problem) from None
        message = decoded(content)
        raise_if_it_failed(self.name, message)
        return message

    def _lost(self, problem: BaseException) -> WorkerLost:
        said = " ".join((str(problem).strip() or type(problem).__name__).split())[:300]
        kind = "worker_died"
        with suppress(Exception):  # the cluster itself may be gone
            there = [node["NodeID"] for node in self.ray.nodes() if node["Alive"]]
            kind = "node_lost" if self.node and self.node not in there else kind
        return WorkerLost(kind, f"{self.name} is gone: {said}")

    def leave(self) -> None:
        with suppress(Exception):  # it may be gone already
            self._left = self.actor.leave.remote()

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
        maker: What makes the policy and the rollouts in an actor, as ``module:name``.

    Raises:
        UserError: if the cluster is not there, or does not have what the run's plan names.
    """

    def __init__(self, plan: WorkerPlan, where: str = "ray", gpus: float = 0.0, maker: str = MAKER):
        self.ray, self.maker = ray_cluster.connect(where), maker
        from upslope.rollout.ray_actor import LIFE, SamplingActor  # loads Ray

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
        say_processes(self.folder, self.role, [each.pid for each in self.workers.values() if each.pid and each.host == here])

    @property
    def where_they_speak(self) -> str:
        return "Ray's logs ('ray logs', or session_latest/logs in its temporary folder on each machine)"
