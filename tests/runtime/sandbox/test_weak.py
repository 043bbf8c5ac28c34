"""Limits only: what the weak sandbox still does, and what it does not, which is why it is never the default."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path

import pytest

from upslope.runtime.sandbox import Limits, Sandbox
from upslope.runtime.sandbox.command import missing_tools

pytestmark = pytest.mark.skipif(bool(missing_tools(weak=True)), reason="apt-get install util-linux, and run the tests again")
LIMITS = Limits(seconds=60.0, cpu=1, memory=96, scratch=4, processes=4096, files=32)


@pytest.fixture(scope="module")
def weak():
    with Sandbox(LIMITS, weak=True) as made:
        yield made


def test_programs_run(weak):
    found = weak.run("import sys\nprint(input())\nsys.exit(4)", "hello\n")
    assert (found.stdout, found.status, found.reason) == ("hello\n", 4, "ended")


@pytest.mark.parametrize(
    ("text", "reason", "said"),
    [
        ("while True: pass", "cpu", ""),
        ("while True: print('x' * 9999)", "output", None),
        ("try: b'x' * (400 << 20)\nexcept MemoryError: print('stopped')", "ended", "stopped\n"),
        ("try: [open('/dev/null') for _ in range(99)]\nexcept OSError: print('stopped')", "ended", "stopped\n"),
        ("import os, time\nfor _ in range(6):\n    if os.fork() == 0:\n        held = b'x' * (60 << 20)\n        time.sleep(9)\n"
         "time.sleep(9)", "memory", ""),
    ],
)  # fmt: skip
def test_limits_hold(weak, text, reason, said):
    found = weak.run(text)
    assert found.reason == reason and said in (found.stdout, None)


def test_the_clock_ends_it():
    with Sandbox(Limits(seconds=0.5, processes=4096), weak=True) as impatient:
        assert impatient.run("import time\ntime.sleep(60)").reason == "seconds"


def test_it_contains_nothing(weak, tmp_path):
    (tmp_path / "secret").write_text("secret")
    assert (
        weak.run(f"print(open({str(tmp_path / 'secret')!r}).read(), __import__('os').getuid())").stdout == f"secret {os.getuid()}\n"
    )


def test_its_folder_goes_and_its_family_with_it(weak):
    found = weak.run("import os, time\nprint(os.getcwd())\nif os.fork() == 0: time.sleep(99)\nelse: print(os.getpid())")
    folder, process = found.stdout.split()
    assert folder.startswith(tempfile.gettempdir()) and not Path(folder).exists()
    end = time.monotonic() + 10
    while _in_session(process) and time.monotonic() < end:
        time.sleep(0.01)
    assert not _in_session(process)


def _in_session(session: str) -> list[str]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if fields[3] == session and fields[0] != "Z":
            found.append(stat.parent.name)
    return found


def test_it_is_never_the_default():
    assert not Sandbox.__init__.__defaults__[2]


def test_it_dies_with_whoever_made_it():
    text = """
    import os
    from upslope.runtime.sandbox import Limits, Sandbox
    from upslope.runtime.sandbox.memory import descendants
    sandbox = Sandbox(Limits(seconds=60, processes=4096), weak=True)
    sandbox.submit("import time\\ntime.sleep(50)")
    while len(descendants(os.getpid())) < 2: pass
    print(descendants(os.getpid())[1], flush=True)
    os.kill(os.getpid(), 9)
    """
    found = subprocess.run([sys.executable, "-c", textwrap.dedent(text)], stdout=subprocess.PIPE, text=True, timeout=60)
    end = time.monotonic() + 10
    while Path(f"/proc/{found.stdout.strip()}/cmdline").exists() and time.monotonic() < end:
        time.sleep(0.01)
    assert not Path(f"/proc/{found.stdout.strip()}").exists()
