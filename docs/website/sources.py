"""Pages with the code that pages link to, so that the site needs neither a network nor a copy of the repository."""

from __future__ import annotations

import posixpath
import shutil
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any

from docutils import nodes
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_for_filename
from pygments.lexers.special import TextLexer
from pygments.util import ClassNotFound
from sphinx.application import Sphinx
from staging import ROOT

FOLDER = "code"
"""Where these pages stand on the site."""
RAW = (".json", ".csv")
"""Files that are given as they are."""


def page_of(path: str) -> str:
    """The file of the site that shows a file of the repository."""
    return f"{FOLDER}/{path}" if path.endswith(RAW) else f"{FOLDER}/{path}.html"


def resolve(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """``source:PATH`` as the way to that page, from this one."""
    for link in doctree.findall(nodes.reference):
        target = link.get("refuri", "")
        if target.startswith("source:"):
            here = posixpath.dirname(app.builder.get_target_uri(docname))
            link["refuri"] = posixpath.relpath(page_of(target.removeprefix("source:")), here or ".")
            link["classes"] = [each for each in link["classes"] if each != "external"]
            link["internal"] = True


def pages(app: Sphinx) -> Iterator[tuple[str, dict[str, Any], str]]:
    """A page for every file that is linked to, and for those of a folder that is."""
    for path in sorted(wanted(app.config.upslope_sources)):
        file = ROOT / path
        if file.is_dir():
            yield f"{FOLDER}/{path}", {"title": path, "body": listing(path, file)}, "page.html"
        elif not path.endswith(RAW):
            body = f'<h1>{escape(path)}</h1>\n<div class="highlight source-file">{coloured(file)}</div>'
            yield f"{FOLDER}/{path}", {"title": path, "body": body}, "page.html"


def wanted(paths: list[str]) -> set[str]:
    """What pages link to, with the files of folders."""
    inside = {
        each.relative_to(ROOT).as_posix()
        for path in paths
        if (ROOT / path).is_dir()
        for each in (ROOT / path).rglob("*")
        if each.is_file() and "__pycache__" not in each.parts and not any(part.endswith(".egg-info") for part in each.parts)
    }
    return {*(path.rstrip("/") for path in paths), *inside}


def listing(path: str, folder: Path) -> str:
    """The files of a folder."""
    files = sorted(each for each in wanted([path]) if each != path)
    items = "".join(
        f'<li><a href="{posixpath.relpath(page_of(each), posixpath.dirname(page_of(path)))}">{each}</a></li>' for each in files
    )
    return f"<h1>{escape(path)}</h1><ul>{items}</ul>"


def coloured(file: Path) -> str:
    text = file.read_text(encoding="utf-8")
    try:
        lexer = get_lexer_for_filename(file.name)
    except ClassNotFound:
        lexer = TextLexer()
    return highlight(text, lexer, HtmlFormatter(nowrap=False, wrapcode=True))


def copy_raw(app: Sphinx, problem: Exception | None) -> None:
    if problem is not None:
        return
    for path in wanted(app.config.upslope_sources):
        if path.endswith(RAW):
            target = Path(app.outdir) / page_of(path)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / path, target)


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_config_value("upslope_sources", [], "")
    app.connect("doctree-resolved", resolve)
    app.connect("html-collect-pages", pages)
    app.connect("build-finished", copy_raw)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
