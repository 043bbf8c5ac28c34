"""MOORL: SAC on one store at a time where its meta-step is whole, and the step itself by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from beside_off_policy import NARROW, assert_bitwise_equal

from upslope.errors import MethodError
from upslope.experience import Dataset, Episode, Episodes
from upslope.learners.base import make_learner
from upslope.learners.slow_weights import KeptWeights
from upslope.methods import find
from upslope.objective.controller.reptile import Reptile
from upslope.objective.data.stored import OneStore
from upslope.runtime.settings import Settings
from upslope.setting_up import set_up
from upslope.types import Ended, Method, SlowWeights, Source

moorl, sac = find("moorl"), find("sac")
SMALL = dict(steps=2, horizon=30, updates_per_step=60, minibatch=16, seed=3, threads=1)


def pendulum_data() -> Dataset:
    """Two episodes of a pendulum that nobody holds."""
    random = np.random.default_rng(0)
    made = []
    for _ in range(2):
        observation = random.standard_normal((41, 3)).astype(np.float32)
        action, reward = random.uniform(-2, 2, (40, 1)).astype(np.float32), -random.random(40).astype(np.float32)
        made.append(Episode(observation, action, reward, Ended.TRUNCATED))
    return Dataset.of(Episodes.of(made))


def learner_of(method: Method, **settings: int):
    made = set_up(method, "gym:Pendulum-v1", "tiny", Settings(**SMALL | settings), knobs=NARROW | {"acting.steps": 10},
                  dataset=pendulum_data())  # fmt: skip
    made.rollout.restart(0)
    return made, make_learner(made.method, made.policy, made.rollout, made.settings)


@pytest.mark.checks("identity", "moorl")
def test_with_one_update_and_a_whole_step_it_is_sac_with_a_random_store():
    whole = moorl.derive(data=OneStore(together=1), controller=Reptile(every=1, rate=1.0))
    random_store = sac.derive(data=OneStore(together=1))
    policies = []
    for method in (whole, random_store):
        made, learner = learner_of(method)
        for step in (1, 2):
            learner.step(step)
        made.rollout.close()
        policies.append(made.policy)
    assert_bitwise_equal(*policies)


@pytest.mark.checks("oracle", "moorl", by="hand-worked numbers")
def test_the_meta_step_goes_part_of_the_way_back():
    """Slow 1, learned to 3: at rate 0.25 both are 1.5; at the next step, from 1.5 to 0.5, both are 1.25."""
    made, learner = learner_of(moorl)
    flat = made.policy.actor.stack.flat
    with torch.no_grad():
        flat.fill_(1.0)
    slow = KeptWeights(moorl, made.policy, SlowWeights(("policy",), every=2, rate=0.25))
    for update, learned, expected in ((1, 7.0, 7.0), (2, 3.0, 1.5), (3, 9.0, 9.0), (4, 0.5, 1.25)):
        with torch.no_grad():
            flat.fill_(learned)
        slow.step(update)
        assert torch.equal(flat, torch.full_like(flat, expected)), update
    assert torch.equal(slow.state()["policy.0"], flat)
    made.rollout.close()
    assert learner.slow is not None and learner.slow.asked == SlowWeights(("policy", "q"), 5, 0.5)


def test_the_temperature_is_not_pulled_back_and_the_others_are():
    """With a rate near zero actor and critics stay where they were, and the temperature goes on."""
    made, learner = learner_of(moorl.with_knobs({"controller.rate": 1e-9}))
    before = {name: made.policy.networks[name].stack.flat.detach().clone() for name in ("policy", "q", "temperature")}
    learner.step(1)
    moved = {name: (made.policy.networks[name].stack.flat - weights).abs().max().item() for name, weights in before.items()}
    assert max(moved["policy"], moved["q"]) < 1e-6 < 1e-4 < moved["temperature"]
    made.rollout.close()


def test_updates_of_one_meta_step_draw_from_one_store():
    made, learner = learner_of(moorl.derive(data=OneStore(together=5)))
    drawn, draw = [], made.rollout.draw

    def noted(*given):
        rows = draw(*given)  # of several updates, one behind the other
        drawn.extend(set(share.tolist()) for share in rows.label["source"].chunk(len(given[2])))
        return rows

    made.rollout.draw = noted
    learner.step(1)
    learner.step(2)
    assert all(len(sources) == 1 for sources in drawn)
    blocks = [drawn[first : first + 5] for first in range(20, len(drawn), 5)]
    assert all(block == block[:1] * len(block) for block in blocks)
    found = [block[0] for block in blocks]
    assert {int(Source.REPLAYED)} in found and {int(Source.DEMONSTRATED)} in found
    made.rollout.close()


def test_as_long_as_one_store_is_empty_the_other_is_taken():
    data = OneStore()
    assert data.counts(8, {"replayed": 0, "demonstrated": 5}, 0.9) == {"replayed": 0, "demonstrated": 8}
    assert data.counts(8, {"replayed": 5, "demonstrated": 0}, 0.1) == {"replayed": 8, "demonstrated": 0}
    assert data.counts(8, {"replayed": 5, "demonstrated": 5}, 0.1) == {"replayed": 0, "demonstrated": 8}
    assert data.counts(8, {"replayed": 5, "demonstrated": 5}, 0.9) == {"replayed": 8, "demonstrated": 0}


def test_slow_weights_are_part_of_a_learners_state():
    """Saved in the middle of a meta-step, where they are not those of the networks."""
    made, learner = learner_of(moorl, updates_per_step=63)
    learner.step(1)
    other, second = learner_of(moorl, updates_per_step=63)
    state = learner.state()
    assert not torch.equal(state["slow_weights"]["policy.0"], made.policy.actor.stack.flat), "in the middle"
    assert not torch.equal(second.state()["slow_weights"]["q.0"], state["slow_weights"]["q.0"])
    second.slow.load_state(state["slow_weights"])
    assert torch.equal(second.state()["slow_weights"]["q.0"], state["slow_weights"]["q.0"])
    for each in (made, other):
        each.rollout.close()


def test_what_cannot_be_kept_is_refused():
    with pytest.raises(MethodError, match="keeps slow weights of 'critic'; it has policy, q, temperature"):
        learner_of(moorl.derive(controller=Reptile(networks=("policy", "critic"))))
    with pytest.raises(MethodError, match="2 controllers with slow weights"):
        learner_of(moorl.derive(controller=(Reptile(), Reptile(every=3))))
    with pytest.raises(MethodError, match=r"Reptile\.networks is empty"):
        Reptile(networks=())
