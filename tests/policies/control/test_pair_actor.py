"""Two actors, of which the last number of an observation chooses one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from upslope.errors import MethodError, UserError
from upslope.methods import find
from upslope.policies.control.networks import Deterministic, FamilyOfPolicies, GreedyChoice, Stochastic
from upslope.policies.control.pair_actor import PairActor
from upslope.testing.table_nets import TableTask, small

SEEN = np.random.default_rng(0).standard_normal((8, 3), np.float32)
SEEN[:, 2] = np.arange(8) % 2


def pair_of(network: Any, kind: Any) -> Any:
    policy = network.build(TableTask(kind), 3)
    assert isinstance(policy.actor, PairActor)
    return policy


@pytest.mark.parametrize(
    ("network", "kind"),
    [
        (Stochastic(hidden=(8,), pair=True), "continuous"),
        (Stochastic(hidden=(8,), pair=True, std="shared", form="clipped"), "continuous"),
        (Stochastic(hidden=(8,), pair=True), "discrete"),
        (Deterministic(hidden=(8,), pair=True), "continuous"),
    ],
)
def test_each_actor_acts_where_its_task_is_to_be_done(network: Any, kind: Any):
    policy = pair_of(network, kind)
    for module, value in ((policy.actor.first, 0.3), (policy.actor.second, -0.2)):
        if getattr(module, "shared", None) is not None:
            module.shared.flat.data.fill_(value)
    discrete = kind == "discrete"
    random = np.random.default_rng(1)
    noise = random.random(8) if discrete else random.standard_normal((8, 2)).astype(np.float32)
    seen, drawn = torch.from_numpy(SEEN).unsqueeze(1), torch.from_numpy(noise)[:, None, None]
    found = policy.actor.sample(seen, drawn.float(), True)
    acting = policy.acting()
    acted = acting.unit(acting.output(SEEN), noise)
    for row in range(8):
        actor, own = (policy.actor.second if row % 2 else policy.actor.first), seen[row : row + 1, :, :2]
        alone = actor.sample(own, drawn[row : row + 1].float(), True)
        torch.testing.assert_close(found.action[row], alone.action[0])
        torch.testing.assert_close(found.logp[row], alone.logp[0])
        torch.testing.assert_close(policy.actor.logp(seen, found.action, True)[row], actor.logp(own, alone.action, True)[0])
        if discrete:
            said = policy.actor.log_probabilities(seen, True)[row]
            torch.testing.assert_close(said, actor.log_probabilities(own, True)[0])
        np.testing.assert_allclose(acted[row], alone.action[0, 0, 0].numpy(), rtol=1e-4, atol=1e-6)
    assert policy.actor.certain == isinstance(network, Deterministic)


def test_a_policy_that_reads_a_pair_of_critics_takes_the_best_choice_of_its_task():
    method = small(find("dqn")).with_knobs({"models.q.network.pair": True})
    policy = GreedyChoice().build(TableTask("discrete"), 0)
    policy.add_model("q", dict(method.learned)["q"], 0)
    q: Any = policy.networks["q"]
    acting = policy.acting()
    said = acting.output(SEEN)
    for row in range(8):
        own = torch.from_numpy(SEEN[row : row + 1, None, :2])
        alone = (q.second if row % 2 else q.first).answer(own, None, True).mean(0)[0, 0]
        np.testing.assert_allclose(said[row], alone.numpy(), rtol=1e-4, atol=1e-6)
    assert acting.unit(said, np.empty(0)).tolist() == said.argmax(-1).tolist()


def test_a_pair_is_not_written_as_one_network_and_a_family_has_none():
    with pytest.raises(UserError, match=r"this policy is a pair, .* up\.load\(RUN\)\.predict answers for it\."):
        pair_of(Stochastic(hidden=(8,), pair=True), "continuous").greedy_network()
    with pytest.raises(MethodError, match=r"policy\.pair of FamilyOfPolicies is True; .* Take Stochastic\(\)\."):
        FamilyOfPolicies(pair=True).check_knobs("policy")
