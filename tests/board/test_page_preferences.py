"""The page of a run's preferences in a real browser: curves of both sides, contests side by side, matrices, search trees."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import board_runs
import pytest
from board_browser import CONTRAST, NEEDS_CHROMIUM, Page, expect, picture
from board_folders import write_rollout

import upslope as up

pytest_plugins = ["board_fixtures"]
pytestmark = [pytest.mark.slow, NEEDS_CHROMIUM]
HOSTILE = board_runs.HOSTILE


@pytest.fixture(scope="module")
def preferring(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Given pairs; and a run on rock, scissors, paper in whose last step everything that is shown was written by an enemy."""
    root = tmp_path_factory.mktemp("preferences") / "runs"
    sizes = {**board_runs.SMALL, "steps": 3, "eval_every": 1, "updates_per_step": 1}
    up.train("dpo", "reverse:length=3", out=root / "dpo", **sizes)
    up.train("inpo", "rps", out=root / "inpo", **sizes)
    write_rollout(root / "inpo", 3, hostile_step())
    return root


@pytest.fixture(scope="module")
def at(preferring: Path) -> Iterator[str]:
    with board_runs.board(preferring) as address:
        yield address


def hostile_step() -> dict[str, Any]:
    """Three answers of which the last two lost, chances between them, a judge's words, and a tree of four nodes."""
    rates = [(0.75, 0.5, 0.9), (0.25, 0.1, 0.5), (0.5, 0.4, 0.6)]
    samples = [
        {"row": row, "response": f"same {HOSTILE[row]}", "kept": True, "reward": 0.0, "advantage": (1.0, -1.0, -1.0)[row],
         "compared": dict(zip(("win_rate", "beats_best", "beats_worst"), rates[row], strict=True)),
         "noted": {"margin": 0.125, "logp_chosen": -3.5} if row == 0 else {"logp_rejected": -4.5}}
        for row in range(3)
    ]  # fmt: skip
    nodes = [{"tree": 0, "path": path, "visits": 8 - len(path), "value": 0.5, "text": HOSTILE[0]} for path in ([0], [1], [0, 0])]
    group = {"group": 0, "prompt": HOSTILE[0], "answer": HOSTILE[1], "size": 3, "samples": samples}
    judged = [{"asked": HOSTILE[5], "said": HOSTILE[1]}]
    return {"step": 3, "groups": [group], "judged": judged, "trees": [{"prompt": HOSTILE[5], "tree": 0, "nodes": nodes}]}


def shown(text: str) -> str:
    """As the page writes it: what cannot be seen by marks."""
    return text.replace(" ", "·").replace("\u202e", "U+202E")


def test_pairs_stand_side_by_side_under_the_curves_of_both_likelihoods(page: Page, at: str, preferring: Path) -> None:
    page.goto(at + "#/preferences?run=dpo")
    titles = ["Log-likelihood of both sides", "Margin", "Preferred"]
    expect(page.locator(".preferences .chart-box h2")).to_have_text(titles)
    expect(page.locator("[data-chart^='Log'] .chip")).to_have_text(
        ["log-likelihood of the chosen", "log-likelihood of the rejected"]
    )
    record = board_runs.read_step(preferring / "dpo" / "rollouts" / "step-000003.json.gz")
    cards = page.locator("[data-contest]")
    expect(cards).to_have_count(len(record["groups"]))
    won, lost = record["groups"][0]["samples"]
    alike = next(at for at, (one, other) in enumerate(zip(won["response"], lost["response"], strict=True)) if one != other)
    first = cards.first
    expect(first.locator(".side .chip:nth-of-type(1)")).to_have_text(["chosen", "rejected"])
    assert first.locator(".own-text").all_inner_texts() == [won["response"][alike:], lost["response"][alike:]]
    assert first.locator(".shared-text").all_inner_texts() == ([won["response"][:alike]] * 2 if alike else [])
    expect(first.locator("[data-margin]")).to_contain_text("margin")
    picture(page, "preferences")
    page.get_by_label("Step", exact=True).fill("0")
    expect(page.locator(".step-text")).to_have_text("step 1 of 3")
    assert "step=1" in page.url
    page.locator(".side a").first.click()
    expect(page.locator(".sample .token").first).to_be_visible()
    assert "row=0" in page.url
    page.keyboard.press("6")
    expect(page.locator("[data-contest]").first).to_be_visible()


@pytest.mark.parametrize("page", ["dark"], indirect=True)
def test_hostile_contests_matrices_and_trees_are_text_and_fit_a_phone_in_the_dark(page: Page, at: str) -> None:
    page.set_viewport_size({"width": 390, "height": 780})
    page.goto(at + "#/preferences?run=inpo")
    contest = page.locator("[data-contest]")
    expect(contest.locator(".side .answer-text")).to_have_text([shown(f"same {HOSTILE[row]}") for row in range(3)])
    apart = (HOSTILE[0], HOSTILE[1][1:], HOSTILE[2])  # the first is told from both others, of which one begins with < as well
    expect(contest.locator(".own-text")).to_have_text([*map(shown, apart)])
    expect(contest.locator("[data-chance]")).to_have_text("wins with chance 0.900")
    rows = [["", "0.900", "0.600", "0.750"], ["0.100", "", "0.400", "0.250"], ["0.400", "0.600", "", "0.500"]]
    table = page.locator(".chances tbody tr")
    assert [table.nth(row).locator("td").all_inner_texts() for row in range(3)] == rows
    expect(page.locator("[data-judge] .said")).to_have_text([shown(HOSTILE[5]), shown(HOSTILE[1])])
    expect(page.locator("[data-tree] .node-facts")).to_contain_text(["–", "7 visits", "6 visits", "7 visits"])
    expect(page.locator("[data-tree] li li li .node-text")).to_have_text(shown(HOSTILE[0]))
    expect(page.locator("[data-chart='Exploitability'] .uplot")).to_have_count(1)
    expect(page.locator("[data-chart='Chance of each answer'] .chip")).to_have_count(3)
    assert page.locator("main img, main script, main b").count() == 0
    assert page.evaluate("document.querySelector('main').scrollWidth <= document.querySelector('main').clientWidth")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "nothing sticks out of a phone"
    assert [each for each in page.evaluate(CONTRAST) if each["ratio"] < each["enough"]] == []
    picture(page, "preferences-phone")
    page.locator("[data-tree]").scroll_into_view_if_needed()
    picture(page, "preferences-phone-tree")
