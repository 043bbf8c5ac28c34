"""Finding a Ray cluster: what ``--where ray`` and ``--where ray://HOST:PORT`` connect to, and why not."""

from __future__ import annotations

import importlib.util
import os
import socket
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

from upslope.errors import UserError

CONNECTING_SECONDS = 10.0
"""How long a machine gets to answer at its port."""
TRIES = 3
"""Ray gives itself 30 s to start things, which is little where a machine is busy."""
_address: list[str] = []
"""What this process has connected to itself, and may leave again."""


def load_ray() -> ModuleType:
    """The package, which is loaded only where it is needed: that takes a second.

    Raises:
        UserError: if it is not installed.
    """
    if importlib.util.find_spec("ray") is None:
        raise UserError("--where ray needs Ray, which is not installed: pip install upslope[ray]. Without it, --where local.")
    import ray

    return ray


def connect(where: str) -> ModuleType:
    """Ray, connected to the cluster that is meant; it stays so until this process ends.

    Where this process has called ``ray.init`` itself, ``ray`` means that cluster. Otherwise it is the one of ``RAY_ADDRESS``, as in
    a submitted job, then one that runs on this machine; where there is none, one is started here.

    Raises:
        UserError: if nobody answers, within a bounded time.
    """
    ray = load_ray()
    if ray.is_initialized():
        if where == "ray" or _address == [where]:
            return ray
        if not _address:
            raise UserError(f"--where {where}: this process is connected to another Ray already. Say where='ray' to use that one, "
                            "or call ray.shutdown() first.")  # fmt: skip
        ray.shutdown()
    address = where if "://" in where else os.environ.get("RAY_ADDRESS", "")
    if address:
        _check_answers(where, address)
    for tries_left in reversed(range(TRIES)):
        try:
            ray.init(
                address=address or None, log_to_driver=False, logging_level="ERROR",
                **({} if address else {"include_dashboard": False}),
            )  # fmt: skip
            break
        except Exception as problem:  # of many kinds, as the versions of Ray go
            with suppress(Exception):
                ray.shutdown()  # what has begun to start
            if not tries_left:
                said = " ".join(str(problem).split())[:300] or type(problem).__name__
                raise UserError(f"--where {where}: {address or 'Ray on this machine'} cannot be used: {said}. {_CURE}") from None
    _address[:] = [where]
    return ray


_CURE = "'ray start --head' starts one, 'ray status' there says how it is; --where local does without."


def _check_answers(where: str, address: str) -> None:
    """Whether somebody is there at all: Ray itself tries for minutes."""
    host, _, port = address.rpartition("://")[2].rpartition(":")
    if not host or not port.isdigit():
        return  # "auto", "local": Ray's own words
    try:
        socket.create_connection((host, int(port)), timeout=CONNECTING_SECONDS).close()
    except (OSError, OverflowError) as problem:
        why = getattr(problem, "strerror", None) or problem
        raise UserError(f"--where {where}: nobody answers at {address} ({why}). {_CURE}") from None


def check_room(where: str, workers: int, gpus: float) -> None:
    """Refuses more workers than the cluster has places for: they would wait for one for ever."""
    ray = connect(where)
    there = ray.cluster_resources()
    for kind, each in (("CPU", 1.0), ("GPU", gpus)):
        if (free := float(there.get(kind, 0.0))) < workers * each:
            fits = int(free / each)
            cure = f"Give at most --workers {fits}" if fits else "Give it more, or --where local"
            needs = f"each needs {each:g} {kind}, and the cluster has {free:g}"
            raise UserError(f"--where {where} --workers {workers}: {needs}. {cure}.")


def check_paths(where: str, paths: Sequence[str]) -> None:
    """Refuses a run whose files some machine of the cluster does not have where the plan names them."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    ray = connect(where)
    if not paths:
        return
    here = _here(ray)
    asked = ray.remote(num_cpus=0)(_missing)
    for node in ray.nodes():
        if node["Alive"] and node["NodeID"] != here:
            placed = asked.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False))
            if missing := ray.get(placed.remote(list(paths)), timeout=120.0):
                raise UserError(
                    f"{missing[0]} is not on {node['NodeManagerHostname']}, a machine of the cluster, and does not travel with the "
                    "run: it is no copy in its folder. Put it there under the same path, or on a disk that all machines see."
                )


def _missing(paths: list[str]) -> list[str]:
    return [path for path in paths if not Path(path).exists()]


def _here(ray: Any) -> str:
    """The node that this process is on; none where it is no part of the cluster (``ray://``)."""
    return "" if ray.util.client.ray.is_connected() else ray.get_runtime_context().get_node_id()
