"""Builds the site: ``python docs/website/make_site.py [FOLDER]``, by default ``build/site``. It opens from there without a network.

The pages are staged beside it (`staging`, `made_pages`), Sphinx makes them with MyST and Furo, and what the catalogue shows is put
there as two scripts: the data, and the board's own modules in one file, since browsers load no modules from a folder.
"""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from made_pages import is_made, made_pages  # noqa: E402
from staging import ROOT, Staged, stage, write  # noqa: E402

from upslope.board.catalogue import catalogue_data  # noqa: E402
from upslope.report.catalogue import written_beside  # noqa: E402

PAGE = ROOT / "src" / "upslope" / "board" / "page"
SCRIPTS = ("js/dom.js", "js/mathml.js", "js/catalogue_search.js", "js/catalogue.js")
"""The board's modules that the catalogue is made of, each after those that it imports."""


def main(arguments: list[str]) -> int:
    out = Path(arguments[0] if arguments else ROOT / "build" / "site").resolve()
    code = build(out)
    if code == 0:
        print(f"open {out / 'index.html'}")
    return code


def build(out: Path, work: Path | None = None) -> int:
    """Builds into a folder; ``work`` holds what the next build goes on from. A warning is an error."""
    from sphinx.cmd.build import main as sphinx

    work = work or out.parent / f"{out.name}-work"
    staged = stage_all(work / "pages")
    sources = ",".join(sorted(staged.files))
    words = [
        "-b",
        "html",
        "-W",
        "--keep-going",
        "-q",
        "-j",
        str(min(os.cpu_count() or 1, 4)),
        "-c",
        str(HERE),
        "-d",
        str(work / "read"),
    ]
    code = sphinx([*words, "-D", f"upslope_sources={sources}", str(staged.folder), str(out)])
    if code == 0:
        add_catalogue(out)
    return code


def stage_all(folder: Path) -> Staged:
    """Every page, those of the repository and those made here."""
    folder.mkdir(parents=True, exist_ok=True)
    made = made_pages(catalogue_data(), written_beside()["claims"])
    staged = stage(folder, keep=lambda file: is_made(file, folder))
    for name, text in made.items():
        write(folder / name, text)
    return staged


def add_catalogue(out: Path) -> None:
    """The catalogue's data, modules and style sheet."""
    static = out / "_static"
    data = json.dumps(catalogue_data(), ensure_ascii=False, separators=(",", ":")).replace("</", "<\\/")
    (static / "catalogue-data.js").write_text(f"window.upslopeCatalogue = {data};\n", encoding="utf-8")
    parts = [bundled((PAGE / name).read_text(encoding="utf-8")) for name in SCRIPTS]
    parts.append(bundled((HERE / "catalogue_site.js").read_text(encoding="utf-8")))
    (static / "catalogue.js").write_text('(() => {\n"use strict";\n' + "\n".join(parts) + "})();\n", encoding="utf-8")
    for name in ("colours.css", "catalogue.css"):
        (static / name).write_text((PAGE / "css" / name).read_text(encoding="utf-8"), encoding="utf-8")


def bundled(module: str) -> str:
    """A module as part of one script: what it imports stands before it, what it exports is seen by all."""
    without = re.sub(r"^import [^;]*;\n", "", module, flags=re.M)
    return re.sub(r"^export (?=function|class|const)", "", without, flags=re.M)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
