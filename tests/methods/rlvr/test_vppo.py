"""VPPO: which tokens depend on the input, which of them learn, and the factor of each answer."""

from __future__ import annotations

import math

import pytest
import torch
from batches import assert_same, gradient, random_batch

import upslope as up
from upslope.errors import MethodError
from upslope.learners.policy_views import PolicyViews
from upslope.learners.references import References
from upslope.methods import find
from upslope.objective.functional.dependence import dependence
from upslope.objective.references import Blinded
from upslope.objective.regularize.likelihood import LikelihoodBonus
from upslope.objective.shape.dependence import DependenceFactor
from upslope.objective.weight.dependence import TopDependence
from upslope.policies.control.mlp import ControlInputs
from upslope.policies.tiny import tiny
from upslope.rollout.text_rows import left_padded, teacher_rows
from upslope.tasks import Problem
from upslope.types import Batch, Trajectories, View

vppo, dapo = find("vppo"), find("dapo")


def _with_dependence(x: list[list[float]], sampled: list[list[float]] | None = None) -> Batch:
    """Answers whose tokens are ``x`` more likely, in logarithms, when the input is hidden."""
    wanted = torch.tensor(x, dtype=torch.float64)
    batch = random_batch(0, groups=1, samples=len(x), positions=len(x[0]), ragged=False)
    batch = batch.replace(reference={**batch.reference, "blind": View(batch.proximal.logp + wanted)})
    return batch if sampled is None else batch.replace(sampled=torch.tensor(sampled, dtype=torch.float64))


@pytest.mark.checks("identity", "vppo")
@pytest.mark.parametrize("seed", range(3))
def test_with_everything_kept_and_no_factor_it_is_dapo(seed: int):
    batch = random_batch(seed)
    off = vppo.derive(weight=TopDependence(fraction=1.0), shape=DependenceFactor(least=1.0), regularize=LikelihoodBonus(0.0))
    assert off.needs() == dapo.needs(), "and the blind policy is not computed"
    assert_same(gradient(off, batch), gradient(dapo, batch))
    slotless = off.derive(regularize=None)
    assert_same(gradient(slotless, batch), gradient(dapo, batch), exact=True)


@pytest.mark.checks("oracle", "vppo", by="hand-worked numbers")
def test_dependence_by_hand():
    found = dependence(_with_dependence([[0.0, -1.0, 1.0, -30.0, 30.0]]), "blind")[0].tolist()
    # e^x - x - 1 at 0, -1, 1; at -20 (the limit) it is 19, at 20 far more, and both are cut at 10.
    assert found == pytest.approx([0.0, math.exp(-1), math.e - 2, 10.0, 10.0])
    missing = _with_dependence([[math.nan, math.inf, -1.0]])
    assert dependence(missing, "blind")[0].tolist() == pytest.approx([0.0, 0.0, math.exp(-1)])


@pytest.mark.checks("oracle", "vppo", by="hand-worked numbers")
def test_the_most_dependent_tokens_of_each_answer_are_kept():
    batch = _with_dependence(
        [[-0.1, -2.0, -0.5, -3.0, -0.2], [-1.0, -1.0, -1.0, -9.0, -9.0]],
        [[1.0, 1.0, 1.0, 1.0, 1.0], [1.0, 1.0, 1.0, 0.0, 0.0]],
    )
    assert TopDependence(0.4)(batch).tolist() == [[0, 1, 0, 1, 0], [1, 1, 0, 0, 0]], "2 of 5, and ceil(1.2) = 2 of 3"
    assert TopDependence(0.01)(batch).sum(1).tolist() == [1, 1]
    full = TopDependence(0.1)(random_batch(0, groups=1, samples=1, positions=30, ragged=False))
    assert full.sum() == 3, "not 4 by rounding"
    share = gradient(vppo.derive(shape=None, regularize=None, filter=None), batch).logp
    plain = gradient(dapo.derive(filter=None), batch).logp
    torch.testing.assert_close(share, plain * TopDependence(0.4)(batch), msg="denominators are those of the base loss")


@pytest.mark.checks("oracle", "vppo", by="hand-worked numbers")
def test_the_factor_by_hand():
    # Scores: e^-1 = 0.36788, 0 and (e - 2) = 0.71828; placed at 0.51217, 0 and 1; mean 0.50406.
    batch = _with_dependence([[-1.0, -1.0], [0.0, 0.0], [1.0, 1.0]])
    found = DependenceFactor(least=0.9).factor(batch)
    place = [math.exp(-1) / (math.e - 2), 0.0, 1.0]
    rest = 0.1 / (sum(place) / 3)
    assert found.tolist() == pytest.approx([0.9 + each * rest for each in place], rel=1e-6)
    assert found.tolist() == pytest.approx([1.0016, 0.9, 1.0984], abs=1e-4)


@pytest.mark.checks("identity", "vppo")
@pytest.mark.parametrize("seed", range(3))
def test_the_mean_factor_is_one(seed: int):
    batch = random_batch(seed, groups=4, samples=5, empty_rows=2)
    found = DependenceFactor(least=0.5).factor(batch)
    assert found.min() == pytest.approx(0.5) and found.std() > 0.05
    assert found[batch.lengths() > 0].mean() == pytest.approx(1.0, abs=1e-6)
    equal = batch.replace(reference={"blind": View(batch.proximal.logp - 0.5)})
    assert (DependenceFactor(least=0.5).factor(equal) == 1).all(), "answers that do not differ"


@pytest.mark.checks("oracle", "vppo", by="hand-worked numbers")
def test_the_price_on_entropy_is_the_mean_of_minus_log_pi():
    batch = random_batch(2)
    priced, free = gradient(vppo, batch, use_filter=False), gradient(vppo.derive(regularize=None), batch, use_filter=False)
    on = batch.sampled > 0
    assert (priced.loss - free.loss).item() == pytest.approx(-0.06 * batch.current.logp[on].mean().item())
    torch.testing.assert_close((priced.logp - free.logp)[on], torch.full_like(priced.logp[on], -0.06 / int(on.sum())))


# -- what is hidden --------------------------------------------------------------------------------------------------------


def _rows(prompts: list[list[int]], tasks: list[int]) -> Trajectories:
    one = torch.ones(len(prompts), 1)
    return Trajectories(
        sampled=one,
        reward=one[:, 0],
        group=torch.arange(len(prompts)),
        task=torch.tensor(tasks),
        behavior=View(-one),
        inputs=left_padded(prompts, 99),
    )


@pytest.mark.checks("identity", "vppo")
def test_hidden_tokens_depend_on_the_task_and_not_on_padding():
    prompt = list(range(1, 13))
    alone = Blinded().sees(_rows([prompt], [7])).inputs.prompt[0]
    mixed = Blinded().sees(_rows([[50] * 20, prompt, prompt, prompt], [3, 7, 7, 8])).inputs
    assert mixed.prompt[1, :8].tolist() == [99] * 8 and torch.equal(mixed.prompt[1, 8:], alone)
    assert torch.equal(mixed.prompt[1], mixed.prompt[2]) and not torch.equal(mixed.prompt[1], mixed.prompt[3])
    assert (alone[1:-1] == 0).any() and (alone[1:-1] != 0).any() and alone[0] == 1 and alone[-1] == 12
    everything = Blinded(share=1.0, keep_first=2, keep_last=3, token=55).sees(_rows([prompt], [7])).inputs.prompt[0]
    assert everything.tolist() == [1, 2] + [55] * 7 + [10, 11, 12]
    assert torch.equal(Blinded(share=0.0).sees(_rows([prompt], [7])).inputs.prompt[0], torch.tensor(prompt))
    patches = Blinded(patch=4, keep_first=0, keep_last=0).sees(_rows([list(range(1, 41))], [11])).inputs.prompt[0] == 0
    assert all(piece.all() or not piece.any() for piece in patches.split(4)) and patches.any() and not patches.all()


@pytest.mark.checks("identity", "vppo")
def test_about_the_share_is_hidden():
    rows = _rows([list(range(1, 33))] * 300, list(range(300)))
    seen = Blinded(share=0.3).sees(rows).inputs.prompt[:, 1:-1] == 0
    assert seen.float().mean().item() == pytest.approx(0.3, abs=0.02)


def views(method, policy) -> PolicyViews:
    return PolicyViews(policy, References(method, policy, None), watch_kl=False)


@pytest.mark.checks("identity", "vppo")
def test_the_blind_policy_is_the_proximal_one_on_other_prompts():
    policy = tiny(0, layers=1, width=32)
    rows = teacher_rows(policy, [Problem("3+4=", "7"), Problem("12+5=", "17")])
    method = vppo.derive(references={"blind": Blinded(share=1.0)})
    seen = views(method, policy).before_step(method, rows, True)
    changed = rows.replace(inputs=Blinded(share=1.0).sees(rows).inputs)
    assert not torch.equal(changed.inputs.prompt, rows.inputs.prompt)
    assert torch.equal(seen.reference["blind"].logp, policy.evaluate(changed).logp)
    assert torch.equal(seen.proximal.logp, policy.evaluate(rows).logp)
    assert dependence(seen, "blind")[rows.sampled > 0].min() > 0
    unseen = views(method, policy).before_step(method.derive(references={"blind": Blinded(share=0.0)}), rows, True)
    assert not dependence(unseen, "blind").any()


@pytest.mark.checks("learns", "vppo")
def test_a_run_learns_from_a_part_of_the_tokens(tmp_path):
    reward = tmp_path / "letters.py"
    reward.write_text("def score(prompts, responses, answers):\n    return [sum(map(str.isalpha, r)) / 4 for r in responses]\n")
    sizes = {"steps": 2, "tasks_per_step": 4, "warm_start": 0.0, "eval_problems": 4, "max_tokens": 8}
    method = vppo.derive(regularize=None, reward=())
    run = up.train(
        method, "reverse:length=2", model="tiny:layers=1,width=32", reward=f"{reward}:score", **sizes, out=tmp_path / "run"
    )
    assert all(0.35 < record["learning"] < 0.7 for record in run.metrics), "ceil(0.4 T) of T, some of them short"


def test_nonsense_is_refused():
    with pytest.raises(MethodError, match="fraction is 0"):
        TopDependence(fraction=0.0)
    with pytest.raises(MethodError, match="least is 2"):
        DependenceFactor(least=2.0)
    with pytest.raises(MethodError, match="share=3"):
        Blinded(share=3.0)
    with pytest.raises(MethodError, match="'blind'"):
        gradient(vppo, random_batch(0).replace(reference={}))
    rows = _rows([[1]], [1]).replace(inputs=ControlInputs(torch.zeros(1, 1, 2)))
    with pytest.raises(MethodError, match="ControlInputs has none"):
        Blinded().sees(rows)
