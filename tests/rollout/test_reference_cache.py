"""The reference cache: computed once, the same after a kill, and what a kill leaves of its file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import upslope as up
from upslope.policies.text_inputs import TextInputs
from upslope.rollout.reference_cache import REFERENCES, ReferenceCache
from upslope.types import Trajectories, View

PAIRS = [
    {"prompt": f"say {word}:", "chosen": word, "rejected": word[::-1] + "x"} for word in ("abc", "dea", "bed", "cab", "ace", "dab")
]


def rows(*answers: list[int], prompt: tuple[int, ...] = (7, 8)) -> Trajectories:
    """Given rows of these ids under one prompt."""
    count, longest = len(answers), max(map(len, answers))
    action, sampled = torch.zeros(count, longest, dtype=torch.int64), torch.zeros(count, longest)
    for number, ids in enumerate(answers):
        action[number, : len(ids)], sampled[number, : len(ids)] = torch.tensor(ids), 1.0
    prompts = torch.tensor([[0, *prompt]] * count)
    nobody = torch.zeros(count, dtype=torch.int64)
    return Trajectories(
        sampled, torch.zeros(count), nobody, nobody, View(torch.full((count, longest), torch.nan)), action=action,
        inputs=TextInputs(prompts, (prompts > 0).long()),
    )  # fmt: skip


class Counting:
    """Says the ids themselves, and remembers which rows it was asked for."""

    def __init__(self, of: Trajectories):
        self.of, self.asked = of, list[list[int]]()

    def __call__(self, missing: torch.Tensor) -> torch.Tensor:
        self.asked.append(missing.tolist())
        found = torch.zeros_like(self.of.sampled)
        found[missing] = (self.of.action.float() * self.of.sampled)[missing]
        return found


def test_each_row_is_computed_once_and_known_by_its_prompt_and_answer(tmp_path: Path):
    cache, first = ReferenceCache(tmp_path / "r"), rows([1, 2, 3], [4])
    once = Counting(first)
    assert torch.equal(cache.logp(first, once), torch.tensor([[1.0, 2, 3], [4, 0, 0]]))
    second = rows([4], [5, 6], [1, 2, 3])
    again = Counting(second)
    assert torch.equal(cache.logp(second, again), torch.tensor([[4.0, 0, 0], [5, 6, 0], [1, 2, 3]]))
    assert once.asked == [[0, 1]] and again.asked == [[1]]
    other = rows([4], prompt=(7, 9))
    asked = Counting(other)
    cache.logp(other, asked)
    assert asked.asked == [[0]]


@pytest.mark.parametrize("lost", [1, 9, 40])
def test_a_file_that_a_kill_left_unfinished_goes_on_from_its_last_whole_step(tmp_path: Path, lost: int):
    file, first, second = tmp_path / "r", rows([1, 2, 3], [4]), rows([5, 6])
    cache = ReferenceCache(file)
    cache.logp(first, Counting(first))
    whole = file.stat().st_size
    cache.logp(second, Counting(second))
    file.write_bytes(file.read_bytes()[:-lost])
    opened, asked, none = ReferenceCache(file), Counting(second), Counting(first)
    assert file.stat().st_size == whole
    assert torch.equal(opened.logp(second, asked), torch.tensor([[5.0, 6.0]])) and asked.asked == [[0]]
    assert torch.equal(opened.logp(first, none), torch.tensor([[1.0, 2, 3], [4, 0, 0]])) and none.asked == [[]]


def test_a_run_on_pairs_asks_its_start_once_for_each_row(tmp_path: Path, monkeypatch):
    file = tmp_path / "pairs.jsonl"
    file.write_text("".join(json.dumps(pair) + "\n" for pair in PAIRS))
    shown, computed, logp = list[int](), list[int](), ReferenceCache.logp

    def counted(self: ReferenceCache, given: Trajectories, compute) -> torch.Tensor:
        def counting(missing: torch.Tensor) -> torch.Tensor:
            computed.append(len(missing))
            return compute(missing)

        shown.append(given.rows)
        found = logp(self, given, counting)
        torch.testing.assert_close(found, compute(torch.arange(given.rows)), rtol=1e-5, atol=1e-6)
        return found

    monkeypatch.setattr(ReferenceCache, "logp", counted)
    sizes = dict(tasks_per_step=4, threads=1, eval_problems=2, eval_every=6, warm_start=0.0, watch_kl=False)
    up.train("dpo", str(file), model="tiny:layers=1,width=32", out=tmp_path / "run", steps=6, lr=1e-3, **sizes)
    assert sum(shown) == 6 * 4 * 2 and 0 < sum(computed) <= 2 * len(PAIRS)
    assert (tmp_path / "run" / REFERENCES).stat().st_size > 0
