"""What parts ask of networks within an update: one question has one answer, and gradients reach who asks for himself."""

from __future__ import annotations

import pytest
import torch
from stored_rows import Small, drawn_rows

from upslope.errors import MethodError
from upslope.methods import find
from upslope.policies.control.network_policy import flat_modules
from upslope.testing.table_nets import small
from upslope.types import ActionSpace

ROWS = drawn_rows(0)


def touched(made: Small, loss: torch.Tensor) -> set[str]:
    """The networks in which a loss leaves a gradient."""
    for network in made.policy.networks.values():
        for module in flat_modules(network):
            module.zero_gradient()
    loss.backward()
    return {name for name, network in made.policy.networks.items() if any(each.flat.grad.any() for each in flat_modules(network))}


def test_one_question_has_one_answer():
    made = Small(small(find("sac")))
    nets = made.nets(ROWS)
    first = nets.actions("next")
    assert nets.actions("next").action is first.action and nets.scoped("q").actions("next").action is first.action
    assert nets.actions("now").action is not first.action
    assert nets.actions("next", draws=3).action.shape == (24, 1, 3, 3)
    again = made.nets(ROWS)
    assert torch.equal(again.actions("next").action, first.action), "by counter, not by call"
    assert not torch.equal(made.nets(ROWS, update=2).actions("next").action, first.action)


def test_what_the_actor_drew_is_what_the_temperature_sees():
    nets = Small(small(find("sac"))).nets(ROWS)
    drawn = nets.scoped("policy").actions("now")
    seen = nets.scoped("temperature").actions("now")
    assert drawn.action.requires_grad and not seen.action.requires_grad
    assert torch.equal(drawn.logp, seen.logp)


def test_a_network_that_moved_is_asked_anew():
    made = Small(small(find("sac")))
    nets = made.nets(ROWS)
    action = nets.actions("now").action
    before = nets.value("q", "now", action)
    with torch.no_grad():
        made.policy.networks["q"].stack.flat.add_(0.1)
    assert torch.equal(nets.value("q", "now", action), before)
    nets.forget("q")
    assert not torch.equal(nets.value("q", "now", action), before)
    assert nets.actions("now").action is action, "what the policy chose stays"


def test_gradients_reach_the_network_whose_loss_it_is():
    made = Small(small(find("sac")))
    nets = made.nets(ROWS)
    critic, actor = nets.scoped("q"), nets.scoped("policy")
    assert touched(made, critic.value("q", "now", ROWS.action.unsqueeze(2)).sum()) == {"q"}
    assert not critic.value("q", "next", critic.actions("next").action, lagged=True).requires_grad
    assert touched(made, actor.value("q", "now", actor.actions("now").action).sum()) == {"policy"}, (
        "through the critic, not into it"
    )
    assert touched(made, actor.logp("now", ROWS.action.unsqueeze(2)).sum()) == {"policy"}
    assert not critic.logp("now", ROWS.action.unsqueeze(2)).requires_grad
    assert touched(made, nets.scoped("temperature").column("temperature", "logarithm").sum()) == {"temperature"}


def test_choices_and_uniform_actions():
    space = ActionSpace((5,), 3, True)
    rows = drawn_rows(1, space=space)
    nets = Small(small(find("sac")), space=space).nets(rows, scope="policy")
    logp = nets.log_probabilities("now")
    torch.testing.assert_close(logp.exp().sum(-1), torch.ones(24, 1))
    drawn = nets.actions("now", draws=4)
    torch.testing.assert_close(drawn.logp, logp.gather(-1, drawn.action))
    any_of = nets.actions("now", whose="uniform", draws=50)
    assert set(any_of.action.flatten().tolist()) == {0, 1, 2} and any_of.logp.exp().mean().item() == pytest.approx(1 / 3)
    box = Small(small(find("sac"))).nets(ROWS).actions("now", whose="uniform", draws=50)
    assert box.action.abs().max() <= 1 and box.logp.exp().mean().item() == pytest.approx(1 / 8)


def test_who_is_not_there_is_named():
    nets = Small(small(find("sac"))).nets(ROWS)
    for ask, says in (
        (lambda: nets.actions("now", whose="lagged"), r"copy of 'policy', which has none. Set policy.lag"),
        (lambda: nets.value("value", "now"), r"asks the model 'value'; this method has policy, q, temperature"),
        (lambda: nets.actions("now", whose="start"), r"what 'start' would do; there are policy, lagged, uniform"),
        (lambda: nets.value("temperature", "now", lagged=True), r"Set models.temperature.lag"),
    ):
        with pytest.raises(MethodError, match=says):
            ask()


def test_other_rows_have_draws_of_their_own_and_a_given_number_is_one_more_input():
    made = Small(small(find("sac")))
    some = made.nets(ROWS).take(lambda column: column[:5])
    assert some.actions("now").action.shape == (5, 1, 1, 3)
    with pytest.raises(RuntimeError):  # this policy was not built for it
        made.nets(ROWS).actions("now", given={"beta": torch.ones(24, 1)})
