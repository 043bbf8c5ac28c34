"""The filter of system calls, run by an interpreter of its few operations: what the kernel would answer, for both processors."""

from __future__ import annotations

import errno
import struct

import pytest

from upslope.runtime.sandbox.limits import SandboxError
from upslope.runtime.sandbox.seccomp import ALLOW, ERRNO, KILL, LOOKED_INTO, MACHINES, REFUSED, X32, filter_bytes

BOTH = pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
REFUSAL, ABSENT = ERRNO | errno.EPERM, ERRNO | errno.ENOSYS


def verdict(machine: str, number: int, *arguments: int, audit: int | None = None) -> int:
    """What the filter says to a call."""
    padded = [*arguments, *[0] * (6 - len(arguments))]
    data = struct.pack("<IIQ6Q", number & 0xFFFFFFFF, MACHINES[machine].audit if audit is None else audit, 0, *padded)
    steps = list(struct.iter_unpack("<HBBI", filter_bytes(machine)))
    place, loaded = 0, 0
    while True:
        code, yes, no, operand = steps[place]
        place += 1
        if code == 0x06:
            return operand
        if code == 0x20:
            (loaded,) = struct.unpack_from("<I", data, operand)
            continue
        holds = {0x15: loaded == operand, 0x35: loaded >= operand, 0x45: bool(loaded & operand)}[code]
        place += yes if holds else no


@BOTH
def test_all_that_is_listed_is_refused(machine):
    column = MACHINES[machine].column
    refused = {name: both[column] for name, both in REFUSED.items() if both[column] is not None}
    assert {"ptrace", "bpf", "io_uring_setup", "keyctl", "userfaultfd", "mount", "unshare", "setns"} <= refused.keys()
    assert {verdict(machine, number) for number in refused.values()} == {REFUSAL}


@BOTH
def test_ordinary_calls_are_allowed(machine):
    ordinary = {"x86_64": (0, 1, 2, 9, 12, 39, 59, 60, 61, 231, 257), "aarch64": (56, 63, 64, 93, 94, 172, 214, 221, 222, 260)}
    assert {verdict(machine, number) for number in ordinary[machine]} == {ALLOW}


@BOTH
def test_processes_may_be_made_but_no_namespaces(machine):
    clone, clone3 = (LOOKED_INTO[name][MACHINES[machine].column] for name in ("clone", "clone3"))
    assert verdict(machine, clone, 0x1200011) == ALLOW  # as fork asks
    assert verdict(machine, clone, 0x3D0F00) == ALLOW  # as a thread asks
    for flag in (0x00020000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000):
        assert verdict(machine, clone, flag | 17) == REFUSAL
    assert verdict(machine, clone3) == ABSENT


@BOTH
def test_only_sockets_that_stay_inside(machine):
    for name in ("socket", "socketpair"):
        number = LOOKED_INTO[name][MACHINES[machine].column]
        assert {verdict(machine, number, family) for family in (1, 2, 10)} == {ALLOW}
        assert {verdict(machine, number, family) for family in (16, 17, 38, 40)} == {ERRNO | errno.EAFNOSUPPORT}


@BOTH
def test_nobody_types_into_a_terminal(machine):
    number = LOOKED_INTO["ioctl"][MACHINES[machine].column]
    assert verdict(machine, number, 0, 0x5412) == verdict(machine, number, 0, 0x541C) == REFUSAL
    assert verdict(machine, number, 0, 0x5413) == ALLOW
    assert verdict(machine, number, 0, 0x7_0000_5412) == REFUSAL  # the kernel reads the low half only


def test_calls_of_another_kind_of_processor_end_the_program():
    assert verdict("x86_64", 1, audit=0x40000003) == KILL  # 32-bit calls have other numbers
    assert verdict("aarch64", 1, audit=0x40000028) == KILL
    assert verdict("x86_64", X32 | 1) == ABSENT
    assert verdict("x86_64", -1) == ABSENT


def test_other_processors_are_refused():
    with pytest.raises(SandboxError, match="no list of system calls for the processor 'riscv64'; it knows x86_64 and aarch64"):
        filter_bytes("riscv64")
    assert filter_bytes("arm64") == filter_bytes("aarch64") != filter_bytes("x86_64")
