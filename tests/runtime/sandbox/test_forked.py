"""Forks of a slot's interpreter: each program has all of its own, though none had to be started."""

from __future__ import annotations

import os

import pytest
from hostile_programs import needs_sandbox

from upslope.runtime.sandbox import Limits, Sandbox
from upslope.runtime.sandbox.forked import Zygote
from upslope.runtime.sandbox.users import user_range

pytestmark = [needs_sandbox, pytest.mark.skipif(user_range() is None, reason="only root forks; without it each program is started")]


@pytest.fixture(scope="module")
def sandbox():
    with Sandbox(Limits(seconds=30)) as made:
        yield made


@pytest.fixture
def zygotes(monkeypatch):
    """All that are made."""
    made, init = [], Zygote.__init__
    monkeypatch.setattr(Zygote, "__init__", lambda self, *given: made.append(self) or init(self, *given))
    return made


def test_every_namespace_is_other_than_that_of_the_one_it_came_from(zygotes):
    kinds = ("pid", "net", "ipc", "uts", "mnt", "cgroup")
    with Sandbox(Limits(seconds=30)) as sandbox:
        text = f"import os\nprint(*[os.readlink(f'/proc/self/ns/{{kind}}') for kind in {kinds}])"
        programs = [sandbox.run(text).stdout.split() for _ in range(2)]
        zygote = [os.readlink(f"/proc/{zygotes[-1].first}/ns/{kind}") for kind in kinds]
    ours = [os.readlink(f"/proc/self/ns/{kind}") for kind in kinds]
    for each in programs:
        assert len(each) == 6 and not set(each) & {*zygote, *ours}


def test_it_holds_nothing_of_the_one_it_came_from(sandbox):
    found = sandbox.run(
        "import os, sys\nprint(sorted(map(int, os.listdir('/proc/self/fd')))[:-1], sys.argv)\nprint(sorted(globals()))"
    )
    files, names = found.stdout.splitlines()
    assert files == "[0, 1, 2] ['/tmp/program.py']"
    assert eval(names) == ["__builtins__", "__doc__", "__file__", "__loader__", "__name__", "__package__", "__spec__", "os", "sys"]


def test_no_two_programs_draw_the_same_numbers(sandbox):
    text = "import random, uuid, tempfile\nprint(random.random(), uuid.uuid4(), tempfile.mkdtemp())"
    first, second = sandbox.run(text).stdout.split(), sandbox.run(text).stdout.split()
    assert len(first) == 3 and not set(first) & set(second)


def test_powers_are_gone_for_good(sandbox):
    text = "print(*[line.split()[1] for line in open('/proc/self/status') if line.startswith(('Cap', 'NoNewPrivs', 'Seccomp:'))])"
    *powers, new, rules = sandbox.run(text).stdout.split()
    assert len(powers) == 5 and {int(power, 16) for power in powers} == {0} and (new, rules) == ("1", "2")
    asks = "import os\nfor call in (os.setuid, os.setgid, os.seteuid):\n    try: call(0)\n    except OSError: print('no')"
    assert sandbox.run(asks).stdout == "no\n" * 3


def test_a_program_is_not_the_first_of_its_processes(sandbox):
    assert sandbox.run("import os\nprint(os.getpid(), os.getppid(), os.getsid(0) == os.getpid())").stdout == "2 1 True\n"


def test_a_slot_whose_interpreter_died_gets_another(zygotes):
    with Sandbox(Limits(seconds=30)) as sandbox:
        assert sandbox.run("print(1)").stdout == "1\n"
        os.kill(zygotes[-1].first, 9)
        said = [sandbox.run("print(2)") for _ in range(2)]  # the first may have been waiting in the one that died
    assert said[1].stdout == "2\n" and len(zygotes) == 2
    assert said[0].stdout == "2\n" or not said[0].good
