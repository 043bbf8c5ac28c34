"""Exit codes: 0 done, 1 a fault of ours, 2 something to mend, 3 too large for memory or disk, 130 interrupted, 141 nobody reads
any more."""

BROKEN, FAILED, INTERRUPTED, BROKEN_PIPE = 1, 2, 130, 141
