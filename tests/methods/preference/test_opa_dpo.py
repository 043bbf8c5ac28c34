"""OPA-DPO: DPO with everything else off, its four comparisons by hand, the released form, revised answers as data, its stages."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from batches import assert_same, gradient, random_batch
from rollout_calls import collect
from torch import Tensor
from torch.nn.functional import logsigmoid

import upslope as up
from upslope.errors import MethodError, TaskError
from upslope.methods import find
from upslope.objective.functional.versions import GENERATED, REVISED, REVISED_HIDDEN, TRUTH, TRUTH_HIDDEN
from upslope.objective.surrogate.revision import RevisionPreference
from upslope.runtime.settings import Settings
from upslope.setting_up import set_up
from upslope.tasks import load_task
from upslope.types import Batch

opa, dpo = find("opa-dpo").without("stages"), find("dpo")
liger = pytest.importorskip("liger_kernel.chunked_loss.dpo_loss", reason="liger-kernel comes with upslope[oracles]")
OFF = {"surrogate.hidden": 0.0, "surrogate.anchor": 0.0, "surrogate.severities": (1.0, 1.0, 1.0, 1.0)}


def versions_batch(seed: int, versions: tuple[int, ...] = (0, 1, 2, 3, 4), groups: int = 3) -> Batch:
    """Each group has these versions of an answer; severities go from 1 to 4, and every other token misread the evidence."""
    batch = random_batch(seed, groups=groups, samples=len(versions))
    version = torch.tensor(versions).repeat(groups)
    place = torch.arange(batch.sampled.shape[1]).expand_as(batch.sampled)
    return batch.replace(
        label={"version": version, "side": torch.where(version < GENERATED, 1, -1)},
        segment={"severity": 1 + (place + torch.arange(batch.rows).unsqueeze(1)) % 4, "perceptual": place % 2},
    )


def log_ratios(batch: Batch, version: int, weight: Tensor | float = 1.0) -> Tensor:
    """Weighted log-ratios of that version's tokens ``[G, T]``."""
    log = (batch.current.logp - batch.reference["start"].logp) * batch.sampled * weight
    return log[batch.label["version"] == version]


# -- identity and oracles --------------------------------------------------------------------------------------------------


@pytest.mark.checks("identity", "opa-dpo")
def test_with_everything_else_off_a_true_and_a_generated_answer_are_dpo():
    batch = versions_batch(1, (TRUTH, GENERATED))
    assert_same(gradient(opa.with_knobs(OFF), batch), gradient(dpo, batch), exact=True)


@pytest.mark.checks("identity", "opa-dpo")
def test_with_everything_else_off_three_versions_are_two_terms_of_dpo():
    """RLHF-V's DPO, and its like with the true answer; the generated one stands in both."""
    batch = versions_batch(2, (TRUTH, REVISED, GENERATED))
    found, logp = gradient(opa.with_knobs(OFF), batch), torch.zeros_like(batch.sampled)
    loss = 0.0
    for better in (TRUTH, REVISED):
        rows = torch.isin(batch.label["version"], torch.tensor([better, GENERATED])).nonzero().squeeze(1)
        part = gradient(dpo, batch.take_rows(rows))
        loss, logp[rows] = loss + part.loss, logp[rows] + part.logp
    torch.testing.assert_close(found.loss, loss)
    torch.testing.assert_close(found.logp, logp)


@pytest.mark.checks("oracle", "opa-dpo", by="liger-kernel, comparison by comparison")
def test_the_comparisons_equal_liger_on_weighted_sums():
    batch = versions_batch(3)
    severe = torch.tensor([2.5, 2.0, 1.5, 1.0], dtype=torch.float64)[batch.segment["severity"] - 1]
    seen = torch.where(batch.segment["perceptual"] > 0, 3.0, 1.0)
    own = liger.LigerFusedLinearDPOFunction.preference_loss_fn

    def compared(better: int, worse: int, weight: Tensor | float = 1.0) -> Tensor:
        sides = [log_ratios(batch, version, weight).sum(1) for version in (better, worse)]
        return own(*sides, torch.zeros(2 * len(sides[0]), 1), beta=0.1)[0]

    wanted = compared(TRUTH, GENERATED) + compared(REVISED, GENERATED, severe)
    wanted = wanted + 0.2 * (compared(TRUTH, TRUTH_HIDDEN) + compared(REVISED, REVISED_HIDDEN, seen))
    for better in (TRUTH, REVISED):  # each is the better side of two comparisons
        wanted = wanted - 2 * logsigmoid(0.1 * log_ratios(batch, better).sum(1)).mean()
    (grad,) = torch.autograd.grad(wanted, batch.current.logp)
    found = gradient(opa, batch)
    torch.testing.assert_close(found.loss, wanted.detach())
    torch.testing.assert_close(found.logp, grad)


def three_tokens(form: str, **knobs) -> tuple[float, list[float]]:
    """The loss of one problem, versions of one token: log-ratios 2 for the true answer, 1 revised, -1 generated; severity 1."""
    batch = versions_batch(0, (TRUTH, REVISED, GENERATED), groups=1)
    one = batch.replace(sampled=torch.zeros_like(batch.sampled).index_fill(1, torch.tensor([0]), 1.0))
    logp = batch.reference["start"].logp + torch.tensor([2.0, 1.0, -1.0], dtype=torch.float64).unsqueeze(1)
    one = one.replace(segment={**batch.segment, "severity": torch.ones_like(batch.segment["severity"])})
    one = one.replace(current=type(batch.current)(logp.requires_grad_()))
    found = gradient(opa.derive(surrogate=RevisionPreference(form=form, beta=0.5, hidden=0.0, **knobs)), one)
    return found.loss.item(), found.logp[:, 0].tolist()


def sigma(x: float) -> float:
    return 1 / (1 + math.exp(-x))


@pytest.mark.checks("oracle", "opa-dpo", by="one token of each answer, worked out by hand")
def test_one_problem_by_hand():
    """β = 1/2. True against generated: 0.5·3 = 1.5; revised against generated, severity 1: 0.5·2.5·2 = 2.5; anchors 1 and 0.5."""
    loss, grad = three_tokens("answer")
    assert loss == pytest.approx(-sum(math.log(sigma(x)) for x in (1.5, 2.5, 1.0, 0.5)))
    assert grad[0] == pytest.approx(-0.5 * sigma(-1.5) - 0.5 * sigma(-1.0))
    assert grad[1] == pytest.approx(-1.25 * sigma(-2.5) - 0.5 * sigma(-0.5))
    assert grad[2] == pytest.approx(0.5 * sigma(-1.5) + 1.25 * sigma(-2.5))


def test_the_released_form_by_hand():
    """With answers of one token it differs in the anchor alone, which pushes the revised answer down; δ = 0.3 counts both ways."""
    loss, grad = three_tokens("token", delta=0.3)
    assert loss == pytest.approx(-sum(math.log(sigma(x)) for x in (1.5, 2.5, 1.0 - 0.3, -0.5 + 0.3)))
    assert grad[1] == pytest.approx(-1.25 * sigma(-2.5) + 0.5 * sigma(0.5 - 0.3))


def test_the_released_form_compares_position_by_position():
    batch = versions_batch(4, (TRUTH, GENERATED), groups=1)
    found = gradient(opa.with_knobs({**OFF, "surrogate.form": "token"}), batch)
    there = batch.sampled.any(0)
    each = -logsigmoid(0.1 * (log_ratios(batch, TRUTH) - log_ratios(batch, GENERATED)))[0]
    torch.testing.assert_close(found.loss, each[there].mean().detach())


def test_where_nothing_was_revised_its_comparisons_are_left_out():
    batch = versions_batch(5, (TRUTH, GENERATED, TRUTH_HIDDEN), groups=2)
    found = gradient(opa, batch)
    wanted = -logsigmoid(0.1 * (log_ratios(batch, TRUTH) - log_ratios(batch, GENERATED)).sum(1))
    wanted = wanted - 0.2 * logsigmoid(0.1 * (log_ratios(batch, TRUTH) - log_ratios(batch, TRUTH_HIDDEN)).sum(1))
    wanted = wanted - 2 * logsigmoid(0.1 * log_ratios(batch, TRUTH).sum(1))
    torch.testing.assert_close(found.loss, wanted.mean().detach())


def test_severities_are_four():
    with pytest.raises(MethodError, match="holds four weights"):
        RevisionPreference(severities=(1.0, 2.0))


# -- rows ------------------------------------------------------------------------------------------------------------------

MODEL, TWO = "tiny:layers=1,width=32", Settings(tasks_per_step=2, warm_start=0.0, eval_problems=4, max_tokens=40, steps=4)
PIECES = [
    {"generated": "It is a cat. ", "revised": "It is a dog. ", "severity": 1, "error": "Perception"},
    {"generated": "It sleeps.", "revised": "It sleeps."},
]
LINE = {"prompt": "A dog sleeps. What is it?", "answer": "A dog.", "revisions": PIECES, "evidence": "dog sleeps"}


def in_file(folder: Path, **changes) -> str:
    lines = [{**LINE, **changes, "prompt": f"{number}. {changes.get('prompt', LINE['prompt'])}"} for number in range(6)]
    file = folder / "revised.jsonl"
    file.write_text("".join(json.dumps({key: value for key, value in line.items() if value is not None}) + "\n" for line in lines))
    return str(file)


def test_rows_of_a_revised_answer(tmp_path):
    """Five versions; severities token by token, the stop token as the last piece; a third of the evidence hidden."""
    rollout = set_up(find("opa-dpo"), in_file(tmp_path), MODEL, TWO).rollout
    rows = collect(rollout, 1)
    assert rows.label["version"].tolist() == [TRUTH, REVISED, GENERATED, TRUTH_HIDDEN, REVISED_HIDDEN] * 2
    assert rows.label["side"].tolist() == [1, 1, -1, -1, -1] * 2 and rows.group.tolist() == [0] * 5 + [1] * 5
    texts = [note["response"] for note in rows.info[:5]]
    assert texts == ["A dog.", "It is a dog. It sleeps.", "It is a cat. It sleeps.", "A dog.", "It is a dog. It sleeps."]
    revised = rows.segment["severity"][1][rows.sampled[1] > 0].tolist()
    assert revised == [1] * len("It is a dog. ") + [4] * len("It sleeps.") + [4]
    assert rows.segment["perceptual"][2].sum() == len("It is a cat. ") and not rows.segment["perceptual"][0].any()
    changed = (rows.inputs.prompt != rows.inputs.prompt[0]).sum(1).tolist()[:5]
    assert changed == [0, 0, 0, math.ceil(0.3 * len("dog sleeps")), math.ceil(0.3 * len("dog sleeps"))]
    where = (rows.inputs.prompt[3] != rows.inputs.prompt[0]).nonzero().squeeze(1)
    begins = rows.inputs.prompt.shape[1] - len(" sleeps. What is it?") - len("dog")
    assert begins <= int(where.min()) and int(where.max()) < begins + len("dog sleeps")
    assert torch.equal(rows.inputs.prompt[3], rows.inputs.prompt[4]), "both versions miss the same"
    assert not torch.equal(collect(rollout, 2).inputs.prompt[3], rows.inputs.prompt[3])


def test_rows_to_imitate(tmp_path):
    rows = collect(set_up(find("opa-dpo"), in_file(tmp_path), MODEL, TWO).stage_rollouts["opa"], 1)
    assert [note["response"] for note in rows.info] == ["A dog.", "It is a dog. It sleeps."] * 2
    same = in_file(tmp_path, revisions=[{"generated": "Hm.", "revised": "Hm."}])
    rows = collect(set_up(find("opa-dpo"), same, MODEL, TWO).rollout, 1)
    assert rows.label["version"].tolist() == [TRUTH, GENERATED, TRUTH_HIDDEN] * 2


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"revisions": "A dog."}, 'line 1: "revisions" must be a list of pieces'),
        ({"revisions": [{"generated": "a", "revised": "b", "severity": 5}]}, '"severity" from 1 (worst) to 4 (right)'),
        ({"revisions": [{"generated": "a", "revised": "b", "severty": 1}]}, "must be a list of pieces"),
        ({"revisions": [{"generated": "a"}]}, "neither text may be empty as a whole"),
        (
            {"revisions": [{"generated": "A dog.", "revised": "b"}]},
            "has a generated answer that equals the true one, 'A dog.'",
        ),
        ({"evidence": "a horse"}, "line 1 has \"evidence\": 'a horse', which is not in its prompt"),
        ({"evidence": 7}, "\"evidence\": '7', which is not in its prompt"),
        ({"answer": None}, 'line 1 has "revisions" and no "answer"'),
    ],
)
def test_lines_that_cannot_be_used_are_named(tmp_path, changes: dict, said: str):
    with pytest.raises(TaskError) as refused:
        load_task(in_file(tmp_path, **changes))
    assert said in str(refused.value) and "\n" not in str(refused.value)


def test_a_file_without_revisions_is_refused_with_the_cure(tmp_path):
    with pytest.raises(TaskError, match=r'line 1: no "revisions", and opa-dpo needs revisions .* Give every line an "answer" and'):
        up.train("opa-dpo", in_file(tmp_path, revisions=None), reward="exact", model="tiny", steps=2, out=tmp_path / "run")


def test_embedded_tasks_make_their_own_revisions():
    import numpy as np

    task = load_task("reverse:length=4")
    found = [(problem, task.revision(problem)) for problem in task.sample(60, "train", np.random.default_rng(0))]
    off = [sum(one != two for one, two in zip(each.generated, each.revised, strict=True)) for _, each in found]
    assert set(off) == {1, 2} and all(each.revised == each.truth == problem.answer for problem, each in found)
    for count, (_, each) in zip(off, found, strict=True):
        worst = [piece for piece in each.pieces if piece.severity < 4]
        assert {piece.severity for piece in worst} == {4 - count} and all(piece.perceptual for piece in worst)
    assert "revisions" in task.gives() and "revisions" in load_task("reverse+sort").gives()


# -- runs ------------------------------------------------------------------------------------------------------------------

SMALL = {"model": "tiny:layers=1,width=32", "warm_start": 0.0, "tasks_per_step": 4, "eval_problems": 4}


def test_a_run_first_imitates_then_compares(tmp_path):
    run = up.train("opa-dpo", in_file(tmp_path), reward="exact", steps=4, max_tokens=40, out=tmp_path / "run", **SMALL)
    assert [line["stage"] for line in run.metrics] == [1, 1, 2, 2]
    first = run.metrics[2]
    assert first["loss"] == pytest.approx(6.4 * math.log(2), rel=1e-5), "1 + 1 + 0.2 + 0.2 comparisons and four anchors"
    assert first["margin"] == 0 and {"margin_revised", "margin_evidence", "logp_chosen", "logp_rejected"} <= first.keys()
    assert "margin" not in run.metrics[0] and run.metrics[3]["margin"] != 0


@pytest.mark.slow
def test_what_the_reference_finds_improbable_dpo_leaves_there_and_opa_dpo_says(tmp_path):
    """An untrained model gives the true answers of three tokens a chance below 1e-4. DPO's loss falls all the
    same, and leaves them below a hundredth. The thresholds were set after seeing that."""
    sizes = {"model": "tiny:width=128", "warm_start": 0.0, "tasks_per_step": 48, "eval_problems": 40, "lr": 3e-3}
    runs = {name: up.train(name, "reverse:length=2", steps=40, out=tmp_path / name, **sizes) for name in ("dpo", "opa-dpo")}
    plain, staged = runs["dpo"].metrics, runs["opa-dpo"].metrics
    assert plain[0]["logp_chosen"] < math.log(1e-4) and plain[-1]["loss"] < 0.6 * math.log(2)
    assert plain[-1]["logp_chosen"] < math.log(0.01) and runs["dpo"].summary["score_after"] < 0.1
    assert staged[-1]["logp_chosen"] > math.log(0.05) and runs["opa-dpo"].summary["score_after"] > 0.3
