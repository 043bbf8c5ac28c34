"""What runs inside of the sandbox: waits for one program and becomes it.

This file is not imported there: its text is handed to the interpreter, which knows nothing of this package. It says that it is
there with one byte on stdout. Then stdin has the program's length, a line end and the program; the rest is the program's own stdin.
It imports nothing that the interpreter has not loaded already, since every program would wait for it.
"""

import posix
import sys


def _program(posix):  # type: ignore[no-untyped-def]
    head = b""
    while not head.endswith(b"\n"):
        byte = posix.read(0, 1)
        if not byte:  # whoever was to bring a program is gone
            posix._exit(0)
        head += byte
    parts, left = [], int(head)
    while left:
        part = posix.read(0, left)
        if not part:
            posix._exit(0)
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


def _run(posix, sys):  # type: ignore[no-untyped-def]
    posix.closerange(3, 4096)
    posix.write(1, b"+")
    source, file = _program(posix), posix.getcwd() + "/program.py"
    with open(file, "wb") as written:  # so that a traceback can show its lines
        written.write(source)
    main = sys.modules["__main__"].__dict__
    for name in [name for name in main if not name.startswith("__")]:
        del main[name]
    main["__file__"], main["__doc__"], sys.argv = file, None, [file]
    try:
        exec(compile(source, file, "exec"), main)
    except SystemExit:
        raise
    except BaseException as error:
        error = error.with_traceback(error.__traceback__ and error.__traceback__.tb_next)
        sys.excepthook(type(error), error, error.__traceback__)
        sys.exit(1)


if __name__ == "__main__":
    _run(posix, sys)
