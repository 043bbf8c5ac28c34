"""Routing replay: the same experts, the current router's weights, and log-probabilities that do not jump."""

from __future__ import annotations

import pytest
import torch

import upslope as up
from upslope.errors import UserError
from upslope.learners.policy_views import PolicyViews
from upslope.learners.references import References
from upslope.methods import find
from upslope.policies import load_language_model
from upslope.policies.tiny import tiny
from upslope.policies.views.routing import RoutingReplay, routers
from upslope.rollout.text_rows import teacher_rows
from upslope.tasks import Problem
from upslope.types import pack_rows, unpack_rows

minirl, replaying = find("minirl"), find("minirl-r2")
REPLAY = RoutingReplay()


@pytest.fixture
def policy():
    return tiny(0, layers=2, width=32, experts=4)


@pytest.fixture
def rows(policy):
    return teacher_rows(policy, [Problem("3+4=", "7"), Problem("12+5=", "17"), Problem("9=", "nine")])


def _move(policy, by: float) -> None:
    random = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in policy.model.parameters():
            parameter += by * torch.randn(parameter.shape, generator=random) * parameter.std()


@pytest.mark.checks("identity", "minirl-r2")
def test_replayed_at_once_nothing_changes(policy, rows):
    noted = REPLAY.annotate(policy, rows)
    tokens = rows.inputs.prompt.shape[1] + rows.action.shape[1] - 1
    assert noted.inputs.experts.shape == (3, tokens, 2, 2)
    assert len(noted.inputs.experts.unique()) == 4, "a test in which all experts are used"
    assert torch.equal(policy.evaluate(noted, view=REPLAY).logp, policy.evaluate(rows).logp)
    some = noted.take_rows(torch.tensor([2, 0]))
    torch.testing.assert_close(policy.evaluate(some, view=REPLAY).logp, policy.evaluate(rows).logp[[2, 0]])


@pytest.mark.checks("oracle", "minirl-r2", by="the gate's formula, written out")
def test_the_gate_is_the_softmax_over_the_recorded_experts(policy):
    router = routers(policy.model)[0]
    hidden = torch.randn(5, 32, generator=torch.Generator().manual_seed(0))
    experts = torch.tensor([[0, 1], [3, 0], [2, 3], [1, 2], [0, 3]])
    with REPLAY.applied(policy.model, experts.view(1, 5, 1, 2).expand(1, 5, 2, 2)):
        logits, gate, taken = router(hidden)
    assert torch.equal(taken, experts)
    chosen = torch.zeros(5, 4).scatter_(1, experts, 1.0)
    expected = chosen * logits.exp() / (chosen * logits.exp()).sum(1, keepdim=True)
    torch.testing.assert_close(gate, expected.gather(1, experts))
    (slope,) = torch.autograd.grad(gate[0, 0], router.weight)
    size = slope.abs().amax(1)
    assert size[:2].min() > 1e4 * size[2:].max(), "through the current logits of the recorded experts, and of no others"
    assert not router._forward_hooks, "and the model is its own again"


@pytest.mark.checks("identity", "minirl-r2")
def test_replay_keeps_log_ratios_smaller_when_the_weights_move(policy):
    with torch.no_grad():  # untrained experts hardly matter; these do
        for layer in policy.model.model.layers:
            layer.mlp.experts.down_proj *= 20
    rows = teacher_rows(policy, [Problem(f"{i}+{i}=", str(2 * i)) for i in range(40)])
    noted = REPLAY.annotate(policy, rows)
    with torch.no_grad():
        old = policy.evaluate(rows).logp
        _move(policy, 0.01)
        now = REPLAY.annotate(policy, rows).inputs.experts
        changed = (now.sort(-1).values != noted.inputs.experts.sort(-1).values).any(-1).float().mean()
        free, replayed = policy.evaluate(rows).logp - old, policy.evaluate(noted, view=REPLAY).logp - old
    assert changed > 0.02, "some tokens would go elsewhere"
    assert replayed.abs().mean() < 0.9 * free.abs().mean() and replayed.abs().max() < 0.5 * free.abs().max()


@pytest.mark.checks("identity", "minirl-r2")
def test_experts_are_noted_before_the_first_update_and_kept_in_files(policy, rows):
    seen = PolicyViews(policy, References(replaying, policy, None), watch_kl=False).before_step(replaying, rows, True)
    assert torch.equal(seen.inputs.experts, REPLAY.annotate(policy, rows).inputs.experts)
    back = unpack_rows(pack_rows(seen), rows)
    assert torch.equal(back.inputs.experts, seen.inputs.experts)
    assert unpack_rows(pack_rows(rows), rows).inputs.experts is None


def _train(method, tmp_path, name: str, model: str):
    reward = tmp_path / "letters.py"
    reward.write_text("def score(prompts, responses, answers):\n    return [sum(map(str.isalpha, r)) / 4 for r in responses]\n")
    sizes = {"steps": 2, "tasks_per_step": 4, "updates_per_step": 2, "warm_start": 0.0, "eval_problems": 4, "lr": 3e-3}
    return up.train(method, "reverse:length=2", model=model, reward=f"{reward}:score", **sizes, out=tmp_path / name)


@pytest.mark.checks("identity", "minirl-r2")
def test_a_dense_model_has_nothing_to_replay(tmp_path, own_passes):
    one, other = (_train(method, tmp_path, method, "tiny:layers=1,width=32") for method in ("minirl", "minirl-r2"))
    weights, others = one.policy.weights(), other.policy.weights()
    assert all(torch.equal(weights[name], others[name]) for name in weights)


@pytest.mark.checks("learns", "minirl-r2")
def test_a_mixture_of_experts_trains_and_is_saved(tmp_path):
    run = _train("minirl-r2", tmp_path, "run", "tiny:layers=1,width=32,experts=4")
    assert all(record["grad_norm"] > 0 for record in run.metrics)
    again = load_language_model(str(sorted((run.path / "checkpoints").glob("step-*"))[-1]), 0)
    assert len(routers(again.model)) == 1


def test_nonsense_is_refused():
    with pytest.raises(UserError, match="experts=2"):
        tiny(0, experts=2)
