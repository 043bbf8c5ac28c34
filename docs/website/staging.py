"""The pages as Sphinx reads them: copied from where readers of the repository find them, with links as they are on the site.

GitHub shows the same Markdown, so pages keep plain links among themselves and to sources. Here a link to a page leads to that page
of the site, one to a source file or folder to a page with the code (`sources`); one that leads nowhere stops the build.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
DOCS = ROOT / "docs"
MOVED = {
    "README.md": "start.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changes.md",
    "docs/README.md": "documents.md",
    "docs/methods/README.md": "methods/index.md",
}
"""Pages that are called otherwise on the site."""
PICTURES = (".png", ".svg", ".jpg")
LINK = re.compile(r"(?P<image>!?)\[(?P<text>(?:[^\[\]]|\[[^\]]*\])*)\]\((?P<target>[^)\s]+)\)")
FENCE = re.compile(r"(^```[^\n]*\n.*?^```[^\n]*$)", re.S | re.M)
CODE = re.compile(r"(?<!`)(`+)(?!`)[^\n]+?(?<!`)\1(?!`)")
OUT_OF_TREE = ("methods/", "claims/")
"""Folders whose pages stand in no menu: their tables list them. A menu of all would be 200 lines long on every page."""


class BrokenLink(Exception):
    """A link that leads nowhere."""


@dataclass
class Staged:
    """What was staged: the files that pages link to and that are no pages themselves."""

    folder: Path
    files: set[str] = field(default_factory=set)


def page_names(root: Path = ROOT) -> dict[str, str]:
    """Every page of the repository that is one of the site, by its path: where it stands there."""
    found = {}
    for page in [*root.glob("*.md"), *root.glob("docs/*.md"), *root.glob("docs/methods/*.md"), *root.glob("docs/claims/*.md")]:
        path = page.relative_to(root).as_posix()
        found[path] = MOVED.get(path, path.removeprefix("docs/"))
    return found


def stage(folder: Path, root: Path = ROOT, keep: Callable[[Path], bool] = lambda file: False) -> Staged:
    """Copies every page and its pictures, and takes away what is no page any more, unless somebody says to ``keep`` it.

    A file that has not changed is left alone, so that Sphinx need not read it again.
    """
    names = page_names(root)
    staged = Staged(folder)
    for path, name in names.items():
        text = rewritten((root / path).read_text(encoding="utf-8"), path, names, staged, root)
        write(folder / name, with_way_up(text, name))
    for file in set(folder.rglob("*.md")) - {folder / name for name in names.values()}:
        if not keep(file):
            file.unlink()
    return staged


def with_way_up(text: str, name: str) -> str:
    """A page that stands in no menu says so, and begins with a way to the table that lists it."""
    if not name.startswith(OUT_OF_TREE) or name.endswith("/index.md"):
        return text
    ups = {"methods/": "[All methods](index.md) · [Family tree](../tree.md)", "claims/": "[All claims](index.md)"}
    title, _, rest = text.partition("\n")
    return f"---\norphan: true\n---\n{title}\n\n{ups[name.partition('/')[0] + '/']}\n{rest}"


def rewritten(text: str, path: str, names: dict[str, str], staged: Staged, root: Path = ROOT) -> str:
    """The text with its links as they are on the site; code is left alone."""
    pieces = FENCE.split(text)  # text and fenced code by turns
    return "".join(piece if odd % 2 else _links(piece, path, names, staged, root) for odd, piece in enumerate(pieces))


def _links(text: str, path: str, names: dict[str, str], staged: Staged, root: Path) -> str:
    code = [span.span() for span in CODE.finditer(text)]

    def there(found: re.Match[str]) -> str:
        target = found["target"]
        inside = any(begin < found.start() < end for begin, end in code)
        if inside or target.startswith(("https://", "http://", "mailto:", "#")):
            return found[0]
        return f"{found['image']}[{found['text']}]({_target(target, path, names, staged, root)})"

    return LINK.sub(there, text)


def _target(target: str, path: str, names: dict[str, str], staged: Staged, root: Path) -> str:
    file, hash_, anchor = target.partition("#")
    led = Path(os.path.normpath((root / path).parent / file))
    if not led.is_relative_to(root) or not led.exists():
        raise BrokenLink(f"{path} links to {target}, which is not there.")
    where = led.relative_to(root).as_posix()
    here = (staged.folder / names[path]).parent
    if where in names:
        return os.path.relpath(staged.folder / names[where], here) + hash_ + anchor
    if led.suffix in PICTURES:
        copy = staged.folder / where.removeprefix("docs/")
        if not copy.exists() or copy.stat().st_mtime < led.stat().st_mtime:
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(led, copy)
        return os.path.relpath(copy, here)
    staged.files.add(where)
    return f"source:{where}"


def write(file: Path, text: str) -> None:
    """Writes a file unless it says so already."""
    if file.exists() and file.read_text(encoding="utf-8") == text:
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
