"""The board: a local web page on a folder of runs, live while they write. Read-only unless it is told otherwise."""
