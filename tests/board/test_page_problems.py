"""The page of a run's problems in a real browser: categories over time, a step's problems and why, those that were made."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import board_runs
import pytest
from board_browser import NEEDS_CHROMIUM, Page, expect, picture

import upslope as up

pytest_plugins = ["board_fixtures"]
pytestmark = [pytest.mark.slow, NEEDS_CHROMIUM]


@pytest.fixture(scope="module")
def choosing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that draws by category, one that makes problems, one that does neither."""
    root = tmp_path_factory.mktemp("problems") / "runs"
    (root.parent / "reward.py").write_text(board_runs.REWARD)
    sizes = {**board_runs.SMALL, "steps": 4, "eval_every": 0, "reward": f"{root.parent / 'reward.py'}:score"}
    up.train("sec", "reverse:length=2+copy", out=root / "sec", **sizes)
    up.train("eva", "reverse:length=2", out=root / "eva", **sizes)
    up.train("grpo", "reverse:length=2", out=root / "grpo", **sizes)
    return root


@pytest.fixture(scope="module")
def at(choosing: Path) -> Iterator[str]:
    with board_runs.board(choosing) as address:
        yield address


def lines(run: Path) -> list[dict]:
    return [json.loads(line) for line in (run / "problems.jsonl").read_text().splitlines()]


def test_categories_are_lines_of_one_chart_and_problems_say_why_they_were_chosen(page: Page, at: str, choosing: Path) -> None:
    page.goto(at + "#/problems?run=sec")
    expect(page.locator("[data-shares] .uplot")).to_have_count(1)
    expect(page.locator("[data-shares] .chip")).to_have_text(["copy", "reverse length 2"])
    last = lines(choosing / "sec")[-1]
    rows = page.locator(".problems section:nth-of-type(2) tbody tr")
    expect(rows).to_have_count(len(last["problems"]))
    assert rows.locator(".prompt-text").all_inner_texts() == [each["prompt"] for each in last["problems"]]
    assert rows.locator("td:nth-child(2)").all_inner_texts() == [str(each["answers"]) for each in last["problems"]]
    expect(rows.first).to_contain_text(f"category {last['problems'][0]['chosen']['category']}, difficulty ")
    picture(page, "problems")
    page.get_by_label("Step", exact=True).fill("0")
    expect(page.locator(".step-text")).to_have_text("step 1 of 4")
    expect(rows.first.locator(".prompt-text")).to_have_text(lines(choosing / "sec")[0]["problems"][0]["prompt"])
    assert "step=1" in page.url


def test_problems_that_were_made_stand_over_their_ancestors(page: Page, at: str, choosing: Path) -> None:
    told = lines(choosing / "eva")
    made = {each["id"]: each for line in told for each in line["made"]}
    page.goto(at + "#/problems?run=eva")
    expect(page.get_by_role("heading", name=f"{len(made)} problems made during the run")).to_be_visible()
    first = page.locator(".problems section:nth-of-type(3) tbody tr").first
    prompt = first.locator(".prompt-text").inner_text()
    (known,) = [each for each in made.values() if each["prompt"] == prompt]
    assert first.locator(".ancestors li").all_inner_texts() == known["made_from"]
    taken = sum(each["prompt"] == prompt for line in told for each in line["problems"])
    expect(first.locator("td:nth-child(4)")).to_have_text(str(taken))
    assert taken > 0, "those taken most often come first"
    expect(page.locator("[data-shares]")).to_be_hidden()


def test_a_run_that_chooses_nothing_says_so_and_hostile_prompts_do_nothing(page: Page, at: str, choosing: Path) -> None:
    page.goto(at + "#/problems?run=grpo")
    expect(page.get_by_role("heading", name="Nothing was chosen")).to_be_visible()
    page.keyboard.press("4")
    expect(page.locator(".method-title")).to_be_visible()
    hostile = board_runs.HOSTILE
    made = {"id": "1", "prompt": hostile[0], "made_from": hostile, "made_by": hostile[1], "generation": 1}
    problem = {"id": "2", "prompt": hostile[5], "answers": 4, "reward": 0.5, "chosen": {hostile[0]: hostile[1]}}
    (choosing / "grpo" / "problems.jsonl").write_text(json.dumps({"step": 1, "problems": [problem], "made": [made]}) + "\n")
    page.goto(at + "#/problems?run=grpo&step=1")
    expect(page.locator(".problems .prompt-text")).to_have_text([hostile[5], hostile[0]])
    assert page.locator(".problems img, .problems script, .problems b").count() == 0
