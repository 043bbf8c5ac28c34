"""The menu beside every page, made once for all pages of a folder that stand in none of its lines.

Furo asks for it on each page, and Sphinx makes it from nothing each time: that was half of the time a build took.
"""

from __future__ import annotations

import posixpath
from typing import Any

from sphinx.application import Sphinx

_made: dict[tuple[str, tuple[tuple[str, Any], ...]], str] = {}


def remember(app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: Any) -> None:
    """Lets the theme ask for a menu that was made before."""
    listed = page in app.env.toctree_includes or any(page in pages for pages in app.env.toctree_includes.values())
    make = context["toctree"]
    where = page if listed else posixpath.dirname(page)  # one that is listed has its own line marked

    def menu(**how: Any) -> str:
        key = (where, tuple(sorted(how.items())))
        if key not in _made:  # a heading that does not say of which level is none to those who listen to the page
            _made[key] = make(**how).replace('role="heading"', 'role="heading" aria-level="2"')
        return _made[key]

    context["toctree"] = menu


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("html-page-context", remember, priority=100)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
