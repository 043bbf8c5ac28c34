"""The board's page in a real browser: what is seen, what the keyboard reaches, what hostile text does (nothing)."""

from __future__ import annotations

import gzip
import json
import re
import shutil
import threading
from pathlib import Path
from typing import Any

import board_runs
import pytest
from board_browser import NEEDS_CHROMIUM, Locator, Page, expect, picture

pytest_plugins = ["board_fixtures"]
pytestmark = [pytest.mark.slow, NEEDS_CHROMIUM]


def rows(page: Page) -> list[str]:
    return page.locator("tr.run .name small").all_inner_texts()


def facts(page: Page) -> dict[str, str]:
    names, values = (page.locator(f".token-card {tag}").all_inner_texts() for tag in ("dt", "dd"))
    return dict(zip(names, values, strict=True))


def steps_of(run: Path) -> list[dict[str, Any]]:
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [record for record in records if record["kind"] == "step"]


def figure(text: str) -> float:
    """A number as the page writes it, with a true minus."""
    return float(text.replace("−", "-"))


# -- runs ------------------------------------------------------------------------------------------------------------------


def test_lists_runs_and_filters_and_sorts_them(page: Page, address: str) -> None:
    page.goto(address)
    expect(page.locator("tr.run")).to_have_count(7)
    expect(page.locator(".counted")).to_have_text("7 runs")
    picture(page, "runs")

    page.get_by_label("Filter runs").fill("dhpo -task:sort")
    expect(page.locator(".counted")).to_have_text("2 of 7 runs")
    assert sorted(rows(page)) == ["dhpo-0", "dhpo-1"]
    page.get_by_role("button", name="Seed").click()
    assert rows(page) == ["dhpo-0", "dhpo-1"]
    page.get_by_role("button", name="Seed").click()
    assert rows(page) == ["dhpo-1", "dhpo-0"]
    expect(page.locator("th", has_text="Seed")).to_have_attribute("aria-sort", "descending")

    page.reload()
    expect(page.get_by_label("Filter runs")).to_have_value("dhpo -task:sort")
    assert rows(page) == ["dhpo-1", "dhpo-0"]
    page.get_by_label("Filter runs").fill("no such thing")
    expect(page.get_by_text("No run matches")).to_be_visible()


def test_groups_runs_and_ticks_ranges(page: Page, address: str) -> None:
    page.goto(address + "#/?group=method")
    expect(page.locator("tr.group")).to_have_count(3)
    page.get_by_label("Tick all of grpo").click()
    expect(page.get_by_role("link", name="Overlay 2 runs")).to_be_visible()
    page.get_by_role("button", name="dhpo").click()
    expect(page.locator("tr.run")).to_have_count(3)

    page.goto(address + "#/?sort=method")
    page.get_by_role("button", name="Untick all").click()
    page.locator("tr.run").nth(1).click()
    page.locator("tr.run").nth(4).click(modifiers=["Shift"])
    expect(page.get_by_role("link", name="Overlay 4 runs")).to_be_visible()
    expect(page.locator("tr.run.ticked")).to_have_count(4)


# -- curves ----------------------------------------------------------------------------------------------------------------


def test_overlays_two_runs_and_hover_says_what_was_logged(page: Page, address: str, runs: Path) -> None:
    page.goto(address)
    page.get_by_label("Tick grpo-0").click()
    page.get_by_label("Tick dhpo-1").click()
    page.get_by_role("link", name="Overlay 2 runs").click()
    chart = page.locator('[data-key="reward"] .chart')
    expect(chart.locator("li")).to_have_count(2)
    chart.hover(position={"x": 300, "y": 100})
    card = chart.locator(".chart-card")
    expect(card).to_be_visible()
    step = int(card.locator("strong").inner_text().removeprefix("step "))
    shown = {row.locator("th").inner_text(): row.locator("td").first.inner_text() for row in card.locator("tr").all()}
    picture(page, "curves")
    for name, run in (("grpo · seed 0", "grpo-0"), ("dhpo · seed 1", "dhpo-1")):
        logged = next(record["reward"] for record in steps_of(runs / run) if record["step"] == step)
        assert figure(shown[name]) == pytest.approx(logged, abs=5e-4)


def test_zoom_asks_for_the_range_and_axes_change(page: Page, address: str) -> None:
    page.goto(address + "#/curves?run=grpo-0&run=dhpo-0&key=reward&key=score")
    over = page.locator('[data-key="reward"] .u-over')
    expect(page.locator('[data-key="reward"] .chart li')).to_have_count(2)
    box = over.bounding_box()
    assert box is not None
    with page.expect_request(re.compile(r"/api/curves.*key=reward.*from=\d+&to=\d+")):
        page.mouse.move(box["x"] + box["width"] * 0.3, box["y"] + 50)
        page.mouse.down()
        page.mouse.move(box["x"] + box["width"] * 0.7, box["y"] + 60, steps=4)
        page.mouse.up()
    expect(page.get_by_role("button", name="Whole range")).to_be_visible()
    over.dblclick(position={"x": 100, "y": 50})
    expect(page.get_by_role("button", name="Whole range")).to_be_hidden()
    page.get_by_role("radio", name="tokens").check()
    expect(page.locator('[data-key="reward"] .chart li').first).to_contain_text("at tokens")
    page.get_by_label("Log y").check()
    page.get_by_label("Smooth").fill("0.5")
    assert {"x=tokens", "smooth=0.5", "logy=1"} <= set(page.url.split("?", 1)[1].split("&"))
    page.reload()
    expect(page.get_by_label("Log y")).to_be_checked()


def test_seeds_as_bands(page: Page, address: str) -> None:
    page.goto(address + "#/curves?run=grpo-0&run=grpo-1&run=dhpo-0&run=dhpo-1&key=reward")
    page.get_by_label("Seeds as bands").check()
    expect(page.locator(".legend li")).to_have_count(2)
    expect(page.locator(".legend")).to_contain_text("grpo (2 seeds)")
    expect(page.locator('[data-key="reward"] .chart li').first).to_contain_text("(2 seeds)")
    picture(page, "bands")


def test_a_live_run_grows(page: Page, address: str, runs: Path) -> None:
    going = threading.Event()
    training = threading.Thread(
        target=board_runs.slow_run, args=(runs / "live", 40, lambda: going.wait(0.15)), name="trains under the eyes of the page"
    )
    page.goto(address)
    training.start()
    try:
        expect(page.locator("tr.run", has_text="live")).to_contain_text("running")
        expect(page.locator("#connection")).to_have_text("1 run running")
        page.locator("tr.run", has_text="live").get_by_role("link", name="grpo").click()
        said = page.locator('[data-key="reward"] .chart li')
        expect(said).to_contain_text("at step")
        before = last_step(said)
        page.wait_for_function(
            "before => Number(document.querySelector('[data-key=reward] .chart li').textContent.split(' ').at(-1)) > before + 3",
            arg=before,
        )
        going.set()
        training.join()
        expect(page.locator(".legend")).to_contain_text("finished")
        expect(said).to_contain_text("at step 40")
    finally:
        going.set()
        training.join()
    shutil.rmtree(runs / "live")
    expect(page.locator("main")).to_contain_text("gone")


def last_step(said: Locator) -> int:
    return int(said.inner_text().split(" ")[-1])


# -- rollouts --------------------------------------------------------------------------------------------------------------


def test_a_token_says_what_was_recorded(page: Page, address: str, runs: Path) -> None:
    page.goto(address + "#/rollouts?run=dhpo-0&step=6&by=ratio")
    expect(page.locator(".step-text")).to_have_text("step 6 of 9")
    row = int(page.locator(".sample").get_attribute("data-row") or "")
    record = board_runs.read_step(runs / "dhpo-0" / "rollouts" / "step-000006.json.gz")
    sample = next(each for group in record["groups"] for each in group["samples"] if each["row"] == row)
    tokens = page.locator(".sample .token")
    expect(tokens).to_have_count(len(sample["pieces"]))
    for at in (0, len(sample["pieces"]) - 1):
        tokens.nth(at).hover()
        said = facts(page)
        assert said["position"] == str(at)
        assert said["id"] == str(sample["ids"][at])
        for name, key in (
            ("log-probability", "logp"),
            ("entropy", "entropy"),
            ("ratio", "ratio"),
            ("advantage", "advantages"),
            ("weight", "weight"),
        ):
            assert figure(said[name]) == sample[key][at], name
        assert said["clipped"] == {1: "at the upper bound", -1: "at the lower bound", 0: "no"}[sample["clipped"][at]]
    picture(page, "rollouts")


def test_each_reward_of_several_is_a_column_of_the_samples(page: Page, address: str, runs: Path) -> None:
    file = runs / "dhpo-0" / "rollouts" / "step-000006.json.gz"
    before, record = file.read_bytes(), board_runs.read_step(file)
    for sample in (each for group in record["groups"] for each in group["samples"]):
        sample["components"] = {"task": sample["reward"], "exact": 0.25, "never": None}
    try:
        file.write_bytes(gzip.compress(json.dumps(record).encode()))
        page.goto(address + "#/rollouts?run=dhpo-0&step=6")
        expect(page.locator(".sample-lines thead th").nth(2)).to_have_text("exact")
        expect(page.locator(".sample-lines thead th").nth(3)).to_have_text("never")
        expect(page.locator(".sample-lines tbody tr").first.locator("td").nth(1)).to_have_text("0.250")
    finally:
        file.write_bytes(before)


def test_compares_two_samples_and_colours_them_alike(page: Page, address: str) -> None:
    page.goto(address + "#/rollouts?run=dhpo-0&step=9")
    page.locator(".sample-lines input[type=checkbox]").first.check()
    expect(page.locator(".strips.two .sample")).to_have_count(2)
    expect(page.locator(".parting")).to_have_text(re.compile(r"part at token \d+|are the same"))
    for measure in ("entropy", "ratio", "advantage", "weight", "clipped", "log-prob"):
        page.get_by_role("radio", name=measure, exact=True).check()
        expect(page.locator(".scale")).to_be_visible()
    strength = "token => Number(token.style.getPropertyValue('--v'))"
    strengths = [token.evaluate(strength) for token in page.locator(".sample .token").all()]
    assert max(strengths) > 0 and len(set(strengths)) > 2
    picture(page, "side-by-side")


def test_jumps_lead_to_what_stands_out(page: Page, address: str, runs: Path) -> None:
    lines = [json.loads(line) for line in (runs / "grpo-0" / "rollouts.jsonl").read_text().splitlines()]
    page.goto(address + "#/rollouts?run=grpo-0&step=2")
    expect(page.locator(".sample")).to_have_count(1)
    page.get_by_role("button", name="Longest").click()
    longest = next(line["longest"] for line in lines if line["step"] == 2)
    expect(page.locator(".sample")).to_contain_text(f"{longest['value']:.0f} tokens")
    page.get_by_role("radio", name="whole run").check()
    page.get_by_role("button", name="Highest advantage").click()
    best = max((line for line in lines if line["highest_advantage"]), key=lambda line: line["highest_advantage"]["value"])
    expect(page.locator(".step-text")).to_contain_text(f"step {best['step']} ")
    expect(page.locator(".sample")).to_have_attribute("data-row", str(best["highest_advantage"]["row"]))
    page.goto(address + "#/rollouts?run=sorting/dhpo-sort-0&step=1")
    expect(page.get_by_label("Run", exact=True)).to_have_value("sorting/dhpo-sort-0")
    first = board_runs.read_step(sorted((runs / "sorting" / "dhpo-sort-0" / "rollouts").glob("step-*.json.gz"))[0])["groups"][0]
    expect(page.locator(".group-head")).to_contain_text(first["prompt"])  # and not the other run's group any more
    page.get_by_role("button", name="Zero variance").click()
    expect(page.locator(".group-head")).to_contain_text("Group 1")
    expect(page.locator(".group-head")).to_contain_text("zero variance")


def test_hostile_text_is_text(page: Page, address: str) -> None:
    """The fixture fails the test if any of it ran."""
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url.removeprefix(address)))
    page.goto(address + "#/rollouts?run=hostile&step=3&row=0")
    tokens = page.locator(".sample .token")
    expect(tokens).to_have_count(len(board_runs.HOSTILE))
    assert tokens.nth(0).inner_text() == "<img·src=x·onerror=alert(1)>"
    assert tokens.nth(1).inner_text() == board_runs.HOSTILE[1]
    assert tokens.nth(2).inner_text() == "U+202Egnirts·desrever"
    assert tokens.nth(4).inner_text().split() == ["a⏎", "b⇥c"]
    expect(page.locator(".group-head .said").first).to_have_text("<img·src=x·onerror=alert(1)>")
    expect(page.locator(".others .token")).to_have_text("javascript:alert(3)")
    assert page.locator(".turn").all_inner_texts() == ["turn 0", "turn 1", "turn 2"]
    assert page.locator("main img, main script, main b, main [onerror], main [style*='position']").count() == 0
    assert [each for each in asked if not re.match(r"$|#|api/|page/", each)] == [], "it must not load anything either"
    tokens.nth(3).hover()
    assert facts(page)["written by"] == "not the policy"
    picture(page, "hostile")


def test_an_episode_plays(page: Page, address: str, runs: Path) -> None:
    record = json.loads((runs / "cartpole-0" / "episodes" / "step-000004.json").read_text())
    page.goto(address + "#/rollouts?run=cartpole-0")
    expect(page.locator(".episode-facts")).to_contain_text(f"return {record['return']:.0f} in {record['length']} steps")
    expect(page.locator(".screen")).to_be_visible()
    # The canvas is there before its picture is.
    page.wait_for_function("""() => {
      const canvas = document.querySelector(".screen");
      return new Set(canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data).size > 3;
    }""")
    page.get_by_label("Moment of the episode").fill("1")
    expect(page.locator(".player output")).to_contain_text("reward so far")
    expect(page.locator(".player output")).to_contain_text("value")
    expect(page.get_by_role("heading", name="value beside return to go")).to_be_visible()
    page.get_by_role("button", name="Play").click()
    expect(page.get_by_role("button", name="Pause")).to_be_visible()
    page.wait_for_function("() => Number(document.querySelector('.player input').value) > 1")
    picture(page, "episode")


# -- the method ------------------------------------------------------------------------------------------------------------


def test_shows_the_method_and_how_to_repeat_the_run(page: Page, address: str) -> None:
    page.goto(address + "#/method?run=dhpo-0")
    expect(page.get_by_role("heading", name="dhpo", exact=True)).to_be_visible()
    expect(page.locator(".formula math mi").first).to_be_visible()
    expect(page.locator("tr.changed")).to_have_count(3)
    expect(page.locator("tr.changed", has_text="ratio").locator("del")).to_contain_text("TokenRatio")
    expect(page.locator("tr.changed", has_text="ratio").locator("ins")).to_contain_text("Hybrid")
    page.get_by_label("Only what differs").check()
    expect(page.locator(".slots tbody tr")).to_have_count(3)
    expect(page.locator(".settings .copyable code")).to_contain_text("upslope train dhpo")
    picture(page, "method")
    page.locator(".method-title a").click()
    expect(page.get_by_role("heading", name="grpo", exact=True)).to_be_visible()
