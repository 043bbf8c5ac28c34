"""The command ``upslope board``: its flags, and the server it starts. No torch here, so that ``--help`` stays fast."""

from __future__ import annotations

import argparse
import os
import re
import socket
import sys
from contextlib import closing, suppress
from pathlib import Path
from urllib.parse import quote

from upslope.errors import MissingExtra, UserError, install_extra
from upslope.runtime.access import check_reach

TOKEN_VARIABLE = "UPSLOPE_BOARD_TOKEN"
RUNS = "runs"


def add_flags(board: argparse.ArgumentParser) -> None:
    """The flags of the command."""
    from upslope.runtime.settings_flags import whole

    board.add_argument("runs", metavar="RUNS", nargs="?", default=None, help="the folder that holds the runs (runs)")
    board.add_argument("--host", default="127.0.0.1", help="address to listen at; any but loopback needs a token (127.0.0.1)")
    board.add_argument("--port", type=whole(0), default=8420, metavar="N", help="0 takes a free one (8420)")
    board.add_argument("--token", default="", metavar="KEY", help=f"what visitors must know (the variable {TOKEN_VARIABLE})")
    board.add_argument("--allow-control", action="store_true", help="let the page start, stop and resume runs")
    board.add_argument("--open", action="store_true", help="open it in the browser")


def run(flags: argparse.Namespace) -> int:
    """Serves the board until it is interrupted."""
    root = runs_folder(flags.runs)
    token = flags.token or os.environ.get(TOKEN_VARIABLE, "")
    check_reach(flags.host, token, TOKEN_VARIABLE)
    if token and not re.fullmatch(r"[!-~]+", token):
        raise UserError("the token must be of visible ASCII characters, without spaces: it goes through headers and addresses.")
    check_installed()
    with closing(listen(flags.host, flags.port)) as listening:
        serve(listening, root, flags.host, token, flags.allow_control, flags.open)
    return 0


def runs_folder(given: str | None) -> Path:
    """The folder to watch. The usual one need not be there yet; one that was named must."""
    root = Path(given or RUNS)
    try:
        if (root / "run.toml").is_file():
            raise UserError(f"{root} is a run. Give the folder that holds it: upslope board {root.parent}")
        with os.scandir(root):
            return root
    except FileNotFoundError:
        if given is None:
            return root
        raise UserError(f"no folder {given!r}. Runs are in 'runs' unless 'upslope train --out' said otherwise.") from None
    except NotADirectoryError:
        raise UserError(f"{root} is no folder. Give the folder that holds the runs.") from None
    except (OSError, ValueError) as problem:  # ValueError: a null character
        reason = getattr(problem, "strerror", None) or problem
        raise UserError(f"the folder {str(root)[:300]!r} cannot be read: {reason}.") from None


def check_installed() -> None:
    try:
        import fastapi  # noqa: F401
        import uvicorn  # noqa: F401
    except ModuleNotFoundError as missing:
        if missing.name not in ("fastapi", "uvicorn", "starlette"):
            raise
        raise MissingExtra(f"{missing.name}, which serves the board, is", install_extra("board")) from None


def listen(host: str, port: int) -> socket.socket:
    """A socket at that address, before anything heavy is loaded: a port that is taken should be known at once."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        made = socket.socket(family, socket.SOCK_STREAM)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((host, port))
        made.listen(128)
    except (OSError, OverflowError, ValueError, TypeError) as problem:  # a port or a name that no system knows
        reason = str(getattr(problem, "strerror", None) or problem).rstrip(".")
        shown = host.encode("ascii", "backslashreplace").decode()
        raise UserError(f"cannot listen at {shown}, port {port}: {reason}. Take another --port, 0 for any.") from None
    return made


def serve(listening: socket.socket, root: Path, host: str, token: str, allow_control: bool, browse: bool) -> None:
    from upslope.board.access import Door
    from upslope.board.app import make_app
    from upslope.board.connections import Limits, make_server

    port, limits = listening.getsockname()[1], Limits()
    app = make_app(root, Door(host, port, token), allow_control, limits)
    shown = f"[{host}]" if ":" in host else host
    address = f"http://{shown}:{port}/" + (f"?token={quote(token, safe='')}" if token else "")
    print(f"{root} at the address below{', with control' if allow_control else ''}; Ctrl-C ends it", file=sys.stderr)
    print(address, flush=True)
    if browse:
        import webbrowser

        webbrowser.open(address)
    with suppress(KeyboardInterrupt):  # the way to end it
        make_server(app, limits).run(sockets=[listening])
