"""What parts ask of networks within an update: one question has one answer, and gradients reach who asks for himself."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from stored_rows import Small, drawn_rows

from upslope.errors import MethodError
from upslope.methods import find
from upslope.objective.critics.members import SmallestMember
from upslope.objective.critics.targets import BestChoice, SoftValue
from upslope.objective.critics.temperature import Temperature
from upslope.policies.control.network_policy import flat_modules
from upslope.testing.table_nets import small
from upslope.types import ActionSpace, Trajectories

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


def masked_rows(space: ActionSpace) -> tuple[Trajectories, torch.Tensor, torch.Tensor]:
    """Drawn rows that forbid choices, never the recorded one; in the first row one choice is left behind the row."""
    rows, random = drawn_rows(0, space=space), torch.Generator().manual_seed(3)
    now, after = (torch.rand(24, 1, space.actions, generator=random) < 0.5 for _ in range(2))
    now = now.scatter(-1, rows.action.unsqueeze(-1), True)
    after[..., 0] |= ~after.any(-1)
    after[0, 0] = torch.arange(space.actions) == 2
    inputs = dataclasses.replace(rows.inputs, action_mask=now, following_mask=after)
    return rows.replace(inputs=inputs), now, after


CHOICES = ActionSpace((5,), 4, True)


def test_what_is_masked_has_no_probability_and_no_value():
    rows, now, after = masked_rows(CHOICES)
    made = Small(small(find("sac")), space=CHOICES)
    nets, plain = made.nets(rows), made.nets(drawn_rows(0, space=CHOICES))
    for at, mask in (("now", now), ("next", after)):
        assert torch.equal(nets.action_mask(at), mask) and plain.action_mask(at) is None
        logits = plain.log_probabilities(at).masked_fill(~mask, -torch.inf)
        wanted = torch.distributions.Categorical(logits=logits).probs
        torch.testing.assert_close(nets.log_probabilities(at).exp(), wanted)
        for whose in ("policy", "uniform"):
            drawn = nets.actions(at, whose, draws=50)
            assert mask.unsqueeze(2).expand(-1, -1, 50, -1).gather(-1, drawn.action.unsqueeze(-1)).all()
            assert drawn.logp.isfinite().all()
        uniform = nets.actions(at, "uniform", draws=400)
        counts = torch.nn.functional.one_hot(uniform.action, 4).sum(2) / 400
        torch.testing.assert_close(counts, mask / mask.sum(-1, keepdim=True), atol=0.12, rtol=0)
        torch.testing.assert_close(uniform.logp[..., 0], -mask.sum(-1).log())
        values = nets.value("q", at, lagged=True)
        assert torch.equal(values[:, mask], plain.value("q", at, lagged=True)[:, mask]) and (values[:, ~mask] < -1e8).all()
    recorded = rows.action.unsqueeze(2)
    assert torch.equal(nets.value("q", "now", recorded), plain.value("q", "now", recorded))


def test_the_best_choice_is_the_best_that_is_allowed():
    rows, _, after = masked_rows(CHOICES)
    made = Small(small(find("sac")).derive(), space=CHOICES)
    with torch.no_grad():
        made.policy.lagged["q"].stack.flat.add_(0.05)  # the copy does not agree with the critic
    nets = made.nets(rows).scoped("q")
    batch = rows.replace(nets=nets)
    own, lagged = (made.policy.networks["q"], made.policy.lagged["q"])
    values = lagged.answer(rows.inputs.following, None, True).amin(0).masked_fill(~after, -torch.inf)
    assert torch.equal(BestChoice()(batch, SmallestMember()), values.amax(-1))
    chosen = own.answer(rows.inputs.following, None, True).amin(0).masked_fill(~after, -torch.inf).argmax(-1, keepdim=True)
    found = BestChoice(double=True)(batch, SmallestMember())
    assert torch.equal(found, values.gather(-1, chosen).squeeze(-1)) and found[0] == values[0, 0, 2]


def test_the_soft_value_is_an_expectation_over_what_is_allowed():
    """With one choice left there is no entropy; a forbidden one adds nothing, whatever it is worth."""
    rows, now, after = masked_rows(CHOICES)
    made = Small(small(find("sac")), space=CHOICES)
    batch = rows.replace(nets=made.nets(rows).scoped("q"))
    found = SoftValue(temperature=0.3)(batch, SmallestMember())
    plain = made.nets(drawn_rows(0, space=CHOICES))
    one = torch.distributions.Categorical(logits=plain.log_probabilities("next").masked_fill(~after, -torch.inf))
    values = plain.value("q", "next", lagged=True).amin(0)
    torch.testing.assert_close(found, (one.probs * values).sum(-1) + 0.3 * one.entropy())
    torch.testing.assert_close(found[0, 0], values[0, 0, 2])
    loss, notes = Temperature().loss(rows.replace(nets=made.nets(rows).scoped("temperature")))
    logp = plain.log_probabilities("now").masked_fill(~now, -torch.inf)
    entropy = torch.distributions.Categorical(logits=logp).entropy()
    torch.testing.assert_close(notes["entropy"], entropy)  # wanted is a share of the most that is allowed; log alpha is 0 at first
    assert loss.isfinite().all() and loss.eq(0).all()
    (module,) = flat_modules(made.policy.networks["temperature"])
    module.zero_gradient()
    loss.sum().backward()
    torch.testing.assert_close(module.flat.grad.sum(), -(0.98 * now.sum(-1).log() - entropy).sum())


@pytest.mark.parametrize("name", ["sac", "iql", "cql", "cal-ql", "awac"])
def test_updates_on_masked_choices_are_finite(name: str):
    rows, _, _ = masked_rows(CHOICES)
    made = Small(small(find(name)), space=CHOICES)
    made.update(rows)
    assert all(weight.isfinite().all() for weight in made.policy.weights().values())
