"""User numbers for slots."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from upslope.runtime.sandbox import users
from upslope.runtime.sandbox.limits import SandboxError
from upslope.runtime.sandbox.users import HeldUser, is_held, user_range

OWN = range(1_899_999_000, 1_899_999_003)
"""Numbers that no sandbox uses, for the tests."""


@pytest.mark.parametrize(
    ("table", "wanted"),
    [
        ("         0          0 4294967295\n", 1_900_000_000),
        ("         0     100000      65536\n", 60_800),
        ("         0       1000          1\n", None),
        ("", None),
    ],
)
def test_numbers_are_those_that_this_process_has(monkeypatch, tmp_path, table, wanted):
    (tmp_path / "map").write_text(table)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    found = user_range(tmp_path / "map")
    assert (found.start if found else None) == wanted
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert user_range(tmp_path / "map") is None


def test_no_two_slots_have_the_same():
    with HeldUser(OWN) as one, HeldUser(OWN) as two:
        assert {one.number, two.number} == {OWN[0], OWN[1]}
        assert is_held(one.number) and not is_held(OWN[2])
        with HeldUser(OWN), pytest.raises(SandboxError, match="all 3 user numbers of the sandbox are in use"):
            HeldUser(OWN)
    assert not any(map(is_held, OWN))


def test_a_process_that_is_killed_holds_nothing():
    holding = f"held = HeldUser(range({OWN[0]}, {OWN[0] + 1}))\nprint('.', flush=True)\ninput()"
    words = [sys.executable, "-c", f"from upslope.runtime.sandbox.users import HeldUser\n{holding}"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b".\n"
        assert users.is_held(OWN[0])
        process.kill()
        process.wait()
        assert not users.is_held(OWN[0])
