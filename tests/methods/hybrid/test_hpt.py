"""HPT: a group that fails imitates its demonstration; its gates, the place a demonstration takes, and the sum of both losses."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import pytest
import torch
from batches import assert_same, gradient, random_batch
from oracles import TRINITY_CLIP, TRINITY_ROUNDING, assert_loss_and_gradient, side_by_side, trinity_mix
from rollout_calls import collect
from small_learner import SIZES, learner, weights

from upslope.errors import MethodError
from upslope.methods import compose, find
from upslope.objective.aggregate import TokenMean
from upslope.objective.base import Filter
from upslope.objective.data.demonstrations import Demonstrations
from upslope.objective.data.gates import GradualGate, HardGate, ScarceGate
from upslope.objective.surrogate import PessimisticClip
from upslope.types import Batch, Source

hpt, soft, dr_grpo = find("hpt"), find("hpt-soft"), find("dr-grpo")
FLAT = {"flat": [0, 1], "always": True}
"""Of the four problems of a step two are solved by every answer; of the others no answer earns 1."""


@dataclass(frozen=True)
class NoSamples(Filter):
    """Drops all that was sampled."""

    refill = False
    rounds = 1

    def __call__(self, batch: Batch) -> torch.Tensor:
        return torch.zeros(batch.rows, dtype=torch.bool)


def gated(method=hpt, **gate):
    return method.derive(data=Demonstrations(gate=HardGate(**gate)))


# -- the gates -------------------------------------------------------------------------------------------------------------


def table(gate, solved: list[int], size: int = 8) -> list[tuple[float, ...]]:
    found = gate(torch.tensor(solved, dtype=torch.float32), torch.full((len(solved),), float(size)))
    return list(zip(*(each.tolist() for each in found), strict=True))


def test_the_hard_gate_has_three_zones():
    assert table(HardGate(), [0, 1, 8]) == [(0, 0, 1), (1, 0, 0), (1, 0, 0)]
    assert table(HardGate(imitate=2, reinforce=4), [0, 2, 3, 4, 5]) == [(0, 0, 1), (0, 0, 1), (0, 1, 0), (0, 1, 0), (1, 0, 0)]
    assert table(HardGate(imitate=-1), [0, 8]) == [(1, 0, 0)] * 2 and table(HardGate(imitate=8), [0, 8]) == [(0, 0, 1)] * 2
    # A fifth of five answers, of ten, and a little more.
    shares = HardGate(imitate=0.2, unit="share")
    assert table(shares, [1], 5) == table(shares, [2], 10) == [(0, 0, 1)] and table(shares, [3], 10) == [(1, 0, 0)]


def test_the_gate_beside_never_switches_samples_off():
    assert table(ScarceGate(needed=2), [0, 1, 2, 8]) == [(1, 0, 1), (1, 0, 1), (1, 0, 0), (1, 0, 0)]
    assert table(ScarceGate(needed=0), [0]) == [(1, 0, 0)] and table(ScarceGate(needed=9), [8]) == [(1, 0, 1)]


@pytest.mark.checks("oracle", "hpt-soft", by="the released table")
def test_the_gradual_gate_is_the_released_table():
    """The code's index is the number of right answers with the demonstration among them: 1 to 8 are none to seven of its own."""
    released = {1: (0, 0, 1), 2: (0.125, 0.5, 0.5), 3: (0.25, 1, 0.25), 4: (0.5, 0.5, 0.125), 5: (1, 0.25, 0), 6: (1, 0.125, 0),
                7: (1, 0, 0), 8: (1, 0, 0)}  # fmt: skip
    assert table(GradualGate(), [index - 1 for index in released]) == list(released.values())
    assert table(GradualGate(off_policy=(1.0,)), [0, 9]) == [(0, 1, 1), (1, 1, 0)]


def test_a_table_without_weights_is_refused():
    for wrong in ((), (0.5, -1.0)):
        with pytest.raises(MethodError, match=r"GradualGate\.own"):
            GradualGate(own=wrong)


# -- identity --------------------------------------------------------------------------------------------------------------


@pytest.mark.checks("identity", "hpt", "hpt-soft")
def test_without_demonstrations_it_is_dr_grpo(ragged_batch: Batch):
    plain = {"surrogate": PessimisticClip(), "regularize": None}
    for method in (hpt, soft):
        assert_same(gradient(method.derive(**plain), ragged_batch), gradient(dr_grpo, ragged_batch), exact=True)


def stepped(method, **settings) -> tuple[torch.Tensor, dict[str, float]]:
    made = learner(method, dataclasses.replace(SIZES, updates_per_step=2, **settings), **FLAT)
    told = made.step(1)
    return weights(made), told


@pytest.mark.checks("identity", "hpt")
def test_a_gate_of_minus_one_is_the_batch_of_its_samples_to_the_last_bit():
    plain, told = stepped(hpt.derive(data=None, filter=None, terms=None))
    found, shown = stepped(gated(imitate=-1))
    assert found.equal(plain) and shown["loss"] == told["loss"]
    assert (shown["gated_groups"], shown["solved_per_group"], shown["kept_rows"]) == (0.0, 2.0, 1.0)


@pytest.mark.checks("identity", "hpt")
def test_a_gate_of_all_answers_is_imitation_to_the_last_bit():
    """The same weights as from imitating alone, and the loss is the mean over the tokens of the reference answers."""
    found, told = stepped(gated(imitate=4))
    alone, _ = stepped(hpt.derive(data=Demonstrations(gate=ScarceGate(needed=5)), filter=NoSamples()))
    assert found.equal(alone) and told["gated_groups"] == 1.0 and told["kept_rows"] == 0.0 and "loss" not in told
    made = learner(gated(imitate=4), SIZES, **FLAT)
    rows = made.tasks.teacher(collect(made.rollout, 1))
    logp = made.views.columns(hpt, made.policy, rows, frozenset()).logp
    told = made.step(1)
    assert told["imitation_loss"] == pytest.approx(float(-(logp * rows.sampled).sum() / rows.sampled.sum()), rel=1e-5)


# -- a step ----------------------------------------------------------------------------------------------------------------


def test_groups_that_fail_imitate_and_the_others_keep_their_samples():
    made = learner(hpt, SIZES, **FLAT)
    told, rows = made.step(1), made.last
    assert (told["gated_groups"], told["kept_rows"], told["solved_per_group"]) == (0.5, 0.5, 2.0)
    assert told["imitation_loss"] > 0 and rows.rows == 8 and (rows.components["task"] == 1).all()
    taught = rows.aside["demonstration"]
    assert (
        taught.rows == 2
        and not torch.isin(taught.group, rows.group).any()
        and (taught.label["source"] == Source.DEMONSTRATED).all()
    )
    assert all(note["gate"] == {"solved": 4.0, "own": 1.0, "off_policy": 0.0, "imitation": 0.0} for note in rows.info)
    assert "off_policy" not in rows.aside and "off_policy_groups" not in told


def test_in_the_third_zone_the_demonstration_is_reinforced():
    made = learner(gated(imitate=-1, reinforce=3), SIZES, **FLAT)
    told, rows = made.step(1), made.last
    assert rows.rows == 8 and rows.aside["off_policy"].rows == 2 and "demonstration" not in rows.aside
    assert told["off_policy_groups"] == 0.5 and told["gated_groups"] == 0.0 and told["off_policy_loss"] < 0


def test_a_step_without_any_right_answer_learns_from_demonstrations_alone():
    made = learner(hpt.with_knobs({"data.right": 2.0}), dataclasses.replace(SIZES, updates_per_step=2))
    before, told = weights(made), made.step(1)
    assert told["gated_groups"] == 1.0 and told["updates"] == 2 and not weights(made).equal(before) and "empty_updates" not in told


def test_groups_that_are_all_right_and_not_gated_teach_nothing():
    made = learner(gated(imitate=-1, reinforce=-1).derive(regularize=None), SIZES, flat=[0, 1, 2, 3], always=True)
    before, told = weights(made), made.step(1)
    assert weights(made).equal(before) and told["empty_updates"] == 1.0


def test_the_gradual_gate_joins_the_demonstration_to_every_group():
    made = learner(soft, SIZES, **FLAT)
    told, rows = made.step(1), made.last
    shown = rows.label["source"] == Source.DEMONSTRATED
    assert shown.tolist() == [False] * 16 + [True] * 4 and rows.group_stats(rows.reward).size.tolist() == [5.0] * 20
    solved = rows.group_stats((rows.components["task"] == 1).float() * ~shown).mean * 5
    own, off_policy = torch.tensor([0.0, 0.0, 0.0, 0.0, 1.0]), torch.tensor([0.0, 0.0, 0.0, 0.0, 0.25])
    assert rows.signal["gate"].tolist() == torch.where(shown, off_policy[solved.long()], own[solved.long()]).tolist()
    assert rows.aside["demonstration"].rows == 2 and told["gated_groups"] == 0.5


def test_a_step_of_which_every_group_imitates_still_says_how_far_it_is_from_the_start():
    made = learner(gated(imitate=4), SIZES, always=True, flat=range(4))
    told = [made.step(step) for step in (1, 2, 3)]
    assert [step["gated_groups"] for step in told] == [1.0, 1.0, 1.0] and made.last is None
    assert told[0]["kl_start"] < 1e-6 < told[2]["kl_start"]


def test_with_a_curriculum_gated_groups_still_imitate():
    method = compose(["hpt", "sec"])
    assert method.curriculum == find("sec").curriculum and method.data == hpt.data
    told = learner(method, SIZES, **FLAT).step(1)
    assert 0 < told["gated_groups"] < 1 and told["imitation_loss"] > 0


# -- oracle ----------------------------------------------------------------------------------------------------------------


@pytest.mark.oracle("trinity-rft")
@pytest.mark.checks("oracle", "hpt", by="trinity-rft")
@pytest.mark.parametrize("seed", range(4))
def test_both_losses_together_are_those_of_trinity(seed: int):
    """Its mixed loss of samples and expert rows, (1 - mu) GRPO + mu SFT, is our method beside its term of weight mu / (1 - mu)."""
    mu, batch = 0.3, random_batch(seed, groups=3, samples=4)
    expert = torch.arange(batch.rows) % 4 == 3
    own = hpt.derive(surrogate=PessimisticClip(**TRINITY_CLIP), regularize=None, aggregate=TokenMean())
    term = dict(hpt.terms)["imitation"].as_method("imitation", hpt)
    ours = side_by_side(gradient(own, batch.take_rows(~expert)), gradient(term, batch.take_rows(expert)), expert, mu)
    assert_loss_and_gradient(ours, *trinity_mix(own, batch, expert, mu), rtol=TRINITY_ROUNDING)
