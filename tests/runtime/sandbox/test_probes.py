"""The check: everything holds here, and whatever is taken away is noticed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path

import pytest
from hostile_programs import needs_sandbox
from places import SOURCE

from upslope.runtime.sandbox import Sandbox, SandboxError, pool, probes
from upslope.runtime.sandbox.command import Means
from upslope.runtime.sandbox.hostile import IMPATIENT, PROBES, SMALL, STAYS
from upslope.runtime.sandbox.memory import MemoryWatcher
from upslope.runtime.sandbox.probes import Probed, check, demand_that_limits_hold, means_here, table

NAMES = [probe.name for probe in (*PROBES, STAYS, IMPATIENT)]


def lacking(**absent):
    def make(limits, slots):
        return Sandbox(replace(limits, seconds=6.0), slots, means=replace(Means(), **absent), checked=False)

    return make


@needs_sandbox
def test_everything_holds_here():
    found = check()
    assert [each.name for each in found] == NAMES
    assert [each for each in found if not each.holds] == []
    assert table(found).endswith(f"All {len(NAMES)} hold.")


@needs_sandbox
@pytest.mark.parametrize(
    ("absent", "noticed"),
    [
        ("files", {"files"}),
        ("network", {"network", "local sockets"}),
        ("processes", {"other processes", "leaves nothing"}),
        ("seccomp", {"system calls", "local sockets"}),
        ("sized", {"scratch space"}),
        ("limits", {"processes", "memory of a process", "size of a file", "open files", "computing"}),
    ],
)
def test_what_is_taken_away_is_noticed(absent, noticed):
    found = {each.name: each for each in check(lacking(**{absent: False}), only=noticed)}
    for match in filter(None, (re.match(r"left process (\d+)", each.outcome) for each in found.values())):
        os.kill(int(match[1]), signal.SIGKILL)
    assert {name for name, each in found.items() if not each.holds} == noticed
    assert "BROKEN" in table(list(found.values())) and "no program is run" in table(list(found.values()))


@needs_sandbox
def test_memory_that_nobody_counts_is_noticed(monkeypatch):
    monkeypatch.setattr(pool, "memory_keeper", lambda limits, name, watch: MemoryWatcher(replace(SMALL, memory=4096)))
    (found,) = check(only=["memory of all processes"])
    assert not found.holds


@needs_sandbox
def test_only_the_limit_stops_output():
    with Sandbox(replace(SMALL, output=4), checked=False) as generous:
        told = generous.run("print('x' * (2 << 20))")
    assert told.reason == "ended" and len(told.stdout) > 2 << 20


def broken(*names):
    return lambda: [Probed(name, "", "tries", "got through", name not in names) for name in NAMES]


def test_a_sandbox_with_a_hole_refuses_to_run(monkeypatch):
    monkeypatch.setattr(probes, "_held", set())
    monkeypatch.setattr(probes, "check", broken("network"))
    monkeypatch.setattr(pool, "check_tools", lambda weak: None)
    with pytest.raises(SandboxError) as caught:
        Sandbox(SMALL)
    told = "the sandbox does not hold here, so nothing is run in it. network: a program that tries got through."
    assert str(caught.value) == f"{told} 'upslope sandbox check' shows all of it."


def test_it_is_looked_at_once_in_a_process(monkeypatch):
    looked = []
    monkeypatch.setattr(probes, "_held", set())
    monkeypatch.setattr(probes, "check", lambda: looked.append(1) or broken()())
    demand_that_limits_hold()
    demand_that_limits_hold()
    assert looked == [1]
    monkeypatch.setattr(os, "getpid", lambda: -1)  # a fork of it has to look itself
    demand_that_limits_hold()
    assert looked == [1, 1]


def test_how_it_is_done_here_is_told():
    user, memory = means_here()
    assert user.startswith("user: ") and re.fullmatch(r"memory: (control group \(version [12]\)|watcher, every 20 ms)", memory)


def _system_python() -> str:
    """An interpreter that any user may run, and that this package runs on."""
    path = f"/usr/bin/python3.{sys.version_info.minor}"
    return path if Path(path).exists() and os.stat(SOURCE).st_mode & 0o005 == 0o005 else ""


@needs_sandbox
@pytest.mark.skipif(os.geteuid() != 0 or not _system_python(), reason="needs root and an interpreter that all users may run")
def test_everything_holds_without_root():
    text = """
    from upslope.runtime.sandbox.probes import check, means_here
    print(means_here()[0], [each.name for each in check() if not each.holds])
    """
    someone = ["setpriv", "--reuid", "54321", "--regid", "54321", "--clear-groups"]
    words = [*someone, "env", f"PYTHONPATH={SOURCE.parent}", "PYTHONDONTWRITEBYTECODE=1", _system_python(), "-c"]
    found = subprocess.run([*words, textwrap.dedent(text)], capture_output=True, text=True, cwd="/", timeout=120)
    if "does not start here" in found.stderr:
        pytest.skip(f"user namespaces are not allowed to others than root here: {found.stderr.splitlines()[-1]}")
    assert found.stdout == "user: nobody, in a user namespace (without root) []\n", found.stderr
