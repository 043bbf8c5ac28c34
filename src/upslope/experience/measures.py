"""What a dataset is good for: how well it acts, how much it explores, and how well its states hold an imitator.

TQ and SACo are those of "A Dataset Perspective on Offline Reinforcement Learning" (2111.04714).
"""

from __future__ import annotations

import dataclasses
import math
import warnings
from dataclasses import dataclass, replace

import numpy as np

from upslope.errors import Remark, UserError
from upslope.experience.coverage import Limits, unique_pairs
from upslope.experience.dataset import Dataset
from upslope.experience.neighbours import Neighbourhoods, neighbourhoods
from upslope.plain_data import JsonDict
from upslope.types import Ended

SIMILAR = 1.1
"""How many times as large as the other one dataset may be for SACo to mean what the paper says."""
QUANTILES = (0.0, 0.25, 0.5, 0.75, 1.0)
HIGH = 0.8
"""From where on TQ and SACo count as high here. The paper names no threshold."""
LOW = 0.2
"""Up to where TQ counts as hardly better than random."""
ALL_NEW = 0.95
"""Share of pairs that are the only one of their kind from which on SACo tells nothing: with many numbers in an observation every
kind of data has it, and on Hopper off-policy learning failed where SACo spoke for it (docs/claims/recommend-hopper.md)."""


@dataclass(frozen=True)
class Coverage:
    """How much of the world is seen."""

    unique_pairs: float
    exact: bool
    """Whether counted; above a million pairs they are estimated, to about 1%."""
    share: float
    """Of all decisions, that are the first of their pair."""
    saco: float = math.nan
    """Unique pairs over those of the reference; NaN without one."""
    reference: str = ""


@dataclass(frozen=True)
class Advice:
    """The rule of thumb's answer."""

    family: str
    methods: tuple[str, ...]
    because: str


@dataclass(frozen=True)
class Description:
    """What `describe` found."""

    name: str
    env: str
    recipe: str
    digest: str
    episodes: int
    decisions: int
    terminated: int
    truncated: int
    unfinished: int
    """1 where the log stops in the middle of its last episode, which is then left out of returns and lengths."""
    lengths: dict[str, float]
    returns: dict[str, float]
    """Mean and quantiles."""
    random: float
    expert: float
    tq: float
    """Trajectory quality: the mean return with random at 0 and the expert at 1; NaN where they are not known."""
    zero_rewards: float
    """Share of decisions that pay exactly 0."""
    coverage: Coverage
    neighbourhoods: Neighbourhoods
    advice: Advice

    def record(self) -> JsonDict:
        """As plain data; what is not known is None."""
        return _plain(dataclasses.asdict(self))


def describe(dataset: Dataset, reference: Dataset | None = None, seed: int = 0) -> Description:
    """Measures a dataset.

    Args:
        reference: What SACo is measured against: the experience of a whole online run of the same size.
        seed: Of the states whose neighbours are looked at.
    """
    card, episodes = dataset.card, dataset.episodes
    finished = slice(None, -1) if card.unfinished and len(episodes) > 1 else slice(None)
    returns, lengths = episodes.returns[finished], episodes.lengths[finished]
    ends = episodes.ended[episodes.decisions]
    tq, covered = trajectory_quality(dataset), coverage(dataset, reference)
    return Description(
        name=card.name, env=card.env, recipe=card.recipe, digest=dataset.digest,
        episodes=len(episodes), decisions=len(episodes.decisions), terminated=int((ends == Ended.TERMINATED).sum()),
        truncated=int((ends == Ended.TRUNCATED).sum()) - card.unfinished, unfinished=int(card.unfinished),
        lengths=_spread(lengths), returns=_spread(returns), random=card.random, expert=card.expert, tq=tq,
        zero_rewards=float((episodes.reward[episodes.decisions] == 0).mean()), coverage=covered,
        neighbourhoods=neighbourhoods(episodes, card.action, seed), advice=_advice(tq, covered, episodes.discrete),
    )  # fmt: skip


def trajectory_quality(dataset: Dataset) -> float:
    """``TQ = (mean return - random) / (expert - random)``; an episode in which the log stops does not count."""
    card, returns = dataset.card, dataset.episodes.returns
    if card.random == card.expert:
        told = f"dataset {card.name!r}: random actions and the expert both return {card.expert:g}, so TQ is not defined"
        warnings.warn(Remark(f"{told}."), stacklevel=2)
    kept = returns[:-1] if card.unfinished and len(returns) > 1 else returns
    return card.normalised(float(kept.mean())) / 100


def coverage(dataset: Dataset, reference: Dataset | None = None) -> Coverage:
    """Unique pairs and, beside a reference, ``SACo = U(D) / U(D_ref)`` with bins between the limits of both."""
    episodes = dataset.episodes
    if reference is None:
        own = unique_pairs(episodes)
        return Coverage(own.count, own.exact, own.count / len(episodes.decisions))
    for what in ("observation", "action"):
        ours, theirs = (getattr(each.episodes, what).shape[1:] for each in (dataset, reference))
        if ours != theirs:
            told = f"dataset {dataset.card.name!r} has {what}s of shape {ours}, and the reference {theirs}"
            raise UserError(f"{told}: it is of another environment. SACo compares data of one.")
    sizes = len(episodes.decisions), len(reference.episodes.decisions)
    if max(sizes) > SIMILAR * min(sizes):
        told = f"{sizes[0]:,} decisions, and the reference {sizes[1]:,}"
        warnings.warn(Remark(f"dataset {dataset.card.name!r} has {told}; SACo is meant for two of one size."), stacklevel=2)
    limits = Limits.of(episodes, reference.episodes)
    own, other = unique_pairs(episodes, limits), unique_pairs(reference.episodes, limits)
    share = own.count / len(episodes.decisions)
    return Coverage(own.count, own.exact and other.exact, share, own.count / other.count, reference.card.name)


def _advice(tq: float, covered: Coverage, discrete: bool) -> Advice:
    """What to do with data; SACo counts where pairs come again at all."""
    if covered.share < ALL_NEW or math.isnan(covered.saco):
        return recommend(tq, covered.saco, discrete)
    found = recommend(tq, math.nan, discrete)
    told = f"SACo {_said(covered.saco)} tells nothing, as {covered.share:.0%} of the pairs are the only one of their kind"
    return replace(found, because=found.because.replace(f"SACo {_said(math.nan)}", told, 1))


def recommend(tq: float, saco: float, discrete: bool) -> Advice:
    """Which family the paper's findings speak for: cloning where the data act well, off-policy learning where they explore much,
    methods that stay near the data between; where they do neither, act on.

    Args:
        tq: NaN where it is not known, as ``saco``.
        discrete: Whether actions are choices.
    """
    numbers = f"TQ {_said(tq)}, SACo {_said(saco)}"
    if tq >= HIGH:
        return Advice("imitation", ("bc",) if discrete else ("bc", "td3-bc"), f"{numbers}: the data act well, so copy them")
    if saco >= HIGH:
        free = ("dqn", "double-dqn") if discrete else ("sac", "td3")
        return Advice("off-policy", free, f"{numbers}: the data show most of what an online run would see")
    if tq <= LOW and saco < HIGH:
        told = "the data neither act well nor explore; use them to begin with and act on (--offline-steps)"
        return Advice("offline-to-online", ("awac",) if discrete else ("rlpd", "cal-ql"), f"{numbers}: {told}")
    near = ("iql", "awac") if discrete else ("td3-bc", "iql", "cql")
    return Advice("near the data", near, f"{numbers}: improve on the data without leaving them")


def _said(value: float) -> str:
    return "unknown" if math.isnan(value) else f"{value:.2f}"


def _spread(values: np.ndarray) -> dict[str, float]:
    names = ("lowest", "quarter", "median", "three_quarters", "highest")
    found = dict(zip(names, map(float, np.quantile(values, QUANTILES)), strict=True))
    return {"mean": float(values.mean()), **found}


def _plain(value: JsonDict) -> JsonDict:
    def plain(item: object) -> object:
        if isinstance(item, dict):
            return {key: plain(inner) for key, inner in item.items()}
        return None if isinstance(item, float) and not math.isfinite(item) else item

    return {key: plain(item) for key, item in value.items()}
