"""The log of a run's experience: appended to, cut back, read again."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from upslope.errors import UserError
from upslope.experience.log import COLUMNS, ExperienceLog
from upslope.experience.sampler import draw
from upslope.experience.store import ReplayStore
from upslope.types import Ended


def store(lanes: int = 2) -> ReplayStore:
    return ReplayStore(((2,), np.float32), (1,), False, 1000, lanes)


def play(into: ReplayStore, steps: int, seed: int, ended: Ended = Ended.TERMINATED) -> None:
    random = np.random.default_rng(seed)
    for lane in into.lanes:
        lane.begin(random.standard_normal(2).astype(np.float32))
        for step in range(steps):
            end = int(ended if step == steps - 1 else Ended.NO)
            lane.add(random.standard_normal(1).astype(np.float32), float(step), end, random.standard_normal(2).astype(np.float32))


def same(one: ReplayStore, other: ReplayStore) -> bool:
    pairs = zip(one.lanes, other.lanes, strict=True)
    found = [(draw(a, np.arange(a.decision_count), 0.9), draw(b, np.arange(b.decision_count), 0.9)) for a, b in pairs]
    return all(np.array_equal(x, y) for a, b in found for x, y in zip(a, b, strict=True))


def test_what_is_written_is_read_again(tmp_path: Path):
    made = store()
    log = ExperienceLog(tmp_path / "experience", made)
    assert not (tmp_path / "experience").exists(), "nothing is made before there is something to write"
    play(made, 5, 1)
    log.flush()
    play(made, 3, 2)
    lengths = log.flush(settled=True)
    log.close()
    again = store()
    ExperienceLog(tmp_path / "experience", again).restore(lengths)
    assert same(made, again) and lengths == [10, 10]


def test_what_came_after_the_checkpoint_is_cut_off(tmp_path: Path):
    made = store()
    log = ExperienceLog(tmp_path, made)
    play(made, 5, 1)
    lengths = log.flush(settled=True)
    play(made, 400, 2)
    log.flush()
    with (tmp_path / "0.reward").open("ab") as file:
        file.write(b"\x01\x02\x03")  # a write that a kill cut in the middle
    log.close()
    again, alone = store(), store()
    restored = ExperienceLog(tmp_path, again)
    restored.restore(lengths)
    play(alone, 5, 1)
    assert same(again, alone)
    for each in (again, alone):
        play(each, 4, 3)
    restored.flush(settled=True)
    restored.close()
    third = store()
    ExperienceLog(tmp_path, third).restore(restored.written)
    assert same(third, alone), "and is written on from there"


def test_the_last_rows_wait_until_they_cannot_change(tmp_path: Path):
    made = store(1)
    log = ExperienceLog(tmp_path, made)
    play(made, 3, 1, Ended.NO)
    log.flush()
    made.lanes[0].settle()
    lengths = log.flush(settled=True)
    log.close()
    again = store(1)
    ExperienceLog(tmp_path, again).restore(lengths)
    assert same(made, again) and draw(again.lanes[0], np.array([2]), 0.9).ended.tolist() == [int(Ended.TRUNCATED)]


def test_a_file_that_is_too_short_is_named(tmp_path: Path):
    made = store(1)
    log = ExperienceLog(tmp_path, made)
    play(made, 5, 1)
    lengths = log.flush(settled=True)
    log.close()
    for column in COLUMNS:
        path = tmp_path / f"0.{column}"
        kept = path.read_bytes()
        path.write_bytes(kept[:-1])
        with pytest.raises(UserError, match=rf"0.{column} has {len(kept) - 1} bytes, and the checkpoint knows of {len(kept)}"):
            ExperienceLog(tmp_path, store(1)).restore(lengths)
        path.write_bytes(kept)
    with pytest.raises(UserError, match="of 1 environments, and there are 2"):
        ExperienceLog(tmp_path, store(2)).restore(lengths)


def test_masks_are_a_further_file_and_come_back(tmp_path: Path):
    made, again = (ReplayStore(((2,), np.float32), (), True, 9000, 1) for _ in range(2))
    lane, random = made.lanes[0], np.random.default_rng(0)
    lane.begin(np.zeros(2, np.float32), np.array([True, False, True]))
    for step in range(5000):  # beyond the room that a lane begins with
        lane.add(np.int64(0), 0.0, int(Ended.TRUNCATED if step == 4999 else Ended.NO), np.zeros(2, np.float32),
                 random.random(3) < 0.5)  # fmt: skip
    log = ExperienceLog(tmp_path, made, 3)
    lengths = log.flush(settled=True)
    log.close()
    assert (tmp_path / "0.action_mask").stat().st_size == 3 * lengths[0]
    ExperienceLog(tmp_path, again, 3).restore(lengths)
    assert same(made, again) and again.lanes[0].columns.action_mask[0].tolist() == [True, False, True]
