"""Further turns that somebody else than the policy samples: a reference, or the policy and a reference with one voice."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, field

import pytest
import torch
from small_learner import SIZES, Paid, learner, weights

from upslope.errors import MethodError, UserError
from upslope.learners.policy_gradient import PolicyGradient
from upslope.methods import find
from upslope.objective.base import Data
from upslope.objective.references import Blinded, MovingAverage, Snapshot
from upslope.rollout.decode.mixed import MixedModels
from upslope.setting_up import set_up
from upslope.tasks.text import Problem
from upslope.tasks.turns import Mixture, Turn, TurnNumbers, speaker_label

ABC = Problem("rabcde=", "edcba")


@dataclass(frozen=True)
class Heard(Data):
    """For tests: lets somebody else answer every problem once more, and keeps the rows for looking at."""

    by: str | Mixture = "old"
    learn: bool = False
    heard: list = field(default_factory=list, compare=False, hash=False)

    def speakers(self):
        return frozenset({self.by.reference if isinstance(self.by, Mixture) else self.by}) - {"policy"}

    def __call__(self, rows, context):
        groups = {int(group): row for row, group in enumerate(rows.group.tolist())}
        problems = context.problems(rows)
        further = context.sample([Turn(problems[row].prompt, problems[row], 2, group, by=self.by) for group, row in groups.items()])
        self.heard.append(further)
        return context.join([rows, further]) if self.learn else rows


def method_of(part, reference=None):
    named = {} if reference is None else {"old": reference}
    return find("grpo").derive(name="heard", references=named, data=part, regularize=None)


def logp(policy, rows):
    with torch.no_grad():
        return policy.evaluate(rows).logp


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("reference", [Snapshot(), Snapshot(age="newest", keep=2, choose="random"), MovingAverage(0.5)], ids=repr)
def test_a_reference_samples_and_behavior_is_its_own(reference, plain):
    part = Heard()
    made = learner(method_of(part, reference))
    made.policy.plain = plain
    made.references.kept["old"] = tuple(made.policy.frozen_copy() for _ in made.references.kept["old"])
    for step in (1, 2, 3):
        made.step(step)
        rows, speaker = part.heard[-1], made.references.compared(made.method, "old")
        on = rows.sampled > 0
        assert torch.allclose(logp(speaker, rows)[on], rows.behavior.logp[on], atol=1e-5)
        assert rows.label["speaker"].tolist() == [speaker_label("old")] * rows.rows and rows.info[0]["by"] == "old"
    assert not torch.allclose(logp(made.policy, rows)[on], rows.behavior.logp[on], atol=1e-3), "the policy has moved on"


def test_the_start_speaks_without_being_named_and_is_kept_for_it():
    part = Heard(by="start")
    made = set_up(method_of(part), "reverse", "tiny:layers=1,width=32", SIZES)
    made.rollout.task = Paid(made.task)
    alone = PolicyGradient(made.method, made.policy, made.rollout, made.settings)
    first = made.policy.frozen_copy()
    for step in (1, 2):
        alone.step(step)
    rows = part.heard[-1]
    on = rows.sampled > 0
    assert torch.allclose(logp(first, rows)[on], rows.behavior.logp[on], atol=1e-5)


def test_who_listens_changes_nothing_for_the_policy():
    alone, beside = learner(find("grpo").derive(regularize=None)), learner(method_of(Heard(), Snapshot()))
    for step in (1, 2, 3):
        alone.step(step)
        beside.step(step)
        assert torch.equal(weights(alone), weights(beside)), "what sampling has kept for learning is of the policy's own pass"


def test_learned_rows_say_who_spoke():
    made = learner(method_of(Heard(learn=True), Snapshot()))
    made.step(1)
    made.step(2)
    assert made.last is not None
    spoke, further = made.last.label["speaker"], made.last.label["source"] != 0
    assert bool(further.any()) and bool((spoke[further] == speaker_label("old")).all())
    assert bool((spoke[~further] == speaker_label("policy")).all())


@pytest.fixture(scope="module")
def two():
    """A learner, and a model beside its policy that says other things."""
    made = learner("grpo")
    other = made.policy.frozen_copy()
    with torch.no_grad():
        for number, weight in enumerate(other.weights().values()):
            weight.add_(0.3 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(number)))
    return made, other


TURNS = [Turn("rabcde=", ABC, 5, by="x"), Turn("rbcd=", ABC, 3, by="x")]


def sampled(made, by, turns=TURNS):
    return made.rollout.sample(turns, TurnNumbers(1, "data.0"), by=by)


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("share", [0.25, 0.5])
def test_a_mixture_draws_from_the_averaged_logits(two, share, plain, monkeypatch):
    made, other = two
    for model in (made.policy, other):
        monkeypatch.setattr(model, "plain", plain)
    rows = sampled(made, MixedModels(made.policy, other, share))
    on = rows.sampled > 0
    with torch.no_grad():
        for row in range(rows.rows):
            ids = rows.inputs.prompt[row][rows.inputs.prompt_mask[row] > 0].tolist() + rows.action[row].tolist()
            begin = int(rows.inputs.prompt_mask[row].sum()) - 1
            first, second = (m.model(torch.tensor([ids])).logits[0, begin:-1].log_softmax(-1) for m in (made.policy, other))
            mixed = ((1 - share) * first + share * second).log_softmax(-1)
            wanted = mixed.gather(1, rows.action[row].unsqueeze(1)).squeeze(1)
            assert torch.allclose(wanted[on[row]], rows.behavior.logp[row][on[row]], atol=1e-5)
            entropy = -(mixed.exp() * mixed).sum(-1)
            assert torch.allclose(entropy[on[row]], rows.behavior.entropy[row][on[row]], atol=1e-4)


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_a_mixture_of_one_is_that_one_to_the_bit(two, share):
    made, other = two
    mixed, alone = sampled(made, MixedModels(made.policy, other, share)), sampled(made, other if share else made.policy)
    assert torch.equal(mixed.action, alone.action) and torch.equal(mixed.behavior.logp, alone.behavior.logp)


def test_a_mixture_of_many_rows_in_few_slots_is_the_same(two, monkeypatch):
    made, other = two
    models = MixedModels(made.policy, other, 0.5)
    whole = sampled(made, models)
    monkeypatch.setattr(made.rollout.engine, "max_rows", 3)
    few = sampled(made, models)
    assert torch.equal(whole.action, few.action) and torch.allclose(whole.behavior.logp, few.behavior.logp, atol=1e-5)


def test_rows_of_a_mixture_of_two_tokens_are_as_frequent_as_they_should_be(two):
    made, other = two
    rows = sampled(made, MixedModels(made.policy, other, 0.5), [Turn("rabcde=", ABC, 600, by="x")])
    ids = torch.tensor([rows.inputs.prompt[0][rows.inputs.prompt_mask[0] > 0].tolist()])
    with torch.no_grad():
        chances = (0.5 * made.policy.model(ids).logits[0, -1] + 0.5 * other.model(ids).logits[0, -1]).softmax(-1)
    likeliest = int(chances.argmax())
    chance, share = float(chances[likeliest]), float((rows.action[:, 0] == likeliest).float().mean())
    assert abs(share - chance) < 4 * math.sqrt(chance * (1 - chance) / 600)


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_a_part_names_a_mixture_with_a_reference(share):
    part = Heard(by=Mixture("old", share))
    made = learner(method_of(part, Snapshot(age="newest", every=2)))
    made.step(1)
    made.step(2)
    rows, old = part.heard[-1], made.references.compared(made.method, "old")
    assert rows.info[0]["by"] == f"{1 - share:g} policy + {share:g} old"
    if share == 1:
        on = rows.sampled > 0
        assert torch.allclose(logp(old, rows)[on], rows.behavior.logp[on], atol=1e-5)


def test_what_cannot_speak_is_refused():
    with pytest.raises(MethodError, match=r"data\.0 lets 'old' sample, and the method has no reference.*--set references\.old"):
        learner(method_of(Heard()))
    with pytest.raises(MethodError, match=r"data\.0 lets 'old' sample, and Blinded keeps no weights"):
        learner(method_of(Heard(), Blinded()))
    with pytest.raises(UserError, match=r"share is 1\.5"):
        Mixture(share=1.5)


def test_turns_of_one_call_have_one_speaker_and_engines_must_be_able_to(two, monkeypatch):
    made, other = two
    with pytest.raises(UserError, match="one model, not by policy and x"):
        sampled(made, other, [Turn("rabcde=", ABC, by="x"), Turn("rabcde=", ABC)])
    with pytest.raises(UserError, match="only data parts"):
        made.rollout.sample(TURNS, TurnNumbers(1, "data.0"))
    monkeypatch.setattr(type(made.rollout.engine), "takes_speakers", False)
    with pytest.raises(UserError, match=r"TorchEngine holds only the policy's weights.*--engine torch"):
        sampled(made, other)


def test_a_server_is_refused_before_it_is_asked():
    from upslope.rollout.engines.by_name import make_engine

    made = learner("grpo")
    with pytest.raises(MethodError, match=r"data\.0 of heard lets 'old' sample answers, and --engine http://127\.0\.0\.1:9 holds"):
        make_engine("http://127.0.0.1:9", made.policy, made.rollout.sampling, method_of(Heard(), Snapshot()))


def test_a_resumed_run_hears_the_same():
    part, later = Heard(), Heard()
    method = method_of(part, Snapshot(age="newest", keep=3, choose="random"))
    made = learner(method)
    for step in (1, 2, 3):
        made.step(step)
    again = learner(method.derive(data=later))
    again.policy.load_weights({name: tensor.clone() for name, tensor in made.policy.weights().items()})
    again.load_state(copy.deepcopy(made.state()))
    made.step(4)
    again.step(4)
    assert torch.equal(part.heard[-1].action, later.heard[-1].action)
    assert torch.equal(part.heard[-1].behavior.logp, later.heard[-1].behavior.logp) and torch.equal(weights(made), weights(again))
