"""Values behind a row, worked out by hand from what networks say."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from stored_values import drawn
from torch import Tensor

from upslope.errors import MethodError
from upslope.methods import find
from upslope.objective.critics import (
    BestChoice,
    FirstMember,
    MeanOfMembers,
    SmallestMember,
    SmallestOfSome,
    SmoothedAction,
    SoftValue,
    StateValue,
)

sac, dqn, td3, iql = (find(name) for name in ("sac", "dqn", "td3", "iql"))


def scoped(method: Any, kind: str, model: str = "q") -> tuple[Any, Any]:
    batch = drawn(method, 1, kind)
    nets = batch.nets.scoped(model)
    return batch.replace(nets=nets), nets


def test_what_members_say_as_one():
    values = torch.tensor([[3.0, -1.0], [2.0, 5.0], [7.0, 0.0]])
    nets = drawn(td3, 1, "continuous").nets
    assert SmallestMember()(values, nets).tolist() == [2.0, -1.0] and FirstMember()(values, nets).tolist() == [3.0, -1.0]
    assert MeanOfMembers()(values, nets).tolist() == pytest.approx([4.0, 4 / 3])
    assert torch.equal(SmallestOfSome(some=3)(values, nets), values.amin(0))
    one = SmallestOfSome(some=1)(values, nets).tolist()
    assert one in values.tolist() and one == SmallestOfSome(some=1)(values, nets).tolist(), "one member, the same in an update"


def test_soft_value_of_vectors():
    batch, nets = scoped(sac, "continuous")
    action, logp = nets.actions("next")
    wanted = nets.value("q", "next", action, lagged=True).amin(0) - 0.3 * logp
    torch.testing.assert_close(SoftValue(temperature=0.3)(batch, SmallestMember()), wanted.squeeze(-1))
    without = SoftValue(temperature=0.3, entropy=False)(batch, SmallestMember())
    torch.testing.assert_close(without, wanted.squeeze(-1) + 0.3 * logp.squeeze(-1))
    learned = nets.value("temperature", "now")[0, ..., 0]
    torch.testing.assert_close(
        SoftValue()(batch, SmallestMember()), wanted.squeeze(-1) + (0.3 - learned) * logp.squeeze(-1)
    )  # fmt: skip


def test_soft_value_of_choices_is_the_whole_expectation():
    batch, nets = scoped(sac, "discrete")
    p = nets.log_probabilities("next").exp()
    values = nets.value("q", "next", lagged=True).amin(0)
    by_hand = sum(p[..., a] * (values[..., a] - 0.3 * p[..., a].log()) for a in range(nets.action_size))
    torch.testing.assert_close(SoftValue(temperature=0.3)(batch, SmallestMember()), by_hand)


def test_the_best_choice_by_one_critic_or_by_two():
    batch, nets = scoped(dqn, "discrete")
    lagged, learning = nets.value("q", "next", lagged=True)[0], nets.value("q", "next")[0]
    torch.testing.assert_close(BestChoice()(batch, SmallestMember()), lagged.amax(-1))
    chosen = lagged.gather(-1, learning.argmax(-1, keepdim=True)).squeeze(-1)
    double = BestChoice(double=True)(batch, SmallestMember())
    torch.testing.assert_close(double, chosen.detach())
    assert (double <= lagged.amax(-1)).all() and (double < lagged.amax(-1)).any()


def test_a_blurred_action_stays_in_its_box():
    batch, nets = scoped(td3, "continuous")
    certain = nets.value("q", "next", nets.actions("next", whose="lagged").action, lagged=True).amin(0).squeeze(-1)
    torch.testing.assert_close(SmoothedAction(noise=0.0)(batch, SmallestMember()), certain)
    assert not torch.allclose(SmoothedAction()(batch, SmallestMember()), certain)
    asked: list[Tensor] = []
    nets.value = lambda model, at, action, lagged: asked.append(action) or torch.zeros(2, *action.shape[:3])
    SmoothedAction(noise=50.0, clip=9.0)(batch, SmallestMember())
    assert asked[0].abs().max() == 1.0


def test_a_value_of_states_asks_for_no_action():
    batch, nets = scoped(iql, "continuous")
    said = nets.value("value", "next")[0, ..., 0]
    nets.actions = nets.logp = None
    target = StateValue()(batch, SmallestMember())
    assert torch.equal(target, said.detach()) and not target.requires_grad


def test_a_batch_without_networks_is_refused():
    with pytest.raises(MethodError, match="not drawn from stored experience"):
        SoftValue()(drawn(sac, 1, "continuous").replace(nets=None), SmallestMember())
