"""Batches as they are drawn from stored experience, and the gradients of a method that learns from them."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from upslope.errors import UserError
from upslope.objective import estimator
from upslope.runtime.seeding import generator
from upslope.testing.batches import Outcome, cut, first_states, random_batch
from upslope.testing.table_nets import ACTIONS, KINDS, Kind, TableNets, table_nets, with_models
from upslope.types import Batch, Ended, Learned, Method, Source

GAMMA = 0.9


def drawn_batch(method: Method, seed: int, groups: int = 3, samples: int = 4, kind: Kind | None = None, **more: Any) -> Batch:
    """A `random_batch` whose rows are drawn from a store, some of them from a dataset, with the method's networks at them."""
    kind = kind or kinds(method)[0]
    batch = random_batch(seed, groups, samples, **more)
    random, shape, dtype = generator(seed, "drawn"), batch.sampled.shape, batch.sampled.dtype
    drawn = torch.rand((*shape, ACTIONS[kind]), generator=random, dtype=torch.float64)
    assert batch.ended is not None and batch.key is not None
    discount = torch.where(batch.ended == Ended.TERMINATED, 0.0, GAMMA).to(dtype)
    returns = torch.randn(shape, generator=random, dtype=torch.float64).to(dtype)
    source = torch.tensor([Source.REPLAYED, Source.DEMONSTRATED]).repeat(batch.rows)[: batch.rows]
    online = (source == Source.REPLAYED).to(dtype).unsqueeze(1).expand(shape)
    return batch.replace(
        proximal=None, current=None, reference={}, bootstrap=None,
        action=(2 * drawn - 1).to(dtype) if kind == "continuous" else drawn.argmax(-1),
        signal={"discount": discount, "return_to_go": returns, "online": online},
        label={"source": source},
        nets=table_nets(method, kind, batch.key, seed, dtype),
    )  # fmt: skip


def kinds(method: Method) -> list[Kind]:
    """The kinds of action that a method takes.

    Raises:
        UserError: if it takes none.
    """
    found, refused = list[Kind](), UserError(f"{method.name} takes no kind of action.")
    for kind in KINDS:
        try:
            drawn_gradient(method, drawn_batch(method, seed=0, groups=1, samples=2, positions=2, kind=kind))
        except UserError as error:
            refused = error
        else:
            found.append(kind)
    if not found:
        raise refused
    return found


def with_networks(batch: Batch, method: Method, seed: int) -> Batch:
    """The batch with networks for all models of this method."""
    return batch.replace(nets=with_models(cast(TableNets, batch.nets), method, seed))


def drawn_gradient(method: Method, batch: Batch, how: str = "whole") -> Outcome:
    """What an update of the actor-critic learner descends, cut into slices: the loss of each learned model, and the policy's."""
    rows = estimator.clean_drawn(estimator.bind(method, first_states(method), batch))
    nets = cast(TableNets, batch.nets).on_leaves()
    rows = estimator.score(method, rows, late=False)
    found: dict[str, tuple[Tensor, dict[str, Tensor], Tensor]] = {}
    for name, model in method.learned:
        own = nets.scoped(name)
        found[name] = _descended(_model_loss(method, model, rows.replace(nets=own), how), own)
    if estimator.has_actor_loss(method):
        found["policy"] = _descended(_actor_loss(method, rows.replace(nets=nets), how), nets)
    zero = torch.zeros_like(batch.sampled)
    losses = {name: loss for name, (loss, _, _) in found.items()}
    columns = {column: grad for _, grads, _ in found.values() for column, grad in grads.items()}
    weights = {name: grad for name, (_, _, grad) in found.items()}
    return Outcome(torch.stack(list(losses.values())).sum(), zero, zero, zero, columns, weights, losses)


def _model_loss(method: Method, model: Learned, rows: Batch, how: str) -> Tensor:
    begun = estimator.begin_fit(method, model, rows.replace(share=estimator.drawn_share(method, rows)))
    return _sum(estimator.fit_losses(method, model, piece)[0] for piece in cut(begun, how, estimator.slice_scope(method)))


def _actor_loss(method: Method, rows: Batch, how: str) -> Tensor:
    begun = estimator.begin_update(method, estimator.annotate(method, rows))
    return _sum(estimator.decision_losses(method, piece)[0] for piece in cut(begun, how, estimator.slice_scope(method)))


def _sum(losses: Any) -> Tensor:
    return torch.stack([each.sum() for each in losses]).sum()


def _descended(loss: Tensor, nets: TableNets) -> tuple[Tensor, dict[str, Tensor], Tensor]:
    """A loss, its gradient in what its network looks at, and in what that learns."""
    tables, weights = nets.own_tables(), nets.own_weights()
    leaves = [*tables.values(), *weights]
    if not loss.requires_grad:
        grads: tuple[Tensor | None, ...] = (None,) * len(leaves)
    else:
        grads = torch.autograd.grad(loss, leaves, allow_unused=True)
    whole = [torch.zeros_like(leaf) if grad is None else grad for leaf, grad in zip(leaves, grads, strict=True)]
    in_weights = torch.cat([each.flatten() for each in whole[len(tables) :]]) if weights else loss.new_zeros(1)
    return loss.detach(), dict(zip(tables, whole, strict=False)), in_weights
