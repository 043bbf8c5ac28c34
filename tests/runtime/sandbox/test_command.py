"""Command lines of the sandbox, and what is said where its tools are missing. Nothing is started here."""

from __future__ import annotations

import json
import resource
import shutil
import sys

import pytest

from upslope.runtime.sandbox import command
from upslope.runtime.sandbox.command import Means, check_tools, sandbox_command, weak_command, zygote_command
from upslope.runtime.sandbox.limits import Limits, SandboxError
from upslope.runtime.sandbox.pool import Sandbox


def line(means: Means | None = None, limits: Limits | None = None) -> list[str]:
    return sandbox_command(limits or Limits(), means or Means(user=1234), 7, 8, 9)


def after(words: list[str], flag: str) -> str:
    return words[words.index(flag) + 1]


def test_every_namespace_is_its_own():
    words = line()
    assert {"--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"} <= set(words)
    assert {"--die-with-parent", "--new-session", "--clearenv"} <= set(words)
    assert (after(words, "--seccomp"), after(words, "--info-fd"), after(words, "--block-fd")) == ("7", "8", "9")


def test_the_user_changes_inside():
    words = line()
    assert words.index("bwrap") < words.index("setpriv") < words.index("prlimit") < words.index("-I")
    assert after(words, "--reuid") == after(words, "--regid") == "1234"
    assert "--unshare-user" not in words and "--clear-groups" in words


def test_without_another_user_there_is_a_user_namespace():
    words = line(Means(user=None))
    assert "--unshare-user" in words and "--reuid" not in words
    assert after(words, "--uid") == after(words, "--gid") == "65534"


def test_limits_are_those_given():
    words = line(limits=Limits(seconds=3, cpu=4, memory=100, scratch=5, processes=6, files=7))
    wanted = {"--as=104857600:104857600", "--cpu=4:5", "--fsize=5242880:5242880", "--nproc=6:6", "--nofile=7:7", "--core=0:0"}
    assert wanted <= set(words)
    sized = [words[place - 4 : place + 2] for place, word in enumerate(words) if word == "--tmpfs" and words[place + 1] == "/tmp"]
    assert sized == [["--perms", "1777", "--size", "5242880", "--tmpfs", "/tmp"]]


def test_nothing_can_be_written_but_scratch():
    words = line()
    assert "--bind" not in words and "--dev-bind" not in words
    places = [place for place, word in enumerate(words) if word == "--remount-ro"]
    assert {words[place + 1] for place in places} >= {"/", "/dev"}


def test_python_is_found_at_a_neutral_place(monkeypatch, tmp_path):
    for name in ("bin", "lib"):
        (tmp_path / "home" / "python" / name).mkdir(parents=True)
    monkeypatch.setattr(sys, "base_prefix", str(tmp_path / "home" / "python"))
    words = line()
    assert words[words.index("/py/bin") - 2 : words.index("/py/bin")] == ["--ro-bind", str(tmp_path / "home/python/bin")]
    assert f"/py/bin/python3.{sys.version_info.minor}" in words
    monkeypatch.setattr(sys, "base_prefix", "/usr")
    assert "/py/bin" not in line() and f"/usr/bin/python3.{sys.version_info.minor}" in line()


def test_the_zygote_is_told_what_each_fork_gives_itself():
    words = zygote_command(Limits(cpu=4, processes=6, scratch=5), Means(user=1234), b"\1\2", 8, 9, 10)
    control, plan = words[-2], json.loads(words[-1])
    assert control == "10" and (plan["user"], plan["scratch"], plan["filter"]) == (1234, 5 << 20, "0102")
    assert plan["limits"]["RLIMIT_CPU"] == [4, 5] and plan["limits"]["RLIMIT_NPROC"] == [6, 6]
    assert {name for name in plan["limits"] if not hasattr(resource, name)} == set()
    assert words[words.index("--cap-drop") + 1] == "ALL" and words.count("--cap-add") == len(command.POWERS)
    assert "--die-with-parent" not in words  # which has a gap: it ends with its socket
    assert "setpriv" not in words and "--seccomp" not in words  # it does both itself, after what they would forbid


def test_weak_has_limits_and_nothing_else():
    words = weak_command(Limits(processes=9))
    assert "bwrap" not in words and "--reuid" not in words and "--nproc=9:9" in words
    assert words[:3] == ["setpriv", "--pdeathsig", "KILL"]


@pytest.mark.parametrize(
    ("absent", "weak", "told"),
    [
        ({"bwrap"}, False, "apt-get install bubblewrap"),
        ({"bwrap", "prlimit"}, False, "apt-get install bubblewrap util-linux"),
        ({"setpriv"}, True, "apt-get install util-linux"),
    ],
)
def test_missing_tools_are_named_with_their_package(monkeypatch, absent, weak, told):
    monkeypatch.setattr(command.shutil, "which", lambda tool: None if tool in absent else f"/usr/bin/{tool}")
    with pytest.raises(SandboxError) as caught:
        Sandbox(weak=weak)
    assert str(caught.value).endswith(f"Install with:\n  {told}")


def test_weak_needs_no_bubblewrap(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda tool: None if tool == "bwrap" else f"/usr/bin/{tool}")
    check_tools(weak=True)


def test_other_systems_are_refused(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(SandboxError, match="a sandbox of Linux's, and this is darwin"):
        check_tools()


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"seconds": 0}, "the limit seconds is 0; it must be a number above 0."),
        ({"seconds": float("inf")}, "the limit seconds is inf"),
        ({"cpu": 1.5}, "the limit cpu is 1.5; it must be a whole number above 0."),
        ({"memory": 8}, "the limit memory is 8 megabytes; an interpreter alone needs 32."),
        ({"processes": 1}, "the limit processes is 1; the sandbox itself needs 4."),
        ({"output": True}, "the limit output is True"),
    ],
)
def test_limits_that_cannot_be_are_refused(given, told):
    with pytest.raises(SandboxError) as caught:
        Limits(**given)
    assert told in str(caught.value)
