"""The catalogue on the board: the same data as on the site, in a real browser a question, its answer and the command."""

from __future__ import annotations

import json
import urllib.request

import pytest
from board_browser import NEEDS_CHROMIUM, Page, expect, picture

from upslope.board.catalogue import catalogue_data, formula_lines
from upslope.methods import catalogue
from upslope.report import catalogue_search

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
    best = catalogue_search.answers(catalogue_data(), "my rewards are noisy and I reuse rollouts")[0].method["name"]
    expect(first).to_contain_text(best)
    expect(page.locator(".cat-together .copyable code").first).to_contain_text(f"upslope compare {best} grpo")
    page.get_by_label("My task").fill("sum")
    first.get_by_role("button").click()
    expect(page.locator(".cat-detail .copyable code").first).to_have_text(f"upslope train {best} --task sum")
    expect(page.locator(".cat-detail math").first).to_be_visible()
    picture(page, "methods")
    page.reload()
    expect(page.locator(".cat-detail")).to_be_visible()
    page.locator(".cat-row").first.get_by_role("link").first.click()
    expect(page.locator("h1")).to_contain_text(best)
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(f"{address}#/methods")
    page.locator(".cat-row").first.wait_for()
    assert page.locator(".catalogue").evaluate("box => box.scrollWidth <= box.clientWidth")


QUESTIONS = (
    "my rewards are noisy and I reuse rollouts", "entropy collapse", "long answers and stale rollouts", "a robot and a log",
    "cispo", "pairs of answers, no reward", "clip ratio per token", "groups all wrong; memory is short",
    "Wörter, die niemand kennt", "2402.03300",
)  # fmt: skip


@pytest.mark.slow
@NEEDS_CHROMIUM
def test_a_browser_ranks_as_the_terminal_does(page: Page, address: str) -> None:
    records = catalogue_data()
    page.goto(address)
    script = """async ([data, questions]) => {
        const { search, together, comparison } = await import("/page/js/catalogue_search.js");
        return questions.map((question) => {
            const result = search(data, { question });
            const both = together(data, result);
            return {
                names: result.found.map((each) => each.method.name),
                scores: result.found.map((each) => each.score),
                situations: result.asked.situations,
                together: both && [both.first.name, both.second.name],
                comparison: comparison(data, result, "") ?? "",
            };
        });
    }"""
    for question, seen in zip(QUESTIONS, page.evaluate(script, [records, list(QUESTIONS)]), strict=True):
        asked = catalogue_search.understand(question, records["situations"])
        assert seen["situations"] == list(asked.situations), question
        found = catalogue_search.answers(records, question) if asked.situations or asked.words else []
        assert seen["names"] == [each.method["name"] for each in found], question
        assert seen["scores"] == pytest.approx([each.score for each in found]), question
        both = catalogue_search.together(records, question)
        assert seen["together"] == (list(both) if both else None), question
        assert seen["comparison"] == catalogue_search.comparison(records, question), question
