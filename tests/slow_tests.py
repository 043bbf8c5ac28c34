"""Which tests `make test-fast` leaves out besides those marked slow: those that take longest, as measured.

    pytest -n 2 -m "not slow" --durations=0 --durations-min=0.05 > LOG; python tests/slow_tests.py LOG

adds to ``fixtures/slow_tests.txt`` as many as must go, slowest first, for the others to take `SECONDS`; `make test` runs them all.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from pathlib import Path

LIST = Path(__file__).parent / "fixtures" / "slow_tests.txt"
SECONDS = 120
"""Of a core, in tests of at least 0.05 s; to collect them and to run the quick ones takes two minutes of it besides."""
TIMED = re.compile(r"^([\d.]+)s (?:call|setup|teardown) +(tests/[^ \[]+)")


def listed() -> set[str]:
    """Tests that are left out, ``tests/file.py::test``, whatever cases they have."""
    return set(LIST.read_text(encoding="utf-8").split())


def slowest(log: str, seconds: float) -> list[str]:
    """Tests of a log of pytest's durations, slowest by their mean first to go, until the others take so many seconds."""
    total: Counter[str] = Counter()
    cases: Counter[str] = Counter()
    for line in log.splitlines():
        if found := TIMED.match(line):
            total[found[2]] += float(found[1])  # type: ignore[assignment]
            cases[found[2]] += " call " in line
    left, gone = sum(total.values()), []
    for name in sorted(total, key=lambda name: total[name] / max(cases[name], 1), reverse=True):
        if left <= seconds:
            break
        left -= total[name]
        gone.append(name)
    return sorted(gone)


if __name__ == "__main__":
    names = listed() | set(slowest(Path(sys.argv[1]).read_text(encoding="utf-8"), SECONDS))
    LIST.write_text("\n".join(sorted(names)) + "\n", encoding="utf-8")
    print(f"{LIST}: {len(names)} tests")
