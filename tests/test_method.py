"""A method as a value: derived, compared, set, composed, written and read. And its small parts, by hand."""

from __future__ import annotations

import dataclasses
import math
import sys
from pathlib import Path

import pytest
import torch
from batches import assert_same, gradient, random_batch, replace_view

import upslope as up
from upslope.errors import MethodError, UserError
from upslope.methods import catalogue, compose, find
from upslope.objective.advantage import GAE, MovingBaseline
from upslope.objective.aggregate import ConstantLength, SequenceMeanTokenMean, TokenMean
from upslope.objective.controller import AdaptiveKL, TargetKL
from upslope.objective.estimator import annotate, begin_update, bind, check, method_loss, stateful
from upslope.objective.models.value import ValueFunction
from upslope.objective.ratio import EntropyMix, SequenceRatio, TokenRatio
from upslope.objective.regularize import EntropyBonus, ReferenceKL, kl_estimate
from upslope.objective.reward import OverlongPenalty, StepKL
from upslope.objective.shape import Whiten
from upslope.objective.surrogate import ClippedWeight, PessimisticClip, Unclipped
from upslope.objective.weight import TopEntropy
from upslope.runtime.method_file import dump_method, load_method, user_bundles
from upslope.runtime.user_code import keep, load_file
from upslope.types import Batch, Method, Part, View

grpo, dapo, dhpo, ppo = (find(name) for name in ("grpo", "dapo", "dhpo", "ppo"))
PLAIN = grpo.derive(regularize=None)
"""GRPO without its KL term."""


# -- deriving and comparing ------------------------------------------------------------------------------------------------


def test_derive_names_its_parent_and_starts_with_no_notes():
    mine = grpo.derive(name="mine", aggregate=TokenMean())
    assert (mine.parent, mine.notes, mine.formula, mine.differs) == ("grpo", "", "", "")
    assert mine.diff(grpo) == {"aggregate": ("SequenceMeanTokenMean()", "TokenMean()")}
    assert grpo.derive(aggregate=TokenMean()).parent == grpo.parent and grpo.aggregate == SequenceMeanTokenMean()


def test_derive_keeps_the_knobs_of_each_domain_unless_told_otherwise():
    ppo = find("ppo")
    assert ppo.on and ppo.derive(name="mine").on == ppo.on
    assert not ppo.derive(name="mine", on={}).on


def test_diff_shows_the_slots_of_dapo():
    changed = dapo.diff(grpo)
    assert set(changed) == {"surrogate", "aggregate", "regularize", "filter", "reward"}
    assert changed["regularize"][1] == "none" and "high=0.28" in changed["surrogate"][1]
    assert grpo.diff(grpo) == {}


def test_a_method_prints_compares_and_hashes():
    lines = str(dhpo).splitlines()
    assert lines[0].startswith("dhpo: ") and "2601.05607" in lines[0]
    assert [line.split()[0] for line in lines[1:]] == ["advantage", "ratio", "surrogate", "aggregate"]
    assert dhpo == dhpo.derive() and hash(dhpo) == hash(dhpo.derive())
    assert len({method for method in catalogue().values()}) == len(catalogue())
    assert dhpo.with_knobs({"ratio.mix.share": 0.4}) != dhpo


def test_stacked_slots_take_a_part_a_tuple_or_nothing():
    part = ReferenceKL()
    assert grpo.derive(regularize=part).regularize == grpo.derive(regularize=[part]).regularize == (part,)
    assert grpo.derive(regularize=None).regularize == ()
    assert grpo.without("regularize", "surrogate").surrogate is None


def test_parts_have_paths():
    paths = [path for path, _ in find("dhpo-entropy").parts()]
    assert paths == [
        *("advantage", "ratio", "ratio.token", "ratio.sequence", "ratio.mix"),
        *("surrogate", "surrogate.token", "surrogate.sequence", "aggregate"),
    ]
    assert "models.value" in [path for path, _ in ppo.parts()] and "shape.0" in [path for path, _ in ppo.parts()]


# -- knobs -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "path", "text", "value"),
    [
        ("grpo", "surrogate.high", "0.3", 0.3),
        ("grpo", "surrogate.dual", "inf", math.inf),
        ("grpo", "advantage.ddof", "0", 0),
        ("grpo", "advantage.leave_one_out", "true", True),
        ("grpo", "advantage.leave_one_out", False, False),
        ("grpo", "advantage.scale", "none", "none"),
        ("grpo", "regularize.weight", "0.001", 0.001),
        ("grpo", "regularize.0.weight", 1, 1.0),
        ("dhpo", "ratio.mix.share", "0.25", 0.25),
        ("dhpo", "surrogate.sequence.low", "1e-3", 1e-3),
        ("ppo", "models.value.clip", "0.2", 0.2),
        ("dapo", "filter.refill", "False", False),
    ],
)
def test_a_knob_is_set_by_path_in_its_own_type(name: str, path: str, text, value):
    changed = find(name).with_knobs({path: text})
    slot, *rest = path.split(".")
    held = dict(changed.parts())
    owner = next(part for where, part in held.items() if where in (".".join([slot, *rest[:-1]]), ".".join([slot, "0", *rest[:-1]])))
    found = getattr(owner, rest[-1])
    assert found == value and type(found) is type(value)
    assert list(changed.diff(find(name))) in ([slot], [])


@pytest.mark.parametrize(
    ("name", "knobs", "says"),
    [
        ("grpo", {"surogate.high": 0.3}, "Did you mean 'surrogate'"),
        ("grpo", {"surrogate.hihg": 0.3}, "Did you mean 'high'"),
        ("grpo", {"surrogate": 0.3}, "PessimisticClip is a part, not a knob"),
        ("grpo", {"surrogate.high": "much"}, "that knob is a float"),
        ("grpo", {"advantage.leave_one_out": "perhaps"}, "that knob is a bool"),
        ("grpo", {"advantage.ddof": "one"}, "that knob is a whole number"),
        ("grpo", {"advantage.ddof": 0.5}, "that knob is a whole number"),
        ("grpo", {"shape.eps": 0.1}, "no knob to set"),
        ("dhpo", {"ratio.mix.shar": 0.1}, "Did you mean 'share'"),
        ("dhpo", {"ratio.mix": 0.1}, "ConstantMix is a part, not a knob"),
        # A word that is none of the knob's choices would silently take the last branch of an if.
        ("grpo", {"advantage.scale": "stdd"}, "std"),
        ("grpo", {"regularize.estimator": "k4"}, "k3"),
        ("dhpo", {"surrogate.form": "per_branch"}, "per_branch_min"),
    ],
)
def test_a_wrong_knob_is_refused_with_the_nearest_name(name: str, knobs: dict, says: str):
    with pytest.raises(MethodError, match=says) as refused:
        find(name).with_knobs(knobs)
    ((path, value),) = knobs.items()
    assert path in str(refused.value) and str(value) in str(refused.value)


def test_in_a_stack_the_position_says_which():
    two = grpo.derive(regularize=(ReferenceKL(), EntropyBonus()))
    assert two.with_knobs({"regularize.1.weight": 0.5}).regularize == (ReferenceKL(), EntropyBonus(0.5))
    with pytest.raises(MethodError, match="say which: 0, 1"):
        two.with_knobs({"regularize.weight": 0.5})


def test_knobs_by_domain():
    text, control = ppo.for_domain("text"), ppo.for_domain("control")
    assert (text.advantage.lam, text.surrogate.dual, dict(text.models)["value"].clip) == (1.0, 3.0, 0.5)
    assert control == ppo and ppo.for_domain("control-discrete").regularize[0].weight == 0.01
    assert grpo.for_domain("text") == grpo


# -- composing -------------------------------------------------------------------------------------------------------------


def test_changes_of_different_slots_compose():
    both = compose(["dr-grpo", "gspo"])
    gspo, dr_grpo = find("gspo"), find("dr-grpo")
    assert (both.ratio, both.surrogate) == (gspo.ratio, gspo.surrogate)
    assert (both.advantage, both.aggregate, both.regularize) == (dr_grpo.advantage, dr_grpo.aggregate, ())
    assert (both.name, both.parent) == ("dr-grpo+gspo", "dr-grpo")
    assert both.diff(compose(["gspo", "dr-grpo"])) == {}, "where nothing collides, order does not matter"
    check(both)
    assert gradient(both, random_batch(0)).finite()


def test_an_addition_composes_with_another_branch_of_the_family():
    both = compose(["dhpo", "high-entropy"])
    assert both.weight == (TopEntropy(0.2),) and both.derive(weight=None).diff(dhpo) == {}
    assert gradient(both, random_batch(0)).finite()


def test_two_changes_of_one_slot_collide_and_the_error_says_how_to_choose():
    with pytest.raises(MethodError) as refused:
        compose(["dapo", "gspo"])
    message = str(refused.value)
    for part in ("surrogate", str(dapo.surrogate), str(find("gspo").surrogate), "--take surrogate=dapo", "--take surrogate=gspo"):
        assert part in message
    theirs, ours = (compose(["dapo", "gspo"], take={"surrogate": name}) for name in ("gspo", "dapo"))
    assert theirs.surrogate == find("gspo").surrogate and ours.surrogate == dapo.surrogate
    assert theirs.ratio == ours.ratio == SequenceRatio() and theirs.filter == dapo.filter


@pytest.mark.parametrize(
    ("names", "take", "says"),
    [
        (["dhp"], {}, "Did you mean 'dhpo'"),
        (["grpo", "reinforce"], {}, "reinforce has no parent"),
        (["dapo", "gspo"], {"surogate": "gspo"}, "Did you mean 'surrogate'"),
        (["dapo", "gspo"], {"surrogate": "grpo"}, "not among the composed"),
    ],
)
def test_wrong_compositions_are_refused(names: list, take: dict, says: str):
    with pytest.raises(MethodError, match=says):
        compose(names, take)


# -- files -----------------------------------------------------------------------------------------------------------------

USER_FILE = '''
from dataclasses import dataclass

from upslope.methods import find
from upslope.objective.base import Weight


@dataclass(frozen=True)
class EveryOther(Weight):
    """Every other decision."""

    start: int = 0

    def __call__(self, batch):
        weight = batch.sampled.clone()
        weight[:, self.start :: 2] = 0
        return weight


halved = find("grpo").derive(name="halved", differs="learns from every other token", weight=EveryOther(1))
'''


def test_a_users_own_part_goes_through_toml_with_its_hash(tmp_path: Path):
    path = tmp_path / "my_method.py"
    path.write_text(USER_FILE)
    method, code = load_file(path).halved, tmp_path / "code"
    (bundle,) = user_bundles(method)
    assert isinstance(method, Method) and bundle.root / bundle.entry == path
    keep({bundle}, code)
    text = dump_method(method)
    assert "/my_method.py:EveryOther@" in text
    assert load_method(text, code) == method and hash(load_method(text, code)) == hash(method)
    found = gradient(method, random_batch(0))
    assert_same(gradient(method, random_batch(0), "rows"), found)
    assert not gradient(method.derive(regularize=None), random_batch(0)).logp[:, 1::2].any()
    with pytest.raises(MethodError, match="folder"):
        load_method(text)


def test_a_file_that_changed_is_refused_before_it_runs(tmp_path: Path):
    path = tmp_path / "my_method.py"
    path.write_text(USER_FILE)
    method, code = load_file(path).halved, tmp_path / "code"
    text = dump_method(method)
    keep(user_bundles(method), code)
    (copied,) = code.glob("*/my_method.py")
    copied.write_text(USER_FILE + f"\nopen({str(tmp_path / 'ran')!r}, 'w').close()\n")
    with pytest.raises(UserError, match="not the code this run was started with"):
        load_method(text, code)
    assert not (tmp_path / "ran").exists(), "a file that is refused must not have been executed"


@pytest.mark.parametrize("name", ["this:s", "upslope.types:Batch", "upslope.errors:nothing", "upslope.nowhere:X"])
def test_only_parts_are_read_from_a_file(name: str):
    text = dump_method(grpo).replace("upslope.objective.aggregate:SequenceMeanTokenMean", name)
    with pytest.raises(MethodError, match="not a part"):
        load_method(text)
    assert "this" not in sys.modules, "a file must not be able to import whatever it likes"


def test_unknown_fields_in_a_file_are_refused():
    with pytest.raises(MethodError, match="colour"):
        load_method('colour = "red"\n' + dump_method(grpo))
    with pytest.raises(MethodError, match="hihg"):
        load_method(dump_method(grpo).replace("high =", "hihg ="))


def test_what_toml_cannot_hold_is_refused():
    @dataclasses.dataclass(frozen=True)
    class Odd(Part):
        knob: object = None

    with pytest.raises(MethodError, match="write 'no bound' as inf"):
        dump_method(grpo.derive(weight=Odd()))


# -- parts that remember or steer ------------------------------------------------------------------------------------------


def test_moving_baseline_reads_its_state_and_writes_it_after_the_step():
    method = find("reinforce").derive(advantage=MovingBaseline(decay=0.9))
    assert list(stateful(method)) == ["advantage"]
    batch, part = random_batch(0).replace(reward=torch.full((12,), 2.0).double()), method.advantage
    bound = bind(method, {"advantage": {"baseline": 0.5}}, batch)
    assert torch.equal(annotate(method, bound).advantage, 1.5 * batch.sampled)
    assert part.init() == {"baseline": 0.0}
    assert part.update({"baseline": 0.5}, bound, {}) == {"baseline": pytest.approx(0.9 * 0.5 + 0.1 * 2.0)}


def test_target_kl_ends_the_passes():
    part = TargetKL(limit=0.02)
    assert part.ends_passes({"kl_proximal": 0.021}) and not part.ends_passes({"kl_proximal": 0.019}) and not part.ends_passes({})
    assert part.knobs(part.init(), 0.0) == {}


@pytest.mark.parametrize(("divergence", "error"), [(0.11, 0.1), (0.5, 0.2), (0.001, -0.2), (0.1, 0.0)])
def test_adaptive_kl_moves_its_weight_towards_the_target(divergence: float, error: float):
    part, batch = AdaptiveKL(target=0.1, start=0.05, horizon=100), random_batch(0)
    state = part.update(part.init(), batch, {"kl_start": divergence})
    assert state == {"weight": pytest.approx(0.05 * (1 + error * 12 / 100))}
    steered = ppo.derive(reward=StepKL(), controller=part)
    assert steered.with_knobs(part.knobs(state, 0.0)).reward[0].weight == state["weight"]


# -- small parts -----------------------------------------------------------------------------------------------------------


def test_gae_special_cases(ragged_batch: Batch):
    batch = ragged_batch.replace(step_reward=None)
    zero = replace_view(batch, "proximal", value=torch.zeros_like(batch.sampled)).replace(bootstrap=None)
    torch.testing.assert_close(GAE(gamma=1.0, lam=1.0)(zero), batch.per_decision(batch.reward))
    # A row that ended by itself: lambda 1 is the return minus V, lambda 0 the one-step error.
    value = torch.tensor([[0.5, -1.0, 2.0]], dtype=torch.float64)
    row = batch.take_rows(torch.tensor([0])).replace(
        sampled=torch.ones(1, 3).double(), ended=torch.tensor([[0, 0, 1]]), bootstrap=None, proximal=View(value, value=value)
    )
    discounted = row.reward * torch.tensor([0.81, 0.9, 1.0], dtype=torch.float64)
    torch.testing.assert_close(GAE(gamma=0.9, lam=1.0)(row), discounted - value, rtol=1e-6, atol=1e-6)
    errors = torch.stack([0.9 * value[0, 1] - value[0, 0], 0.9 * value[0, 2] - value[0, 1], row.reward[0] - value[0, 2]])
    torch.testing.assert_close(GAE(gamma=0.9, lam=0.0)(row)[0], errors)


def test_the_pessimistic_clip_is_a_hinge(ragged_batch: Batch):
    """-min(rA, clip(r)A) = |A| max(0, sgn(A) ((1 + eps sgn A) - r)) - A - eps |A|."""
    batch = begin_update(PLAIN, annotate(PLAIN, ragged_batch))
    (branch,), advantage, sign = TokenRatio()(batch), batch.advantage, batch.advantage.sign()
    loss, _ = PessimisticClip(0.2, 0.2)(batch, (branch,))
    hinge = advantage.abs() * (sign * (1 + 0.2 * sign - branch.value)).clamp_min(0) - advantage - 0.2 * advantage.abs()
    torch.testing.assert_close(loss * batch.sampled, hinge * batch.sampled)


def test_infinite_bounds_are_no_clip(ragged_batch: Batch):
    wide = PLAIN.derive(surrogate=PessimisticClip(math.inf, math.inf))
    assert_same(gradient(wide, ragged_batch), gradient(PLAIN.derive(surrogate=Unclipped()), ragged_batch))


@pytest.mark.parametrize(
    ("estimator", "value", "slope"),
    [("k1", 0.5, 1.0), ("k2", 0.125, 0.5), ("k3", math.exp(-0.5) - 0.5, 1 - math.exp(-0.5)), ("k3+", math.exp(-0.5) - 0.5, 0.5)],
)
def test_kl_estimates_by_hand(estimator: str, value: float, slope: float):
    """log pi = -1, log pi_ref = -1.5: x = -0.5, k3 = e^x - x - 1. Slopes are in log pi; k3+ has k3's value and k2's slope."""
    logp = torch.tensor(-1.0, dtype=torch.float64, requires_grad=True)
    estimate = kl_estimate(logp, torch.tensor(-1.5).double(), estimator)
    assert estimate.item() == pytest.approx(value) and torch.autograd.grad(estimate, logp)[0].item() == pytest.approx(slope)


@pytest.mark.parametrize(("value", "loss"), [(0.4, 0.64), (1.2, 0.49), (-2.0, 10.24), (0.9, 0.49), (2.0, 0.64)])
def test_value_clipping_by_hand(value: float, loss: float):
    """V_old = 0, clip 0.5, return 1.2: V = 1.2 is right, but a step may only reach 0.5, so it costs 0.7^2 all the same."""
    view = View(torch.zeros(1, 1), value=torch.zeros(1, 1))
    batch = random_batch(0, groups=1, samples=1, positions=1, ragged=False)
    batch = batch.replace(
        current=View(view.logp, value=torch.tensor([[value]])), proximal=view, signal={"returns": torch.tensor([[1.2]])}
    )
    assert ValueFunction(weight=0.5, clip=0.5)(batch).item() == pytest.approx(0.25 * loss)
    assert ValueFunction(weight=0.5)(batch).item() == pytest.approx(0.25 * (value - 1.2) ** 2)


def test_overlong_penalty_by_hand():
    """Limit 10, buffer a fifth of it: free up to 8 tokens, minus the penalty at 10, linear between."""
    sampled = (torch.arange(10) < torch.tensor([[1], [7], [8], [9], [10]])).double()
    batch = random_batch(0, groups=1, samples=5, positions=10).replace(sampled=sampled, reward=torch.ones(5).double())
    found = OverlongPenalty(penalty=2.0)(batch)
    assert found.reward.tolist() == pytest.approx([1, 1, 1, 0, -1])
    assert found.components["overlong"].tolist() == pytest.approx([0, 0, 0, -1, -2]) and "task" in found.components
    with pytest.raises(MethodError, match=r"set reward\.limit"):
        OverlongPenalty()(batch.replace(horizon=0))
    with pytest.raises(MethodError, match="buffer is 4096"):
        OverlongPenalty(buffer=4096)


def test_step_kl_by_hand(ragged_batch: Batch):
    """Each decision pays 0.1 (log pi - log pi_ref), and nobody else does."""
    distance = (ragged_batch.proximal.logp - ragged_batch.reference["start"].logp) * ragged_batch.sampled
    paid = StepKL(weight=0.1)(ragged_batch).step_reward - ragged_batch.step_reward
    torch.testing.assert_close(paid, -0.1 * distance)
    assert StepKL(weight=0.0)(ragged_batch) is ragged_batch and not StepKL(weight=0.0).needs()


def test_whitening_by_hand():
    batch = random_batch(0, groups=1, samples=1, positions=4, ragged=False)
    batch = batch.replace(sampled=torch.tensor([[1.0, 1, 0, 1]]).double(), advantage=torch.tensor([[1.0, 2, 50, 3]]).double())
    assert Whiten(eps=0.0)(batch).tolist() == [[-1, 0, 0, 1]]
    assert not Whiten()(batch.replace(advantage=0.1 * batch.sampled)).any()
    alone = batch.replace(sampled=torch.tensor([[0.0, 1, 0, 0]]).double())
    assert torch.equal(Whiten()(alone), alone.advantage)


def test_cispo_by_hand(ragged_batch: Batch):
    """Ratio 2, upper bound 1.5: loss -1.5 A log pi, and the gradient goes on."""
    batch = replace_view(ragged_batch, "current", logp=(ragged_batch.proximal.logp + math.log(2)).requires_grad_())
    method = PLAIN.derive(surrogate=ClippedWeight(high=0.5))
    advantage = annotate(method, batch).advantage
    expected = -1.5 * advantage * begin_update(method, annotate(method, batch)).share
    torch.testing.assert_close(gradient(method, batch).logp, expected)
    torch.testing.assert_close(method_loss(method, batch), (expected * batch.current.logp).sum())


def test_parts_without_what_they_need_say_so(ragged_batch: Batch):
    for make, says in (
        (lambda: EntropyMix(over="batch", source="current"), "over the batch"),
        (lambda: EntropyMix(direction=0), "direction is 0"),
        (lambda: TopEntropy(fraction=0.0), "fraction is 0"),
        (lambda: ConstantLength()(ragged_batch.replace(horizon=0)), r"set aggregate\.length"),
    ):
        with pytest.raises(MethodError, match=says):
            make()


def test_a_method_called_like_one_of_the_catalogue_is_refused(tmp_path: Path):
    path = tmp_path / "my_method.py"
    path.write_text(USER_FILE.replace('name="halved"', 'name="grpo"'))
    with pytest.raises(MethodError, match="'grpo' like one of the catalogue"):
        up.method(str(path))
