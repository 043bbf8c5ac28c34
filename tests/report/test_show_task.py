"""``upslope tasks NAME --show``: problems of a task as a model would read them."""

from __future__ import annotations

import json

import pytest

from upslope.cli import main
from upslope.policies import load_language_model

SYSTEM = {"role": "system", "content": "brief"}
TEMPLATE = (
    "{% for message in messages %}{{ message['role'][0] }}:{{ message['content'] }};{% endfor %}"
    "a:{% if enable_thinking is defined and not enable_thinking %}-{% endif %}"
)


@pytest.fixture
def chat_model(tmp_path):
    policy = load_language_model("tiny:layers=1,width=16", 0)
    policy.tokenizer.chat_template = TEMPLATE
    policy.save(tmp_path / "chat")
    return tmp_path / "chat"


def test_problems_are_shown_as_the_model_reads_them(chat_model, tmp_path, capsys):
    file = tmp_path / "talks.jsonl"
    asked = [[SYSTEM, {"role": "user", "content": f"{i}+1="}] for i in range(12)]
    file.write_text("".join(json.dumps({"question": each, "answer": i + 1, "level": 1}) + "\n" for i, each in enumerate(asked)))
    words = ["tasks", str(file), "--show", "2", "--model", str(chat_model), "--template", "enable_thinking=false"]
    assert main(words) == 0
    said = capsys.readouterr().out
    assert f"{file}: 9 train, 1 tune, 2 test" in said and "the prompt is 'question'" in said
    assert "chat reads 18 tokens:\n  | s:brief;u:" in said and ";a:-\n" in said and "answer: '" in said
    assert "for the reward: question, level" in said and said.count("problem ") == 2
    assert main([*words, "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["splits"] == {"train": 9, "tune": 1, "test": 2} and len(record["problems"]) == 2
    assert record["problems"][0]["read"].startswith("s:brief;u:") and record["problems"][0]["messages"][0] == SYSTEM


def test_problems_are_shown_without_a_model_and_of_any_task(tmp_path, capsys):
    assert main(["tasks", "reverse:length=2"]) == 0
    said = capsys.readouterr().out
    assert said.count("  prompt:\n  | ") == 3 and "made as they are asked for" in said
    assert said.count("  category: reverse\n  difficulty: 2.0\n  hints: ") == 3 and "for the reward" not in said
    assert main(["tasks", "reverse:length=2+sort", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert "categories" in record["gives"] and {each["category"] for each in record["problems"]} == {"reverse:length=2", "sort"}
    for words, told in (
        (["tasks", "--show", "3"], "--show goes with a task"),
        (["tasks", "gym:CartPole-v1", "--show", "3"], "is an environment"),
        (["tasks", "reverse", "--system", "short"], "say which, --model FOLDER"),
        (["tasks", str(tmp_path / "none.csv"), "--show", "3"], "no file"),
    ):
        assert main(words) == 2
        assert told in capsys.readouterr().err
