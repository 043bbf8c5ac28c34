"""Better than what, at each rank of a list?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from upslope.objective.base import Advantage
from upslope.objective.functional.lists import Ending, asked_items, closing, items_of
from upslope.types import Batch


@dataclass(frozen=True)
class RankBaseline(Advantage):
    r"""Each rank of a list against the same rank of the group's other lists (Rank-GRPO).

    .. math::
        r_{i,k} = \sum_{j\ge k} \frac{hit_{i,j}}{\log_2(j+1)}, \qquad
        A_{i,k} = \frac{r_{i,k} - \bar r_k}{s_k + \epsilon}

    Hits come as ``step_reward`` on the items' decisions; where a task pays no items, the row's reward stands at every rank. A rank
    at which the whole group earns the same carries no signal. Where the task asks for so many items, decisions beyond them and
    the one that ends the list get what ``overflow``, ``complete`` and ``early`` say instead.

    Fields:
        credit: ``"to_go"`` as above, nothing for what came before; ``"own"`` the item's own hit alone, which says nothing about
            what an item makes harder later.
        scale: ``"std"`` divides by the spread of the rank's rewards, as above; ``"none"`` only centres, so that a rank at which
            lists differ little counts little.
        ddof, eps: as in `GroupBaseline`.
        overflow: for every decision beyond the last item asked for.
        complete: for ending a list of exactly as many items as asked for.
        early: for ending a shorter one.
        ending: ``"apart"``: the decision that ends a list is never beyond it; ``"within"``: it is, behind a closing separator, and
            such a list counts an item more (released code).
    """

    ranges: ClassVar = {"ddof": "[0, 1]", "eps": "[0, inf)"}

    credit: Literal["to_go", "own"] = "to_go"
    ddof: int = 1
    eps: float = 1e-4
    overflow: float = -0.1
    complete: float = 0.1
    early: float = -0.1
    ending: Ending = "apart"
    scale: Literal["std", "none"] = "std"

    def needs(self) -> frozenset[str]:
        return frozenset({"group", "segment.item"})

    def __call__(self, batch: Batch) -> Tensor:
        item, worth = items_of(batch), self.rank_rewards(batch)
        per_rank = self._compared(batch, worth)
        advantage = per_rank.gather(1, item.clamp_max(worth.shape[1] - 1)) * batch.sampled
        return self._with_ending(batch, item, advantage)

    def rank_rewards(self, batch: Batch) -> Tensor:
        """What each rank of each row earned ``[N, K]``."""
        item, on = items_of(batch), batch.sampled > 0
        ranks = int(torch.where(on, item, 0).max()) + 1 if item.numel() else 1
        if batch.step_reward is None:
            return batch.reward.unsqueeze(1).expand(-1, ranks)
        paid = torch.where(on, batch.step_reward, 0.0)
        hits = torch.zeros(batch.rows, ranks, dtype=paid.dtype, device=paid.device)
        hits = hits.scatter_add(1, item.clamp_max(ranks - 1), paid)
        rank = torch.arange(ranks, device=paid.device)
        asked = asked_items(batch)
        if asked is not None:
            hits = torch.where(rank < asked, hits, 0.0)
        if self.credit == "own":
            return hits
        return (hits / torch.log2(rank.to(paid.dtype) + 2)).flip(1).cumsum(1).flip(1)

    def _compared(self, batch: Batch, worth: Tensor) -> Tensor:
        """Each row's rank rewards against those of its group ``[N, K]``."""
        index, groups = batch.group_index()
        place = index.unsqueeze(1).expand_as(worth)
        empty = torch.zeros(groups, worth.shape[1], dtype=worth.dtype, device=worth.device)
        count = torch.bincount(index, minlength=groups).to(worth.dtype).unsqueeze(1)
        mean = empty.index_add(0, index, worth) / count
        centred = worth - mean[index]
        low = torch.full_like(empty, torch.inf).scatter_reduce_(0, place, worth, "amin")
        high = torch.full_like(empty, -torch.inf).scatter_reduce_(0, place, worth, "amax")
        if self.scale == "std":
            spread = (empty.index_add(0, index, centred.square()) / (count - self.ddof).clamp_min(1)).sqrt()
            centred = centred / (spread[index] + self.eps)
        return torch.where((low == high)[index], 0.0, centred)

    def _with_ending(self, batch: Batch, item: Tensor, advantage: Tensor) -> Tensor:
        """The advantage with what lies beyond the list, and its end, judged by themselves."""
        asked = asked_items(batch)
        if asked is None:
            return advantage
        on, ends = batch.sampled > 0, closing(batch)
        counted = on & ~ends if self.ending == "apart" else on
        beyond = counted & (item >= asked)
        written = torch.where(counted, item, -1).amax(1, keepdim=True) + 1
        exact = (written == asked) & ~beyond.any(1, keepdim=True)
        full, short = (kind.to(advantage.dtype) for kind in (exact, written < asked))
        ended = self.complete * full + self.early * short
        own = torch.where(beyond | ends, 0.0, advantage)
        return own + self.overflow * beyond.to(own.dtype) + torch.where(ends, ended, 0.0)
