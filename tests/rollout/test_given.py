"""Rows that nobody sampled: solutions and documents."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
import torch
from rollout_calls import collect
from small_models import policy_of

import upslope as up
from upslope.errors import UserError
from upslope.rollout.given import AnswerRollout, DocumentRollout, windows
from upslope.tasks.text import Problem
from upslope.types import Sampling, Source

SIZES = {"tasks": 2, "samples": 3, "sampling": Sampling(max_tokens=8), "seed": 0}
RUN = {"model": "tiny:layers=1,width=16", "steps": 3, "tasks_per_step": 4, "warm_start": 0, "eval_problems": 8, "lr": 1e-2,
       "warmup": 0, "threads": 1}  # fmt: skip


class Given:
    """A task that hands out these problems."""

    name = "given"

    def __init__(self, *problems: Problem):
        self.problems = problems

    def sample(self, count, split, rng):
        return [self.problems[row % len(self.problems)] for row in range(count)]


def test_a_row_is_the_solution_or_else_the_answer_with_a_stop_token():
    policy = policy_of("llama")
    rows = collect(AnswerRollout(Given(Problem("ab", "c", {"solution": "dcc"}), Problem("a", "d")), policy, **SIZES), 1)
    assert policy.decode_all([[i for i, on in zip(ids, mask, strict=True) if on][:-1] for ids, mask in
                              zip(rows.action.tolist(), rows.sampled.tolist(), strict=True)]) == ["dcc", "d"]  # fmt: skip
    last = rows.action.gather(1, rows.lengths().long().unsqueeze(1) - 1).squeeze(1)
    assert last.tolist() == [min(policy.stop_ids)] * 2 and rows.lengths().tolist() == [4, 2], "one row to a problem"
    assert (rows.label["source"] == Source.DEMONSTRATED).all() and not rows.fresh().any()
    assert rows.behavior.logp.isnan().all() and rows.behavior.entropy is None
    assert "task" not in rows.components and [note["response"] for note in rows.info] == ["dcc", "d"]


def test_a_problem_without_a_solution_is_refused_with_its_prompt():
    with pytest.raises(UserError, match="'abc' has none"):
        collect(AnswerRollout(Given(Problem("abc")), policy_of("llama"), **SIZES), 1)
    with pytest.raises(UserError, match="'abc' comes with none"):
        collect(DocumentRollout(Given(Problem("abc")), policy_of("llama"), window=8, **SIZES), 1)


def test_windows_hold_every_token_of_a_document_once():
    policy = policy_of("llama")
    (found,) = windows(policy, ["abcdefgh"], 4)
    spelled = policy.tokenizer("abcdefgh", add_special_tokens=False).input_ids
    begin, stop = policy.tokenizer.bos_token_id, min(policy.stop_ids)
    assert found == [[begin, *spelled[:3]], [begin, *spelled[3:6]], [begin, *spelled[6:], stop]]


def test_without_a_token_for_a_beginning_each_learned_token_still_comes_once():
    policy = policy_of("llama")
    bare = SimpleNamespace(tokenizer=lambda text, add_special_tokens: SimpleNamespace(input_ids=[5, 6, 7, 8, 9]), stop_ids={2})
    bare.tokenizer.bos_token_id = None
    (found,) = windows(bare, ["abcde"], 3)
    assert [ids[1:] for ids in found] == [[6, 7], [8, 9], [2]] and found[0][0] == 5
    assert policy.tokenizer.bos_token_id is not None


def test_documents_are_drawn_window_by_window_and_the_same_for_one_seed():
    policy = policy_of("llama")
    task = Given(Problem("a", info={"documents": ["abcdefghij", "jjj"]}), Problem("b", info={"documents": ["kkk"]}))
    first, again = (collect(DocumentRollout(task, policy, window=5, **SIZES), 4) for _ in range(2))
    assert torch.equal(first.action, again.action) and (first.label["source"] == Source.DEMONSTRATED).all()
    assert first.inputs.prompt.shape[1] == 1 and int(first.lengths().max()) <= 4
    assert first.info[1]["response"] == "kkk"
    seen = {collect(DocumentRollout(task, policy, window=5, **SIZES), step).info[0]["response"] for step in range(40)}
    assert seen == {"abcd", "efgh", "ij", "jjj"}


def steps_of(run) -> list[dict]:
    return [record for record in run.metrics if record["kind"] == "step"] if "kind" in run.metrics[0] else list(run.metrics)


def test_a_run_reports_no_reward_and_measures_how_far_it_came_from_its_start(tmp_path):
    run = up.train("sft", "reverse:length=2", **RUN, out=tmp_path)
    steps = steps_of(run)
    for record in steps:
        assert not {"reward", "entropy", "length", "constant_groups"} & set(record)
        assert all(value == value for value in record.values() if isinstance(value, float)), "no NaN"
    assert steps[0]["kl_start"] == 0 and steps[-1]["kl_start"] > 1e-4
    assert steps[-1]["loss"] < steps[0]["loss"] and steps[0]["tokens"] == 4 * 3


def test_a_file_with_worked_solutions(tmp_path):
    data = tmp_path / "worked.jsonl"
    lines = [{"prompt": f"{n}+1=", "answer": str(n + 1), "solution": f"{n}+1={n + 1}"} for n in range(10, 30)]
    data.write_text("\n".join(map(json.dumps, lines)))
    run = up.train("sft", str(data), reward="contains", **RUN, out=tmp_path / "run")
    recorded = run.folder.read("samples.jsonl")
    assert recorded and all(sample["response"] == f"{sample['prompt']}{sample['answer']}" for sample in recorded)
