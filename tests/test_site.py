"""The site: links, anchors and pictures lead somewhere, every page is linked to, every formula is set, nothing comes from afar."""

from __future__ import annotations

import json
import re
import sys
import tomllib
from functools import cache
from html import unescape
from pathlib import Path
from urllib.parse import unquote
from xml.etree import ElementTree

import pytest
from places import ROOT, TESTS
from site_fixtures import WEBSITE

from upslope.board.catalogue import catalogue_data
from upslope.methods import catalogue, measures

sys.path.insert(0, str(WEBSITE))

import staging
from formulas import tex_mathml
from make_site import bundled
from sphinx.errors import ExtensionError

pytest_plugins = ["site_fixtures"]
slow = pytest.mark.slow
MADE_BY_SPHINX = {"genindex.html", "search.html"}
"""Every page has a field that leads to the search; the index of names is linked to by the reference."""


@cache
def text(page: Path) -> str:
    return page.read_text(encoding="utf-8")


@cache
def anchors(page: Path) -> frozenset[str]:
    return frozenset(unescape(name) for name in re.findall(r'\bid="([^"]+)"', text(page)))


def pages(site: Path) -> list[Path]:
    return sorted(page for page in site.rglob("*.html") if "_static" not in page.parts)


def links(html: str) -> list[str]:
    """What a page leads to or shows, without the web."""
    found = [unescape(each) for each in re.findall(r'\b(?:href|src)="([^"]*)"', html)]
    return [each for each in found if each and not re.match(r"https?:|mailto:|data:|javascript:", each)]


def led_to(page: Path, link: str) -> tuple[Path, str]:
    path, _, anchor = link.partition("#")
    return (page.parent / unquote(path.partition("?")[0])).resolve() if path else page, unquote(anchor)


# -- the built site --------------------------------------------------------------------------------------------------------


@slow
def test_links_anchors_and_pictures_lead_somewhere(site: Path) -> None:
    broken = []
    for page in pages(site):
        for link in set(links(text(page))):
            target, anchor = led_to(page, link)
            missing = not target.is_file() or (anchor and target.suffix == ".html" and anchor not in anchors(target))
            if missing and not link.startswith("#svg-") and not (target.name == "index.html" and "q=" in anchor):
                broken.append(f"{page.relative_to(site)}: {link}")
    assert broken == []


@slow
def test_every_page_is_linked_to_by_another(site: Path) -> None:
    """From the front on, by what stands in the pages themselves; only the front's menu counts too."""
    start = (site / "index.html").resolve()
    reached, left = {start}, [start, *((site / "methods" / f"{name}.html").resolve() for name in catalogue())]
    while left:
        page = left.pop()
        html = text(page) if page == start else text(page).partition("<article")[2].partition("</article>")[0]
        for link in links(html):
            target, _ = led_to(page, link)
            if target.suffix == ".html" and target.is_file() and target not in reached:
                reached.add(target)
                left.append(target)
    alone = {page.resolve() for page in pages(site)} - reached
    assert {page.name for page in alone} <= MADE_BY_SPHINX, sorted(str(page.relative_to(site.resolve())) for page in alone)


@slow
def test_formulas_are_set_when_it_is_built(site: Path) -> None:
    count = 0
    for page in pages(site):
        for made in re.findall(r"<math\b.*?</math>", text(page), re.S):
            ElementTree.fromstring(made)
            assert "merror" not in made and "\\" not in re.sub(r"<[^>]*>", "", made), f"{page.name}: {made}"
            count += 1
        assert not re.search(r'class="math(?!-wrapper)\b|<script[^>]*(?:mathjax|katex)', text(page), re.I), page.name
    assert count > 1000
    for name in catalogue():
        assert '<div class="formula" tabindex="0"' in text(site / "methods" / f"{name}.html"), name


@slow
def test_nothing_is_fetched_from_afar(site: Path) -> None:
    for page in pages(site):
        for tag in re.findall(r"<(?:script|link|img|iframe|source)\b[^>]*>", text(page)):
            assert not re.search(r'(?:src|href)="(?:https?:)?//', tag) or 'rel="canonical"' in tag, f"{page.name}: {tag}"
    for sheet in site.rglob("*.css"):
        assert not re.search(r"(?:url\(|@import)[\"' ]*(?:https?:)?//", sheet.read_text(encoding="utf-8")), sheet.name


@slow
def test_every_public_name_is_in_the_reference(site: Path) -> None:
    told = "".join(text(page) for page in (site / "reference").glob("*.html"))
    listed = tomllib.loads((TESTS / "fixtures" / "public.toml").read_text(encoding="utf-8"))["names"]
    methods = {name.replace("-", "_") for name in catalogue()}
    said = {name.rpartition(".")[2] for name in re.findall(r'id="([\w.]+)"', told)} | set(re.findall(r">(\w+)<", told))
    for module, names in listed.items():
        assert set(names) - methods - {"__version__"} <= said, module


@slow
def test_the_front_carries_the_catalogue_of_the_code_and_its_pictures(site: Path) -> None:
    script = text(site / "_static" / "catalogue-data.js")
    carried = json.loads(script.removeprefix("window.upslopeCatalogue = ").rstrip().removesuffix(";"))
    assert carried == json.loads(json.dumps(catalogue_data()))
    for page, claim in carried["claims"].items():
        assert (site / "claims" / f"{page}.html").is_file()
        assert (site / "_images" / f"{page}.png").is_file() == claim["picture"], page


@slow
def test_the_tree_has_every_method_as_a_link(site: Path) -> None:
    tree = text(site / "tree.html")
    assert set(re.findall(r'<a href="methods/([\w-]+)\.html" class="tree-node', tree)) == set(catalogue())


@slow
def test_every_method_and_every_claim_has_its_page(site: Path) -> None:
    assert {page.stem for page in (site / "methods").glob("*.html")} == {"index", *catalogue(), *measures()}
    written = {page.stem for page in (ROOT / "docs" / "claims").glob("*.md")}
    assert {page.stem for page in (site / "claims").glob("*.html")} == {"index", *written}


# -- how it is made --------------------------------------------------------------------------------------------------------


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A repository of three pages."""
    (tmp_path / "docs" / "methods").mkdir(parents=True)
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "code.py").write_text("x = 1\n")
    (tmp_path / "docs" / "a.md").write_text(
        "# A\n\n[b](methods/b.md#there) [`code`](../src/code.py) `[no](link.md)`\n\n```\n[no](link.md)\n```\n"
    )
    (tmp_path / "docs" / "methods" / "b.md").write_text("# b\n\n## There\n\n[start](../../README.md)\n")
    (tmp_path / "README.md").write_text("# Small\n\n[a page that is\nlinked to](docs/a.md), [web](https://example.org)\n")
    return tmp_path


def test_links_become_those_of_the_site_and_code_stays(small: Path, tmp_path: Path) -> None:
    staged = staging.stage(tmp_path / "pages", root=small)
    page = (tmp_path / "pages" / "a.md").read_text()
    assert "[b](methods/b.md#there) [`code`](source:src/code.py) `[no](link.md)`" in page and "```\n[no](link.md)\n```" in page
    assert "linked to](a.md), [web](https://example.org)" in (tmp_path / "pages" / "start.md").read_text()
    method = (tmp_path / "pages" / "methods" / "b.md").read_text()
    assert "[start](../start.md)" in method and method.startswith("---\norphan: true\n---\n# b\n")
    assert staged.files == {"src/code.py"}


def test_a_link_that_leads_nowhere_stops_the_build(small: Path, tmp_path: Path) -> None:
    (small / "docs" / "a.md").write_text("# A\n\n[gone](gone.md)\n")
    with pytest.raises(staging.BrokenLink, match=r"docs/a\.md links to gone\.md"):
        staging.stage(tmp_path / "pages", root=small)


def test_a_page_that_was_staged_and_is_gone_goes(small: Path, tmp_path: Path) -> None:
    staging.stage(tmp_path / "pages", root=small)
    (small / "README.md").write_text("# Small\n")
    (small / "docs" / "a.md").unlink()
    staging.stage(tmp_path / "pages", root=small)
    assert {page.name for page in (tmp_path / "pages").rglob("*.md")} == {"start.md", "b.md"}


@pytest.mark.parametrize("tex", [r"\unknown{x}", r"\frac{a}{", r"a_{b"])
def test_a_formula_that_cannot_be_set_stops_the_build(tex: str) -> None:
    with pytest.raises(ExtensionError, match="formula"):
        tex_mathml(tex, block=True)


def test_a_formula_keeps_its_words_together() -> None:
    assert "<mo>clip</mo>" in tex_mathml(r"\mathrm{clip}(x)", block=False).replace(' movablelimits="true"', "")
    assert "argmax" in tex_mathml(r"\arg\max_a Q", block=True)


def test_modules_become_one_script() -> None:
    module = 'import { a,\n b } from "./x.js";\nexport function f() {}\nexport class C {}\nconst exported = 1;\n'
    assert bundled(module) == "function f() {}\nclass C {}\nconst exported = 1;\n"
