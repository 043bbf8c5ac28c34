"""One plan in this process, in processes and on Ray: the same weights to the bit, also where workers are lost.

All tests that need Ray stand here, so that one is started for all of them.
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from small_runs import SMALL

import upslope as up
from upslope.errors import UserError
from upslope.rollout import ray_cluster
from upslope.rollout.ray_pool import RayPool
from upslope.rollout.sampling_crew import WorkerPlan
from upslope.types import Assignment

pytestmark = pytest.mark.slow
MAKER = "misbehaving_replica:made"
PATIENT_STARTS = 5
LONG = 300.0
"""Seconds after which something will not come any more, however busy the machine is."""


@pytest.fixture(scope="module")
def on_ray(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A local Ray of two CPUs, to which nodes can be added. It writes a token into the home folder: it gets one of its own."""
    if importlib.util.find_spec("ray") is None:
        pytest.skip("ray is not installed: pip install upslope[ray]")
    import ray
    from ray.cluster_utils import Cluster

    before, heeds = os.environ.get("HOME"), signal.getsignal(signal.SIGTERM)
    os.environ["HOME"] = str(tmp_path_factory.mktemp("home"))
    cluster = Cluster()
    for attempt in range(PATIENT_STARTS):
        port = free_port()
        try:
            cluster.add_node(num_cpus=2, include_dashboard=False, ray_client_server_port=port)
            break
        except Exception as problem:  # it gives itself 30 s, which is little where the machine is busy
            cluster.shutdown()
            cluster = Cluster()
            if attempt == PATIENT_STARTS - 1:
                pytest.skip(f"Ray does not start on this machine: {problem}")
    ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
    cluster.client = f"ray://127.0.0.1:{port}"
    yield cluster
    ray.shutdown()
    cluster.shutdown()
    signal.signal(signal.SIGTERM, heeds)
    if before is not None:
        os.environ["HOME"] = before


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


# -- whole runs ------------------------------------------------------------------------------------------------------------

REWARD = """
from weights import worth


def variety(prompts, responses, answers):
    return [worth(len(set(response))) for response in responses]
"""
PLANS: dict[str, dict[str, Any]] = {
    "in turns": {"method": "grpo", "shares": 2, "reuse": "off"},
    "one ahead": {"method": "asyncflow", "shares": 2, "max_staleness": 1, "steps": 6},
}


@pytest.fixture(scope="module")
def plans(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """With a reward from a file, and another file that it imports: both must travel. An untrained model earns something by it."""
    folder = tmp_path_factory.mktemp("mine")
    (folder / "mine.py").write_text(REWARD)
    (folder / "weights.py").write_text("def worth(letters):\n    return 0.25 * letters\n")
    mine = {"warm_start": 0.0, "reward": f"{folder / 'mine.py'}:variety"}
    return {name: SMALL | mine | plan for name, plan in PLANS.items()}


@pytest.fixture(scope="module")
def here(plans, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], up.Run]:
    """A plan's run in this process, once."""
    done: dict[str, up.Run] = {}

    def run(plan: str) -> up.Run:
        if plan not in done:
            done[plan] = up.train(**plans[plan], out=tmp_path_factory.mktemp("here") / "run")
            assert min(step["grad_norm"] for step in done[plan].metrics) > 0, "the case must have something to learn from"
        return done[plan]

    return run


class KillsOne:
    """Kills a worker of the run after its second step."""

    def __init__(self, folder: Path):
        self.folder, self.killed = folder, 0

    def on_step(self, step: int, metrics: dict) -> None:
        if step == 2:
            pids = json.loads((self.folder / "process.json").read_text())["workers"]
            self.killed = pids[0]
            os.kill(self.killed, signal.SIGKILL)


@pytest.mark.parametrize(
    ("plan", "place", "workers"),
    [
        pytest.param("in turns", "local", 1, marks=pytest.mark.torture),
        pytest.param("in turns", "ray", 2, marks=pytest.mark.torture),
        pytest.param("one ahead", "local", 2, marks=pytest.mark.torture),
        ("one ahead", "ray", 1),
    ],
)
def test_a_plan_ends_in_the_same_weights_in_every_place(tmp_path, request, plans, here, plan, place, workers):
    if place == "ray":
        request.getfixturevalue("on_ray")
    ahead = "max_staleness" in PLANS[plan]
    kills = KillsOne(tmp_path / "run")
    there = up.train(
        **plans[plan], workers=workers, where=place, out=tmp_path / "run", callbacks=[kills] if ahead else []
    )  # fmt: skip
    alone = here(plan)
    expected, found = alone.policy.weights(), there.policy.weights()
    assert expected.keys() == found.keys() and all(torch.equal(tensor, found[name]) for name, tensor in expected.items())
    assert [step["reward"] for step in there.metrics] == [step["reward"] for step in alone.metrics]
    assert bool(kills.killed) == ahead
    assert there.summary.get("faults", {}) == ({"worker_died": 1} if ahead else {})


@pytest.mark.torture
def test_a_run_elsewhere_connects_by_the_cluster_address(on_ray, tmp_path, plans, here):
    words = [f"--{name.replace('_', '-')}={value}" for name, value in plans["in turns"].items() if name != "method"]
    place = ["--workers", "1", "--where", on_ray.client, "--out", str(tmp_path / "run"), "--quiet"]
    command = [sys.executable, "-m", "upslope", "train", "grpo", *words, *place]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LONG, check=False)
    if "Initialization failure from server" in done.stderr:
        pytest.skip("Ray's own server for clients did not start in the 30 s it gives itself, three times")
    assert done.returncode == 0, done.stderr
    expected, found = here("in turns").policy.weights(), up.load(tmp_path / "run").policy.weights()
    assert all(torch.equal(tensor, found[name]) for name, tensor in expected.items())


# -- what is lost ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def pool(on_ray, tmp_path) -> Iterator[RayPool]:
    (tmp_path / "run.toml").write_text(f"home = {json.dumps(str(tmp_path))}\n")
    (tmp_path / "logs").mkdir()
    made = RayPool(WorkerPlan(tmp_path, 1), maker=MAKER)
    yield made
    made.close()
    unpacked = Path((tmp_path / "unpacked").read_text())
    assert unpacked.parent.name.startswith("upslope-worker-") and not unpacked.exists(), "a closed pool leaves no folder behind"


def given(pool: RayPool, step: int) -> Assignment:
    (piece,) = Assignment(step, version=step, numbers=(0,), samples=(2,)).cut(1)
    pool.publish(step, lambda: {"w": torch.full((3,), float(step))})
    pool.give([piece])
    return piece


def begun(folder: Path, step: int) -> int:
    """Who has begun on a step, once somebody has."""
    until = time.monotonic() + LONG
    while not (found := list(folder.glob(f"began-{step}-*"))):
        assert time.monotonic() < until
        time.sleep(0.05)
    return int(found[0].name.rpartition("-")[2])


@pytest.mark.torture
def test_what_a_lost_actor_had_is_given_out_again(pool, tmp_path):
    """One after another, since each has to start another actor."""
    import ray

    def hung(pid: int) -> None:
        os.kill(pid, signal.SIGSTOP)

    losses = [(60.0, lambda pid: os.kill(pid, signal.SIGKILL)), (10.0, hung), (60.0, lambda pid: ray.kill(pool.workers[0].actor))]
    for step, (pool.silent_seconds, lose) in enumerate(losses, start=1):
        (tmp_path / "wait").touch()
        piece = given(pool, step)
        first = begun(tmp_path, step)
        lose(first)
        (tmp_path / "wait").unlink()
        found = pool.result(piece)
        assert float(found.rows.reward.mean()) == step and found.version == step
        assert found.told["pid"] != first
        until = time.monotonic() + LONG
        while alive(first) and time.monotonic() < until:
            time.sleep(0.1)
        assert not alive(first), "who is given up for lost does not go on either"
    assert pool.faults == {"worker_died": 2, "worker_hung": 1}


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.torture
def test_an_actor_with_other_weights_is_not_believed(pool, tmp_path):
    piece = given(pool, 1)
    pool.result(piece)
    (tmp_path / "do-old-weights").touch()
    os.kill(pool.workers[0].pid, signal.SIGKILL)
    assert float(pool.result(given(pool, 2)).rows.reward.mean()) == 2
    assert pool.faults == {"worker_died": 1, "other_weights": 1}
    (tmp_path / "do-refuse").touch()
    with pytest.raises(UserError, match="this cannot be answered"):
        pool.result(given(pool, 3))


@pytest.mark.torture
def test_what_was_on_a_lost_node_is_given_out_again(on_ray, tmp_path):
    import ray

    other = on_ray.add_node(num_cpus=1)
    on_ray.wait_for_nodes()
    with pytest.raises(UserError, match=r"no/such/model is not on .*machine of the cluster"):
        ray_cluster.check_paths("ray", ["/no/such/model"])
    with pytest.raises(UserError, match=r"each needs 1 CPU, and the cluster has 3\. Give at most --workers 3"):
        ray_cluster.check_room("ray", 4, 0.0)
    full = ray.util.placement_group([{"CPU": 2}])  # so that there is no place but on the other node
    assert full.wait(LONG)
    (tmp_path / "run.toml").write_text(f"home = {json.dumps(str(tmp_path))}\n")
    (tmp_path / "wait").touch()
    pool = RayPool(WorkerPlan(tmp_path, 1), maker=MAKER)
    try:
        piece = given(pool, 1)
        first = begun(tmp_path, 1)
        assert pool.workers[0].node == other.node_id
        ray.util.remove_placement_group(full)
        on_ray.remove_node(other, allow_graceful=False)
        (tmp_path / "wait").unlink()
        found = pool.result(piece)
        assert float(found.rows.reward.mean()) == 1 and found.told["pid"] != first
        assert sum(pool.faults.values()) == 1, pool.faults
    finally:
        pool.close()


# -- what is refused -------------------------------------------------------------------------------------------------------


def test_another_cluster_than_the_one_at_hand_is_refused(on_ray):
    with pytest.raises(UserError, match="connected to another Ray already"):
        ray_cluster.connect("ray://127.0.0.1:1")
