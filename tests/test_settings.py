"""A setting that would be ignored is refused, and every setting says which kind of task it is for."""

import pytest

import upslope as up
from upslope.errors import TaskError, UserError
from upslope.runtime.settings import ONLY_FOR, Settings, check_domain
from upslope.runtime.settings_flags import field_docs
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
        ("control", {"samples_per_task": 4}, "--samples-per-task 4 goes with text; here is an environment. Leave it out."),
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


def test_an_environment_without_its_family_is_recognised():
    with pytest.raises(TaskError, match="written gym:CartPole-v1"):
        load_task("CartPole-v1")


def test_names_of_the_package_can_be_completed():
    assert {"train", "method", "list_methods"} <= set(dir(up))
