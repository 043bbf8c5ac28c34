"""The catalogue on the board: the same data as on the site, in a real browser a question, its answer and the command."""

from __future__ import annotations

import json
import urllib.request

import pytest
from board_browser import NEEDS_CHROMIUM, Page, expect, picture

from upslope.board.catalogue import catalogue_data, formula_lines
from upslope.methods import catalogue

pytest_plugins = ["board_fixtures"]


def test_every_formula_is_set() -> None:
    for method in catalogue_data()["methods"]:
        assert method["formula_mathml"] and all(line.startswith("<math") for line in method["formula_mathml"]), method["name"]
    assert len(formula_lines("a = b,   c = d;   e")) == 3 and formula_lines("") == []


@pytest.mark.slow
def test_the_board_answers_with_the_data_of_the_site(address: str) -> None:
    with urllib.request.urlopen(f"{address}api/catalogue", timeout=60) as answer:
        assert json.load(answer) == json.loads(json.dumps(catalogue_data()))


@pytest.mark.slow
@NEEDS_CHROMIUM
def test_a_method_is_found_on_the_board_and_tried_on_my_task(page: Page, address: str) -> None:
    page.goto(address)
    page.get_by_role("link", name="Methods", exact=True).click()
    expect(page.locator(".cat-row")).to_have_count(len(catalogue()))
    page.get_by_label("What is your situation").fill("my rewards are noisy and I reuse rollouts")
    first = page.locator(".cat-row").first
    expect(first).to_contain_text("pipo")
    page.get_by_label("My task").fill("sum")
    first.get_by_role("button").click()
    expect(page.locator(".cat-detail .copyable code").first).to_have_text("upslope train pipo --task sum")
    expect(page.locator(".cat-detail math").first).to_be_visible()
    picture(page, "methods")
    page.reload()
    expect(page.locator(".cat-detail")).to_be_visible()
    page.locator(".cat-row").first.get_by_role("link").first.click()
    expect(page.locator("h1")).to_contain_text("pipo")
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(f"{address}#/methods")
    page.locator(".cat-row").first.wait_for()
    assert page.locator(".catalogue").evaluate("box => box.scrollWidth <= box.clientWidth")
