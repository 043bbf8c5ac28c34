"""What a rollout does with an order: groups of any size, token limits, temperatures, and what it tells of them."""

from __future__ import annotations

import math

import pytest
import torch
from rollout_calls import choose, collect

from upslope.errors import UserError
from upslope.policies import load_language_model
from upslope.policies.tokenization import PromptLimit
from upslope.rollout.choosing import Candidate, Choices, category_id, offered
from upslope.rollout.text import TextRollout
from upslope.rollout.vine import Vine
from upslope.runtime.seeding import numpy_generator
from upslope.tasks import load_task
from upslope.tasks.text import Problem
from upslope.types import KeptProblems, Offer, Order, Sampling

MODEL = "tiny:layers=1,width=16"


def rollout(samples: int = 3, tokens: int = 6, spec: str = "reverse:length=3") -> TextRollout:
    policy = load_language_model(MODEL, 0)
    return TextRollout(load_task(spec), policy, tasks=4, samples=samples, sampling=Sampling(tokens), seed=5)


def test_taking_everything_as_offered_is_what_nobody_chose():
    plain, chosen = rollout(), rollout()
    one = collect(plain, 3)
    two = choose(chosen, 3, 0, 4, 1, lambda offer: Order(torch.arange(len(offer))))
    assert len(one.task.unique()) == 4, "the case must hold no problem twice"
    for name in ("task", "group", "action", "reward", "sampled", "temperature"):
        assert torch.equal(getattr(one, name), getattr(two, name))
    assert torch.equal(one.behavior.logp, two.behavior.logp) and one.horizon == two.horizon


def test_groups_have_the_sizes_that_were_ordered():
    made, seen = rollout(), []

    def decide(offer: Offer) -> Order:
        seen.append(offer)
        return Order(torch.tensor([5, 0, 2]), torch.tensor([4, 1, 2]), why={"weight": torch.tensor([0.5, 0.25, 0.125])})

    rows = choose(made, 3, 0, 4, 2, decide)
    (offer,) = seen
    assert (len(offer), offer.wanted, offer.samples, offer.max_tokens, offer.attempt) == (8, 4, 3, 6, 0)
    assert rows.group.tolist() == [0, 0, 0, 0, 1, 2, 2]
    assert rows.task.tolist() == offer.task[torch.tensor([5, 5, 5, 5, 0, 2, 2])].tolist()
    prompts = [note["prompt"] for note in rows.info]
    assert len(set(prompts[:4])) == 1 and len({prompts[0], prompts[4], prompts[5]}) == 3
    for row, prompt in enumerate(prompts):
        own = rows.inputs.prompt[row][rows.inputs.prompt_mask[row] > 0].tolist()
        assert own == made.policy.encode(prompt), "each row continues its own prompt"
    logp = made.policy.evaluate(rows).logp
    torch.testing.assert_close(logp * rows.sampled, rows.behavior.logp * rows.sampled, rtol=0, atol=1e-5)
    known = {"category": "reverse", "difficulty": 3.0}
    assert rows.info[0]["chosen"] == {"answers": 4, "weight": 0.5, **known}
    assert rows.info[6]["chosen"] == {"answers": 2, "weight": 0.125, **known}
    told = made.metrics()
    assert told["chosen_weight"] == pytest.approx(0.875 / 3) and (told["fewest_answers"], told["most_answers"]) == (1, 4)
    assert made.metrics() == {}, "each choice is told once"


def test_an_order_may_limit_tokens_and_set_the_temperature():
    free, made = rollout(), rollout()
    whole = choose(free, 3, 0, 4, 1, lambda offer: Order(torch.arange(len(offer))))
    cut = choose(made, 3, 0, 4, 1, lambda offer: Order(torch.arange(len(offer)), limit=2, temperature=0.5))
    assert cut.horizon == 2 and cut.sampled.shape[1] == 2 and made.metrics()["token_limit"] == 2
    assert set(cut.temperature.unique().tolist()) == {0.5}
    again = choose(rollout(), 3, 0, 4, 1, lambda offer: Order(torch.arange(len(offer)), limit=2))
    assert torch.equal(again.action, whole.action[:, :2] * (again.sampled > 0) + again.action * (again.sampled == 0))
    large = choose(rollout(), 3, 0, 4, 1, lambda offer: Order(torch.arange(len(offer)), limit=60))
    assert torch.equal(large.action, whole.action) and large.horizon == 6, "a limit beyond the run's changes nothing"


def test_heads_are_read_at_the_end_of_each_prompt():
    made = rollout()
    made.policy.add_value_head(0)
    found = {}

    def decide(offer: Offer) -> Order:
        found["value"] = offer.value("value")
        return Order(torch.arange(len(offer)))

    rows = choose(made, 1, 0, 4, 1, decide)
    assert found["value"].shape == (4,) and not found["value"].requires_grad
    with torch.no_grad():
        written = made.policy.evaluate(rows, frozenset({"value"})).value[:, 0]
    torch.testing.assert_close(written, found["value"].repeat_interleave(3), rtol=0, atol=1e-5)


def test_categories_and_difficulties_are_offered_labelled_and_told():
    made = rollout()
    problems = [
        Problem(f"{letter} =", "x", {"category": name, "difficulty": level})
        for letter, name, level in zip("abcdefgh", ["two letters", "three"] * 4, [1, 2.5] * 4, strict=True)
    ]
    object.__setattr__(made.task, "sample", lambda count, split, rng: problems[:count])
    seen = []

    def decide(offer: Offer) -> Order:
        seen.append(offer)
        return Order(torch.tensor([0, 1, 2, 4]))

    rows = choose(made, 1, 0, 4, 2, decide)
    (offer,) = seen
    assert offer.difficulty.tolist() == [1, 2.5] * 4
    assert offer.category[:2].tolist() == [category_id("two letters"), category_id("three")]
    assert offer.names == {category_id("two letters"): "two letters", category_id("three"): "three"}
    assert rows.label["category"].tolist() == offer.category[torch.tensor([0, 1, 2, 4])].repeat_interleave(3).tolist()
    assert made.metrics() == {
        "chosen_difficulty": pytest.approx((1 + 2.5 + 1 + 1) / 4),
        "share_two_letters": 0.75,
        "share_three": 0.25,
    }
    assert rows.info[3]["chosen"] == {"answers": 3, "category": "three", "difficulty": 2.5}
    taught = made.teacher(rows)
    assert taught.label["category"][taught.group.argsort()].tolist() == offer.category[torch.tensor([0, 1, 2, 4])].tolist()


def test_many_categories_have_no_metrics_of_their_own():
    choices = Choices()
    offer = offered([Candidate(number, f"kind {number}") for number in range(20)], torch.zeros(20), 4, 2)
    choices.add(offer, Order(torch.tensor([3, 4])))
    assert choices.metrics() == {}
    assert math.isnan(float(offer.difficulty[0]))


def test_choices_of_several_attempts_are_told_together():
    choices, offer = Choices(), offered([Candidate(number) for number in range(4)], torch.zeros(4), 2, 8)
    choices.add(offer, Order(torch.tensor([0, 1]), torch.tensor([2, 14]), why={"value": torch.tensor([0.0, 0.5])}))
    choices.add(offer, Order(torch.tensor([2]), torch.tensor([8]), why={"value": torch.tensor([1.0])}, metrics={"stage": 2.0}))
    assert choices.metrics() == {"chosen_value": 0.5, "fewest_answers": 2.0, "most_answers": 14.0, "stage": 2.0}


def test_vines_take_the_problems_but_not_other_sizes():
    policy = load_language_model(MODEL, 0)
    sizes = {"tasks": 2, "samples": 3, "sampling": Sampling(6), "seed": 1}
    made = Vine(points=2).build(load_task("reverse:length=3"), policy, **sizes)
    rows = choose(made, 1, 0, 2, 2, lambda offer: Order(torch.tensor([1, 3])))
    assert len(rows.task.unique()) == 2
    with pytest.raises(UserError, match="vines branch alike"):
        choose(made, 1, 0, 2, 2, lambda offer: Order(torch.tensor([1, 3]), torch.tensor([2, 4])))


def test_kept_problems_stand_behind_the_tasks_own_and_none_is_made_before_it_is_chosen():
    made, seen, asked = rollout(), [], []
    own = made.task.sample(4, "train", numpy_generator(5, "tasks", 3, 0))
    problems = [Problem("rxy=", "yx", {"category": "short", "difficulty": 2}), Problem("rzzz=", "zzz"), own[1]]

    def problem(place: int) -> Problem:
        asked.append(place)
        return problems[place]

    kept = KeptProblems(
        torch.tensor([each.id for each in problems]), ["short", "", ""], torch.tensor([2.0, math.nan, math.nan]), problem
    )

    def decide(offer: Offer) -> Order:
        seen.append(offer)
        return Order(torch.tensor([4, 0]))

    rows = choose(made, 3, 0, 4, 1, decide, kept)
    (offer,) = seen
    assert offer.kept == 2 and len(offer) == 6, "one of them is the task's own in this step"
    assert offer.task.tolist() == [*(each.id for each in own), problems[0].id, problems[1].id]
    assert offer.difficulty[4] == 2 and offer.names[int(offer.category[4])] == "short"
    assert asked == [0] and rows.info[0]["prompt"] == "rxy=" and rows.task[0] == problems[0].id
    again = choose(made, 3, 1, 4, 1, decide, kept)
    assert seen[1].kept == len(seen[1]) - 4 <= 2 and problems[0].id not in seen[1].task.tolist(), "not twice in a step"
    assert again.rows == 6
    plain = choose(rollout(), 3, 0, 4, 1, lambda offer: Order(torch.arange(4)), kept)
    assert torch.equal(plain.action, collect(rollout(), 3).action), "what is kept changes nothing of the task's own"


def test_prompts_that_fit_are_told_from_those_that_would_be_cut():
    made = rollout()
    made.policy.prompt_limit = PromptLimit(6, "cut")
    assert made.fits(["rabc=", "rabcd="]) == [True, False], "and a token that begins the text"
    made.policy.prompt_limit = None
    assert made.fits(["r" * 1000]) == [True]
