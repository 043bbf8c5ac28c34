"""Prompts as a chat model reads them: messages, a system message, arguments of the template, the same wherever they are read."""

from __future__ import annotations

import pytest
from rollout_calls import collect

import upslope as up
from upslope.cli import main
from upslope.errors import UserError
from upslope.policies import load_language_model
from upslope.policies.tiny import character_tokenizer
from upslope.policies.tokenization import (
    PLAIN,
    PromptFormat,
    PromptLimit,
    cut_to,
    encoded,
    encoded_answers,
    encoded_lengths,
    fitting,
    parse_template,
)
from upslope.runtime.seeding import uniforms
from upslope.types import Sampling

TEMPLATE = (
    "{% for message in messages %}{% if message['role'] == 'tool' %}{{ raise_exception('no tools') }}{% endif %}"
    "{{ message['role'][0] }}:{{ message['content'] }};{% endfor %}"
    "{% if add_generation_prompt %}a:{% if enable_thinking is defined and not enable_thinking %}-{% endif %}{% endif %}"
)
USER, SYSTEM = {"role": "user", "content": "2+2="}, {"role": "system", "content": "brief"}
SAID = {"role": "assistant", "content": "5"}
QUICK = {
    "warm_start": 0.0, "steps": 1, "tasks_per_step": 2, "samples_per_task": 2, "max_tokens": 3, "eval_problems": 4,
    "reward": "exact",
}  # fmt: skip


@pytest.fixture(scope="module")
def tokenizer():
    made = character_tokenizer()
    made.chat_template = TEMPLATE
    return made


def read(tokenizer, prompt, form=PLAIN):
    return tokenizer.decode(encoded(tokenizer, [prompt], form)[0])


def test_texts_and_messages_go_through_the_template(tokenizer):
    assert read(tokenizer, "2+2=") == read(tokenizer, [USER]) == "u:2+2=;a:"
    assert read(tokenizer, [SYSTEM, USER, SAID, USER]) == "s:brief;u:2+2=;a:5;u:2+2=;a:"


def test_a_system_message_stands_before_prompts_that_have_none(tokenizer):
    form = PromptFormat.parse("short", "enable_thinking=False")
    assert read(tokenizer, "2+2=", form) == "s:short;u:2+2=;a:-"
    assert read(tokenizer, [USER, SAID, USER], form) == "s:short;u:2+2=;a:5;u:2+2=;a:-"
    assert read(tokenizer, [SYSTEM, USER], form) == "s:brief;u:2+2=;a:-"


def test_arguments_of_a_template_are_read_as_json_or_text():
    assert parse_template("enable_thinking=false, level=2,name=high") == {"enable_thinking": False, "level": 2, "name": "high"}
    for text, told in (("enable_thinking", "not of the form NAME=VALUE"), ("a=1,a=2", "gives 'a' twice"), ("a b=1", "not of the")):
        with pytest.raises(UserError, match=told):
            parse_template(text)


def test_what_a_template_would_ignore_is_refused(tokenizer):
    PromptFormat.parse("short", "enable_thinking=false").check(tokenizer, "chat")
    with pytest.raises(UserError, match=r"reads no 'enable_thinkin'. Did you mean 'enable_thinking'"):
        PromptFormat.parse("", "enable_thinkin=false").check(tokenizer, "chat")
    with pytest.raises(UserError, match="reads no 'add_generation_prompt'"):
        PromptFormat.parse("", "add_generation_prompt=false").check(tokenizer, "chat")
    for form in (PromptFormat("short"), PromptFormat.parse("", "enable_thinking=false")):
        with pytest.raises(UserError, match=r"--(system|template): 'base' has no chat template"):
            form.check(character_tokenizer(), "base")


def test_a_model_without_a_template_reads_a_single_message_and_refuses_a_conversation():
    plain = character_tokenizer()
    assert encoded(plain, [[USER]]) == encoded(plain, ["2+2="])
    with pytest.raises(UserError, match=r"a conversation \(system, user\), and the model has no chat template"):
        encoded(plain, [[SYSTEM, USER]])


def test_a_template_that_refuses_is_quoted(tokenizer):
    with pytest.raises(UserError, match=r"chat template refuses a prompt: no tools. It begins '2\+2='"):
        encoded(tokenizer, [[{**USER, "role": "tool"}]])


def test_of_a_long_conversation_the_last_message_is_cut(tokenizer):
    talk = [SYSTEM, {"role": "user", "content": "1234567890"}]
    whole = len(encoded(tokenizer, [talk])[0])
    assert cut_to(tokenizer, talk, whole) == talk
    assert cut_to(tokenizer, talk, whole - 4) == [SYSTEM, {"role": "user", "content": "567890"}]
    (ids,) = fitting(tokenizer, [talk], PromptLimit(whole - 4, "cut"))
    assert tokenizer.decode(ids) == "s:brief;u:567890;a:"
    with pytest.raises(UserError, match="it begins '1234567890'"):
        fitting(tokenizer, [talk], PromptLimit(whole - 4))


# -- whole runs ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def chat_model(tmp_path):
    policy = load_language_model("tiny:layers=1,width=16", 0)
    policy.tokenizer.chat_template = TEMPLATE
    policy.save(tmp_path / "chat")
    return tmp_path / "chat"


def talks(count=12):
    return [{"prompt": [SYSTEM, {"role": "user", "content": f"{i}+1="}], "answer": i + 1} for i in range(count)]


def test_a_run_on_messages_samples_evaluates_and_answers_alike(chat_model, tmp_path, capsys):
    settings = {**QUICK, "model": str(chat_model), "template": "enable_thinking=false"}
    run = up.train("grpo", talks(), out=tmp_path / "run", record="all", **settings)
    recorded = run.folder.read_rollouts(1)
    assert recorded["groups"][0]["prompt"].startswith("system: brief\n\nuser: ")
    rows = collect(run.components.rollout, 2)
    inputs = zip(rows.inputs.prompt, rows.inputs.prompt_mask, strict=True)
    texts = [run.policy.tokenizer.decode(ids[mask.bool()]) for ids, mask in inputs]
    assert all(text.startswith("s:brief;u:") and text.endswith("=;a:-") for text in texts)
    assert main(["try", str(run.path), "--problems", "2"]) == 0
    assert "system: brief\n\nuser: " in capsys.readouterr().out


def test_a_system_message_from_a_file_is_kept_as_text(chat_model, tmp_path):
    (tmp_path / "system.txt").write_text("Answer with a number.\n")
    rows = [{"prompt": f"{i}+1=", "answer": i + 1} for i in range(12)]
    settings = {**QUICK, "model": str(chat_model), "system": f"@{tmp_path / 'system.txt'}"}
    run = up.train("grpo", rows, out=tmp_path / "run", **settings)
    (tmp_path / "system.txt").unlink()
    again = up.load(run.path)
    assert again.table["settings"]["system"] == "Answer with a number."
    assert again.policy.tokenizer.decode(again.policy.encode("1+1=")) == "s:Answer with a number.;u:1+1=;a:"
    for text, told in (("@none.txt", r"none.txt cannot be read \(No such file"), (f"@{tmp_path}", "cannot be read")):
        with pytest.raises(UserError, match=told):
            up.train("grpo", rows, **{**settings, "system": text})
    (tmp_path / "empty.txt").write_text(" \n")
    with pytest.raises(UserError, match="the file is empty"):
        up.train("grpo", rows, **{**settings, "system": f"@{tmp_path / 'empty.txt'}"})


def test_settings_of_text_are_refused_elsewhere():
    with pytest.raises(UserError, match=r"--system short goes with text; gym:CartPole-v1 is an environment"):
        up.train("ppo", "gym:CartPole-v1", system="short")
    with pytest.raises(UserError, match="--system: 'tiny' has no chat template"):
        up.train("grpo", "reverse", system="short", warm_start=0.0)


def test_a_server_reads_what_the_run_reads(chat_model, tmp_path):
    """Our own server answers the run's problems as the run does, whether a request brings the system message or leaves it out."""
    from upslope.report.checkup import EvaluationRequest, evaluate
    from upslope.rollout.engines.server_answers import ServerAnswers
    from upslope.serving.requests import read_chat
    from upslope.serving.server import Server

    settings = {**QUICK, "model": str(chat_model), "system": "short", "template": "enable_thinking=false"}
    run = up.train("grpo", [*talks(8), {"prompt": "7+7=", "answer": 14}], out=tmp_path / "run", **settings)
    assert "--system is left out of 8 rows that begin with a system message of their own." in run.components.task.describe()
    wanted = run.policy.encode("7+7=")
    assert run.policy.tokenizer.decode(wanted) == "s:short;u:7+7=;a:-"
    for messages in ([{"role": "user", "content": "7+7="}], run.policy.prompt_format.messages("7+7=")):
        assert read_chat({"messages": messages, "max_tokens": 3}, run.policy, run.policy.name).prompts == [wanted]
    with Server(run.policy, port=0) as server:
        served = evaluate(up.load(run.path), EvaluationRequest(k=1, engine=server.url))
        refused = ServerAnswers(server.url, chat=True, form=PromptFormat.parse("", "nonsense=1"))
        with pytest.raises(UserError, match="reads no 'nonsense'"):
            refused(["7+7="], 1, Sampling(3, 0), uniforms((1, 3), 0))
    assert served["greedy"] == evaluate(up.load(run.path), EvaluationRequest(k=1))["greedy"]


@pytest.mark.parametrize("template", [None, "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"])
def test_lengths_are_those_of_what_is_encoded(template):
    tokenizer = character_tokenizer("abcdefgl:,123 <>usr")
    tokenizer.chat_template = template
    prompts = ["abc", "", "a longer one: 123", "élan"]
    assert encoded_lengths(tokenizer, prompts) == [len(ids) for ids in encoded(tokenizer, prompts)]


def test_neighbours_that_are_the_same_are_encoded_once_and_all_come_back(tokenizer, monkeypatch):
    prompts = ["ab", "ab", "c", [USER], [USER], "ab", "ab"]
    apart = [encoded(tokenizer, [prompt])[0] for prompt in prompts]
    given, call = [], type(tokenizer).__call__

    def counted(self, texts, **how):
        given.append(len(texts))
        return call(self, texts, **how)

    monkeypatch.setattr(type(tokenizer), "__call__", counted)
    assert encoded(tokenizer, prompts) == apart and given == [4]
    assert encoded(tokenizer, []) == []


def test_answers_are_encoded_together_as_they_are_one_by_one(tokenizer):
    texts = ["4", "", "four and a half", "4"]
    assert encoded_answers(tokenizer, texts) == [tokenizer(text, add_special_tokens=False).input_ids for text in texts]
    assert encoded_answers(tokenizer, []) == []
