"""Stages: methods that learn one after another in one run, in the same budget, and go on exactly where a stop left off."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass

import pytest
import torch
from small_learner import SIZES, Paid

import upslope as up
from upslope import parts
from upslope.errors import MethodError, UserError
from upslope.learners.base import make_learner
from upslope.learners.optimizer_step import learning_rate
from upslope.learners.phases import last_steps
from upslope.methods import find
from upslope.objective.base import Controller
from upslope.objective.stages import Stage
from upslope.rollout.sampled import Sampled
from upslope.setting_up import set_up
from upslope.testing.runs import TEXT, Breaks, Crash, assert_same_run

PLAIN, SEQUENCE, COMPARED = find("dr-grpo"), find("gspo"), find("grpo")


def stage(name="first", of=PLAIN, share=0.5, **changes) -> Stage:
    taken = {slot: getattr(of, slot) for slot in ("advantage", "ratio", "surrogate", "aggregate")}
    return Stage(**{"name": name, "share": share, "rollout": Sampled(), **taken, **changes})


def learner(method, settings=SIZES):
    made = set_up(method, "reverse", "tiny:layers=1,width=32", settings)
    made.task = Paid(made.task)
    for rollout in (made.rollout, *made.stage_rollouts.values()):
        rollout.task = made.task
    start = made.policy.frozen_copy()
    return make_learner(made.method, made.policy, made.rollout, made.settings, start, made.stage_rollouts)


def weights(made) -> torch.Tensor:
    return torch.cat([p.detach().flatten().clone() for group in made.policy.trainable().values() for p in group])


def steps(made, count, first=1):
    return [made.step(step) for step in range(first, first + count)]


def without_clock(metrics):
    return {name: value for name, value in metrics.items() if "second" not in name and name != "stage"}


# -- whose steps ---------------------------------------------------------------------------------------------------------------


def test_a_stage_that_has_all_steps_so_far_is_the_run_of_its_method():
    alone, staged = learner(PLAIN), learner(SEQUENCE.derive(name="mine", stages=stage(share=0.4)))
    one, other = steps(alone, 4), steps(staged, 4)
    assert [without_clock(metrics) for metrics in one] == [without_clock(metrics) for metrics in other]
    assert torch.equal(weights(alone), weights(staged))
    assert [metrics["stage"] for metrics in other] == [1, 1, 1, 1]


def test_the_method_learns_in_the_steps_that_its_stages_leave():
    method = SEQUENCE.derive(name="mine", stages=(stage(share=0.2), stage("second", COMPARED, 0.3)))
    assert last_steps(method, 10) == [2, 5, 10]
    made = learner(method)
    assert [metrics["stage"] for metrics in steps(made, 7)] == [1, 1, 2, 2, 2, 3, 3]


def test_a_method_of_the_same_parts_as_its_stage_does_not_notice_it():
    alone, staged = learner(PLAIN), learner(PLAIN.derive(name="mine", stages=stage()))
    steps(alone, 10), steps(staged, 10)
    assert torch.equal(weights(alone), weights(staged))


def test_shares_are_rounded_to_steps_in_sum():
    method = PLAIN.derive(name="mine", stages=tuple(stage(name, share=0.25) for name in ("a", "b", "c")))
    assert last_steps(method, 10) == [2, 5, 8, 10]


# -- what goes over from one to the next ---------------------------------------------------------------------------------------


def test_the_learning_rate_follows_the_schedule_of_the_run_times_the_scale_of_the_stage():
    settings = dataclasses.replace(SIZES, warmup=3, schedule="cosine")
    made = learner(PLAIN.derive(name="mine", stages=stage(lr_scale=0.25)), settings)
    rates = [learning_rate(made.settings, step) for step in range(1, 11)]
    found = [metrics["lr"] for metrics in steps(made, 10)]
    assert found == [rate * 0.25 for rate in rates[:5]] + rates[5:]


def test_moments_go_on_unless_what_follows_is_to_begin_without():
    for fresh, made_updates in ((False, 4.0), (True, 1.0)):
        made = learner(PLAIN.derive(name="mine", stages=stage(share=0.3, fresh_optimizer=fresh)))
        steps(made, 4)
        assert {float(each["step"]) for each in made.optimizer.state.values()} == {made_updates}


def test_the_method_is_compared_with_the_policy_that_the_stages_leave_behind():
    made = learner(COMPARED.derive(name="mine", stages=stage(share=0.3)))
    found = steps(made, 3)
    assert found[0]["kl_start"] < 1e-6 < found[2]["kl_start"]  # within the stage: with the beginning of the run
    left = weights(made)
    after = made.step(4)
    assert after["kl_start"] < 1e-6
    start = made.learner.references.start
    assert torch.equal(torch.cat([p.flatten() for p in start.weights().values()]).sort()[0], left.sort()[0])
    assert made.step(5)["kl_start"] > 1e-6
    assert made.start is None  # nobody looks at the run's own beginning any more


@dataclass(frozen=True)
class Told(Controller):
    """Sets a knob to the progress it is told."""

    def knobs(self, state, progress):
        return {"surrogate.high": 0.2 + progress}


def test_controllers_see_the_progress_of_the_method_and_not_of_the_run():
    made = learner(PLAIN.derive(name="mine", controller=Told(), stages=stage(share=0.5)))
    seen = []
    steps(made, 5)
    for step in range(6, 9):
        made.step(step)
        seen.append(made.learner.last.progress)
    assert seen == [0.0, 0.2, 0.4]


# -- kept over a stop ----------------------------------------------------------------------------------------------------------


REMEMBERS = find("spo-single-stream").derive(
    name="mine",
    references={"old": parts.Snapshot(every=2)},
    regularize=parts.ReferenceKL(reference="old", weight=0.1),
    stages=(stage("one", share=0.25), stage("two", COMPARED, 0.25, fresh_optimizer=True, lr_scale=0.5)),
)


@pytest.fixture
def train(tmp_path):
    (tmp_path / "letters.py").write_text(
        "def score(prompts, responses, answers):\n    return [sum(map(str.isalpha, r)) / 4 for r in responses]\n"
    )
    (tmp_path / "data.jsonl").write_text("".join(json.dumps({"prompt": f"{i}=", "answer": str(i)}) + "\n" for i in range(20)))

    def run(method, out, watcher=None, **settings):
        given = {**TEXT, "steps": 8, "checkpoint_every": 1, "eval_every": 0, "warmup": 2, **settings}
        reward = f"{tmp_path / 'letters.py'}:score"
        return up.train(method, str(tmp_path / "data.jsonl"), model="tiny:layers=1,width=32", reward=reward, out=tmp_path / out,
                        watcher=watcher, **given)  # fmt: skip

    return run


@pytest.mark.parametrize(("every", "stops"), [(1, (1, 2, 4, 5)), pytest.param(3, (4, 7), marks=pytest.mark.slow)])
def test_killed_inside_a_stage_or_between_two_a_run_ends_as_one_that_was_not(train, tmp_path, every, stops):
    whole = train(REMEMBERS, "whole", checkpoint_every=every)
    assert [record["stage"] for record in whole.metrics] == [1, 1, 2, 2, 3, 3, 3, 3]
    for stop in stops:
        with pytest.raises(Crash):
            train(REMEMBERS, f"cut-{stop}", Breaks(stop), checkpoint_every=every)
        up.resume(tmp_path / f"cut-{stop}")
        assert_same_run(whole.path, tmp_path / f"cut-{stop}")


def test_a_run_that_is_made_longer_does_not_go_back_to_a_stage(train, tmp_path):
    short = train(PLAIN.derive(name="mine", stages=stage(share=0.5)), "run", steps=4)
    up.resume(short.path, steps=12)
    assert [record["stage"] for record in up.load(short.path).metrics] == [1, 1] + 10 * [2]


def test_a_run_inside_a_stage_is_loaded_for_use(train, tmp_path):
    method = find("t-ppo").derive(name="mine", stages=stage(share=0.5))
    with pytest.raises(Crash):
        train(method, "run", Breaks(2))
    assert up.load(tmp_path / "run").policy.parameter_count() > 0


# -- refused before the first step -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stages", "steps", "told"),
    [
        ((stage("a", share=0.6), stage("b", share=0.4)), 10, "take 1 of the run (a 0.6, b 0.4)"),
        ((stage("a", share=0.1), stage("b", share=0.4)), 4, "leaves no step for its stage 'a' (share 0.1). Give at least 6"),
        ((stage("a", share=0.9),), 4, "leaves no step for the method itself. Give at least 5"),
        ((stage("a", rollout=parts.Windows()),), 10, "compares several answers to one task"),
        ((stage("a", rollout=parts.Episodes()),), 10, "rollout=Episodes"),
        ((stage("a", ratio=parts.Hybrid()),), 10, "cannot bound the ratio"),
    ],
)
def test_a_method_whose_stages_cannot_run_is_refused_before_the_run(stages, steps, told):
    with pytest.raises(UserError) as refused:
        learner(PLAIN.derive(name="mine", stages=stages), dataclasses.replace(SIZES, steps=steps))
    assert told in str(refused.value)


def test_stages_are_for_text():
    with pytest.raises(UserError, match=r"has stages, which learn from text; .* --set stages=none"):
        set_up(find("ppo").derive(name="mine", stages=stage()), "gym:CartPole-v1", "tiny", SIZES)


def test_a_name_is_a_word_and_stands_once():
    with pytest.raises(MethodError, match=r"'a.b'; its name is a word"):
        stage("a.b")
    with pytest.raises(MethodError, match="two of the stages are named 'a'"):
        PLAIN.derive(name="mine", stages=(stage("a"), stage("a")))
