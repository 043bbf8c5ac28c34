"""Work that takes long before a live view begins is said, and only that."""

from __future__ import annotations

import threading

import pytest

from upslope.runtime import slow_work
from upslope.runtime.slow_work import said_if_slow


def test_work_is_said_once_it_takes_long(monkeypatch):
    heard, said = threading.Event(), []

    class Listening:
        def write(self, text: str) -> None:
            said.append(text)

        def flush(self) -> None:
            heard.set()

    monkeypatch.setattr(slow_work, "SILENT_SECONDS", 0.01)
    monkeypatch.setattr(slow_work.sys, "stderr", Listening())
    with said_if_slow("counting sheep"):
        assert heard.wait(60)
    assert "".join(said) == "counting sheep\n"


def test_quick_work_and_work_that_fails_leave_nothing_behind(monkeypatch, capsys):
    monkeypatch.setattr(slow_work, "SILENT_SECONDS", 3600)
    before = threading.active_count()
    with pytest.raises(ValueError, match="no sheep"), said_if_slow("counting sheep"):
        raise ValueError("no sheep")
    for thread in threading.enumerate():
        if isinstance(thread, threading.Timer):
            thread.join(60)
    assert threading.active_count() <= before and not capsys.readouterr().err
