"""BuPO: the policy of a layer, which parameters it reaches, and the phase in which it is used."""

from __future__ import annotations

import pytest
import torch
from batches import assert_same, gradient

import upslope as up
from upslope.errors import MethodError, UserError
from upslope.methods import find
from upslope.objective.controller.warm import ThenWhole
from upslope.policies import LanguageModel
from upslope.policies.tiny import tiny
from upslope.policies.views.layer import Layer
from upslope.rollout.text_rows import teacher_rows
from upslope.tasks import Problem

bupo = find("bupo")
base = bupo.derive(policy=None, controller=None)
grpo = find("grpo")


@pytest.fixture
def policy() -> LanguageModel:
    return tiny(0, layers=3, width=32)


@pytest.fixture
def rows(policy):
    return teacher_rows(policy, [Problem("ab", "ba"), Problem("1+1=", "2")])


@pytest.mark.checks("oracle", "bupo", by="the hidden states transformers gives")
@pytest.mark.parametrize(("layer", "final_norm"), [(1, False), (2, True), (-1, False), (-2, False), (9, True)])
def test_log_probabilities_are_those_of_the_stream_behind_the_layer(policy, rows, layer: int, final_norm: bool):
    depth = {1: 1, 2: 2, -1: 3, -2: 2, 9: 3}[layer]
    ours = policy.evaluate(rows, frozenset({"entropy"}), view=Layer(layer, final_norm))
    ids = torch.cat([rows.inputs.prompt, rows.action[:, :-1]], 1)
    mask = torch.cat([rows.inputs.prompt_mask, torch.ones_like(rows.action[:, :-1])], 1)
    streams: list[torch.Tensor] = []
    watch = [each.register_forward_hook(lambda _, __, out: streams.append(out)) for each in policy.model.model.layers]
    policy.model(input_ids=ids, attention_mask=mask, position_ids=(mask.cumsum(1) - 1).clamp_min(0))
    for hook in watch:
        hook.remove()
    stream = streams[depth - 1]
    stream = policy.model.model.norm(stream) if final_norm else stream
    logs = (stream @ policy.model.lm_head.weight.T).log_softmax(-1)[:, -rows.action.shape[1] :]
    expected = logs.gather(2, rows.action.unsqueeze(2)).squeeze(2) * rows.sampled
    torch.testing.assert_close(ours.logp, expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(ours.entropy, -(logs.exp() * logs).sum(-1) * rows.sampled, atol=1e-5, rtol=1e-5)


@pytest.mark.checks("identity", "bupo")
def test_the_last_layer_with_the_norm_and_layer_zero_are_the_model_itself(policy, rows):
    whole = policy.evaluate(rows).logp
    for through in (Layer(3, final_norm=True), Layer(-1, final_norm=True), Layer(0)):
        assert torch.equal(policy.evaluate(rows, view=through).logp, whole)
    assert not torch.equal(policy.evaluate(rows, view=Layer(-1)).logp, whole)


@pytest.mark.checks("identity", "bupo")
def test_what_lies_above_gets_no_gradient_and_the_model_is_whole_again(policy, rows):
    policy.evaluate(rows, view=Layer(2)).logp.sum().backward()
    inner = policy.model.model
    reached = [any(p.grad is not None and p.grad.any() for p in part.parameters()) for part in (*inner.layers, inner.norm)]
    assert reached == [True, True, False, False]
    assert policy.model.lm_head.weight.grad.any()
    assert len(inner.layers) == 3 and isinstance(inner.norm, type(inner.layers[0].input_layernorm))
    with pytest.raises(RuntimeError, match="inside"), Layer(1).applied(policy.model):
        assert len(inner.layers) == 1
        raise RuntimeError("inside")
    assert len(inner.layers) == 3


def _train(method, tmp_path, name: str, steps: int = 2):
    reward = tmp_path / "letters.py"
    reward.write_text("def score(prompts, responses, answers):\n    return [sum(map(str.isalpha, r)) / 4 for r in responses]\n")
    sizes = {"steps": steps, "tasks_per_step": 4, "updates_per_step": 2, "warm_start": 0.0, "eval_problems": 4, "lr": 1e-3}
    return up.train(
        method, "reverse:length=2", model="tiny:layers=2,width=32", reward=f"{reward}:score", **sizes, out=tmp_path / name
    )


def _same(one, other) -> bool:
    weights, others = one.policy.weights(), other.policy.weights()
    return all(torch.equal(weights[name], others[name]) for name in weights)


@pytest.mark.checks("identity", "bupo")
def test_a_run_at_the_last_layer_with_the_norm_is_a_run_of_the_whole_model(tmp_path, own_passes):
    whole = _train(base, tmp_path, "whole")
    last = _train(bupo.derive(policy=Layer(-1, final_norm=True), controller=ThenWhole(1.0)), tmp_path, "last")
    never = _train(bupo.derive(policy=Layer(1), controller=ThenWhole(0.0)), tmp_path, "never")
    assert _same(whole, last) and _same(whole, never)


@pytest.mark.checks("identity", "bupo")
def test_the_phase_ends_when_it_should(tmp_path):
    untouched = tiny(0, layers=2, width=32).weights()
    first = _train(bupo.derive(policy=Layer(1), controller=ThenWhole(1.0)), tmp_path, "first").policy.weights()
    upper = [name for name in untouched if ".layers.1." in name or name == "model.model.norm.weight"]
    lower = [name for name in untouched if name not in upper]
    assert len(upper) > 5 and all(torch.equal(first[name], untouched[name]) for name in upper)
    assert not any(torch.equal(first[name], untouched[name]) for name in lower if "proj" in name or "embed" in name)
    both = _train(bupo.derive(policy=Layer(1), controller=ThenWhole(0.5)), tmp_path, "both").policy.weights()
    assert not any(torch.equal(both[name], untouched[name]) for name in upper)


@pytest.mark.checks("identity", "bupo")
def test_knobs_of_the_phase():
    controller = ThenWhole(0.1)
    assert [controller.knobs({}, step / 300) for step in (0, 29)] == [{}, {}], "30 of 300 steps inside"
    assert controller.knobs({}, 30 / 300) == {"policy.layer": 0}
    assert bupo.with_knobs({"policy.layer": 0}).policy == Layer(0)


@pytest.mark.checks("identity", "bupo")
def test_the_objective_is_grpos_with_a_mean_over_tokens(ragged_batch):
    plain = grpo.derive(regularize=None, aggregate=bupo.aggregate, surrogate=bupo.surrogate)
    assert_same(gradient(bupo, ragged_batch), gradient(plain, ragged_batch), exact=True)


def test_nonsense_is_refused(policy):
    with pytest.raises(MethodError, match="after is 2"):
        ThenWhole(2.0)
    policy.model.get_decoder = lambda: torch.nn.Linear(1, 1)
    with pytest.raises(UserError, match="Linear keeps its layers"), Layer(1).applied(policy.model):
        pass
