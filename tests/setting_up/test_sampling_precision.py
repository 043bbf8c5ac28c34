"""Runs that sample in eight bits: who may, what they tell, and that they repeat wherever they sample."""

from __future__ import annotations

import json
import shutil
from typing import Any

import pytest
import torch
from small_models import PROMPTS, policy_of

import upslope as up
from upslope.errors import Remark, UserError
from upslope.learners.lessons import Lesson, packed_lesson, unpacked_lesson
from upslope.methods import find
from upslope.objective.weight.truncated import Truncated
from upslope.policies.text_inputs import TextInputs
from upslope.policies.tiny import character_tokenizer
from upslope.rollout.engines.torch_engine import TorchEngine
from upslope.rollout.text import TextRollout
from upslope.rollout.text_rows import join_text, sampled_rows
from upslope.run import load_components
from upslope.runtime import seeding
from upslope.runtime.seeding import numpy_generator
from upslope.runtime.settings import Settings
from upslope.setting_up.sampling_precision import check_can_sample, check_card, check_sampling_precision
from upslope.setting_up.where import reuses_sampling
from upslope.sizes.card import Card
from upslope.tasks import load_task
from upslope.tasks.turns import Turn, TurnNumbers
from upslope.types import Batch, Sampling, Trajectories
from upslope.types.batch import pack_rows, unpack_rows

torch.set_num_threads(1)

SMALL: dict[str, Any] = {
    "reward": "regex:[a-m].*", "model": "tiny:layers=2,width=32", "steps": 3, "tasks_per_step": 4, "samples_per_task": 4,
    "warm_start": 0.0, "max_tokens": 6, "eval_problems": 2, "lr": 0.01, "warmup": 0, "threads": 1, "record": "none",
    "checkpoint_every": 1, "keep_checkpoints": 3, "updates_per_step": 2, "audit": "off",
}  # fmt: skip


def weights(run: up.Run) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in run.policy.model.parameters()])


# -- who may ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "method, changed, told",
    [
        ("grpo", {}, r"with grpo, whose ratio .* Take grpo\+asyncflow, .* or --uncorrected"),
        ("sft", {}, "sft samples nothing that it could learn from. Leave it out"),
        (
            "spo-single-stream+asyncflow",
            {},
            r"LastResponse of spo-single-stream\+asyncflow takes recorded .* Leave it out, or",
        ),
        ("asyncflow", {"engine": "vllm"}, "with --engine vllm: .* Leave it out, or take --engine torch"),
        ("asyncflow", {"top_p": 0.9}, "with --top-p, --top-k or --min-p: .* Leave those out"),
        ("asyncflow", {"plain": True}, "with --plain: .* Leave one of them out"),
        ("asyncflow", {"lora": 4, "base_precision": "nf4"}, "with --base-precision nf4: .* Leave one out"),
        ("asyncflow", {"device": "cuda", "precision": "float32"}, "with --precision float32: .* Leave one of them out"),
    ],
)
def test_what_does_not_go_together_is_refused_with_the_cure(method, changed, told):
    with pytest.raises(UserError, match=f"--sampling-precision fp8:? {told}"):
        check_sampling_precision(up.method(method), Settings(sampling_precision="fp8", **changed))
    check_sampling_precision(up.method(method), Settings(**changed))


@pytest.mark.parametrize("name", ["asyncflow", "minirl", "grpo"])
def test_methods_that_correct_may_and_others_if_they_insist(name):
    asked = Settings(sampling_precision="fp8", uncorrected=name == "grpo", device="cuda")
    check_sampling_precision(find(name), asked)
    with pytest.warns(Remark, match="on a CPU computes what a GPU would"):
        check_sampling_precision(find(name), Settings(sampling_precision="fp8", uncorrected=name == "grpo", device="cpu"))


def test_cards_before_ada_are_refused():
    asked, old = Settings(sampling_precision="fp8"), Card("cuda", 2**34, "an A100", (8, 0))
    with pytest.raises(UserError, match=r"the an A100 \(compute capability 8\.0\) is older than Ada .* Leave it out"):
        check_card(asked, old)
    for card in (Card("cuda", 2**34, "an L4", (8, 9)), Card.supposed("cuda", "24GB"), Card.here("cpu")):
        check_card(asked, card)
    check_card(Settings(), old)


def test_models_of_other_sizes_or_of_transformers_are_refused():
    asked = Settings(sampling_precision="fp8", device="cuda")
    with pytest.raises(UserError, match=r"'odd' has 16 features, 24 inside a layer and 32 of queries, keys and values; .* of 16\."):
        check_can_sample(asked, "odd", policy_of("llama").body)
    check_can_sample(Settings(sampling_precision="fp8", device="cpu"), "odd", policy_of("llama").body)
    with pytest.raises(UserError, match="'gpt2' is computed by `transformers`"):
        check_can_sample(asked, "gpt2", policy_of("gpt2").body)
    check_can_sample(Settings(), "gpt2", None)


def test_a_word_that_is_no_precision_is_refused():
    with pytest.raises(UserError, match="--sampling-precision is 'fp4'; it must be one of auto, fp8"):
        Settings(sampling_precision="fp4")  # type: ignore[arg-type]


# -- what they do ----------------------------------------------------------------------------------------------------------


def test_what_was_drawn_in_eight_bits_is_weighed(ragged_batch: Batch):
    assert torch.equal(Truncated()(ragged_batch), torch.ones_like(ragged_batch.sampled))
    behavior = ragged_batch.behavior.map(lambda column: column - 0.1)
    rounded = torch.arange(ragged_batch.rows) % 3 != 0
    weighed = Truncated()(ragged_batch.replace(behavior=behavior, approximate=rounded))
    assert ragged_batch.proximal is not None
    expected = (ragged_batch.proximal.logp - behavior.logp).exp().clamp_max(2.0)
    on = (ragged_batch.sampled > 0) & ~behavior.logp.isnan() & rounded.unsqueeze(1)
    torch.testing.assert_close(weighed[on], expected[on])
    assert (weighed[~on] == 1).all() and (weighed[on] != 1).any()


@pytest.fixture(scope="module")
def problems(tmp_path_factory: pytest.TempPathFactory) -> str:
    file = tmp_path_factory.mktemp("data") / "p.jsonl"
    file.write_text("".join(json.dumps({"prompt": f"w{number}", "answer": "a"}) + "\n" for number in range(10)))
    return str(file)


@pytest.fixture(scope="module")
def run(problems: str, tmp_path_factory: pytest.TempPathFactory) -> up.Run:
    return up.train("dr-grpo+asyncflow", problems, **SMALL, sampling_precision="fp8", out=tmp_path_factory.mktemp("run") / "run")


def test_a_run_says_how_far_its_samples_are_from_the_policy_and_corrects(run, problems, tmp_path):
    assert not reuses_sampling(Settings(sampling_precision="fp8")) and run.table["settings"]["sampling_precision"] == "fp8"
    for each in run.metrics:
        assert 0 < each["engine_gap"] < each["engine_gap_worst"] < 1
    assert torch.isfinite(weights(run)).all()
    uncorrected = up.train("dr-grpo", problems, **SMALL, sampling_precision="fp8", uncorrected=True, out=tmp_path / "u")
    exact = up.train("dr-grpo", problems, **SMALL, reuse="off", out=tmp_path / "e")
    assert "engine_gap" not in exact.metrics[0]
    assert not torch.equal(weights(run), weights(uncorrected)) and not torch.equal(weights(run), weights(exact))


def test_without_rounding_correcting_changes_nothing(problems, tmp_path):
    both = [up.train(name, problems, **SMALL, reuse="off", out=tmp_path / name) for name in ("dr-grpo", "dr-grpo+asyncflow")]
    assert torch.equal(*map(weights, both))


def test_a_run_that_was_stopped_ends_as_one_that_was_not(run, tmp_path):
    place = tmp_path / "run"
    shutil.copytree(run.path, place)
    copy = up.load(place)
    for checkpoint in copy.folder.checkpoints()[-2:]:
        shutil.rmtree(checkpoint)
    (place / "summary.json").unlink()
    again = up.resume(place)
    assert torch.equal(weights(again), weights(run))
    assert [each["engine_gap"] for each in again.metrics] == [each["engine_gap"] for each in run.metrics]


def test_a_run_is_measured_as_the_policy_is(run, monkeypatch):
    """On a card that multiplies nothing in eight bits too."""
    monkeypatch.setattr(Card, "here", lambda *_: Card("cuda", 2**34, "an A100", (8, 0)))
    found: Any = load_components(up.load(run.path))
    assert found.settings.sampling_precision == "auto" and found.rollout.engine.in_eight_bits is False
    assert up.load(run.path).plan.settings.sampling_precision == "fp8"


@pytest.mark.slow
def test_workers_sample_in_eight_bits_too(problems, tmp_path):
    same = {**SMALL, "sampling_precision": "fp8", "shares": 2, "reuse": "off"}
    here, there = (up.train("dr-grpo+asyncflow", problems, **same, workers=count, out=tmp_path / str(count)) for count in (0, 1))
    assert torch.equal(weights(here), weights(there))
    assert [each["engine_gap"] for each in here.metrics] == pytest.approx([each["engine_gap"] for each in there.metrics])


def rows_in(precision: str) -> Trajectories:
    policy, sampling = policy_of("llama"), Sampling(4)
    done = TorchEngine(policy, precision=precision).generate(PROMPTS, 2, sampling, seeding.uniforms((10, 4), 1))  # type: ignore[arg-type]
    return sampled_rows(policy, PROMPTS, 2, done, sampling)


def test_rows_know_it_wherever_they_go():
    rounded, exact = rows_in("fp8").replace(now=3), rows_in("auto").replace(now=3)
    assert rounded.approximate is not None and rounded.approximate.all() and exact.approximate is None
    found = unpacked_lesson(packed_lesson(Lesson(4, {}, rounded, rounded)), TextInputs, "cpu")
    assert found.rows.approximate is not None and found.rows.approximate.all() and found.rows.now == 3
    assert torch.equal(found.sampled.drawn_by_others(), found.sampled.sampled > 0)
    assert unpack_rows(pack_rows(rounded), rounded).approximate.all()
    for several in ([rounded, exact], [exact, rounded]):
        joined = join_text(several)
        assert (
            joined.approximate is not None and joined.approximate.sum() == rounded.rows == joined.take_rows(joined.approximate).rows
        )


def test_what_was_asked_in_another_context_is_not_only_rounded(tmp_path):
    """A turn learned as it was asked counts by its importance; one learned without its hint is another context's."""
    task, policy = load_task("reverse:length=2"), policy_of("llama")
    policy.tokenizer = character_tokenizer("abcdefghijklmnopqrs")
    rollout = TextRollout(
        task, policy, tasks=2, samples=2, sampling=Sampling(4), seed=0, engine=TorchEngine(policy, precision="fp8")
    )
    problem = task.sample(1, "train", numpy_generator(0))[0]
    turns = [Turn("ab", problem, samples=2, learn="asked"), Turn("ab", problem, learn="problem")]
    rows = rollout.sample(turns, TurnNumbers(1, "data.0"))
    assert rows.approximate is not None and rows.approximate.tolist() == [True, True, False]
    assert rollout.metrics()["engine_gap"] > 0 and "engine_gap" not in rollout.metrics()


def test_the_kl_to_the_start_is_the_policys(problems, tmp_path):
    """Which is the start before the first update: not what eight bits make of it."""
    changed = SMALL | {"steps": 1, "watch_kl": True}
    told = up.train("dr-grpo+asyncflow", problems, **changed, sampling_precision="fp8", out=tmp_path / "a").metrics[0]
    assert told["kl_start"] == pytest.approx(0.0, abs=1e-9) and told["engine_gap"] > 1e-4
