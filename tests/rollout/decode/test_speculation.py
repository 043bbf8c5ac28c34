"""Drafts: answers are those without, whatever is drafted, and how much is drafted follows from counts alone."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from small_learner import SIZES, learner
from small_models import PROMPTS, policy_of

import upslope as up
from upslope.errors import UserError
from upslope.plan import _own_columns
from upslope.policies import LanguageModel
from upslope.rollout.decode import speculation, speculative_stepper
from upslope.rollout.decode.speculation import (
    MOST,
    PAUSE,
    SMOLLM2,
    SMOLLM2_ON_TWO,
    DraftCounts,
    Drafting,
    DraftSum,
    Ngrams,
    PassCosts,
    Speculate,
    drafting,
)
from upslope.rollout.decode.speculative_stepper import SpeculativeStepper
from upslope.rollout.decode.stepper import COPIED, Stepper
from upslope.rollout.engines.torch_engine import TorchEngine
from upslope.runtime import seeding
from upslope.runtime.settings import Settings, check_names
from upslope.setting_up.speculate import check_can_draft, check_speculate
from upslope.testing.runs import Breaks, Crash, assert_same_run
from upslope.types import Completions, Sampling

torch.set_num_threads(1)

TOKENS = 24
LONG = [[1, *(3 + (7 * place + number) % 20 for place in range(60 - 9 * number))] for number in range(3)]
"""Prompts that rows share while they are sampled, of different lengths."""
FREE = PassCosts(1.0, 1e18, 1, (1, 4096), (1.0, 1.0))
"""Drafts that cost nothing are always made."""
SHARP = [
    Sampling(TOKENS, 0.4), Sampling(TOKENS, 0), Sampling(TOKENS, 0.5, top_k=4, top_p=0.9), Sampling(TOKENS, 0.6, min_p=0.05),
]  # fmt: skip
"""Ways to draw in which a random model repeats itself now and then."""


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speculation, "COSTS", {platform.machine(): (FREE,)})


def exact(kind: str) -> LanguageModel:
    """A model whose products are the same to rounding that no draw sees, with room for longer texts."""
    policy = policy_of(kind).to(dtype=torch.float64)
    policy.model.config.max_position_embeddings = 256
    return policy


def answered(
    policy: LanguageModel, prompts: list[list[int]], n: int, sampling: Sampling, speculate: Speculate, **more: Any
) -> tuple[Completions, DraftSum]:
    engine = TorchEngine(policy, speculate)
    engine.max_rows = more.pop("max_rows", 1024)
    done = engine.generate(prompts, n, sampling, seeding.uniforms((len(prompts) * n, sampling.max_tokens), 7), **more)
    return done, engine.drafts


def assert_same(with_drafts: Completions, without: Completions) -> None:
    assert torch.equal(with_drafts.tokens, without.tokens) and torch.equal(with_drafts.sampled, without.sampled)
    assert with_drafts.finish == without.finish
    torch.testing.assert_close(with_drafts.logp, without.logp, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(with_drafts.entropy, without.entropy, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("prompts", [PROMPTS, LONG], ids=["copied", "long"])
@pytest.mark.parametrize("kind", ["llama", "qwen2-full", "qwen3", "gemma"])
def test_answers_are_those_without_drafts(kind, prompts, free):
    assert (max(map(len, prompts)) - 1 > COPIED) is (prompts is LONG)
    policy, sums = exact(kind), DraftSum()
    for sampling in SHARP:
        without, _ = answered(policy, prompts, 3, sampling, "off")
        done, drafts = answered(policy, prompts, 3, sampling, 5)
        assert_same(done, without)
        sums = sums.with_those_of(drafts)
    assert 20 < sums.accepted < sums.drafted - 20, "drafts are right and wrong"


def test_answers_that_end_early_by_limits_or_by_texts_end_where_they_did(free):
    policy = exact("llama")
    policy.stop_ids = frozenset({2, 7})
    prompts, limits = [[1, 5, 9], [1, 4, 4, 8, 12, 20, 7], [1], [1, 5, 9, 9]], [3, TOKENS, 9, 1]
    free_answers, _ = answered(policy, prompts, 4, Sampling(TOKENS, 0.4), "off")
    full = free_answers.tokens[4:8][free_answers.sampled[4:8].all(1)]
    said, ends, sums = policy.decode(full[0].tolist()), [], DraftSum()
    for text in ("", said[3:5], said[9:12], said[14:17]):
        sampling = Sampling(TOKENS, 0.4, stop=(text,) if text else ())
        without, _ = answered(policy, prompts, 4, sampling, "off", limits=limits)
        for most in (1, 3, 15):
            done, drafts = answered(policy, prompts, 4, sampling, most, limits=limits)
            assert_same(done, without)
            sums = sums.with_those_of(drafts)
        ends.append(without.finish.count("stop"))
    assert ends[0] > 0 and min(ends[1:]) > ends[0], "tokens end some answers, texts end others"
    assert sums.accepted > 20


@pytest.mark.parametrize("max_rows", [1024, 5])
@pytest.mark.parametrize("prompts", [PROMPTS, LONG], ids=["copied", "long"])
def test_what_is_kept_for_learning_is_what_is_kept_without(prompts, max_rows, free):
    policy, found = exact("llama"), []
    for speculate in ("off", 4):
        done, drafts = answered(policy, prompts, 3, Sampling(TOKENS, 0.4), speculate, keep=True, max_rows=max_rows)
        assert done.kept is not None
        found.append(policy.kept.passes[int(done.kept[0]) >> 32])
    assert drafts.accepted < drafts.drafted, "something is to be forgotten"
    without, kept = found
    assert torch.equal(without.ids, kept.ids)
    there, own = without.ids >= 0, without.ids[without.shared :] >= 0
    for layer, other in zip(without.layers, kept.layers, strict=True):
        for one, two in zip(layer, other, strict=True):
            rows = there if len(one) == len(there) else own
            torch.testing.assert_close(one[rows], two[rows], atol=1e-9, rtol=1e-9)


def test_drafts_that_are_always_wrong_change_nothing_and_are_given_up(monkeypatch):
    policy, sampling = exact("llama"), Sampling(60)
    policy.stop_ids = frozenset()
    without, _ = answered(policy, [[1, 5, 9]], 1, sampling, "off")
    said, tried = without.tokens[0].tolist(), []

    def wrong(self: Ngrams, row: int, most: int) -> list[int]:
        tried.append(self.said(row))
        return [(said[self.said(row)] + 1) % 23] * most

    monkeypatch.setattr(Ngrams, "draft", wrong)
    done, drafts = answered(policy, [[1, 5, 9]], 1, sampling, 4)
    assert_same(done, without)
    assert drafts.accepted == 0 and 4 < drafts.drafted < 60
    assert max(tried) < 30, "not tried again before its time"


def test_a_call_knows_nothing_of_the_one_before_and_repeats_to_the_bit(free):
    policy = policy_of("llama")
    engine, once = TorchEngine(policy, 4), []
    for prompts in (PROMPTS, [[1, 8, 8, 8]] * 5, PROMPTS):
        before = engine.drafts
        done = engine.generate(prompts, 2, Sampling(TOKENS, 0.5), seeding.uniforms((10, TOKENS), 3))
        once.append((done, engine.drafts.since(before)))
    (first, drafts), _, (again, later) = once
    assert torch.equal(first.tokens, again.tokens) and torch.equal(first.logp, again.logp) and drafts == later
    assert drafts.drafted


# -- when ------------------------------------------------------------------------------------------------------------------


def test_left_to_itself_it_drafts_for_single_rows_where_that_was_measured(monkeypatch):
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    assert drafting("auto", 134_515_008, 1, measured=True) == Drafting(MOST, 1, SMOLLM2)
    assert drafting("auto", 134_515_008, 2, measured=True) == Drafting(MOST, 1, SMOLLM2_ON_TWO)
    assert drafting("auto", 134_515_008, 16, measured=True) is None, "with other threads"
    assert drafting("auto", 134_515_008, 1, measured=False) is None, "in another precision"
    assert drafting("auto", 900_000, 1, measured=True) is None, "tiny"
    assert drafting("auto", 1_700_000_000, 1, measured=True) is None
    assert drafting("off", 134_515_008, 1, measured=True) is None
    asked = drafting(3, 900_000, 1, measured=False)
    assert asked is not None and asked.most == 3 and 1 < asked.rows == SMOLLM2.most_rows() < 64
    assert drafting(3, 900_000, 16, measured=False) == Drafting(3, SMOLLM2_ON_TWO.most_rows(), SMOLLM2_ON_TWO), "the nearest"
    monkeypatch.setattr(platform, "machine", lambda: "AMD64")
    assert drafting("auto", 134_515_008, 1, measured=True) == Drafting(MOST, 1, SMOLLM2), "as Windows calls it"
    monkeypatch.setattr(platform, "machine", lambda: "a new one")
    assert drafting("auto", 134_515_008, 1, measured=True) is None and drafting(3, 134_515_008, 1, measured=True) is not None


def test_runs_that_nobody_measured_are_as_they_were():
    engine = TorchEngine(policy_of("llama"), "auto")
    engine.generate(PROMPTS, 1, Sampling(4), seeding.uniforms((5, 4), 1))
    assert type(engine._steppers[0]) is Stepper
    engine.speculate = 2
    engine.generate(PROMPTS, 1, Sampling(4), seeding.uniforms((5, 4), 1))
    assert type(engine._steppers[0]) is SpeculativeStepper, "the one at hand does not draft"


def test_rows_beside_others_are_not_drafted_for_by_auto(free):
    policy = exact("llama").to(dtype=torch.float32)
    policy.stop_ids = frozenset()
    alone, several = (answered(policy, [[1, 5, 9]], n, Sampling(TOKENS, 0.4), "auto") for n in (1, 2))
    assert alone[1].drafted and not several[1].drafted
    assert torch.equal(alone[0].tokens[0], several[0].tokens[0])
    left, drafts = answered(policy, [[1, 5, 9], [1, 5, 9, 3]], 1, Sampling(TOKENS, 0.4), "auto", limits=[3, TOKENS])
    assert drafts.drafted and left.sampled.sum(1).tolist() == [3, TOKENS], "the last one that is left is alone"


def test_of_answers_that_have_ended_only_the_last_are_looked_up(free, monkeypatch):
    """Ten rows, three at once: the last is alone when nine have ended."""
    monkeypatch.setattr(speculative_stepper, "HEARD", 2 * TOKENS)
    heard, hear = dict[int, int](), Ngrams.hear

    def listening(self: Ngrams, row: int, tokens: Sequence[int]) -> None:
        heard[row] = heard.get(row, 0) + len(tokens)
        hear(self, row, tokens)

    monkeypatch.setattr(Ngrams, "hear", listening)
    policy = exact("llama").to(dtype=torch.float32)
    policy.stop_ids = frozenset()
    without, _ = answered(policy, [[1, 5, 9]], 10, Sampling(TOKENS, 0.4), "off", max_rows=3)
    done, drafts = answered(policy, [[1, 5, 9]], 10, Sampling(TOKENS, 0.4), "auto", max_rows=3)
    assert torch.equal(done.tokens, without.tokens)
    assert drafts.drafted and sorted(heard) == [7, 8, 9] and heard[7] == heard[8] == TOKENS > heard[9]


def test_who_drafts():
    """A run as it is told, a server by itself, and judges, which ask many questions at once, not."""
    from upslope.rollout.judges import ModelJudge
    from upslope.serving.server import Server

    policy = policy_of("llama")
    assert ModelJudge(policy).engine.speculate == TorchEngine(policy).speculate == "off"
    with Server(policy, port=0) as server:
        assert server.batcher.engine.speculate == "auto"
    made = learner("dr-grpo", replace(SIZES, speculate=3))
    assert made.rollout.engine.speculate == 3


def test_drafts_of_further_turns_count_in_their_step(free):
    """Else the next step tells of them, unless it is the first of a run that was resumed."""
    made = learner("seppo", replace(SIZES, speculate=4, max_tokens=TOKENS, temperature=0.3))
    before = DraftSum()
    for step in (1, 2):
        told = made.step(step)
        drafts = made.rollout.engine.drafts.since(before)
        assert told["further_samples"] and told["drafts_accepted"] == drafts.accepted / drafts.drafted
        before = made.rollout.engine.drafts


def test_costs_between_what_was_measured_and_beyond():
    costs = PassCosts(0, 1, 1, (1, 2, 4, 8), (1.0, 1.1, 1.5, 2.0))
    assert [costs.of(positions) for positions in (1, 2, 3, 6, 16)] == pytest.approx([1.0, 1.1, 1.3, 1.75, 4.0])
    assert costs.ratio(2, 1) == pytest.approx(1.5 / 1.1) and costs.most_rows() == 4


def test_counts_decide_how_much_is_drafted():
    counts = DraftCounts(Drafting(4, 8, PassCosts(0, 1, 1, (1, 2, 5), (1.0, 1.3, 2.2))))
    assert counts.tries() and counts.length([4]) == 1, "as likely right as wrong: 1.5 / 1.3 is the most"
    assert counts.length([0, 0]) == counts.length([0]) == 0 and counts.tries(), "nothing was found, which says nothing"
    for _ in range(9):
        counts.count(1, 1)
    assert counts.length([4]) == 4 and counts.length([2]) == 2
    while counts.length([4]):
        counts.count(4, 0)
    assert [counts.tries() for _ in range(PAUSE)] == [False] * (PAUSE - 1) + [True]
    assert counts.length([4]) == 1, "from the beginning"
    right = counts.sum
    assert right.accepted == 9 and right.metrics() == {"drafts_accepted": 9 / right.drafted} and DraftSum().metrics() == {}


def test_old_counts_weigh_less_and_less():
    counts = DraftCounts(Drafting(4, 8, PassCosts(0, 1, 1, (1, 5), (1.0, 2.2))))
    for _ in range(200):
        counts.count(4, 4)
    tried = 0
    while counts.length([4]):
        counts.count(4, 0)
        tried += 1
    assert 5 < tried < 40, "soon given up, however long all were right"


def test_the_longest_n_gram_said_last_is_what_a_draft_follows():
    ngrams = Ngrams([1, 7, 8, 9, 5, 8, 9, 6])
    ngrams.hear(0, [8, 9])
    assert ngrams.draft(0, 3) == [6, 8, 9], "said last behind 8 9, and up to where the row is"
    ngrams.hear(0, [2, 7, 8, 9])
    assert ngrams.draft(0, 2) == [5, 8], "behind 7 8 9, which is longer"
    assert ngrams.draft(3, 4) == [8, 9, 2, 7], "a row that has said nothing yet, what another began with"
    ngrams.hear(3, [4])
    ngrams.hear(4, [4])
    assert ngrams.draft(3, 4) == [] and ngrams.said(3) == 1
    ngrams.hear(4, [3, 2, 1])
    assert ngrams.draft(3, 2) == [3, 2], "what another row has said behind the same"


def test_a_text_that_repeats_itself_is_expected_to_go_on_so():
    ngrams = Ngrams([1, 2])
    ngrams.hear(0, [5, 6, 7, 5, 6, 7, 5, 6])
    assert ngrams.draft(0, 8) == [7, 5, 6, 7, 5, 6, 7, 5]
    ngrams.hear(0, [3, 3, 3])
    assert ngrams.draft(0, 4) == [3, 3, 3, 3]


# -- what is refused -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("given", [0, 65, -1, "some", "4", 2.5], ids=str)
def test_what_is_no_number_of_tokens_is_refused(given):
    with pytest.raises(UserError, match="--speculate is "):
        Settings(speculate=given)


def test_true_and_false_may_be_said_in_python():
    assert Settings(speculate=False).speculate == "off" and Settings(speculate=True).speculate == "auto"


@pytest.mark.parametrize(
    "changed, told",
    [
        ({"plain": True}, "--speculate 4 with --plain: .* Leave one of them out"),
        ({"engine": "vllm"}, "--speculate 4 with --engine vllm: .* settings of their own"),
        ({"engine": "http://127.0.0.1:8000"}, "with --engine http://127.0.0.1:8000: .* take --engine torch"),
        ({"device": "cuda"}, "--speculate 4 on a GPU: .* recorded graphs .* --device cpu"),
    ],
)
def test_drafts_that_nobody_makes_are_refused_where_they_were_asked_for(changed, told):
    with pytest.raises(UserError, match=told):
        check_speculate(Settings(speculate=4, **changed))
    for left in ("auto", "off"):
        check_speculate(Settings(speculate=left, **changed))


def test_a_model_of_transformers_has_no_drafts():
    with pytest.raises(UserError, match="--speculate 2: 'gpt2' is computed by `transformers`"):
        check_can_draft(Settings(speculate=2), "gpt2", ours=False)
    check_can_draft(Settings(), "gpt2", ours=False)
    check_can_draft(Settings(speculate=2), "llama", ours=True)


@pytest.mark.parametrize("name", ["num_speculative_tokens", "speculative_config"])
def test_what_vllm_calls_it(name):
    with pytest.raises(UserError, match="Did you mean 'speculate'"):
        check_names([name])


# -- in a run --------------------------------------------------------------------------------------------------------------


def test_a_run_with_drafts_is_that_without_and_resumes_to_the_bit(tmp_path, free):
    (tmp_path / "letters.py").write_text(
        "def score(prompts, responses, answers):\n    return [len(set(r)) / 9 for r in responses]\n"
    )
    asked: dict[str, Any] = {
        "task": "reverse:length=6", "reward": f"{tmp_path / 'letters.py'}:score", "model": "tiny:layers=1,width=32", "steps": 4,
        "tasks_per_step": 3, "samples_per_task": 4, "max_tokens": 16, "warm_start": 0.0, "temperature": 0.15, "eval_problems": 4,
        "checkpoint_every": 2, "record": "none", "audit": "off",
    }  # fmt: skip
    whole = up.train("dr-grpo", **asked, speculate=4, out=tmp_path / "whole")
    with pytest.raises(Crash):
        up.train("dr-grpo", **asked, speculate=4, out=tmp_path / "cut", watcher=Breaks(3))
    up.resume(tmp_path / "cut")
    assert_same_run(whole.path, tmp_path / "cut")
    assert whole.table["settings"]["speculate"] == 4
    assert any(step.get("grad_norm", 0.0) > 0 for step in whole.metrics), "something is learned"
    shares = [step["drafts_accepted"] for step in whole.metrics if "drafts_accepted" in step]
    assert all(0 <= share <= 1 for share in shares) and max(shares) > 0
    without = up.train("dr-grpo", **asked, speculate="off", out=tmp_path / "without")
    for mine, plain in zip(whole.metrics, without.metrics, strict=True):
        assert "drafts_accepted" not in plain and mine["tokens"] == plain["tokens"]
        assert mine["reward"] == pytest.approx(plain["reward"]) and mine["entropy"] == pytest.approx(plain["entropy"], rel=1e-4)


def test_a_run_from_before_there_were_drafts_goes_on_without():
    assert _own_columns({"settings": {}, "data": ""})["speculate"] == "off"
    assert _own_columns({"settings": {"speculate": "auto"}, "data": ""})["speculate"] == "auto"
