"""Every view of the board in a real browser: on a phone, a tablet and a desk, light and dark, by axe-core and by keyboard alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import board_runs
import pytest
from board_browser import NEEDS_CHROMIUM, Page, expect, picture
from board_gallery import gallery
from board_walk import AXE, CHECK, FAULTS, REACHED, SCHEMES, UNREACHED, VIEWS, WIDTHS, sweep

pytest_plugins = ["board_fixtures"]
pytestmark = [pytest.mark.slow, NEEDS_CHROMIUM]


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return gallery(tmp_path_factory.mktemp("views") / "runs")


@pytest.fixture(scope="module")
def at(shown: Path) -> Iterator[str]:
    with board_runs.board(shown, "--allow-control") as address:
        yield address


def address_of(view: str, shown: Path) -> str:
    runs = sorted(path.relative_to(shown).as_posix() for path in (shown / "sweep").iterdir())
    return VIEWS[view][0].format(sweep=sweep(runs))


def open_view(page: Page, at: str, view: str, shown: Path) -> None:
    page.goto("about:blank")
    page.goto(at + address_of(view, shown))
    page.locator(VIEWS[view][1]).first.wait_for()


def test_every_view_fits_every_width_in_both_schemes_and_axe_finds_nothing_serious(page: Page, at: str, shown: Path) -> None:
    faults = []
    for view in VIEWS:
        open_view(page, at, view, shown)
        page.evaluate(AXE)
        for scheme in SCHEMES:
            page.emulate_media(color_scheme=scheme)
            for width in WIDTHS:
                page.set_viewport_size({"width": width, "height": 800})
                page.wait_for_timeout(50)  # charts take their width in the next frame
                faults += [f"{view}, {width} px, {scheme}: {each}" for each in page.evaluate(FAULTS)]
            picture(page, f"view-{view.replace(' ', '-')}-{scheme}")
            # Only colours can be otherwise in the dark.
            faults += [
                f"{view}, {scheme}: {each}" for each in page.evaluate(CHECK, [] if scheme == "light" else ["color-contrast"])
            ]
    assert faults == []


def test_the_walk_finds_what_it_looks_for(page: Page, at: str, shown: Path) -> None:
    open_view(page, at, "without data", shown)
    page.evaluate(AXE)
    page.evaluate("""() => {
      const add = (style, text) => Object.assign(document.querySelector("main").appendChild(document.createElement("button")),
        { textContent: text }).style.cssText = style;
      add("width: 3000px", "wide");
      add("position: fixed; left: 0; top: 0; width: 200px; height: 60px; background: white", "over");
      add("color: #eee; background: white", "pale");
    }""")
    faults = " ".join(page.evaluate(FAULTS))
    assert "“wide” sticks out" in faults and "“wide” cannot be reached" in faults and "lies under BUTTON. “over”" in faults
    assert "color-contrast" in " ".join(page.evaluate(CHECK, []))


def test_the_keyboard_alone_reaches_everything_and_the_focus_is_seen(page: Page, at: str, shown: Path) -> None:
    for view in ("runs", "curves", "rollouts", "method", "crashed"):
        open_view(page, at, view, shown)
        for _ in range(160):
            page.keyboard.press("Tab")
            assert page.evaluate(REACHED) == "", view
            if not page.evaluate(UNREACHED):
                break
        assert page.evaluate(UNREACHED) == [], view


def test_a_sweep_is_told_apart_by_what_differs_and_can_be_filtered_and_sorted(page: Page, at: str, shown: Path) -> None:
    page.goto(at + address_of("curves", shown))
    names = page.locator(".legend-name > span")
    expect(names).to_have_count(6)
    said = names.all_inner_texts()
    assert len(set(said)) == 6 and "gated · lr 3e-4 · surrogate.high 0.2" in said
    looks = page.locator(".legend .swatch-line line").evaluate_all("lines => lines.map((each) => each.outerHTML)")
    assert len(set(looks)) == 6, "no colour twice"
    page.get_by_label("Filter the runs shown").fill("lr<1e-3 high:0.3")
    expect(names).to_have_text(["gated · lr 3e-4 · surrogate.high 0.3"])
    expect(page.locator('[data-key="reward"] .chart > ul li')).to_have_count(1)
    page.get_by_label("Filter the runs shown").fill("")
    page.get_by_label("Sort").select_option("surrogate.high")
    expect(names).to_have_count(6)
    assert [name[-3:] for name in names.all_inner_texts()] == ["0.1", "0.1", "0.2", "0.2", "0.3", "0.3"]
    assert "sort=surrogate.high" in page.url

    page.goto(at + "#/?filter=folder:sweep")
    expect(page.locator("tr.run .name a").first).to_have_text("gated · lr 3e-3 · surrogate.high 0.3")
    page.get_by_text("Columns", exact=True).click()
    page.get_by_label("surrogate.high", exact=True).check()
    page.keyboard.press("Escape")
    page.get_by_role("columnheader", name="surrogate.high").get_by_role("button").click()
    expect(page.locator("tr.run td.further")).to_have_text(["0.1", "0.1", "0.2", "0.2", "0.3", "0.3"])
    assert "col=surrogate.high" in page.url


def test_a_note_and_tags_are_kept_and_found(page: Page, at: str, shown: Path) -> None:
    page.goto(at + "#/method?run=dhpo-1")
    page.get_by_role("button", name="Add a note of dhpo-1").click()
    page.get_by_label("Tags, with blanks").fill("keep paper-2")
    page.get_by_label("Note", exact=True).fill("the one with the longer warm-up <b>")
    page.get_by_role("button", name="Save").click()
    expect(page.locator(".notes-line")).to_contain_text("the one with the longer warm-up <b>")
    page.goto(at + "#/?filter=tag:keep")
    expect(page.locator("tr.run")).to_have_count(1)
    assert '"paper-2"' in (shown / "dhpo-1" / "notes.json").read_text()


def test_a_crashed_run_shows_its_error_and_a_run_shows_only_what_it_has(page: Page, at: str) -> None:
    page.goto(at + "#/")
    expect(page.locator("tr.run", has_text="unpriced")).to_contain_text("crashed")
    page.goto(at + "#/rollouts?run=unpriced")
    expect(page.locator(".notice.bad")).to_contain_text("no price for the answer")
    page.get_by_text("Traceback and what else is known").click()
    expect(page.get_by_role("region", name="Traceback")).to_contain_text("breaking.py")
    expect(page.locator("nav a[data-needs]:visible")).to_have_count(0)
    page.goto(at + "#/curves?run=killed")
    expect(page.locator(".notice.bad")).to_contain_text("its process is gone")
    page.goto(at + "#/method?run=control/pendulum")
    expect(page.locator("nav a[data-needs]:visible")).to_have_text(["Critics", "Data"])


def test_from_a_curve_to_the_rollout_and_from_there_to_the_decision(page: Page, at: str) -> None:
    page.goto(at + "#/curves?run=dhpo-0&key=reward&x=tokens")
    chart = page.locator('[data-key="reward"] .chart')
    expect(chart.locator("> ul li")).to_have_count(1)
    chart.focus()
    page.keyboard.press("Home")
    page.keyboard.press("Enter")
    page.keyboard.press("Enter")  # the link has the focus now
    expect(page.locator(".step-text")).to_have_text("step 1 of 3")
    page.locator(".sample .token").nth(2).click()
    expect(page.locator(".token-card dd[data-fact=position]")).to_have_text("2")
    assert "at=2" in page.url and "step=1" in page.url
    page.reload()
    expect(page.locator(".token:focus")).to_have_attribute("data-at", "2")
