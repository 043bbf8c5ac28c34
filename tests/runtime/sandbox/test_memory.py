"""Who counts the memory of a program: control groups of both versions, on folders that look like theirs, and the watcher."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time

import pytest

from upslope.runtime.sandbox import memory
from upslope.runtime.sandbox.limits import Limits
from upslope.runtime.sandbox.memory import MemoryGroup, MemoryWatcher, descendants, memory_keeper, own_groups

LIMITS = Limits(memory=64, scratch=2)


def written(folder, name):
    return (folder / name).read_text()


def test_the_first_version(tmp_path):
    group = MemoryGroup(tmp_path / "slot", LIMITS, 1)
    assert written(group.folder, "memory.limit_in_bytes") == str(68 << 20)
    (group.folder / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 3\n")
    group.join()
    assert written(group.folder, "tasks") == str(threading.get_native_id())
    group.hold(4321)
    assert not group.exceeded(4321)  # what happened to programs before does not count
    (group.folder / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 4\n")
    assert group.exceeded(4321)


def test_the_second_version(tmp_path):
    group = MemoryGroup(tmp_path / "slot", LIMITS, 2)
    assert written(group.folder, "memory.max") == str(68 << 20)
    assert written(group.folder, "memory.swap.max") == "0" and written(group.folder, "memory.oom.group") == "1"
    (group.folder / "memory.events").write_text("low 0\nhigh 0\nmax 9\noom 1\noom_kill 0\noom_group_kill 0\n")
    group.join()
    assert not (group.folder / "tasks").exists()
    group.hold(1)
    assert written(group.folder, "cgroup.procs") == "1" and not group.exceeded(1)
    (group.folder / "memory.events").write_text("low 0\nhigh 0\nmax 9\noom 1\noom_kill 1\noom_group_kill 1\n")
    assert group.exceeded(1)


def places(tmp_path, groups, mounts):
    (tmp_path / "groups").write_text(groups)
    (tmp_path / "mounts").write_text(mounts)
    return own_groups(tmp_path / "groups", tmp_path / "mounts")


def test_own_groups_are_found(tmp_path):
    first = f"cgroup {tmp_path}/memory cgroup rw,relatime,memory 0 0\ncgroup {tmp_path}/pids cgroup rw,pids 0 0\n"
    assert places(tmp_path, "8:pids:/\n4:memory:/mine/here\n0::/\n", first) == [(tmp_path / "memory/mine/here", 1)]
    second = f"cgroup2 {tmp_path}/two cgroup2 rw 0 0\n"
    (tmp_path / "two/mine").mkdir(parents=True)
    assert places(tmp_path, "0::/mine\n", second) == []  # nobody has said what may be handed on
    (tmp_path / "two/mine/cgroup.subtree_control").write_text("cpu pids\n")
    assert places(tmp_path, "0::/mine\n", second) == []
    (tmp_path / "two/mine/cgroup.subtree_control").write_text("cpu memory pids\n")
    assert places(tmp_path, "0::/mine\n", second) == [(tmp_path / "two/mine", 2)]
    assert own_groups(tmp_path / "absent", tmp_path / "mounts") == []


def test_where_no_group_can_be_made_memory_is_watched(monkeypatch, tmp_path):
    monkeypatch.setattr(memory, "own_groups", lambda: [(tmp_path / "not there", 1)])
    assert isinstance(memory_keeper(LIMITS, "x"), MemoryWatcher)
    monkeypatch.setattr(memory, "own_groups", lambda: [(tmp_path, 2)])
    assert isinstance(memory_keeper(LIMITS, "x"), MemoryGroup)
    assert isinstance(memory_keeper(LIMITS, "y", watch=True), MemoryWatcher)


def test_groups_of_the_dead_are_removed(monkeypatch, tmp_path):
    ended = subprocess.Popen(["true"])
    ended.wait()
    left, own = (tmp_path / f"{memory.PREFIX}{pid}-1" for pid in (ended.pid, os.getpid()))
    left.mkdir(), own.mkdir()
    monkeypatch.setattr(memory, "own_groups", lambda: [(tmp_path, 1)])
    memory_keeper(LIMITS, "x")
    assert not left.exists() and own.exists()


@pytest.mark.parametrize(("megabytes", "exceeds"), [(20, False), (60, True)])
def test_the_watcher_adds_up_a_family(megabytes, exceeds):
    text = f"import os, time\nif os.fork() == 0: pass\nheld = b'x' * ({megabytes} << 20)\nprint('.', flush=True)\ntime.sleep(60)"
    with subprocess.Popen([sys.executable, "-I", "-S", "-c", text], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        assert [parent.stdout.readline() for _ in range(2)] == [b".\n"] * 2
        family = descendants(parent.pid)
        found = MemoryWatcher(Limits(memory=90)).exceeded(parent.pid)
        for process in family:
            os.kill(process, 9)
    assert len(family) == 2
    assert found == exceeds


def test_what_a_fork_shares_is_counted_once():
    text = "import os, time\nheld = b'x' * (60 << 20)\nos.fork(), os.fork()\nprint('.', flush=True)\ntime.sleep(60)"
    with subprocess.Popen([sys.executable, "-I", "-S", "-c", text], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        assert [parent.stdout.readline() for _ in range(4)] == [b".\n"] * 4
        family = descendants(parent.pid)
        plain, found = sum(map(memory._resident, family)), MemoryWatcher(Limits(memory=120)).exceeded(parent.pid)
        for process in family:
            os.kill(process, 9)
    assert plain > 120 << 20 and not found


def test_the_dead_have_no_memory():
    process = subprocess.Popen(["true"])
    process.wait()
    time.sleep(0.01)
    assert not MemoryWatcher(Limits(memory=32)).exceeded(process.pid)
