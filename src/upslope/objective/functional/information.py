"""What a policy says that its start does not: the distribution of differential information, and how spread out it is."""

from __future__ import annotations

import torch
from torch import Tensor


def information_entropy(logp: Tensor, start: Tensor, index: Tensor, sets: int) -> Tensor:
    r"""Entropy in nats of :math:`q(y) \propto \pi(y) / \pi_{start}(y)`, from samples of the policy, for each set of them ``[S]``.

    .. math::  H(q) \approx -\sum_k \bar w_k \log\frac{\pi(y_k)}{Z\,\pi_{start}(y_k)}, \qquad
               \bar w_k \propto \frac{1}{\pi_{start}(y_k)}, \qquad Z = \frac{1}{K} \sum_k \frac{1}{\pi_{start}(y_k)}

    where :math:`1/\pi_{start}` is how much more often a sample of the policy would be one of q. The same policy as at the start has
    the entropy of all answers alike, the largest there is. A set without samples has 0.

    Args:
        logp, start: log-likelihoods of the samples ``[N]``.
        index: the set of each ``[N]``, from 0. Samples of one set answer the same problem in the same number of tokens: longer
            answers are so much less likely that they alone would count.
    """
    rarity = -start
    top = torch.full((sets,), -torch.inf, dtype=logp.dtype, device=logp.device).scatter_reduce(0, index, rarity, "amax")
    share = (rarity - top[index]).exp()
    size, total = (torch.zeros_like(top).index_add(0, index, each) for each in (torch.ones_like(share), share))
    log_z = (top + (total / size.clamp_min(1)).log())[index]
    return torch.zeros_like(top).index_add(0, index, share / total[index] * (log_z - (logp - start)))
