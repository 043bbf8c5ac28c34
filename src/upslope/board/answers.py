"""Answers: JSON without NaN, errors as one sentence, and the page's own files."""

from __future__ import annotations

import hashlib
import json
import math
from functools import cache
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

PAGE = Path(__file__).parent / "page"
KINDS = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".woff2": "font/woff2",
    ".json": "application/json",
    ".md": "text/plain; charset=utf-8",
    ".txt": "text/plain; charset=utf-8",
    "": "text/plain; charset=utf-8",
}


def answer(value: object, status: int = 200) -> Response:
    """A value as JSON. Escaped to ASCII: what models wrote may hold halves of characters that no encoding takes."""
    try:
        body = json.dumps(value, allow_nan=False, separators=(",", ":"), default=str)
    except RecursionError:
        return failure(422, "what was asked for is nested too deep to be shown.")
    except ValueError:
        body = json.dumps(_finite(value), allow_nan=False, separators=(",", ":"), default=str)
    return Response(body, status, media_type="application/json")


def failure(status: int, error: str) -> Response:
    """An error as one sentence."""
    return answer({"error": error}, status)


def _finite(value: object) -> Any:
    if isinstance(value, dict):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def asset(request: Request, name: str) -> Response:
    """A file of the page. Names are looked up among the files that are there; none is made into a path."""
    path = _assets().get(name)
    if path is None:
        _assets.cache_clear()
        path = _assets().get(name)
    if path is None or not path.is_file():
        return failure(404, f"nothing at {name!r}.")
    body = path.read_bytes()
    tag = f'"{hashlib.sha256(body).hexdigest()[:24]}"'
    headers = {"Cache-Control": "no-cache", "ETag": tag}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return Response(body, headers=headers, media_type=KINDS.get(path.suffix, "application/octet-stream"))


@cache
def _assets() -> dict[str, Path]:
    return {path.relative_to(PAGE).as_posix(): path for path in PAGE.rglob("*") if path.is_file() and not path.is_symlink()}
