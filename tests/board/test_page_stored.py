"""Runs that learn from stored experience, on the board's page: critics as a group, their values, and the dataset's card."""

from __future__ import annotations

from collections.abc import Iterator

import board_runs
import numpy as np
import pytest
from board_browser import NEEDS_CHROMIUM, Page, expect, picture

import upslope as up

pytest_plugins = ["board_fixtures"]
pytestmark = [pytest.mark.slow, NEEDS_CHROMIUM]
ROWS = 80


@pytest.fixture(scope="module")
def offline(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a board with one run of td3-bc on a log."""
    root, random = tmp_path_factory.mktemp("stored"), np.random.default_rng(0)
    np.savez(
        root / "arm.npz",
        observations=random.uniform(-1, 1, (ROWS, 3)),
        actions=random.uniform(-2, 2, (ROWS, 1)),
        rewards=-np.ones(ROWS),
        terminations=np.arange(ROWS) % 20 == 19,
        truncations=np.zeros(ROWS, bool),
    )
    narrow = {"policy.hidden": (8,), "models.q.network.hidden": (8,)}
    small = dict(steps=3, updates_per_step=2, minibatch=8, eval_problems=2, knobs=narrow)
    up.train("td3-bc", "gym:Pendulum-v1", data=str(root / "arm.npz"), out=root / "runs" / "arm-0", **small)
    with board_runs.board(root / "runs") as at:
        yield at


def test_critics_are_a_group_with_titles_and_meanings(page: Page, offline: str) -> None:
    page.goto(offline + "#/curves?run=arm-0")
    values = page.locator('[data-key="q_value"]')
    expect(values.get_by_role("heading", name="Values of the critics")).to_be_visible()
    expect(values.locator(".meaning")).to_contain_text("What the critics say of stored actions")
    page.get_by_text("Metrics", exact=True).click()
    expect(page.locator(".menu-title")).to_contain_text("Critics")
    page.get_by_role("button", name="Show only these: critics").click()
    expect(page.locator('[data-key="q_target"]')).to_be_visible()
    expect(page.locator('[data-key="q_loss"]')).to_be_visible()
    expect(page.locator('[data-key="score"]')).to_have_count(0)
    picture(page, "critics")


def test_the_dataset_of_a_run_is_shown(page: Page, offline: str) -> None:
    page.goto(offline + "#/method?run=arm-0")
    card = page.locator(".dataset")
    expect(card).to_contain_text("arm")
    for told in ("episodes", "4", "decisions", "80", "−20"):
        expect(card).to_contain_text(told)
    expect(page.get_by_text("--data")).to_be_visible()


def test_an_episode_shows_value_beside_return_to_go(page: Page, offline: str) -> None:
    page.goto(offline + "#/rollouts?run=arm-0")
    expect(page.get_by_role("heading", name="value beside return to go")).to_be_visible()
    expect(page.locator(".player output")).to_contain_text("value")
