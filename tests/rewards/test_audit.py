"""The audit: rewards that refuse what is right or pay for what is wrong are told, with the texts; those that do neither are not."""

from __future__ import annotations

import json

import pytest

import upslope as up
from upslope.cli import main
from upslope.errors import Remark
from upslope.rewards import load_reward
from upslope.rewards.audit import FORMS, NONSENSE, PROBLEMS, audit
from upslope.tasks import load_task

SMALL = dict(
    model="tiny:layers=1,width=16", steps=1, tasks_per_step=2, samples_per_task=2, warm_start=0.0, eval_problems=2, max_tokens=4
)  # fmt: skip
CALLED = (4 + len(FORMS)) * PROBLEMS
NO_ANSWERS = ("boxnet", "graph_color", "propositional_logic", "rubiks_cube", "rush_hour")


@pytest.fixture
def data(tmp_path):
    file = tmp_path / "data.jsonl"
    file.write_text("".join(json.dumps({"prompt": f"What is {i} + {i}?", "answer": str(2 * i)}) + "\n" for i in range(40)))
    return str(file)


def remarks(data, reward):
    return audit(load_task(data, reward=load_reward(reward))).remarks("R")


@pytest.mark.parametrize(
    "reward",
    ["exact", "number", "contains", "boxed", ["exact", "format*0.5"], ["exact", "length:max=9*0.1"], {"right": ("number", 2.0)}],
)
def test_a_reward_that_does_as_it_should_has_no_remark(data, reward):
    assert remarks(data, reward) == []


def test_a_reward_that_refuses_the_expected_answer_is_told_with_the_texts(data):
    (told,) = remarks(data, "regex:^Final: (.*)")
    assert told.startswith("the reward R pays 0 for the expected answer in 20 of 20 problems: '")
    assert "to 'What is " in told


def any_text(prompts, responses, answers):
    return [float(bool(response)) for response in responses]


def nearly(prompts, responses, answers):
    return [0.4 if response == answer else 0.39 for response, answer in zip(responses, answers, strict=True)]


def any_number(prompts, responses, answers):
    return [float(response.isdecimal()) for response in responses]


@pytest.mark.parametrize(
    ("reward", "kinds"),
    [
        (any_text, ["nonsense (20 of 20 problems)", "another problem's answer (20 of 20 problems)", repr(NONSENSE)]),
        (nearly, ["an empty answer (20", "nonsense (20", "another problem's answer (20"]),
        (any_number, ["pays 1 for another problem's answer (20 of 20 problems), as for '", "is expected"]),
    ],
)
def test_a_reward_that_pays_for_what_is_wrong_is_told(data, reward, kinds):
    (told,) = remarks(data, reward)
    assert all(kind in told for kind in kinds), told


def test_it_is_one_call_on_twenty_problems(data):
    calls = []

    def counted(prompts, responses, answers):
        calls.append(len(responses))
        return [float(r == a) for r, a in zip(responses, answers, strict=True)]

    remarks(data, counted)
    assert calls == [CALLED]


def test_a_run_says_it_before_the_first_rollout_and_off_leaves_it_out(data, tmp_path):
    calls = []

    def counted(prompts, responses, answers):
        calls.append(len(responses))
        return [1.0] * len(responses)

    with pytest.warns(Remark, match="pays 1 for an empty answer") as said:
        up.train("grpo", data, reward=counted, **SMALL, out=tmp_path / "run")
    assert calls[0] == CALLED and any("up.resume(RUN, reward=...)" in str(each.message) for each in said)
    calls.clear()
    with pytest.warns(Remark) as said:
        up.train("grpo", data, reward=counted, **SMALL, audit=False, out=tmp_path / "off")
    assert calls[0] == 2 and not any("empty answer" in str(each.message) for each in said)


def test_the_audit_changes_nothing_of_the_run(data, tmp_path):
    one, other = (up.train("grpo", data, reward="length:max=2", **SMALL, audit=on, out=tmp_path / str(on)) for on in (True, False))
    clock = {"seconds", "seconds_sampling", "tokens_per_second", "memory"}
    assert [{k: v for k, v in r.items() if k not in clock} for r in one.metrics] == [
        {k: v for k, v in r.items() if k not in clock} for r in other.metrics
    ]


def test_the_command_prints_a_table(data, capsys):
    assert main(["tasks", data, "--audit", "--reward", "number"]) == 0
    out = capsys.readouterr().out
    assert "the expected answer             20            1     20" in out and "Nothing odd was found." in out
    assert main(["tasks", data, "--audit", "--reward", "length:max=9", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert len(found) == 4 * PROBLEMS and found[0].keys() == {"answer", "prompt", "response", "reward", "correct"}


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--audit"], "--audit goes with a task"),
        (["sort", "--reward", "exact"], "--audit goes with a task"),
        (["{data}", "--audit"], "has no reward of its own: say which one to audit, as in --reward number."),
        (["gym:CartPole-v1", "--audit"], "is an environment, which pays for actions"),
    ],
)
def test_what_cannot_be_audited_is_said(words, told, data, capsys):
    assert main(["tasks", *(word.format(data=data) for word in words)]) == 2
    assert told in capsys.readouterr().err


@pytest.mark.parametrize("task", ["reverse", "sort", "sum", "copy", "recommend"])
def test_our_own_tasks_have_no_remark(task):
    assert audit(load_task(task)).remarks(task) == []


def test_reasoning_gyms_game_of_life_halting_pays_for_any_text():
    found = audit(load_task("reasoning-gym:game_of_life_halting"))
    assert [len(found.paid(kind)) for kind in ("empty", "nonsense", "other")] == [
        0,
        len(found.of("nonsense")),
        len(found.of("other")),
    ]
    assert not found.refused() and "pays 1 for nonsense" in found.remarks("R")[0]


@pytest.mark.slow
@pytest.mark.parametrize("dataset", NO_ANSWERS)
def test_some_of_reasoning_gyms_datasets_have_no_expected_answer(dataset):
    found = audit(load_task(f"reasoning-gym:{dataset}"), 4)
    assert found.of("expected") == [] and "No problem has an expected answer" in found.table()


@pytest.mark.slow
@pytest.mark.parametrize("dataset", ["chain_sum", "basic_arithmetic", "simple_equations", "word_sorting"])
def test_most_of_reasoning_gyms_datasets_do_as_they_should(dataset):
    assert audit(load_task(f"reasoning-gym:{dataset}")).remarks(dataset) == []
