"""The site in a real browser, opened from its folder: phone, tablet and desktop, light and dark, by mouse and by keyboard."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from board_browser import CHROMIUM, NEEDS_CHROMIUM, Browser, Page, driver, expect
from places import FIXTURES

from upslope.methods import compose
from upslope.report import catalogue_search
from upslope.report.catalogue import catalogue_records

pytest_plugins = ["site_fixtures"]
pytestmark = [pytest.mark.slow, NEEDS_CHROMIUM]

QUESTION = "my rewards are noisy and I reuse rollouts"
VIEWS = {
    "front": "index.html",
    "answer": "index.html#q=noisy+rewards&open=pipo",
    "method": "methods/dapo.html",
    "claim": "claims/dapo.html",
    "tree": "tree.html",
    "flags": "command-line.html",
    "parts": "reference/parts-advantage.html",
}
LOOKED_AT = ({"width": 390, "height": 844}, {"width": 1440, "height": 844})
"""Sizes at which axe looks at the page: it takes seconds for each, and between them nothing else is shown."""
AXE = (FIXTURES / "axe" / "axe.min.js").read_text(encoding="utf-8")
FAULTS = """async () => {
  const { violations } = await axe.run(document, { resultTypes: ["violations"], preload: false });
  return violations.filter((each) => ["serious", "critical"].includes(each.impact))
    .map((each) => `${each.id}: ${each.nodes.slice(0, 3).map((node) => node.target + " " + node.failureSummary).join(" | ")}`);
}"""
WIDER = """() => [...document.querySelectorAll("body *")].filter((each) => {
  const box = each.getBoundingClientRect();
  if (!box.width || !each.checkVisibility() || box.right <= innerWidth + 1 || box.left >= innerWidth) return false;
  for (let up = each.parentElement; up; up = up.parentElement)
    if (["auto", "scroll", "hidden"].includes(getComputedStyle(up).overflowX) && up.tagName !== "BODY") return false;
  return true;
}).map((each) => `${each.tagName}.${each.className}`)"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with driver.sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=CHROMIUM)
        yield opened
        opened.close()


@pytest.fixture
def page(browser: Browser, request: pytest.FixtureRequest) -> Iterator[Page]:
    """A page without a network on which every error fails the test."""
    width, scheme = getattr(request, "param", (1440, "light"))
    context = browser.new_context(
        viewport={"width": width, "height": 844}, color_scheme=scheme, reduced_motion="reduce", offline=True
    )
    context.set_default_timeout(90_000)
    opened = context.new_page()
    troubles: list[str] = []
    opened.on("pageerror", lambda error: troubles.append(f"error: {error}"))
    opened.on("console", lambda message: troubles.append(message.text) if message.type == "error" else None)
    yield opened
    context.close()
    assert troubles == []


@pytest.mark.parametrize("page", [(390, "light"), (768, "light"), (1440, "dark")], indirect=True, ids=str)
def test_every_view_fits_and_has_no_serious_fault(page: Page, site: Path) -> None:
    for name, address in VIEWS.items():
        page.goto("about:blank")  # the front twice, with another question, would be the same page
        page.goto(f"{site.as_uri()}/{address}")
        if name in ("front", "answer"):
            page.locator(".cat-row").first.wait_for()
        assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0, name
        assert page.evaluate(WIDER) == [], name
        if page.viewport_size in LOOKED_AT and name not in ("answer", "flags"):
            page.evaluate(AXE)
            assert page.evaluate(FAULTS) == [], name


def test_somebody_new_finds_the_method_its_formula_its_claim_and_the_command(page: Page, site: Path) -> None:
    page.goto(f"{site.as_uri()}/index.html")
    expect(page.locator(".cat-row")).to_have_count(120)
    page.get_by_label("What is your situation").fill(QUESTION)
    expect(page.locator(".cat-said")).to_contain_text("noisy rewards · rollouts are reused")
    first = page.locator(".cat-row").first
    best = catalogue_search.answers(catalogue_records(), QUESTION)[0].method["name"]
    expect(first).to_contain_text(best)
    expect(page.locator(".cat-together .copyable code").first).to_contain_text(f"upslope compare {best} grpo")
    first.get_by_role("button").click()
    detail = page.locator(".cat-detail")
    expect(detail.locator("math").first).to_be_visible()
    expect(detail.locator(".cat-claims li").first).to_contain_text(re.compile("held|not shown|did not hold"))
    expect(detail.locator(".cat-claims img").first).to_be_visible()
    expect(detail.locator(".copyable code").first).to_have_text(f"upslope train {best} --task reverse")
    page.get_by_label("My task").fill("gym:Hopper-v5")
    expect(detail.locator(".copyable code").first).to_have_text(f"upslope train {best} --task gym:Hopper-v5")
    detail.get_by_role("link", name="all of it").click()
    expect(page.locator("h1")).to_contain_text(best)
    page.go_back()
    expect(page.get_by_label("What is your situation")).to_have_value(QUESTION)


def test_filters_and_order_narrow_the_table(page: Page, site: Path) -> None:
    page.goto(f"{site.as_uri()}/index.html#family=rlvr&slot=surrogate&needs=-critic&verdict=held")
    rows = page.locator(".cat-row")
    names = rows.locator(".cat-name a").all_inner_texts()
    assert 0 < len(names) < 30 and all("rlvr" in text for text in page.locator(".cat-family-cell").all_inner_texts())
    assert "critic" not in "".join(page.locator(".cat-needs-cell").all_inner_texts())
    assert all("held" in text for text in page.locator(".cat-verdict").all_inner_texts())
    page.get_by_role("button", name="Method", exact=True).click()
    assert rows.locator(".cat-name a").all_inner_texts() == sorted(names)
    expect(page.locator("th[aria-sort=ascending]")).to_contain_text("Method")
    page.get_by_label("From").select_option("2026")
    assert set(page.locator(".cat-year-cell").all_inner_texts()) <= {"2026"}
    page.get_by_label("What is your situation").fill("no such thing at all xyzzy")
    expect(page.locator(".cat-said")).to_contain_text("xyzzy")
    page.get_by_role("button", name="Clear").click()
    expect(rows).to_have_count(120)


def test_where_no_method_answers_all_two_that_compose_are_named(page: Page, site: Path) -> None:
    page.goto(f"{site.as_uri()}/index.html")
    for question in (
        "noisy rewards and mixture of experts",
        "long answers and off-policy and easy and hard tasks",
        "agents; entropy collapses",
    ):
        page.get_by_label("What is your situation").fill(question)
        shown = page.locator(".cat-together code", has_text="upslope train")
        if shown.count():
            command = re.match(r"upslope train (\S+) --task reverse$", shown.text_content() or "")
            assert command, question
            assert compose(command[1].split("+")).name == command[1]
    page.get_by_label("What is your situation").fill("noisy rewards and mixture of experts")
    expect(page.locator(".cat-together code").last).to_contain_text("+")


def test_the_keyboard_reaches_question_filters_table_and_links(page: Page, site: Path) -> None:
    page.goto(f"{site.as_uri()}/index.html#q=dhpo")
    page.locator(".cat-row").first.wait_for()
    page.get_by_label("What is your situation").focus()
    reached = []
    for _ in range(24):
        page.keyboard.press("Tab")
        reached.append(
            page.evaluate("document.activeElement.id || document.activeElement.className || document.activeElement.textContent")
        )
    assert [each for each in reached if each.startswith("cat-") and each not in ("cat-open", "cat-curve-link")] == [
        "cat-task",
        "cat-family",
        "cat-slot",
        "cat-needs",
        "cat-verdict",
        "cat-from",
        "cat-to",
        "cat-sort",
        "cat-clear",
    ]
    assert "cat-open" in reached and "dhpo" in reached
    page.locator(".cat-open").first.focus()
    page.keyboard.press("Enter")
    expect(page.locator(".cat-detail")).to_be_visible()


def test_the_search_works_from_a_folder(page: Page, site: Path) -> None:
    page.goto(f"{site.as_uri()}/index.html")
    page.locator("input.sidebar-search").fill("pessimistic clip")
    page.keyboard.press("Enter")
    expect(page.locator("ul.search li a").first).to_be_visible()
    expect(page.locator("ul.search")).to_contain_text("PessimisticClip")


@pytest.mark.parametrize("page", [(390, "light")], indirect=True, ids=str)
def test_the_tree_scrolls_in_its_own_box_and_leads_to_methods(page: Page, site: Path) -> None:
    page.goto(f"{site.as_uri()}/tree.html")
    box = page.locator(".tree-box")
    assert box.evaluate("box => box.scrollWidth > box.clientWidth && box.clientWidth < innerWidth")
    node = page.locator(".tree-node", has_text="dapo").first
    node.scroll_into_view_if_needed()
    node.click()
    expect(page.locator("h1")).to_contain_text("dapo")
