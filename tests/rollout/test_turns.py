"""Further turns of a step: sampled in one context, learned from in another."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from small_learner import learner

from upslope.errors import UserError
from upslope.methods import find
from upslope.objective.base import Data
from upslope.objective.ratio import TokenRatio
from upslope.tasks.text import Problem, Scores
from upslope.tasks.turns import FURTHER, Turn, TurnNumbers
from upslope.types import Source, View

ABC = Problem("rabcde=", "edcba")


@pytest.fixture(scope="module")
def made():
    return learner("grpo")


def sampled(made, *turns, step=1, path="data.0"):
    return made.rollout.sample(list(turns), TurnNumbers(step, path))


def logp(made, rows, prompt: str):
    """The policy's log-probabilities of the rows' tokens behind another prompt."""
    other = made.rollout.written([Turn(prompt, ABC)] * rows.rows, ["a"] * rows.rows, TurnNumbers(1, "x"))
    return made.policy.evaluate(rows.replace(inputs=other.inputs)).logp.detach()


def test_behavior_is_of_the_context_sampled_in_and_the_policy_sees_the_one_learned_in(made):
    rows = sampled(made, Turn("ed:rabcde=", ABC, samples=3, learn="problem"))
    on = rows.sampled > 0
    asked, plain = logp(made, rows, "ed:rabcde="), logp(made, rows, "rabcde=")
    assert torch.allclose(rows.behavior.logp[on], asked[on], atol=1e-5) and not torch.allclose(asked[on], plain[on], atol=1e-3)
    now = made.policy.evaluate(rows).logp.detach()
    assert torch.allclose(now[on], plain[on], atol=1e-6), "proximal and current are of the plain prompt"
    current = rows.replace(current=View(now), proximal=View(now))
    (proximal,), (behavior,) = (TokenRatio(against=whom)(current) for whom in ("proximal", "behavior"))
    assert torch.equal(proximal.value[on], torch.ones_like(now[on]))
    assert torch.allclose(behavior.value[on], (plain - asked)[on].exp(), atol=1e-4)


def test_learned_where_it_was_asked_both_are_the_same(made):
    rows = sampled(made, Turn("ed:rabcde=", ABC, samples=2))
    on = rows.sampled > 0
    assert torch.allclose(made.policy.evaluate(rows).logp[on], rows.behavior.logp[on], atol=1e-5)


def test_what_sampling_computed_is_kept_only_of_rows_that_are_learned_where_they_were_asked(monkeypatch):
    made = learner("grpo")
    monkeypatch.setattr(made.rollout, "reuse", True)
    for learn, kept in (("asked", True), ("problem", False), ("nothing", False)):
        made.rollout.sync()
        rows = sampled(made, Turn("ed:rabcde=", ABC, samples=2, learn=learn))
        assert (rows.inputs.kept is not None) is kept and bool(made.policy.kept.passes) is kept, learn
    monkeypatch.setattr(made.rollout, "reuse", False)
    assert sampled(made, Turn("ed:rabcde=", ABC, samples=2)).inputs.kept is None


def test_rows_come_turn_by_turn_with_groups_notes_and_their_problem(made):
    other = Problem("rbcdef=", "fedcb")
    rows = sampled(made, Turn("a?rabcde=", ABC, 2, group=7, role="teacher"), Turn("rbcdef=", other, 1), Turn("rabcde=", ABC, 1))
    assert rows.group.tolist() == [7, 7, FURTHER, FURTHER + 1] and rows.task.tolist() == [ABC.id, ABC.id, other.id, ABC.id]
    assert (rows.label["source"] == Source.FURTHER).all() and not rows.fresh().any()
    assert [note.get("asked") for note in rows.info] == ["a?rabcde=", "a?rabcde=", None, None]
    assert rows.info[0]["role"] == "teacher" and len(set(rows.label["role"].tolist())) == 2
    assert made.rollout.problems(rows) == [ABC, ABC, other, ABC]
    assert len(set(rows.key[:, 0].tolist())) == 4


def test_an_answer_that_was_begun_goes_on_behind_it(made):
    begun = tuple(made.policy.tokenizer("ed", add_special_tokens=False).input_ids)
    rows = sampled(made, Turn("rabcde=", ABC, 2, begun=begun))
    assert rows.sampled.shape[1] <= made.rollout.sampling.max_tokens - 2
    assert all(note["response"].startswith("ed") for note in rows.info)
    assert rows.inputs.prompt[0, -2:].tolist() == list(begun)
    on = rows.sampled > 0
    assert torch.allclose(made.policy.evaluate(rows).logp[on], rows.behavior.logp[on], atol=1e-5)


def test_numbers_depend_on_step_part_and_call_alone(made):
    turn, numbers = Turn("rabcde=", ABC, 4), TurnNumbers(3, "data.0")
    first, second = (made.rollout.sample([turn], numbers) for _ in range(2))
    again = sampled(made, turn, step=3)
    assert torch.equal(first.action, again.action) and torch.equal(first.key, again.key)
    for other in (second, sampled(made, turn, step=4), sampled(made, turn, step=3, path="data.1")):
        assert other.action.shape != first.action.shape or not torch.equal(other.action, first.action)


def test_a_scorer_takes_the_place_of_the_task(made):
    def pays(problems, responses):
        return Scores([7.0] * len(responses), [True] * len(responses))

    assert sampled(made, Turn("rabcde=", ABC, 2, scorer=pays)).reward.tolist() == [7.0, 7.0]
    with pytest.raises(UserError, match="scored alike"):
        sampled(made, Turn("rabcde=", ABC, scorer=pays), Turn("rabcde=", ABC))
    with pytest.raises(UserError, match="0 samples"):
        sampled(made, Turn("rabcde=", ABC, samples=0))


def test_written_turns_are_nobodys(made):
    rows = made.rollout.written([Turn("ed:rabcde=", ABC, learn="problem")], ["edcba"], TurnNumbers(1, "data.0"))
    assert rows.behavior.logp.isnan().all() and rows.label["source"].tolist() == [Source.DEMONSTRATED]
    assert rows.info[0]["response"] == "edcba" and rows.info[0]["asked"] == "ed:rabcde="
    assert made.policy.decode(rows.inputs.prompt[0].tolist()).endswith("rabcde=")


@dataclass(frozen=True)
class AskAgain(Data):
    """For tests: asks every problem once more and learns from that or not."""

    learn: str = "asked"

    def __call__(self, rows, context):
        groups = {int(group): row for row, group in enumerate(rows.group.tolist())}
        problems = context.problems(rows)
        turns = [Turn("a:" + problems[row].prompt, problems[row], 2, group, self.learn) for group, row in groups.items()]
        further = context.sample(turns)
        marked = further.replace(signal={"guided": torch.ones_like(further.reward)})
        return rows if self.learn == "nothing" else context.join([rows, marked])


@pytest.mark.parametrize("learn", ["asked", "problem", "nothing"])
def test_a_step_counts_all_that_was_sampled(learn):
    plain, asking = learner("grpo"), learner(find("grpo").derive(data=AskAgain(learn)))
    before, found = plain.step(1), asking.step(1)
    assert found["reward"] == before["reward"], "what the step was asked first"
    assert found["further_samples"] == 8 and found["samples"] == before["samples"] + 8
    assert found["tokens"] == before["tokens"] + found["further_tokens"] and found["further_tokens"] >= 8
    assert "seconds_further" not in found
    learned = asking.last
    assert learned.rows == (16 if learn == "nothing" else 24)
    if learn == "nothing":
        assert learned.aside["further"].rows == 8
    else:
        assert "further" not in learned.aside and learned.signal["guided"].sum() == 8
        assert (learned.label["source"] == Source.FURTHER).sum() == 8 and learned.fresh().sum() == 16
