"""Slots of the sandbox: shared by threads, closed, left in the middle, and nothing of any program stays."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest
from hostile_programs import PROGRAMS, TOKEN, Traces, needs_sandbox, own_users

from upslope.runtime.sandbox import Limits, Sandbox, SandboxError, pool
from upslope.runtime.sandbox.memory import PREFIX, own_groups

pytestmark = needs_sandbox
LIMITS = Limits(seconds=30.0, cpu=1, memory=96, scratch=4, processes=24, files=32)


@pytest.fixture(scope="module")
def sandbox():
    with Sandbox(LIMITS, slots=2) as made:
        yield made


def test_a_program_finds_nothing_of_the_one_before():
    with Sandbox(LIMITS) as one:
        leave = (
            "import builtins, os, tempfile\nbuiltins.left = 1\nopen('/tmp/left', 'w')\nos.environ['LEFT'] = '1'\nprint(os.getpid())"
        )
        look = "import builtins, os\nprint(hasattr(builtins, 'left'), os.path.exists('/tmp/left'), 'LEFT' in os.environ)"
        one.run(leave)
        assert one.run(look).stdout == "False False False\n"


def test_many_threads_share_the_slots(sandbox):
    found = {}

    def ask(number):
        found[number] = sandbox.run(f"print({number} ** 2)").stdout

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {number: f"{number**2}\n" for number in range(8)}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give each slot a user")
def test_each_slot_is_another_user():
    with Sandbox(Limits(seconds=5), slots=2) as two:
        running = [two.submit("import os, time\ntime.sleep(.5)\nprint(os.getuid(), os.getgid(), os.getgroups())") for _ in range(2)]
        told = {each.result().stdout for each in running}
    assert len(told) == 2 and all(each.split()[0] == each.split()[1] != "0" and each.endswith("[]\n") for each in told)


def test_a_user_namespace_does_where_no_other_user_can_be_had(monkeypatch):
    monkeypatch.setattr(pool, "user_range", lambda: None)
    with Sandbox(LIMITS, checked=False) as sandbox:
        assert sandbox.run("import os; print(os.getuid(), os.access('/', os.W_OK))").stdout == "65534 False\n"


def test_what_is_closed_runs_nothing():
    sandbox = Sandbox(LIMITS)
    last = sandbox.submit("print('last')")
    sandbox.close()
    assert last.result().stdout == "last\n"  # what was asked for is done
    with pytest.raises(SandboxError, match="is closed"):
        sandbox.run("1")
    sandbox.close()


def test_a_process_that_ends_with_programs_at_work_leaves_nothing():
    text = """
    import os
    from upslope.runtime.sandbox import Limits, Sandbox
    sandbox = Sandbox(Limits(seconds=60), slots=2, checked=False)
    sandbox.run("1")
    waiting = [sandbox.submit("import time; time.sleep(50)") for _ in range(4)]
    print(os.getpid())
    """
    began = time.monotonic()
    found = subprocess.run([sys.executable, "-c", textwrap.dedent(text)], capture_output=True, text=True, timeout=60)
    assert found.stderr == "" and time.monotonic() - began < 30
    left = [path for folder, _ in own_groups() for path in folder.glob(f"{PREFIX}{found.stdout.strip()}-*")]
    assert left == []


def test_one_that_cannot_start_says_why(monkeypatch):
    monkeypatch.setattr("upslope.runtime.sandbox.command.python_inside", lambda: "/py/bin/no-such-python")
    with Sandbox(LIMITS, checked=False) as sandbox:
        found = [sandbox.submit("1") for _ in range(3)]
        with pytest.raises(SandboxError, match=r"does not start here: .*no-such-python"):
            [each.result() for each in found]


@pytest.mark.parametrize("seconds", [0.0, 0.02, 0.05, 0.1, 0.3])
def test_it_dies_with_the_process_that_made_it(seconds):
    """Killed at any moment of the sandbox's start and work."""
    text = """
    import sys
    from upslope.runtime.sandbox import Limits, Sandbox
    sandbox = Sandbox(Limits(seconds=60), slots=2, checked=False)
    for _ in range(4): sandbox.submit("import time; time.sleep(50)")
    print("begun", flush=True)
    sys.stdin.read()
    """
    mark, pipe = f"{TOKEN}-{os.getpid()}-{seconds}", subprocess.PIPE
    words, environment = [sys.executable, "-c", textwrap.dedent(text)], {**os.environ, "UPSLOPE_MARK": mark}
    with subprocess.Popen(words, stdin=pipe, stdout=pipe, text=True, env=environment) as process:
        assert process.stdout is not None and process.stdout.readline() == "begun\n"
        time.sleep(seconds)
        assert str(process.pid) in _marked(mark)
        process.kill()
    end = time.monotonic() + 20
    while _marked(mark) and time.monotonic() < end:
        time.sleep(0.02)
    assert _marked(mark) == []


def _marked(mark: str) -> list[str]:
    """Processes that began with a mark in their environment: bubblewrap's are among them, and hold whatever is inside."""
    found = []
    for file in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if mark.encode() in file.read_bytes() and "Z" not in (file.parent / "stat").read_text().rpartition(")")[2][:3]:
                found.append(file.parent.name)
    return found


def test_hostile_programs_leave_nothing_behind(monkeypatch):
    own = own_users(2)
    if own is not None:
        monkeypatch.setattr(pool, "user_range", lambda: own)
    before = Traces.now(own)
    limits = Limits(seconds=1.5, cpu=1, memory=64, scratch=2, processes=16, files=32)
    with Sandbox(limits, slots=2, checked=False) as sandbox:
        running = {name: sandbox.submit(text) for name, text in PROGRAMS.items()}
        reasons = {name: each.result().reason for name, each in running.items()}
        assert sandbox.run("print('fine')").stdout == "fine\n"
    assert set(reasons.values()) >= {"ended", "seconds", "memory", "output"}
    assert Traces.now(own).since(before) == {}


def test_what_is_left_behind_would_be_seen(tmp_path):
    before = Traces.now()
    with subprocess.Popen(["sleep", "60"], executable="/bin/sleep") as plainly:
        assert Traces.now().processes == before.processes
        left = subprocess.Popen([TOKEN, "60"], executable="/bin/sleep")
        file = Path("/dev/shm") / f"{TOKEN}-{os.getpid()}"
        file.touch()
        reading, writing = os.pipe()
        try:
            while not Path(f"/proc/{left.pid}/cmdline").read_bytes().startswith(TOKEN.encode()):
                time.sleep(0.01)
            found = Traces.now().since(before)
            pipe = os.readlink(f"/proc/self/fd/{reading}")
        finally:
            os.close(reading)
            os.close(writing)
            for process in (left, plainly):
                process.kill()
                process.wait()
            file.unlink()
    # Others on this machine may leave something too, as the same test in another process does.
    assert str(left.pid) in found["processes"] and str(file) in found["files"] and pipe in found["open_files"]
