"""A setting that would be ignored is refused, and every setting says which kind of task it is for."""

import pytest

import upslope as up
from upslope.errors import TaskError, UserError
from upslope.learners.policy_gradient import PolicyGradient
from upslope.runtime.settings import ONLY_FOR, Settings, check_domain, check_names
from upslope.runtime.settings_flags import field_docs
from upslope.runtime.settings_remarks import remarks_on
from upslope.setting_up import set_up
from upslope.tasks import load_task


def test_the_documentation_of_a_setting_says_for_which_kind_of_task_it_is():
    found = {
        domain: [name for name, text in field_docs(Settings).items() if text.startswith(domain.capitalize())] for domain in ONLY_FOR
    }
    assert found == {domain: list(names) for domain, names in ONLY_FOR.items()}


@pytest.mark.parametrize(
    ("domain", "given", "said"),
    [
        ("text", {"envs": 4}, "--envs 4 goes with control; here is text. Leave it out."),
        ("control", {"max_tokens": 4}, "--max-tokens 4 goes with text; here is an environment. Leave it out."),
        ("control", {"lora": 8}, "--lora 8 goes with text; here is an environment. Leave it out."),
    ],
)
def test_settings_of_the_other_kind_are_refused(domain, given, said):
    with pytest.raises(UserError) as told:
        check_domain(Settings(**given), domain, "here")
    assert str(told.value) == said


def test_settings_of_the_own_kind_are_not():
    check_domain(Settings(envs=4, lr=1e-3), "control", "here")
    check_domain(Settings(samples_per_task=4, lr=1e-3), "text", "here")


def test_a_run_with_a_foreign_setting_does_not_begin(tmp_path):
    with pytest.raises(UserError, match="--horizon 16 goes with control; reverse is text"):
        up.train("grpo", "reverse", model="tiny:layers=1,width=32", horizon=16, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_model_on_an_environment_is_refused(tmp_path):
    with pytest.raises(UserError, match="--model smollm2 goes with text; gym:CartPole-v1 is an environment"):
        up.train("ppo", "gym:CartPole-v1", model="smollm2", out=tmp_path / "run")


def test_swapped_letters_are_the_first_guess():
    with pytest.raises(UserError, match="Did you mean 'grpo'"):
        up.method("gpro")


def test_an_environment_without_its_family_is_recognised():
    with pytest.raises(TaskError, match="written gym:CartPole-v1"):
        load_task("CartPole-v1")


def test_names_of_the_package_can_be_completed():
    assert {"train", "method", "list_methods"} <= set(dir(up))


def test_a_stop_text_ends_answers_in_training_and_in_evaluation(tmp_path, monkeypatch):
    from upslope.report.checkup import Speaker
    from upslope.rollout import evaluation

    run = up.train(
        "grpo", "reverse", model="tiny:layers=1,width=32", stop="a", steps=2, tasks_per_step=8, samples_per_task=8, max_tokens=12,
        warm_start=0.0, eval_problems=40, record="all", out=tmp_path / "run",
    )  # fmt: skip
    rows = [row for step in (1, 2) for group in run.folder.read_rollouts(step)["groups"] for row in group["samples"]]
    said = [row for row in rows if "a" in row["response"]]
    assert said and all(row["response"].index("a") == len(row["response"]) - 1 and row["finish"] == "stop" for row in said)
    answers = [Speaker(run, temperature=1.0, seed=seed).answer("abc=") for seed in range(20)]
    assert any("a" in text for text in answers) and all("a" not in text[:-1] for text in answers)
    seen = []
    monkeypatch.setattr(evaluation, "evaluate_answers", lambda *_, **asked: seen.append(asked["stop"]))
    with pytest.raises(AttributeError):
        run.components.evaluate()
    assert seen == [("a",)]


def test_a_servers_answer_is_cut_behind_the_first_stop_text():
    from upslope.rollout.engines.server_answers import _cut

    assert _cut("one, two; three", (";", ",")) == "one,"
    assert _cut("one two", (";",)) == "one two"


def test_zero_is_honoured_where_it_is_a_value_and_refused_where_it_is_none():
    bench = set_up(up.method("ppo"), "gym:CartPole-v1", "tiny", Settings(adam_beta2=0.0, envs=1, horizon=8))
    (first, *_) = PolicyGradient(bench.method, bench.policy, bench.rollout, bench.settings).optimizer.param_groups
    assert first["betas"] == (0.9, 0.0) and first["eps"] == 1e-5
    with pytest.raises(UserError, match="--adam-eps is 0"):
        Settings(adam_eps=0.0)
    with pytest.raises(UserError, match="--updates-per-step is 0; text needs at least 1"):
        check_domain(Settings(updates_per_step=0), "text", "here")
    check_domain(Settings(updates_per_step=0), "control", "here")


def test_an_unknown_setting_is_refused_in_the_same_words_everywhere(tmp_path):
    said = "no setting named 'step'. Did you mean 'steps'"
    for ask in (lambda: up.train("grpo", step=3, out=tmp_path / "run"), lambda: up.compare("grpo", step=3, out=tmp_path / "all")):
        with pytest.raises(UserError, match=said):
            ask()
    with pytest.raises(UserError, match=r"no setting named 'step' to be set here\. Did you mean 'steps'"):
        check_names(["step"], but=("engine",), where=" to be set here")
    with pytest.raises(UserError, match="no setting named 'engine'"):
        check_names(["engine"], but=("engine",))


@pytest.mark.parametrize(
    ("model", "rank", "expected"),
    [
        ("smollm2", 0, 1e-6), ("smollm2", 1, 1e-4), ("smollm2", 8, 1e-4), ("smollm2", 16, 5e-5), ("some/folder", 32, 2.5e-5),
        ("smollm2", 256, 1.25e-5), ("tiny", 0, 2e-4), ("tiny:layers=1", 4, 4e-3), ("tiny", 16, 2e-3), ("tiny", 64, 5e-4),
    ],
)  # fmt: skip
def test_adapters_have_a_learning_rate_by_rank_and_model(model, rank, expected):
    assert Settings(lora=rank).resolved("text", model).lr == expected
    assert Settings(lora=rank, lr=3e-5).resolved("text", model).lr == 3e-5


def test_the_learning_rate_of_adapters_is_said():
    (said,) = remarks_on(Settings(lora=16).resolved("text", "smollm2"), "smollm2")
    assert said == "adapters of rank 16 learn at 5e-05, 50 times that of full training; --lr sets another."
    (said,) = remarks_on(Settings(lora=16, lr=2e-6).resolved("text", "smollm2"), "smollm2")
    assert said.startswith("--lr 2e-06 is a learning rate of full training") and said.endswith("Leave it out, which is 5e-05.")
    assert remarks_on(Settings(lora=16, lr=2e-5).resolved("text", "smollm2"), "smollm2") == []
    assert remarks_on(Settings().resolved("text", "smollm2"), "smollm2") == []


@pytest.mark.parametrize("name", ["train_problems", "eval_problems"])
def test_more_problems_than_memory_holds_are_refused(name):
    """All are drawn at once: a billion asked numpy for 30 GiB."""
    with pytest.raises(UserError, match="is 1000001; it must be at least 1 and at most 1e"):
        Settings(**{name: 1_000_001})
    assert getattr(Settings(**{name: 1_000_000}), name) == 1_000_000
