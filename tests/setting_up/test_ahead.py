"""Memory that is taken before the first step changes nothing of what is learned or sampled: the logic of a GPU, on a CPU."""

from __future__ import annotations

import copy

import torch
from small_learner import learner, weights
from small_models import policy_of

from upslope.rollout.engines.torch_engine import TorchEngine
from upslope.setting_up.ahead import allocate_cache, allocate_moments
from upslope.types import Sampling


def test_a_step_with_moments_made_ahead_is_the_same_to_the_last_bit():
    usual, ahead = learner("dr-grpo"), learner("dr-grpo")
    allocate_moments(ahead.optimizer)
    made = copy.deepcopy(ahead.optimizer.state_dict()["state"])
    assert made and all(float(state["step"]) == 0 and not state["exp_avg"].any() for state in made.values())
    for step in (1, 2):
        usual.step(step)
        ahead.step(step)
    assert torch.equal(weights(usual), weights(ahead))
    ours, theirs = (each.optimizer.state_dict()["state"] for each in (ahead, usual))
    assert ours.keys() == theirs.keys()
    for number, state in theirs.items():
        assert all(torch.equal(ours[number][name], value) for name, value in state.items())
        assert {name: value.dtype for name, value in ours[number].items()} == {name: value.dtype for name, value in state.items()}
    before = {number: state["exp_avg"] for number, state in ahead.optimizer.state.items()}
    allocate_moments(ahead.optimizer)
    assert all(ahead.optimizer.state[each]["exp_avg"] is moment for each, moment in before.items()), "what is there stays"


def test_what_is_said_to_allocate_the_cache_is_no_answer_of_the_first_step():
    engine = TorchEngine(policy_of("llama"), precision="fp8")
    allocate_cache(engine, [4, 4, 4], 4, Sampling(max_tokens=9))
    assert engine.metrics() == {}
    engine.generate([[1, 5, 9]], 4, Sampling(max_tokens=9), torch.full((4, 9), 0.5))
    assert engine.metrics()["engine_gap"] > 0


def test_the_cache_of_the_first_step_is_the_one_made_ahead_and_answers_are_the_same():
    policy, sampling = policy_of("llama"), Sampling(max_tokens=9)
    prompts, numbers = [[1, 5, 9, 3], [1, 4, 4, 8], [1, 7, 2, 2]], torch.rand(12, 9, generator=torch.Generator().manual_seed(1))
    expected = TorchEngine(policy).generate(prompts, 4, sampling, numbers)
    engine = TorchEngine(policy)
    allocate_cache(engine, [4, 4, 4], 4, sampling)
    made = engine._steppers[0].cache
    found = engine.generate(prompts, 4, sampling, numbers)
    assert engine._steppers[0].cache is made, "memory that is at hand is used"
    assert torch.equal(found.tokens, expected.tokens) and torch.equal(found.logp, expected.logp)
