"""The rulebook: rules that a reader can follow, questions of four levels, and nothing of the test in what is read."""

from __future__ import annotations

import re

import numpy as np
import pytest

from upslope.errors import TaskError
from upslope.tasks import load_task
from upslope.tasks.embedded import ALPHABET
from upslope.tasks.rulebook import Branch, Rule
from upslope.tasks.text import SPLITS, split_of

SPECS = ["rulebook", "rulebook:depth=1", "rulebook:depth=3,rules=4", "rulebook:depth=4,seed=3", "rulebook:level=4,depth=2"]


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def read(statement: str, digits: str) -> str:
    """What a statement of the rulebook says to these digits, by another road: as an expression of Python."""
    name, _, body = statement.partition(":")
    if name[0] == "f":
        return body
    if name[0] == "b":
        return str((int(digits) + int(body)) % 10)
    while conditions := re.findall(r"\((\d)>(\d)\?([a-z]):([a-z])\)", body):  # from the innermost on
        for place, above, yes, no in conditions:
            body = body.replace(f"({place}>{above}?{yes}:{no})", yes if int(digits[int(place)]) > int(above) else no)
    return body


def test_a_rule_worked_by_hand():
    nested = Rule("nested", "e", Branch(0, 4, Branch(1, 6, "x", "y"), Branch(1, 2, "z", "w")), 2)
    assert nested.statement == "ne:(0>4?(1>6?x:y):(1>2?z:w))"
    assert [nested.answer(digits) for digits in ("57", "56", "43", "42")] == ["x", "y", "z", "w"]
    assert nested.hints("56") == ("ne:(0>4?(1>6?x:y):(1>2?z:w))", "0>4", "0>4,1<7", "y")
    assert nested.documents() == [nested.statement, "ne0>4,1>6:x", "ne0>4,1<7:y", "ne0<5,1>2:z", "ne0<5,1<3:w"]
    assert (Rule("behaviour", "c", 3, 1).answer("9"), Rule("fact", "a", "72", 0).answer("")) == ("2", "72")


@pytest.mark.parametrize("spec", SPECS)
def test_every_answer_follows_from_a_statement_of_the_rulebook(spec):
    task = load_task(spec)
    statements = {line[:2]: line for line in task.text().split("\n")}
    for problem in task.sample(300, "train", rng()):
        name, digits = problem.prompt[:2], problem.prompt[2:-1]
        assert read(statements[name], digits) == problem.answer and statements[name] in problem.documents
        hints = task.hints(problem)
        assert hints[0] == statements[name] and hints[-1] == problem.answer
        assert set(problem.prompt + problem.answer + "".join([*problem.documents, *hints])) <= set(ALPHABET)
        assert sum(map(len, problem.documents)) + len(problem.documents) < 460  # with a prompt they fit the 512 positions of tiny
    assert task.gives() == {
        "answers",
        "solutions",
        "hints",
        "documents",
        "categories",
        "levels",
        "variants",
        "pairs",
        "labels",
        "revisions",
    }


def test_four_kinds_are_asked_alike_and_the_depth_is_the_difficulty():
    task = load_task("rulebook:depth=3")
    problems = task.sample(2000, "train", rng())
    found = {(p.category, p.difficulty) for p in problems}
    assert found == {("fact", 1.0), ("behaviour", 2.0), ("condition", 3.0), ("nested", 5.0)}
    share = np.mean([p.category == "nested" for p in problems])
    assert 0.2 < share < 0.35
    assert {p.category for p in load_task("rulebook:depth=1").sample(200, "train", rng())} == {"fact", "behaviour", "condition"}
    assert {p.category for p in load_task("rulebook:level=2").sample(50, "test", rng())} == {"behaviour"}
    harder = [task.harder(next(p for p in problems if p.category == kind), rng()) for kind in ("fact", "condition", "nested")]
    assert [None if each is None else each.category for each in harder] == ["behaviour", "nested", None]
    easier = [task.easier(next(p for p in problems if p.category == kind), rng()) for kind in ("fact", "nested")]
    assert [None if each is None else each.category for each in easier] == [None, "condition"]
    assert task.alike(problems[0], rng()).category == problems[0].category


def test_documents_answer_no_question_that_is_held_out():
    task = load_task("rulebook:rules=20,depth=2")
    asked = {split: {p.prompt: p.answer for p in task.sample(150, split, rng())} for split in SPLITS}
    texts = {text for p in task.sample(1500, "train", rng()) for text in p.documents}
    for split in ("tune", "test"):
        assert not any(f"{prompt}{answer}" in texts for prompt, answer in asked[split].items())
    assert sum(text in {f"{prompt}{answer}" for prompt, answer in asked["train"].items()} for text in texts) > 20
    facts = {f"f{letter}" for letter in "abcdefghijklmnopqrst"}
    assert {text[:2] for text in texts if ":" in text and text[0] == "f"} == facts  # those held out are stated too
    assert any(split_of(f"{fact}=") == "test" for fact in facts)


def test_the_rulebook_of_a_seed_stays_and_grows_without_changing():
    small, large, other = (load_task(f"rulebook:{knobs}") for knobs in ("rules=4", "rules=6,depth=3", "rules=4,seed=1"))
    assert load_task(small.name).text() == small.text() != other.text()
    assert large.book["fact"][:4] == small.book["fact"] and large.book["condition"][:4] == small.book["condition"]
    assert len(small.text()) < 250


@pytest.mark.parametrize(
    ("knobs", "told"),
    [
        ("depth=5", "depth=5 must be a whole number from 1 to 4"),
        ("rules=0", "rules=0 must be a whole number from 1 to 26"),
        ("level=4,depth=1", "level=4 asks for nested conditions, and depth=1 has none. Give depth=2 or more."),
        ("hardest=9", "hardest=9 is no size that it has"),
    ],
)
def test_rulebooks_that_cannot_be_are_refused(knobs, told):
    with pytest.raises(TaskError) as refused:
        load_task(f"rulebook:{knobs}")
    assert told in str(refused.value)
