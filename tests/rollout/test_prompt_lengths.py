"""Prompts that leave too little room for an answer: found before the first step, and refused, cut or left out."""

from __future__ import annotations

import json
import shutil
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import torch
from rollout_calls import answered

import upslope as up
from upslope.errors import TaskError, UserError
from upslope.methods import find
from upslope.policies.tiny import ALPHABET, character_tokenizer, tiny
from upslope.policies.tokenization import PLAIN, PromptLimit, cut_to, encoded
from upslope.rollout import prompt_lengths
from upslope.rollout.prompt_lengths import cut_prompts, fit_prompts
from upslope.runtime.settings import Settings
from upslope.setting_up import TextComponents, set_up
from upslope.tasks import load_task
from upslope.tasks.fitting import OnlyFitting

MODEL = "tiny:layers=1,width=16,heads=2"
LINES, MAX_TOKENS, LIMIT = 40, 12, 500
"""`tiny` has 512 positions."""
SIZES = {"steps": 2, "tasks_per_step": 2, "samples_per_task": 2, "max_tokens": MAX_TOKENS, "warm_start": 0.0, "eval_problems": 40}


def problems(path: Path, long: tuple[int, ...] = (17, 30)) -> str:
    """Sums; those on some lines have a long story before them."""
    rows = [{"prompt": "x" * 600 * (n in long) + f"{n}+1=", "answer": str(n + 1)} for n in range(1, LINES + 1)]
    path.write_text("\n".join(map(json.dumps, rows)))
    return str(path)


def bench(task: str, long: str = "refuse") -> TextComponents:
    found = set_up(up.method("grpo"), task, MODEL, Settings(**SIZES, long=long), "exact")
    assert isinstance(found, TextComponents)
    return found


def test_a_long_prompt_is_refused_before_the_run_with_its_line_and_both_cures(tmp_path):
    with pytest.raises(TaskError) as problem:
        up.train("grpo", problems(tmp_path / "long.jsonl"), reward="exact", out=tmp_path / "run", **SIZES)
    said = str(problem.value)
    assert f"{tmp_path / 'long.jsonl'}, line 17: the prompt has 606 tokens" in said  # a start token, 600 and five more
    assert f"leaves of the 512 positions of 'tiny' only {LIMIT}. 1 more line has too many." in said
    assert "--long cut" in said and "--long skip" in said and "\n" not in said
    assert not (tmp_path / "run").exists()


def test_the_line_of_a_test_file_is_named_too(tmp_path):
    train = problems(tmp_path / "train.jsonl", long=())
    (tmp_path / "test.jsonl").write_text(json.dumps({"prompt": "y" * 501, "answer": "1"}))
    with pytest.raises(TaskError, match=r"test.jsonl, line 1: the prompt has 502 tokens"):
        up.train("grpo", train, reward="exact", test_data=str(tmp_path / "test.jsonl"), out=tmp_path / "run", **SIZES)


def test_the_longest_that_fits_is_taken_and_one_more_is_not(tmp_path):
    for extra, fits in ((0, True), (1, False)):
        file = tmp_path / f"{extra}.jsonl"
        file.write_text("\n".join(json.dumps({"prompt": str(n) * (LIMIT - 1 + extra), "answer": "1"}) for n in range(3)))
        if fits:
            assert max(
                bench(str(file)).policy.encode_all([p.prompt for p in bench(str(file)).task.sample(3, "train", rng())]), key=len
            )
        else:
            with pytest.raises(TaskError, match=f"has {LIMIT + 1} tokens"):
                bench(str(file))


def rng() -> np.random.Generator:
    return np.random.default_rng(3)


def test_skip_leaves_the_problems_out_everywhere_and_all_others_where_they_are(tmp_path):
    path = problems(tmp_path / "long.jsonl")
    whole = bench(path, "cut").task.division.problems
    skipping = bench(path, "skip").task
    left = skipping.division.problems
    for split, some in whole.items():
        assert left[split] == [problem for problem in some if len(problem.prompt) < 500]
    assert sum(map(len, left.values())) == LINES - 2
    assert "2 rows are left out: prompts of over 500 tokens" in skipping.remarks[-1]
    assert "38" not in skipping.describe().split(":")[0] and len(left["train"]) < LINES


def test_skip_refuses_to_leave_a_split_without_problems(tmp_path):
    rows = [{"prompt": f"{n}=" + "x" * 600 * (n == 0), "answer": "1", "split": "test" if n == 0 else "train"} for n in range(12)]
    (tmp_path / "p.jsonl").write_text("\n".join(map(json.dumps, rows)))
    with pytest.raises(TaskError, match="nothing is left for test"):
        bench(str(tmp_path / "p.jsonl"), "skip")


def test_cut_reads_the_end_and_the_reward_is_given_all(tmp_path):
    made = bench(problems(tmp_path / "long.jsonl"), "cut")
    long = "x" * 600 + "17+1="
    (ids,) = made.policy.encode_all([long])
    assert len(ids) == LIMIT and made.policy.decode(ids).endswith("xxx17+1=")
    assert ids[0] == made.policy.tokenizer.bos_token_id, "what the tokenizer puts before a prompt stays"
    assert made.policy.frozen_copy().encode(long) == ids
    every = [problem for some in made.task.division.problems.values() for problem in some]
    rows = answered(made.rollout, [problem for problem in every if problem.prompt == long], 1, 0)
    assert rows.info[0]["prompt"] == long and int(rows.inputs.prompt_mask[0].sum()) == LIMIT
    assert "2 lines with prompts of over 500 tokens: only their ends are read" in made.task.remarks[-1]


@pytest.mark.parametrize("long", ["cut", "skip"])
def test_training_resuming_and_evaluating_treat_long_prompts_alike(tmp_path, long):
    path = problems(tmp_path / "long.jsonl", long=tuple(range(3, LINES, 4)))
    run = up.train("grpo", path, reward="exact", model=MODEL, out=tmp_path / "a", long=long,
                   checkpoint_every=1, **SIZES)  # fmt: skip
    assert 'long = "' + long in (tmp_path / "a" / "run.toml").read_text()
    from upslope.report.checkup import EvaluationRequest, evaluate

    found = evaluate(run, EvaluationRequest(samples=1))
    assert found["problems"] == run.evaluations[-1]["problems"]
    assert found["greedy"]["score"] == run.evaluations[-1]["score"]
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    (tmp_path / "b" / "summary.json").unlink()
    shutil.rmtree(tmp_path / "b" / "checkpoints" / "step-000002")
    again = up.resume(tmp_path / "b")
    assert all(torch.equal(tensor, again.policy.weights()[name]) for name, tensor in run.policy.weights().items())
    assert [step["prompt"] for step in samples(tmp_path / "a")] == [step["prompt"] for step in samples(tmp_path / "b")]


def samples(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "samples.jsonl").read_text().splitlines()]


def test_runs_without_long_prompts_are_the_same_to_the_bit_whatever_long_says(tmp_path):
    path = problems(tmp_path / "short.jsonl", long=())
    ends = []
    for long in ("refuse", "cut", "skip"):
        run = up.train("grpo", path, reward="exact", model=MODEL, out=tmp_path / long, long=long, **SIZES)
        ends.append(run.policy.weights())
    for other in ends[1:]:
        assert all(torch.equal(tensor, other[name]) for name, tensor in ends[0].items())


def test_what_is_made_on_the_spot_is_drawn_again_in_place_of_a_long_one():
    task = load_task("sort")
    lengths = []

    def fits(prompts):
        lengths.append(len(prompts))
        return ["9" not in prompt for prompt in prompts]

    skipping = OnlyFitting(task, fits)
    drawn = skipping.sample(20, "train", rng())
    assert len(drawn) == 20 and not any("9" in problem.prompt for problem in drawn)
    assert lengths[0] == 20 and len(lengths) > 1
    assert drawn == skipping.sample(20, "train", rng())
    assert OnlyFitting(task, lambda prompts: [True] * len(prompts)).sample(20, "train", rng()) == task.sample(20, "train", rng())
    assert skipping.separator == task.separator and skipping.name == task.name and skipping.length == task.length
    with pytest.raises(TaskError, match="0 of 5 problems have a prompt that fits"):
        OnlyFitting(task, lambda prompts: [False] * len(prompts)).sample(5, "train", rng())


def test_a_long_prompt_made_on_the_spot_is_refused_or_cut_when_it_is_drawn():
    policy = tiny(0, layers=1, width=16, heads=2)
    task = load_task("sort")
    fitted = fit_prompts(task, policy.tokenizer, policy.model.config, name="tiny", max_tokens=508, long="refuse")
    assert fitted.task is task and fitted.limit == PromptLimit(4, "refuse")
    policy.prompt_limit = fitted.limit
    with pytest.raises(UserError, match=r"a prompt has \d+ tokens where 4 leave room.*--long cut"):
        policy.encode(task.sample(1, "train", rng())[0].prompt)
    policy.prompt_limit = PromptLimit(4, "cut")
    assert len(policy.encode("sort 5 3 1=")) == 4 and policy.decode(policy.encode("sort 5 3 1=")) == " 1="


def test_a_chat_template_stays_whole_around_a_prompt_that_is_cut():
    tokenizer = character_tokenizer(ALPHABET)
    tokenizer.chat_template = (
        "{% for m in messages %}<u>{{ m['content'] }}</u>{% endfor %}{% if add_generation_prompt %}:{% endif %}"
    )
    assert len(encoded(tokenizer, ["abc"])[0]) == 11
    assert cut_to(tokenizer, "abcdefgh", 11) == "fgh"
    assert cut_to(tokenizer, "abc", 11) == "abc"
    with pytest.raises(UserError, match="not even enough for what the chat template"):
        cut_to(tokenizer, "abc", 7)
    sent = []
    answer = cut_prompts(lambda prompts, *_: sent.extend(prompts) or ([], 0), tokenizer, PromptLimit(11, "cut"))
    answer(["abcdefgh", "a"], 1, None, None)
    assert sent == ["fgh", "a"], "a server that answers in place of the run is asked what the run would have read"


def test_no_room_at_all_is_said():
    policy = tiny(0, layers=1, width=16, heads=2)
    with pytest.raises(UserError, match="--max-tokens 512 leaves no room for a prompt: 'tiny' has 512 positions"):
        fit_prompts(load_task("sort"), policy.tokenizer, policy.model.config, name="tiny", max_tokens=512, long="cut")


def test_progress_is_told_and_without_a_listener_said_if_it_is_slow(tmp_path, capsys, monkeypatch):
    path = problems(tmp_path / "p.jsonl", long=())
    monkeypatch.setattr(prompt_lengths, "AT_ONCE", 16)
    heard = []
    method = up.method("grpo")
    set_up(method, path, MODEL, Settings(**SIZES), "exact", checking=lambda *done: heard.append(done))
    assert heard == [(16, 40), (32, 40), (40, 40)] and not capsys.readouterr().err
    said = []
    monkeypatch.setattr(prompt_lengths, "said_if_slow", lambda what: nullcontext(said.append(what)))
    bench(path)
    assert said == ["checking 40 prompts"]
    monkeypatch.setattr(prompt_lengths, "AT_ONCE", 40)  # nothing is left that could take long
    bench(path)
    assert len(said) == 1


def test_control_refuses_the_setting():
    with pytest.raises(UserError, match="--long cut goes with text"):
        up.train("ppo", "gym:CartPole-v1", long="cut", steps=1)


LONG = "b" * 600
UNFIT = {"dpo": {"chosen": "b", "rejected": LONG}, "kto": {"completion": LONG, "label": True}, "sft": {"answer": LONG}}


@pytest.mark.parametrize("method", UNFIT)
def test_an_answer_to_learn_from_that_does_not_fit_is_refused_with_its_line(tmp_path, method):
    long = UNFIT[method]
    short = {key: "b" if key in ("completion", "answer") else value if key == "label" else key for key, value in long.items()}
    lines = [{"prompt": f"a{number}", **(long if number == 2 else short)} for number in range(6)]
    (tmp_path / "data.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    settings = Settings(steps=1, tasks_per_step=2, warm_start=0.0, max_tokens=8)
    with pytest.raises(TaskError, match=r"line 3: the prompt with its longest answer has 60[0-9] tokens, and .* positions"):
        set_up(find(method), str(tmp_path / "data.jsonl"), "tiny:layers=1,width=32", settings)
    (tmp_path / "data.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines if line != lines[2]))
    set_up(find(method), str(tmp_path / "data.jsonl"), "tiny:layers=1,width=32", settings)


# -- of many prompts only some are measured --------------------------------------------------------------------------------------


def measured(path: str, monkeypatch: pytest.MonkeyPatch, longest: int, limit: int | None = LIMIT) -> dict[str, int]:
    monkeypatch.setattr(prompt_lengths, "LONGEST", longest)
    tokenizer = tiny(0, layers=1, width=16, heads=2).tokenizer
    task = load_task(path, reward="exact")
    return prompt_lengths.measured_prompts(task, tokenizer, None if limit is None else PromptLimit(limit), PLAIN, None)


def test_of_many_prompts_the_longest_are_measured_and_all_that_may_not_fit(tmp_path, monkeypatch):
    path = problems(tmp_path / "long.jsonl", long=())
    every = measured(path, monkeypatch, LINES)
    assert len(every) == LINES
    some = measured(path, monkeypatch, 5)
    assert some == {prompt: every[prompt] for prompt in some} and len(some) == 5
    assert max(some.values()) == max(every.values()) and measured(path, monkeypatch, 5, None) == some
    # What is near to the limit is measured, whatever else is longer.
    assert len(measured(path, monkeypatch, 5, 60)) == LINES
    assert set(measured(problems(tmp_path / "p.jsonl"), monkeypatch, 1)) == {"x" * 600 + f"{n}+1=" for n in (17, 30)}


def test_what_normalising_may_lengthen_is_measured(tmp_path, monkeypatch):
    rows = [{"prompt": prompt, "answer": "1"} for prompt in (*(f"{n}+1=" for n in range(20)), "\ufdfa", "one and one is what?")]
    (tmp_path / "p.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert set(measured(str(tmp_path / "p.jsonl"), monkeypatch, 1)) == {"\ufdfa", "one and one is what?"}


def test_a_conversation_is_measured(tmp_path, monkeypatch):
    asked = [[{"role": "user", "content": f"{n}+1="}] for n in range(20)]
    (tmp_path / "p.jsonl").write_text("\n".join(json.dumps({"prompt": prompt, "answer": "1"}) for prompt in asked))
    assert len(measured(str(tmp_path / "p.jsonl"), monkeypatch, 1)) == 20


def test_a_long_prompt_among_many_is_refused_with_its_line(tmp_path, monkeypatch):
    monkeypatch.setattr(prompt_lengths, "LONGEST", 3)
    with pytest.raises(TaskError, match=r"line 17: the prompt has 606 tokens.* 1 more line has too many"):
        bench(problems(tmp_path / "long.jsonl"))
    assert len(bench(problems(tmp_path / "long.jsonl"), "skip").prompt_lengths) < LINES
