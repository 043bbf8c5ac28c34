"""A comparison's page, Markdown and text: complete, harmless, and true to the numbers."""

from __future__ import annotations

import base64
import re
from itertools import pairwise
from pathlib import Path

import pytest
from fake_runs import fake_run
from html_checker import Checker

from upslope.report.compare.charts import Plot, series, shortened
from upslope.report.compare.comparing import Options, compare_runs
from upslope.report.compare.gathering import gather
from upslope.report.compare.latex import latex
from upslope.report.compare.markdown import markdown
from upslope.report.compare.measuring import AXES, Comparison, Line, measure
from upslope.report.compare.numbers import numbers
from upslope.report.compare.page import page
from upslope.report.compare.style import STYLE
from upslope.report.compare.terminal import text


class PageChecker(Checker):
    """A comparison also has bands and radio buttons."""

    VOID = Checker.VOID | {"polygon", "input"}


def read(html: str) -> PageChecker:
    checker = PageChecker()
    checker.feed(html)
    checker.close()
    assert not checker.open
    return checker


def test_the_page_holds_the_answer_and_all_it_rests_on(found: Comparison) -> None:
    checker = read(page(found))
    for heading in (
        "grpo, gspo, dhpo on reverse", "dhpo beats both others; gspo and grpo cannot be told apart.",
        "Final score", "Learning curves", "Probability of improvement",
        "Performance profile", "pass@k", "Steps to a threshold", "Entropy", "KL to the start", "Clip fraction", "Gradient norm",
        "Decisions with gradient", "Length", "Dropped rollouts", "Seconds a step", "Memory", "How it was decided",
        "Settings that all runs share",
    ):  # fmt: skip
        assert heading in checker.text, heading
    for sentence in found.sentences:
        assert sentence in checker.text
    assert f"{found.standings[0].score.value:.3f}" in checker.text


def test_the_axis_switch_is_four_radio_buttons_with_a_view_each(found: Comparison) -> None:
    html = page(found)
    checker = read(html)
    picks = [attributes["id"] for tag, attributes in checker.tags if tag == "input"]
    assert picks == [f"axis-{axis}" for axis in AXES]
    assert [attributes["for"] for tag, attributes in checker.tags if tag == "label"] == picks
    for axis in AXES:
        assert f'<div class="by-{axis}"><figure tabindex="0">' in html and f"#axis-{axis}:checked ~ .views .by-{axis}" in html


def test_the_page_can_neither_load_nor_run_anything(found: Comparison) -> None:
    checker = read(page(found))
    policies = [a["content"] for tag, a in checker.tags if tag == "meta" and a.get("http-equiv") == "Content-Security-Policy"]
    assert policies == ["default-src 'none'; style-src 'unsafe-inline'"]
    assert not {"script", "link", "img", "iframe", "object"} & {tag for tag, _ in checker.tags}
    assert not [name for _, attributes in checker.tags for name in attributes if name.startswith("on") or name in ("src", "style")]


def test_the_finding_is_the_first_thing_said(found: Comparison) -> None:
    finding = "Every method learned. dhpo beats both others; gspo and grpo cannot be told apart."
    assert found.finding == finding and found.record()["finding"] == finding
    assert text(found).startswith(f"{finding}\n") and markdown(found).startswith(f"# {finding}\n")
    assert page(found).split("<main>")[1].lstrip().startswith(f"<header><h1>{finding}</h1>")


def test_the_page_is_one_file_that_takes_its_numbers_and_its_table_along(found: Comparison) -> None:
    html = page(found)
    checker = read(html)
    links = [attributes["href"] for _, attributes in checker.tags if "href" in attributes]
    assert [link.partition(",")[0] for link in links] == ["data:text/csv;charset=utf-8;base64"]
    assert base64.b64decode(links[0].partition(",")[2]).decode() == numbers(found)
    assert latex(found) in checker.text
    assert not re.search(r"https?://|file:|url\(|@import", html)
    shown = found.runs["grpo"][0].rsplit("/", 2)  # where somebody's home is concerns nobody it is sent to
    assert f"…/{shown[1]}/{shown[2]}" in checker.text and shown[0] not in html


def test_every_method_has_a_line_style_of_its_own_beside_its_colour() -> None:
    dashes = dict(re.findall(r"^\.line\.(\S+) \{ stroke-dasharray: ([^;]+);", STYLE, re.MULTILINE))
    names = [series(place).replace(" ", ".") for place in range(16)]
    assert len({dashes[name] for name in names}) == 16


def test_hostile_labels_are_only_text(tmp_path: Path) -> None:
    attack = '"><script>alert(1)</script>|`*\ud800'
    paths = [(fake_run(tmp_path, "grpo", seed, 0.5), attack) for seed in range(2)]
    paths += [(fake_run(tmp_path, "gspo", seed, 0.6), "gspo") for seed in range(2)]
    made = measure(gather(paths))
    checker = read(page(made))
    assert not {"script", "img"} & {tag for tag, _ in checker.tags} and "<script>alert(1)</script>" in checker.text
    told = markdown(made)
    assert "<script>" not in told and "\\|\\`\\*" in told


def test_markdown_and_text_say_what_the_comparison_says(found: Comparison) -> None:
    for told in (markdown(found), text(found)):
        for sentence in found.sentences:
            assert sentence in told
        assert f"{found.standings[0].score.value:.3f} [" in told
    rows = [line for line in markdown(found).splitlines() if line.startswith("| dhpo |")]
    assert len(rows) == 3 and rows[0].count("|") == 5 and "5 of 5" in rows[0]
    assert rows[1] == "| dhpo | 0.4 | 0.92 | +0.520 [+0.483, +0.552] | 5 of 5 | learned |"
    assert re.search(r"dhpo over grpo +1\.00 +0\.54 to 1\.00 .* 5 of 5 +0\.024 +dhpo wins", text(found))


def test_runs_that_may_not_be_ranked_are_shown_and_not_ranked(tmp_path: Path) -> None:
    paths = [fake_run(tmp_path, "grpo", seed, 0.1) for seed in range(2)]
    paths += [fake_run(tmp_path, "gspo", seed, 0.9, steps=30) for seed in range(2)]
    made = measure(gather([(path, None) for path in paths]))
    checker = read(page(made))
    assert "These runs are not ranked." in checker.text and "steps is 20 for grpo; 30 for gspo" in checker.text
    assert "Learning curves" in checker.text and "Probability of improvement" not in checker.text
    assert "beats" not in checker.text and "## Pairs" not in markdown(made)


def test_one_run_and_two_tasks_have_a_page_too(tmp_path: Path) -> None:
    alone = measure(gather([(fake_run(tmp_path, "grpo", 0, 0.5), None)]))
    assert "nothing to compare it with" in read(page(alone)).text
    paths = [
        fake_run(tmp_path, method, seed, 0.5, task=task, before=0.1)
        for method in ("ppo", "bpo") for task in ("gym:CartPole-v1", "reverse") for seed in range(2)
    ]  # fmt: skip
    both = read(page(measure(gather([(path, None) for path in paths]))))
    assert "All tasks together, normalised" in both.text and "Mean return on gym:CartPole-v1" in both.text


def test_comparing_finished_runs_writes_its_files_and_knows_its_own_folder_again(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    runs = [fake_run(Path("runs"), method, seed, 0.5) for method in ("grpo", "gspo") for seed in range(2)]
    answer = compare_runs(runs, Options(quiet=True))
    written = {file.name for file in answer.path.iterdir()}
    assert written == {"report.html", "report.md", "table.tex", "numbers.csv", "comparison.json"}
    assert (answer.path / "table.tex").read_text() == answer.latex() and (answer.path / "numbers.csv").read_text() == answer.csv()
    again = compare_runs([*runs, answer.path], Options(quiet=True))  # as runs/* finds it beside them
    assert again.path == answer.path and again.comparison.labels == answer.comparison.labels


@pytest.mark.slow
def test_the_switch_works_in_a_browser_by_mouse_and_keyboard(found: Comparison, tmp_path: Path) -> None:
    import shutil

    sync_api = pytest.importorskip("playwright.sync_api")
    if shutil.which("chromium") is None:
        pytest.skip("no chromium here")
    (tmp_path / "report.html").write_text(page(found))
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"))
        for scheme in ("light", "dark"):
            tab = browser.new_context(color_scheme=scheme).new_page()
            asked, troubles = list[str](), list[str]()
            tab.on("request", lambda request, asked=asked: asked.append(request.url))
            tab.on("console", lambda message, troubles=troubles: troubles.append(message.text))
            tab.goto((tmp_path / "report.html").as_uri())

            def shown(tab=tab) -> list[str]:
                return [axis for axis in AXES if tab.locator(f".by-{axis}").is_visible()]

            assert shown() == ["steps"]
            tab.get_by_text("tokens", exact=True).first.click()
            assert shown() == ["tokens"]
            tab.keyboard.press("ArrowRight")
            assert shown() == ["seconds"]
            colours = tab.evaluate("[getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color]")
            brightness = [sum(map(int, re.findall(r"\d+", colour)[:3])) for colour in colours]
            assert (brightness[0] > brightness[1]) == (scheme == "light")
            assert len(asked) == 1 and not troubles
            tab.set_viewport_size({"width": 390, "height": 800})
            tab.evaluate("document.querySelectorAll('details').forEach(each => { each.open = true })")
            assert tab.evaluate("document.documentElement.scrollWidth") == 390
            hidden = "[...document.querySelectorAll('*')].filter(e => e.clientWidth < e.scrollWidth && e.tabIndex < 0"
            hidden += " && getComputedStyle(e).overflowX == 'auto').length"
            assert tab.evaluate(hidden) == 0  # what is moved sideways can be by the keyboard too
        browser.close()


def test_names_at_the_ends_of_lines_do_not_overlap() -> None:
    lines = [Line(f"m{i}", [0.0, 1.0], [0.5, 0.5 + i * 1e-3], [0.0, 0.0], [1.0, 1.0]) for i in range(6)]
    drawn = Plot(0, 1, 0, 1).names(lines, {line.label: place for place, line in enumerate(lines)})
    heights = sorted(float(y) for y in re.findall(r' y="([\d.]+)"', drawn))
    assert all(b - a >= 14.9 for a, b in pairwise(heights))
    assert series(9) == "s1 dashed" and len(shortened("x" * 99)) == 30
