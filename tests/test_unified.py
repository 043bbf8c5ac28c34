"""The table of docs/unified.md: every row is a method of the catalogue, and its gradient is that of the form the table gives.

Each row is computed three times on the same random logits in float64: by the method through the estimator, by the loss as its paper
writes it, and by the gradient form -sg[M c A] log pi.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F
from places import ROOT
from torch import Tensor

from upslope.methods import find
from upslope.objective.advantage import RawReward
from upslope.objective.aggregate import SequenceMeanTokenSum
from upslope.objective.estimator import annotate, begin_update, method_loss
from upslope.objective.functional.one_token import OneTokenSamples
from upslope.objective.ratio import NoRatio, TokenRatio
from upslope.objective.surrogate import LogLikelihood, PessimisticClip, Unclipped
from upslope.objective.surrogate.implicit_reward import ImplicitReward
from upslope.objective.surrogate.off_policy import ShapedProbability
from upslope.testing.batches import random_batch
from upslope.types import Batch, Method, Source, View

VOCABULARY = 7
PAGE = ROOT / "docs" / "unified.md"


class Seen(NamedTuple):
    """A batch of random logits, and what the formulas are written in."""

    logits: Tensor
    batch: Batch
    logp: Tensor
    """Of the current policy, with gradient."""
    old: Tensor
    """Of the policy before the step."""
    start: Tensor
    on: Tensor
    lengths: Tensor
    shown: Tensor
    """Rows ``[N]`` that nobody sampled."""

    @property
    def ratio(self) -> Tensor:
        return (self.logp - self.old).exp()

    @property
    def sequence_ratio(self) -> Tensor:
        """Of the answer, length-normalised, on each of its tokens."""
        mean = ((self.logp - self.old) * self.on).sum(1) / self.lengths
        return mean.exp().unsqueeze(1).expand_as(self.on)

    def centred(self, spread: bool) -> Tensor:
        """Reward minus the mean of its group, by hand."""
        found = torch.zeros_like(self.batch.reward)
        for group in self.batch.group.unique():
            rows = (self.batch.group == group).nonzero().squeeze(1)
            reward = self.batch.reward[rows]
            found[rows] = (reward - reward.mean()) / (reward.std() + 1e-6 if spread else 1.0)
        return found.unsqueeze(1) * self.on


def seen(seed: int) -> Seen:
    batch = random_batch(seed, groups=3, samples=4)
    random = torch.Generator().manual_seed(seed)
    logits = torch.randn(*batch.sampled.shape, VOCABULARY, generator=random, dtype=torch.float64).requires_grad_()
    action = torch.randint(0, VOCABULARY, batch.sampled.shape, generator=random)

    def chosen(table: Tensor) -> Tensor:
        return table.log_softmax(2).gather(2, action.unsqueeze(2)).squeeze(2)

    logp = chosen(logits)
    old, start = (chosen(logits.detach() + 0.4 * torch.randn(logits.shape, generator=random, dtype=torch.float64)) for _ in "12")
    shown = torch.arange(batch.rows) % 4 == 3
    assert batch.proximal is not None
    batch = batch.replace(
        action=action,
        current=View(logp, logp.detach().abs(), torch.zeros_like(logp)),
        proximal=View(old, old.abs(), batch.proximal.value),
        reference={"start": View(start)},
        label={**batch.label, "source": torch.where(shown, int(Source.DEMONSTRATED), int(Source.FRESH))},
    )
    return Seen(logits, batch, logp, old, start, batch.sampled, batch.lengths(), shown)


class Row(NamedTuple):
    """A row of the table."""

    method: Method
    share: Callable[[Seen], Tensor]
    """What the aggregate gives each token ``[N, T]``."""
    advantage: Callable[[Seen], Tensor]
    classical: Callable[[Seen, Tensor], Tensor]
    """The loss of each token as the paper writes it, given the advantage; autograd does the rest."""
    coefficient: Callable[[Seen, Tensor], Tensor]
    """M c of the gradient form."""
    rows: str = "all"


def tokens(s: Seen) -> Tensor:
    return s.on / s.on.sum()


def answers(s: Seen) -> Tensor:
    return s.on / s.lengths.unsqueeze(1) / len(s.on)


def sums(s: Seen) -> Tensor:
    return s.on / len(s.on)


def limit(s: Seen) -> Tensor:
    return s.on / s.batch.horizon / len(s.on)


def worse(ratio: Tensor, a: Tensor, low: float, high: float) -> Tensor:
    return -torch.minimum(ratio * a, ratio.clamp(1 - low, 1 + high) * a)


def inside(ratio: Tensor, a: Tensor, low: float, high: float) -> Tensor:
    """M: 0 where the clip has stopped the gradient."""
    return 1.0 - ((a > 0) & (ratio > 1 + high) | (a < 0) & (ratio < 1 - low)).double()


def gae(s: Seen) -> Tensor:
    """The advantage of ppo itself, whose own tests have it against other libraries."""
    found = begin_update(find("ppo"), annotate(find("ppo"), s.batch.replace(current=None))).advantage
    assert found is not None
    return found


def cross_entropy(s: Seen, a: Tensor) -> Tensor:
    assert s.batch.action is not None
    return F.cross_entropy(s.logits.flatten(0, 1), s.batch.action.flatten(), reduction="none").view_as(a)


def fading(s: Seen) -> Tensor:
    """The implicit reward of fdiv-sft on each token of an answer."""
    return (((s.logp - s.start) * s.on).sum(1) / s.lengths).unsqueeze(1).expand_as(s.on)


GAMMA = 0.1
ONES = torch.ones_like
ROWS: dict[str, Row] = {
    "sft": Row(find("sft"), tokens, lambda s: s.on, cross_entropy, lambda s, a: ONES(a)),
    "reinforce": Row(find("reinforce"), sums, lambda s: s.centred(False), lambda s, a: -a * s.logp, lambda s, a: ONES(a)),
    "ppo": Row(
        find("ppo"), tokens, gae, lambda s, a: worse(s.ratio, a, 0.2, 0.2), lambda s, a: inside(s.ratio, a, 0.2, 0.2) * s.ratio
    ),
    "grpo": Row(
        find("grpo").derive(regularize=None), answers, lambda s: s.centred(True), lambda s, a: worse(s.ratio, a, 0.2, 0.2),
        lambda s, a: inside(s.ratio, a, 0.2, 0.2) * s.ratio,
    ),
    "cispo": Row(
        find("cispo"), tokens, lambda s: s.centred(True), lambda s, a: -s.ratio.clamp(max=6.0).detach() * a * s.logp,
        lambda s, a: s.ratio.clamp(max=6.0),
    ),
    "gspo": Row(
        find("gspo"), answers, lambda s: s.centred(True), lambda s, a: worse(s.sequence_ratio, a, 3e-4, 4e-4),
        lambda s, a: inside(s.sequence_ratio, a, 3e-4, 4e-4) * s.sequence_ratio,
    ),
    "srft": Row(
        find("srft"), limit, lambda s: s.centred(False), lambda s, a: -a * s.logp.exp(), lambda s, a: s.logp.exp(), "demonstrations"
    ),
    "luffy": Row(
        find("luffy").derive(regularize=None), limit, lambda s: s.centred(False),
        lambda s, a: -a * s.logp.exp() / (s.logp.exp() + GAMMA),
        lambda s, a: GAMMA * s.logp.exp() / (s.logp.exp() + GAMMA) ** 2, "demonstrations",
    ),
    "fdiv-sft": Row(
        find("fdiv-sft"), tokens, lambda s: s.on, lambda s, a: -a * (fading(s) - fading(s) ** 2 / 4), lambda s, a: 1 - fading(s) / 2
    ),
}  # fmt: skip


def in_logits(s: Seen, loss: Tensor, rows: str) -> Tensor:
    (found,) = torch.autograd.grad(loss, s.logits, retain_graph=True)
    return found if rows == "all" else found[s.shown]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", ROWS)
def test_estimator_classical_loss_and_gradient_form_have_one_gradient(name: str, seed: int):
    s, row = seen(seed), ROWS[name]
    advantage, share = row.advantage(s), row.share(s)
    by_method = in_logits(s, method_loss(row.method, s.batch), row.rows)
    by_paper = in_logits(s, (share * row.classical(s, advantage)).sum(), row.rows)
    factor = (row.coefficient(s, advantage) * advantage).detach()
    by_form = in_logits(s, -(share * factor * s.logp).sum(), row.rows)
    assert float(by_method.abs().max()) > 1e-5
    assert float((by_method - by_paper).abs().max()) < 1e-12
    assert float((by_method - by_form).abs().max()) < 1e-12


@pytest.mark.parametrize("name", ["ppo", "grpo", "gspo"])
def test_masks_of_the_rows_do_something(name: str):
    row = ROWS[name]
    stopped = [(row.coefficient(s, row.advantage(s)) == 0)[s.on > 0].double().mean().item() for s in map(seen, range(3))]
    assert all(0.05 < share < 0.95 for share in stopped)


def test_the_mean_gradient_of_otr_is_a_row_too():
    """c = (1 - wrong) pi, and the same as luffy's without bending; enumerated over what may be drawn."""
    s, wrong = seen(0), OneTokenSamples().wrong
    logp = s.logits.log_softmax(2)
    assert s.batch.action is not None
    reward = torch.full_like(logp, wrong).scatter(2, s.batch.action.unsqueeze(2), 1.0)
    mean = -((logp.exp().detach() * reward * logp).sum(2) * tokens(s)).sum()
    form = -(tokens(s) * ((1 - wrong) * s.logp.exp()).detach() * s.logp).sum()
    assert float((in_logits(s, mean, "all") - in_logits(s, form, "all")).abs().max()) < 1e-12


def test_sft_is_the_estimator_with_its_own_denominator_and_an_advantage_of_one():
    s = seen(1)
    ratio = (s.logp - s.logp.detach()).exp()
    form = in_logits(s, -(tokens(s) * ratio).sum(), "all")
    assert float((in_logits(s, method_loss(find("sft"), s.batch), "all") - form).abs().max()) < 1e-12
    total_variation = find("fdiv-sft").derive(surrogate=ImplicitReward(divergence="total-variation"))
    assert torch.equal(*(in_logits(s, method_loss(each, s.batch), "all") for each in (find("sft"), total_variation)))


def test_where_nothing_has_moved_grpo_is_reinforce_with_its_advantage():
    s = seen(2)
    batch = s.batch.replace(proximal=View(s.logp.detach(), s.logp.detach().abs()))
    grpo = find("grpo").derive(regularize=None)
    plain = grpo.derive(ratio=NoRatio(), surrogate=LogLikelihood())
    assert (
        float((in_logits(s, method_loss(grpo, batch), "all") - in_logits(s, method_loss(plain, batch), "all")).abs().max()) < 1e-12
    )
    wide = grpo.derive(surrogate=PessimisticClip(low=1.0, high=1e6))
    moved = in_logits(s, method_loss(wide, s.batch), "all") - in_logits(s, method_loss(plain, s.batch), "all")
    assert float(moved.abs().max()) > 1e-3, "elsewhere it is not"


# -- bias and variance ------------------------------------------------------------------------------------------------------

DENOMINATORS = {
    "pi_beta": {"ratio": TokenRatio(against="behavior"), "surrogate": Unclipped()},
    "1": {"ratio": NoRatio(), "surrogate": ShapedProbability(form="plain")},
}


def test_a_known_denominator_has_no_bias_and_one_has_little_variance():
    """Five arms, pulled 10,000 times by a demonstrator; the gradient of the policy's own expected reward is known."""
    policy = torch.tensor([0.4, 0.3, 0.15, 0.1, 0.05], dtype=torch.float64)
    demonstrator = torch.tensor([0.05, 0.05, 0.1, 0.2, 0.6], dtype=torch.float64)
    reward = torch.tensor([1.0, 0.5, 0.0, 0.0, 0.8], dtype=torch.float64)
    exact = policy * (reward - policy @ reward)
    drawn = torch.multinomial(demonstrator, 10_000, replacement=True, generator=torch.Generator().manual_seed(0))
    off, spread = {}, {}
    for name, parts in DENOMINATORS.items():
        logits = policy.log().repeat(len(drawn), 1).requires_grad_()
        method = find("reinforce").derive(advantage=RawReward(), aggregate=SequenceMeanTokenSum(), **parts)
        pulled = pulls(logits, drawn, demonstrator, reward)
        grads = -torch.autograd.grad(method_loss(method, pulled), logits)[0] * len(drawn)
        error = (grads.var(0).sum() / len(drawn)).sqrt()
        off[name], spread[name] = float((grads.mean(0) - exact).norm() / error), float(grads.var(0).sum().sqrt())
    assert off["pi_beta"] < 3 and off["1"] > 30, "in standard errors"
    assert spread["pi_beta"] > 5 * spread["1"]


def pulls(logits: Tensor, drawn: Tensor, demonstrator: Tensor, reward: Tensor) -> Batch:
    """Each pull as an answer of one token."""
    one = torch.ones(len(drawn), 1, dtype=torch.float64)
    number = torch.arange(len(drawn))
    logp = logits.log_softmax(1).gather(1, drawn.unsqueeze(1))
    behavior = View(demonstrator.log()[drawn].unsqueeze(1))
    return Batch(one, reward[drawn], number, number, behavior, proximal=View(logp.detach()), current=View(logp), horizon=1)


# -- the page ---------------------------------------------------------------------------------------------------------------


def test_the_page_has_these_rows_and_otr():
    table = re.findall(r"^\| \[([\w-]+)\]\(methods/[\w-]+\.md\)", PAGE.read_text(encoding="utf-8"), re.M)
    assert table == [*ROWS, "otr"]
