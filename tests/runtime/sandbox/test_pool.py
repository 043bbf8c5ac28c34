"""Programs in the sandbox: what they may do, what ends them, and that nothing of them stays."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from hostile_programs import PROGRAMS, TOKEN, needs_sandbox
from places import ROOT

from upslope.runtime.sandbox import Limits, Sandbox

pytestmark = needs_sandbox
LIMITS = Limits(seconds=30.0, cpu=1, memory=96, scratch=4, processes=24, files=32)


@pytest.fixture(scope="module")
def sandbox():
    with Sandbox(LIMITS, slots=2) as made:
        yield made


def run(sandbox, text, stdin=""):
    return sandbox.run(textwrap.dedent(text), stdin)


def plain(text):
    """The same program without a sandbox, to see that it would have succeeded."""
    return subprocess.run([sys.executable, "-I", "-S", "-c", textwrap.dedent(text)], capture_output=True, text=True, timeout=60)


# -- what it may do ----------------------------------------------------------------------------------------------------------


def test_a_program_prints_and_ends(sandbox):
    found = run(sandbox, "import sys\nprint(6 * 7)\nprint('oh', file=sys.stderr)\nsys.exit(3)")
    assert (found.stdout, found.stderr, found.status, found.reason) == ("42\n", "oh\n", 3, "ended")
    assert not found.good and run(sandbox, "1").good


def test_an_error_shows_the_program_and_nothing_of_ours(sandbox):
    found = run(sandbox, "def f():\n    return 1 / 0\n\nf()")
    assert found.status == 1
    lines = found.stderr.splitlines()
    assert lines[0].startswith("Traceback") and lines[-1] == "ZeroDivisionError: division by zero"
    assert [line for line in lines if "File" in line] == [
        '  File "/tmp/program.py", line 4, in <module>', '  File "/tmp/program.py", line 2, in f',
    ]  # fmt: skip
    assert "SyntaxError" in run(sandbox, "def").stderr


def test_it_is_a_program_like_any_other(sandbox):
    text = """
    import dataclasses, json, multiprocessing, sys, tempfile, threading, typing
    @dataclasses.dataclass
    class Point:
        x: int
    assert __name__ == "__main__" and sys.modules["__main__"].Point is Point and sys.argv == [__file__]
    assert not {"os", "_run", "_program"} & set(globals())
    with tempfile.TemporaryDirectory() as folder:
        open(folder + "/x", "w").write("x")
    found = []
    threads = [threading.Thread(target=found.append, args=(n,)) for n in range(4)]
    [each.start() for each in threads], [each.join() for each in threads]
    lock = multiprocessing.Lock()
    process = multiprocessing.Process(target=lock.acquire)
    process.start(), process.join()
    print(json.dumps([Point(1).x, sorted(found), lock.acquire(block=False)]))
    """
    found = run(sandbox, text)
    assert (found.stdout, found.stderr) == ("[1, [0, 1, 2, 3], false]\n", "")


@pytest.mark.parametrize("size", [0, 10, 3_000_000])
def test_all_of_stdin_arrives(sandbox, size):
    found = run(sandbox, "import sys\nprint(len(sys.stdin.read()))", stdin="x" * size)
    assert found.stdout == f"{size}\n"


def test_stdin_that_nobody_reads_holds_nobody_up(sandbox):
    found = run(sandbox, "print('fine')", stdin="x" * 3_000_000)
    assert found.stdout == "fine\n"


def test_text_of_any_kind_goes_in_and_out(sandbox):
    found = run(sandbox, "import sys\nprint('é☃', input())\nsys.stdout.flush()\nsys.stdout.buffer.write(b'\\xff')", stdin="ü\n")
    assert found.stdout == "é☃ ü\n\ufffd"
    assert sandbox.run("print('\ud800')").status == 1  # half of a character: no program, and no fault of ours


def test_packages_installed_here_are_not_there(sandbox):
    assert "ModuleNotFoundError" in run(sandbox, "import numpy").stderr
    assert run(sandbox, "import os, sys\nprint([p for p in sys.path if 'site-packages' in p and os.listdir(p)])").stdout == "[]\n"


# -- what is out of reach ------------------------------------------------------------------------------------------------------


def test_files_of_the_host_and_the_repository(sandbox, tmp_path):
    tmp_path.chmod(0o755)
    secret = tmp_path / "secret"
    secret.write_text("secret")
    for path in (secret, ROOT / "pyproject.toml", "/etc/passwd", Path.home()):
        text = f"import os\nprint(os.path.exists({str(path)!r}))"
        assert run(sandbox, text).stdout == "False\n" and plain(text).stdout == "True\n"


def test_links_out_of_the_scratch_folder(sandbox, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("secret")
    text = """
    import os
    for number, target in enumerate((PATH, "/proc/1/root" + PATH, "/proc/self/root" + PATH, "../../../../" + PATH)):
        os.symlink(target, f"{FOLDER}/link{number}")
        try:
            print(open(f"{FOLDER}/link{number}").read())
        except OSError:
            print("nothing")
    """
    told = {name: text.replace("PATH", repr(str(secret))).replace("{FOLDER}", folder)
            for name, folder in (("in", "/tmp"), ("out", str(tmp_path)))}  # fmt: skip
    assert run(sandbox, told["in"]).stdout.split() == ["nothing"] * 4
    assert "secret" in plain(told["out"]).stdout


@pytest.mark.parametrize("kind", ["port", "abstract"])
def test_sockets_of_the_host(sandbox, kind):
    with socket.create_server(("127.0.0.1", 0)) as port, socket.socket(socket.AF_UNIX) as abstract:
        abstract.bind(f"\0{TOKEN}-{os.getpid()}")
        abstract.listen()
        address = ("127.0.0.1", port.getsockname()[1]) if kind == "port" else f"\0{TOKEN}-{os.getpid()}"
        family = "AF_INET" if kind == "port" else "AF_UNIX"
        text = f"import socket\nsocket.socket(socket.{family}).connect({address!r})\nprint('reached')"
        assert "ConnectionRefusedError" in run(sandbox, text).stderr
        assert plain(text).stdout == "reached\n"


def test_programs_do_not_meet_in_the_network(sandbox):
    """Two at a time, one of which listens where the other calls."""
    listen = f"import socket\none = socket.socket(socket.AF_UNIX)\none.bind('\\0{TOKEN}')\none.listen()\none.settimeout(1.5)\n"
    listen += "one.accept()"
    call = f"import socket, time\nfor _ in range(10):\n    time.sleep(.1)\n    one = socket.socket(socket.AF_UNIX)\n" \
           f"    if one.connect_ex('\\0{TOKEN}') == 0: print('reached')"  # fmt: skip
    first, second = sandbox.submit(listen), sandbox.submit(call)
    assert "TimeoutError" in first.result().stderr and second.result().stdout == ""


def test_processes_of_others(sandbox):
    text = f"import os\nprint(len([n for n in os.listdir('/proc') if n.isdigit()]) < 5, os.path.exists('/proc/{os.getpid()}'))"
    assert run(sandbox, text).stdout.split()[0] == "True" and plain(text).stdout == "False True\n"
    found = run(sandbox, "import os\nfor name in ('environ', 'mem', 'cwd'):\n    print(os.access(f'/proc/1/{name}', os.R_OK))")
    assert "True" not in found.stdout or os.geteuid() != 0  # the first process belongs to another user, where there is one


def test_the_environment_of_the_host(sandbox, monkeypatch):
    monkeypatch.setenv("UPSLOPE_SECRET", "secret")
    text = "import os\nprint(os.environ.get('UPSLOPE_SECRET'))"
    assert run(sandbox, text).stdout == "None\n" and sandbox.run("import os; print(os.environ['HOME'])").stdout == "/tmp\n"


@pytest.mark.parametrize("target", ["1", "os.getppid()", "-1"])
def test_killing_the_parent(sandbox, target):
    found = run(sandbox, f"import os, signal\ntry: os.kill({target}, signal.SIGKILL)\nexcept OSError: pass\nprint('still here')")
    assert found.stdout in ("still here\n", "") and run(sandbox, "print('next')").stdout == "next\n"


def test_the_host_survives_programs_that_kill_every_number(sandbox):
    bystander = subprocess.Popen(["sleep", "60"])
    try:
        run(sandbox, PROGRAMS["kills numbers"])
        run(sandbox, f"import os\nos.kill({bystander.pid}, 9)")
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def test_refused_calls(sandbox):
    text = """
    import ctypes, platform
    libc, column = ctypes.CDLL(None, use_errno=True), int(platform.machine() != "x86_64")
    for numbers in ((272, 97), (101, 117), (321, 280), (425, 425), (250, 219), (323, 282), (165, 40), (435, 435)):
        print(libc.syscall(numbers[column], ctypes.c_long(0x10000000), 0, 0, 0, 0), ctypes.get_errno())
    """
    assert run(sandbox, text).stdout.splitlines() == ["-1 1"] * 7 + ["-1 38"]
    assert "-1 1" not in plain(text).stdout.splitlines()[0] or os.geteuid() != 0  # root may unshare


# -- what ends it ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "reasons"),
    [
        ("output bomb", {"output"}),
        ("error bomb", {"output"}),
        ("memory of many", {"memory"}),
        ("becomes another", {"cpu"}),
    ],
)
def test_limits_end_a_program(sandbox, name, reasons):
    found = run(sandbox, PROGRAMS[name])
    assert found.reason in reasons and not found.good
    assert len(found.stdout) + len(found.stderr) <= 1 << 20


@pytest.mark.parametrize("name", ["deaf", "stops itself", "threads at exit", "work at exit", "daemon that prints", "zombies"])
def test_the_clock_ends_what_would_not(name):
    with Sandbox(Limits(seconds=0.7)) as impatient:
        found = impatient.run(PROGRAMS[name])
    wanted = "ended" if name == "daemon that prints" else "seconds"  # what it leaves behind goes with it
    assert found.reason == wanted
    assert found.status == (0 if wanted == "ended" else 137)


def test_the_cpu_limit_is_not_the_clock(sandbox):
    found = run(sandbox, "while True: pass")
    assert found.reason == "cpu" and found.status == 128 + signal.SIGXCPU


def test_a_memory_bomb_gets_an_error_it_can_catch(sandbox):
    text = "try: b'x' * (400 << 20)\nexcept MemoryError: print('caught')\nelse: print('had it')"
    assert run(sandbox, text).stdout == "caught\n" and plain(text).stdout == "had it\n"


@pytest.mark.parametrize("watch", [False, True])
def test_memory_is_counted_over_all_processes(watch):
    text = """
    import os, time
    had, told = os.pipe()
    for number in range(COUNT):
        if os.fork() == 0:
            held = b"x" * (30 << 20)
            os.write(told, b".")
            time.sleep(.3)
            os._exit(0)
    for _ in range(COUNT): os.read(had, 1)
    print("all had it")
    """
    with Sandbox(Limits(seconds=60, memory=96, scratch=1), watch_memory=watch) as sandbox:
        assert run(sandbox, text.replace("COUNT", "1")).stdout == "all had it\n"
        found = run(sandbox, text.replace("COUNT", "6").replace(".3", "30"))
    assert (found.reason, found.status) == ("memory", 137)
    assert plain(text.replace("COUNT", "6")).stdout == "all had it\n"


def test_files_fill_their_folder_only(sandbox):
    text = """
    import os
    for folder in ("/tmp", "/dev/shm"):
        try:
            for number in range(64):
                open(f"{folder}/f{number}", "wb").write(b"x" * (1 << 20))
            print("endless")
        except OSError as problem:
            print(problem.strerror)
    """
    assert run(sandbox, text).stdout.splitlines() == ["No space left on device"] * 2
    assert run(sandbox, "import os; print(os.listdir('/tmp'), os.listdir('/dev/shm'))").stdout == "['program.py'] []\n"


def test_limits_cannot_be_raised(sandbox):
    assert run(sandbox, PROGRAMS["raises its limits"]).stderr.endswith("MemoryError\n")
