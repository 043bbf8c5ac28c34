"""Names of other libraries lead to ours, on the command line and in Python; every name of the table leads somewhere."""

from __future__ import annotations

import dataclasses
import inspect

import pytest

import upslope as up
from upslope.cli import main
from upslope.cli.parsers import parsers
from upslope.errors import UserError
from upslope.methods import find
from upslope.runtime.settings import Settings
from upslope.runtime.synonyms import FLAGS, HAS, KEYWORDS, KNOBS, PARTS, SETTINGS, knob_paths, meant
from upslope.types import SLOTS

OURS = {f.name for f in dataclasses.fields(Settings)}


def train_flags() -> set[str]:
    return {name for action in parsers()[1]["train"]._actions for name in action.option_strings}


def test_every_target_exists_and_no_name_is_one_of_ours() -> None:
    keywords = set(inspect.signature(up.train).parameters)
    assert set(SETTINGS) <= OURS and set(FLAGS) <= train_flags()
    assert {path.partition(".")[0] for path in PARTS} <= set(SLOTS)
    assert {KEYWORDS.get(flag, flag.removeprefix("--").replace("-", "_")) for flag in FLAGS} <= keywords
    for pattern in KNOBS:
        assert knob_paths(pattern, find(HAS.get(pattern, "grpo")).parts()), pattern
    for names in (*SETTINGS.values(), *FLAGS.values(), *KNOBS.values(), *PARTS.values()):
        assert len(set(names)) == len(names)
        for name in names:
            assert name not in OURS | keywords and f"--{name.replace('_', '-')}" not in train_flags(), name
            assert meant(name, ()) and meant(f"--{name.replace('_', '-')}", (), flags=True)


def test_every_shown_knob_can_be_set() -> None:
    for pattern in KNOBS:
        method = find(HAS.get(pattern, "grpo"))
        for path in knob_paths(pattern, method.parts()):
            name = path.rpartition(".")[2]
            value = {"GroupBaseline.scale": "none", "PessimisticClip.dual": 3.0, "SoftValue.entropy": True}.get(
                pattern.partition(".")[2], {"importance": False, "double": True}.get(name, 0.75)
            )
            value = 3 if name in ("capacity", "steps", "every", "lag_every", "members", "samples") else value
            assert method.with_knobs({path: value}) != method


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["train", "grpo", "--learning-rate", "1e-4"], "train: no flag '--learning-rate'. Did you mean '--lr'?"),
        (["train", "ppo", "--gamma=0.9"], "Did you mean '--set advantage.gamma=...'?"),
        (["train", "grpo", "--gamma", "0.9"], "'--set advantage.gamma=...' (for a method that has it, such as ppo)?"),
        (["train", "grpo", "--beta", "0.1"], "Did you mean '--set regularize.weight=...'?"),
        (["train", "ppo", "--vf-coef", "1"], "Did you mean '--set models.value.weight=...'?"),
        (["train", "ppo", "--ent_coef", "1"], "Did you mean '--set regularize.weight=...'?"),
        (["train", "ppo", "--gae-lambda", "1"], "Did you mean '--set advantage.lam=...'?"),
        (["train", "grpo", "--clip-range", "0.1"], "'--set surrogate.low=...' or '--set surrogate.high=...'?"),
        (["train", "grpo", "--leave-one-out"], "Did you mean '--set advantage.leave_one_out=...'?"),
        (["train", "dhpo", "--epsilon-high", "1"], "'--set surrogate.token.high=...' or '--set surrogate.sequence.high=...'?"),
        (["train", "grpo", "--batch-size", "8"], "Did you mean '--tasks-per-step' or '--minibatch' (control)?"),
        (["train", "grpo", "--num-generations", "8"], "Did you mean '--samples-per-task'?"),
        (["train", "grpo", "--max-completion-length", "8"], "Did you mean '--max-tokens'?"),
        (["train", "grpo", "--gradient-accumulation-steps", "8"], "Did you mean '--tasks-per-step'?"),
        (["train", "ppo", "--n-steps", "8"], "Did you mean '--horizon'?"),
        (["train", "sac", "--buffer-size", "8"], "Did you mean '--set data.capacity=...'?"),
        (["train", "sac", "--gamma", "0.9"], "Did you mean '--set data.gamma=...'?"),
        (["train", "td3", "--learning-starts", "8"], "Did you mean '--set acting.0.steps=...'?"),
        (["train", "sac", "--learning-starts", "8"], "Did you mean '--set acting.steps=...'?"),
        (["train", "dqn", "--exploration-fraction", "0.2"], "Did you mean '--set acting.1.share=...'?"),
        (["train", "dqn", "--target-update-interval", "9"], "Did you mean '--set models.q.lag_every=...'?"),
        (["train", "sac", "--train-freq", "4"], "Did you mean '--horizon'?"),
        (["train", "sac", "--gradient-steps", "4"], "Did you mean '--updates-per-step'?"),
        (["train", "td3", "--tau", "0.01"], "Did you mean '--set models.q.lag=...'?"),
        (["train", "td3-bc", "--alpha", "1"], "Did you mean '--set surrogate.scale=...'?"),
        (["train", "iql", "--expectile", "0.9"], "Did you mean '--set models.value.expectile=...'?"),
        (["train", "iql", "--weight-temp", "3"], "Did you mean '--set surrogate.beta=...'?"),
        (["train", "cql", "--conservative-weight", "5"], "Did you mean '--set models.q.penalty.weight=...'?"),
        (
            ["train", "sac", "--conservative-weight", "5"],
            "'--set models.q.penalty.weight=...' (for a method that has it, such as cql)?",
        ),
        (["train", "sac", "--n-critics", "5"], "Did you mean '--set models.q.network.members=...'?"),
        (["train", "ppo", "--total-timesteps", "8"], "Did you mean '--steps'?"),
        (["train", "grpo", "--epochs", "8"], "Did you mean '--passes'?"),
        (["train", "grpo", "--loss-type", "dapo"], "Did you mean '--set aggregate=...'?"),
        (["train", "ppo", "--target-kl", "0.02"], "Did you mean '--set controller=...'?"),
        (["train", "grpo", "--report-to", "wandb"], "Did you mean '--tracker'?"),
        (["train", "--gamma", "0.9", "ppo"], "Did you mean '--set advantage.gamma=...'"),
        (["compare", "ppo", "--gamma", "0.9"], "compare: no flag '--gamma'. Did you mean '--set advantage.gamma=...'?"),
        (["compare", "grpo", "--grid", "learning_rate=1,2"], "Did you mean 'lr'?"),
        (["resume", "run", "--lr", "1"], "resume: no flag '--lr'. It goes on with the run's own plan; 'upslope train' begins"),
        (["resume", "run", "--learning-rate", "1"], "It goes on with the run's own plan"),
        (["resume", "run", "--quit"], "Did you mean '--quiet'"),
        (["train", "grpo", "--stpes", "3"], "Did you mean '--steps'"),
    ],
)
def test_flags_of_other_libraries_find_ours(words: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    said = capsys.readouterr().err
    assert told in said and said.count("\n") == 1


@pytest.mark.parametrize(
    ("method", "given", "told"),
    [
        ("grpo", "learning_rate", "no setting named 'learning_rate'. Did you mean 'lr'?"),
        ("ppo", "gamma", "no setting named 'gamma'. Did you mean \"knobs={'advantage.gamma': ...}\"?"),
        ("ppo", "n_envs", "Did you mean 'envs'?"),
        ("grpo", "reward_funcs", "Did you mean 'reward'?"),
        ("grpo", "report_to", "Did you mean 'trackers'?"),
        ("grpo", "beta", "Did you mean \"knobs={'regularize.weight': ...}\"?"),
    ],
)
def test_keyword_arguments_of_other_libraries_find_ours(method: str, given: str, told: str) -> None:
    with pytest.raises(UserError) as refused:
        up.train(method, **{given: 1})  # type: ignore[arg-type]
    assert told in str(refused.value)
