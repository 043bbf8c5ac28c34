"""The learner of stored experience: when it acts, when it learns, and what an update moves."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import image_environment
import numpy as np
import pytest
import torch
from point_mass import PointMass, point_data
from stored_rows import Small, drawn_rows

from upslope.errors import MethodError, UserError
from upslope.given import task_argument
from upslope.learners.actor_critic import ActorCritic, check
from upslope.learners.base import make_learner
from upslope.learners.nonfinite import NonFinite
from upslope.methods import find
from upslope.rollout.replay import ReplayRollout
from upslope.runtime.settings import Settings
from upslope.setting_up import set_up
from upslope.testing.runs import random_dataset
from upslope.testing.table_nets import small
from upslope.types import Method

SIZES = Settings(steps=10, envs=1, horizon=12, updates_per_step=5, minibatch=16, eval_problems=2, lr=1e-3)


def learner(method: str | Method, data: Any = None, **settings: Any) -> ActorCritic:
    chosen = small(find(method) if isinstance(method, str) else method)
    waits = {f"{path}.steps": 6 for path, part in chosen.held("acting") if hasattr(part, "steps")}
    name, _, objects = task_argument(PointMass, "")
    made = set_up(chosen.with_knobs(waits), name, "tiny", dataclasses.replace(SIZES, **settings), objects=objects, dataset=data)
    found = make_learner(made.method, made.policy, made.rollout, made.settings)
    assert isinstance(found, ActorCritic)
    found.rollout.restart(1)
    return found


def watched(made: ActorCritic) -> list[str]:
    """What happens in its steps, in order: ``act`` and ``learn``."""
    seen: list[str] = []
    act, learn = made.rollout.act, made.replayed._one
    made.rollout.act = lambda: (seen.append("act"), act())[1]  # type: ignore[method-assign]
    made.replayed._one = lambda *given: (seen.append("learn"), learn(*given))[1]  # type: ignore[method-assign]
    return seen


def test_updates_are_spread_between_the_steps_and_wait_for_the_first():
    made = learner("sac")
    seen = watched(made)
    first = made.step(1)
    assert seen.count("act") == 12 and first["samples"] == 12
    assert "learn" not in seen[:6], "nothing is learned in the first six steps"
    assert seen.count("learn") == first["updates"] == made.updates < 5, "what was due then is not made up for"
    seen.clear()
    second = made.step(2)
    assert second["updates"] == 5 and seen.count("learn") == 5
    gaps = [place for place, word in enumerate(seen) if word == "learn"]
    assert max(b - a for a, b in itertools.pairwise(gaps)) <= 4, "evenly"


def test_more_updates_than_steps_are_spread_too():
    made = learner("td3", updates_per_step=30, horizon=4)
    seen = watched(made)
    made.step(1), made.step(2)
    seen.clear()
    made.step(3)
    blocks = "".join("a" if word == "act" else "l" for word in seen).split("a")[1:]
    assert [len(block) for block in blocks] == [7, 8, 7, 8]


def test_offline_steps_do_not_act_and_then_it_acts():
    made = learner("td3-bc", data=point_data(False), offline_steps=2)
    seen = watched(made)
    told = [made.step(step) for step in (1, 2, 3)]
    assert [each["samples"] for each in told] == [0, 0, 12] and [each["updates"] for each in told] == [5, 5, 5]
    assert seen[:10] == ["learn"] * 10 and seen.count("act") == 12


def test_made_for_datasets_it_never_acts_unless_asked():
    assert learner("td3-bc", data=point_data(False)).settings.offline_steps == SIZES.steps
    assert not learner("rlpd", data=point_data(False)).settings.offline_steps
    with pytest.raises(UserError, match="learns from a dataset"):
        learner("td3-bc")
    with pytest.raises(UserError, match="--offline-steps is 3, and there is no dataset"):
        learner("sac", offline_steps=3)


def test_the_policy_waits_for_the_critics():
    made, rows = Small(small(find("td3"))), drawn_rows(0)
    before = made.weights()
    made.update(rows, 1)
    after = made.weights()
    moved = {name.partition(".")[0] for name in before if not torch.equal(before[name], after[name])}
    assert moved == {"q"}, "at the first of two updates"
    made.update(rows, 2)
    moved = {name.partition(".")[0] for name in before if not torch.equal(before[name], made.weights()[name])}
    assert moved == {"q", "policy", "lagged"}


def test_a_model_learns_as_often_and_as_fast_as_it_says():
    method = small(find("sac"))
    rows = drawn_rows(0)

    def step_of(**knobs: float) -> torch.Tensor:
        made = Small(method.with_knobs({f"models.q.{name}": value for name, value in knobs.items()}))
        before = made.policy.networks["q"].stack.flat.detach().clone()
        made.update(rows, 1)
        return (made.policy.networks["q"].stack.flat.detach() - before).abs().max()

    usual = step_of()
    assert step_of(every=2) == 0 and usual > 0
    torch.testing.assert_close(step_of(lr_scale=0.5), 0.5 * usual, rtol=1e-3, atol=0)


def test_models_are_fitted_in_their_order_around_the_policy():
    made, seen = Small(small(find("iql"))), []
    apply = made.optimizers.apply
    made.optimizers.apply = lambda name, loss: (seen.append(name), apply(name, loss))[1]
    made.update(drawn_rows(0))
    assert seen == ["q", "value", "policy"]
    made, seen2 = Small(small(find("sac"))), []
    apply2 = made.optimizers.apply
    made.optimizers.apply = lambda name, loss: (seen2.append(name), apply2(name, loss))[1]
    made.update(drawn_rows(0))
    assert seen2 == ["q", "policy", "temperature"]


def test_metrics_name_their_model():
    made = Small(small(find("sac")))
    made.update(drawn_rows(0))
    wanted = {"loss", "q_loss", "q_value", "q_td_error", "q_target", "temperature_loss", "temperature", "entropy"}
    assert wanted <= made.metrics.keys() and made.metrics["temperature"] == pytest.approx(1.0)


def test_what_nobody_could_train_is_refused():
    sac = find("sac")
    for method, says in (
        (sac.derive(data=()), "says 0 times how rows are drawn"),
        (sac.derive(surrogate=None), "nothing would learn to act"),
        (sac.with_knobs({"models.q.order": 0}), "model of order 0, which is the policy's"),
    ):
        with pytest.raises(MethodError, match=says):
            check(method, ReplayRollout.provides)


def test_a_state_of_another_method_is_refused():
    made = learner("mdpo-off")
    made.step(1)
    state = made.state()
    made.load_state(state)
    assert made.updates == state["updates"] > 0
    state["parts"] = {}
    made.states = {"controller.0": None}
    with pytest.raises(UserError, match="belongs to another method"):
        made.load_state(state)


def test_a_critic_that_believes_itself_ends_the_step():
    made = learner("td3", data=point_data(False), offline_steps=10)
    made.step(1)
    for networks in (made.policy.networks, made.policy.lagged):
        networks["q"].stack.frozen["2.bias"].fill_(1e6)
    with pytest.raises(NonFinite, match=r"step 2: q_value is .*no return is above"):
        made.step(2)


# -- images ------------------------------------------------------------------------------------------------------------

SMALL_CNN = "SmallCNN(features=8, channels=4)"


def of_images(name: str, **given: Any) -> ActorCritic:
    """A learner of small networks that sees images, with data of the same environment where the method wants some."""
    task = f"{image_environment.__file__}:Steered"
    method = find(name)
    models = [model for model in dict(method.models) if model in ("q", "value")]
    knobs = {
        f"models.{model}.network.{knob}": value for model in models for knob, value in (("encoder", SMALL_CNN), ("hidden", (8,)))
    }
    knobs |= {"policy.encoder": SMALL_CNN, "policy.hidden": (8,)}
    dataset = random_dataset(task, episodes=3, longest=8)
    settings = Settings(steps=2, horizon=8, updates_per_step=4, minibatch=4, seed=3, **given)
    made = set_up(method, task, "tiny", settings, knobs=knobs, dataset=dataset)
    return ActorCritic(made.method, made.policy, made.rollout, made.settings)


@pytest.mark.parametrize("name", ["bc", "td3-bc", "iql", "cql", "serl"])
def test_methods_learn_from_data_of_images_and_images_are_not_normalised(name: str):
    learner = of_images(name)
    before = {key: weight.clone() for key, weight in learner.policy.weights().items()}
    metrics = learner.step(1)
    assert learner.settings.normalise_observations is False and learner.last.inputs.observation.dtype == torch.uint8
    assert all(np.isfinite(value) for value in metrics.values())
    moved = {key for key, weight in learner.policy.weights().items() if not torch.equal(weight, before[key])}
    assert "policy.encoder.last.weight" in moved
    assert all(f"{model}.encoder.last.weight" in moved for model in learner.policy.networks if model in ("q", "value"))
    assert (type(learner.data.augment).__name__, learner.data.gamma) == (
        ("RandomCrop", 0.96) if name == "serl" else ("NoAugmentation", 0.99)
    )


def test_what_cannot_see_images_says_so():
    with pytest.raises(UserError, match=r"normalise_observations=true.*shares of 255"):
        of_images("bc", normalise_observations=True)
    with pytest.raises(MethodError, match=r"FamilyOfPolicies\(\) takes vectors.*\(12, 12, 1\)"):
        of_images("famo2o")
