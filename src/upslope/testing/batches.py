"""Random batches with every column, the gradient of a method on them, and the ways an update can be cut into slices."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from upslope.objective.estimator import (
    annotate,
    begin_update,
    bind,
    decision_losses,
    early_columns,
    kept,
    slice_scope,
    stateful,
)
from upslope.objective.functional.last_decision import last_decision
from upslope.runtime.seeding import generator
from upslope.types import Batch, Ended, Method, Scope, View, decision_keys

CUTS = ("one_by_one", "rows", "sorted", "packed", "two_ranks")


def random_batch(
    seed: int,
    groups: int = 3,
    samples: int = 4,
    *,
    positions: int = 8,
    ragged: bool = True,
    empty_rows: int = 0,
    drift: float = 0.4,
    reference_drift: float = 0.3,
    dtype: torch.dtype = torch.float64,
) -> Batch:
    """A batch of ``groups * samples`` rows with all columns; those of ``current`` are leaves that require a gradient.

    Args:
        ragged: rows of 2 to ``positions`` positions, the longer ones with tool tokens in the middle; else all sampled.
        empty_rows: how many rows, from the second on, have no sampled decision.
        drift: spread of the log-ratio between current and proximal policy; 0.4 puts most decisions outside a clip of 0.2.
        reference_drift: spread of the log-ratio between the reference ``"start"`` and the proximal policy.
    """
    random = generator(seed, "batch", groups, samples, positions)
    rows = groups * samples
    sampled = _ragged(rows, positions, random) if ragged else torch.ones(rows, positions, dtype=torch.float64)
    sampled[1 : 1 + empty_rows] = 0.0
    old = -_normal(random, rows, positions).abs() - 1.0  # below -1, so that no drift used here makes a probability above one
    current, proximal = _with_more(*_policies(old, drift, random, dtype), generator(seed, "further columns"))
    reward, last = _rewards(groups, samples, random).to(dtype), _last(sampled)
    cut_off = torch.rand(rows, generator=random) < 0.5
    ended = torch.where(cut_off, int(Ended.TRUNCATED), int(Ended.TERMINATED)).unsqueeze(1) * last
    batch = Batch(
        sampled=sampled.to(dtype),
        reward=reward,
        group=torch.arange(groups).repeat_interleave(samples) * 3 + 5,
        task=torch.arange(groups).repeat_interleave(samples) + 1000,
        behavior=View((old + 0.01 * _normal(random, rows, positions)).to(dtype)),
        proximal=proximal,
        current=current,
        components={"task": reward},
        ended=ended.to(torch.int8),
        horizon=positions,
    )
    return _with_further_columns(batch, old, reference_drift, last, seed, random)


def _normal(random: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(shape, generator=random, dtype=torch.float64)


def _policies(old: Tensor, drift: float, random: torch.Generator, dtype: torch.dtype) -> tuple[View, View]:
    """The current policy, whose columns are leaves, and the proximal one."""
    shape = old.shape
    current = View(
        logp=(old + drift * _normal(random, *shape)).to(dtype).requires_grad_(),
        entropy=_normal(random, *shape).abs().to(dtype).requires_grad_(),
        value=_normal(random, *shape).to(dtype).requires_grad_(),
    )
    return current, View(old.to(dtype), _normal(random, *shape).abs().to(dtype), _normal(random, *shape).to(dtype))


def _with_further_columns(
    batch: Batch, old: Tensor, reference_drift: float, last: Tensor, seed: int, random: torch.Generator
) -> Batch:
    """The batch with references, actions, rewards of steps, segments and labels."""
    (rows, positions), dtype = old.shape, batch.sampled.dtype
    blind = torch.rand(old.shape, generator=generator(seed, "blind"), dtype=torch.float64)
    return batch.replace(
        reference={
            "start": View((old + reference_drift * _normal(random, rows, positions)).to(dtype)),
            "blind": View((old - blind).to(dtype)),
        },
        action=torch.randint(0, 50, (rows, positions), generator=random),
        temperature=torch.ones(rows, positions, dtype=dtype),
        step_reward=(0.1 * _normal(random, rows, positions)).to(dtype),
        bootstrap=(_normal(random, rows, positions) * last).to(dtype),
        key=decision_keys(torch.arange(rows) + seed * 1000, positions),
        segment={
            "item": (torch.arange(positions) // 3).expand(rows, positions).clone(),
            "window": (torch.arange(rows).unsqueeze(1) % 3 - torch.arange(positions)).clamp_min(0),
        },
        label={"answer": torch.randint(0, 3, (rows,), generator=random)},
    )


def batch_for(method: Method, seed: int, groups: int = 3, samples: int = 4, **more: Any) -> Batch:
    """A `random_batch` with the columns that only this method needs.

    For a method that learns from stored experience it has actions, rewards and networks, as rows drawn from a store have; ``kind``
    says whether actions are ``"continuous"`` or ``"discrete"``, left out it is the first that the method takes.
    """
    if method.learner == "actor-critic":
        from upslope.testing.drawn import drawn_batch

        return drawn_batch(method, seed, groups, samples, **more)
    return with_needs(random_batch(seed, groups, samples, **more), method, seed)


def with_needs(batch: Batch, method: Method, seed: int = 0) -> Batch:
    """The batch with the columns that this method needs and that no method of the catalogue does: of its own heads, probes,
    references, labels and segments."""
    if method.learner == "actor-critic":
        from upslope.testing.drawn import with_networks

        return with_networks(batch, method, seed)
    random = generator(seed, "columns of a method")
    shape, dtype = batch.sampled.shape, batch.sampled.dtype
    reference, label, segment = dict(batch.reference), dict(batch.label), dict(batch.segment)
    signal = {**_compared(batch), **batch.signal} if any(need.startswith("signal.") for need in method.needs()) else batch.signal
    if "signal.value" in method.needs():  # a search's: worth what was earned, visited unequally
        signal = {"value": batch.reward, "visits": torch.arange(shape[0]) % 4 + 1.0, **signal}
    descended = probes_descended(method)
    for need in sorted(method.needs()):
        owner, _, name = need.partition(".")
        drawn = torch.randn(shape, generator=random, dtype=torch.float64).to(dtype)
        if owner in ("current", "proximal") and name not in getattr(batch, owner).columns():
            # What models of the method put out is learned, and so is what differentiable probes report.
            learned = owner == "current" and (name in dict(method.models) or name in descended)
            batch = replace_view(batch, owner, **{name: drawn.requires_grad_(learned)})
        elif owner == "reference" and name.partition(".")[0] not in reference:
            reference[name.partition(".")[0]] = View((batch.behavior.logp + 0.3 * drawn), drawn.abs(), drawn)
        elif need == "label.side" and name not in label:  # a winner, a loser, and so on
            label[name] = 1 - 2 * (torch.arange(shape[0]) % 2)
        elif owner == "label" and name not in label:
            label[name] = torch.randint(0, 3, shape[:1], generator=random)
        elif owner == "segment" and name not in segment:
            segment[name] = batch.segment["item"]
    if "seconds" in method.needs() and batch.seconds is None:  # behind each row's last decision, as a reward's are
        took = torch.rand(shape[:1], generator=random, dtype=torch.float64).to(dtype)
        batch = batch.replace(seconds=last_decision(batch.sampled) * took.unsqueeze(1))
    return batch.replace(reference=reference, label=label, segment=segment, signal=signal)


def _compared(batch: Batch) -> dict[str, Tensor]:
    """What a comparison of each group's answers by their reward leaves in their rows."""
    from upslope.evolve.comparing import columns_of
    from upslope.rewards.preferences import bradley_terry

    found: dict[str, Tensor] = {}
    for group in batch.group.unique():
        mine = (batch.group == group).nonzero().squeeze(1)
        for name, column in columns_of(bradley_terry(batch.reward[mine].tolist())).items():
            found.setdefault(name, torch.zeros_like(batch.reward))[mine] = torch.from_numpy(column).to(batch.reward.dtype)
    return found


def probes_descended(method: Method) -> set[str]:
    """Columns of the method's probes that carry a gradient."""
    return {probe.name for _, part in method.parts() for probe in part.probes() if probe.differentiable}


def _with_more(current: View, proximal: View, random: torch.Generator) -> tuple[View, View]:
    """The views with what heads and probes of methods add, drawn apart so that the other columns stay what they were."""

    def normal() -> Tensor:
        return torch.randn(current.logp.shape, generator=random, dtype=torch.float64).to(current.logp.dtype)

    heads = {"median": normal().requires_grad_()}
    old = {"median": normal()}
    # What these probes report carries no gradient; most of it lies within the usual bounds.
    probes = {"objective_change": 5e-3 * normal(), "policy_shift": 5e-5 * normal().abs()}
    return dataclasses.replace(current, more=heads | probes), dataclasses.replace(proximal, more=old)


def _ragged(rows: int, positions: int, random: torch.Generator) -> Tensor:
    lengths = torch.randint(2, positions + 1, (rows, 1), generator=random)
    lengths[0] = positions  # at least one row is long and has a hole
    place = torch.arange(positions).unsqueeze(0)
    sampled = (place < lengths).double()
    hole = (place >= 1) & (place < 3) & (lengths > 4) & (torch.arange(rows).unsqueeze(1) % 2 == 0)
    return sampled.masked_fill(hole, 0.0)


def _rewards(groups: int, samples: int, random: torch.Generator) -> Tensor:
    """Zero and one, never all the same in a group of at least two, and real-valued in the last group."""
    reward = (torch.rand(groups, samples, generator=random, dtype=torch.float64) < 0.5).double()
    reward[:, 0] = 1.0
    if samples > 1:
        reward[:, 1] = 0.0
    reward[-1] = torch.randn(samples, generator=random, dtype=torch.float64)
    return reward.flatten()


def _last(sampled: Tensor) -> Tensor:
    on = sampled > 0
    return on & (on.flip(1).cumsum(1).flip(1) == 1)


def replace_view(batch: Batch, name: str, **columns: Tensor | None) -> Batch:
    """The batch with columns of one view (``"current"``, ``"proximal"``) replaced."""
    found = {**getattr(batch, name).columns(), **columns}
    return batch.replace(**{name: View.of({key: column for key, column in found.items() if column is not None})})


def at_proximal(batch: Batch) -> Batch:
    """The batch as it is at the first update of a step: the current policy is the proximal one."""
    assert batch.proximal is not None
    return replace_view(batch, "current", logp=batch.proximal.logp.detach().clone().requires_grad_())


def expect(holds: object, otherwise: str) -> None:
    """Raises with a sentence. No ``assert``: Python leaves those out where it is told to optimise."""
    if not holds:
        raise AssertionError(otherwise)


def first_states(method: Method) -> dict[str, Any]:
    """What the parts of a method remember before the first step."""
    return {path: part.init() for path, part in stateful(method).items()}


# -- the gradient of a method ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Outcome:
    """Loss of an update and its gradient in the current policy's columns, each ``[N, T]``; zero where a column is not used.

    ``more`` has those of heads and probes. A method that learns from stored experience has no such columns: its ``more`` has the
    gradient in what each network looks at, ``[N, T, D]``, ``weights`` that in what each network learns, and ``losses`` is apart
    what ``loss`` is in sum.
    """

    loss: Tensor
    logp: Tensor
    entropy: Tensor
    value: Tensor
    more: Mapping[str, Tensor] = field(default_factory=dict)
    weights: Mapping[str, Tensor] = field(default_factory=dict)
    losses: Mapping[str, Tensor] = field(default_factory=dict)

    def finite(self) -> bool:
        return all(bool(part.isfinite().all()) for part in (self.loss, *self.per_decision().values(), *self.weights.values()))

    def per_decision(self) -> dict[str, Tensor]:
        """Every gradient that has rows and positions, by name."""
        return {"logp": self.logp, "entropy": self.entropy, "value": self.value, **self.more}

    def largest(self) -> float:
        """The largest number in any gradient."""
        return max(float(column.detach().abs().max()) for column in (*self.per_decision().values(), *self.weights.values()))

    def at(self, pick: Callable[[Tensor], Tensor]) -> Outcome:
        """The same with ``pick`` applied to each gradient that has rows and positions."""
        more = {name: pick(column) for name, column in self.more.items()}
        return dataclasses.replace(self, logp=pick(self.logp), entropy=pick(self.entropy), value=pick(self.value), more=more)


def gradient(method: Method, batch: Batch, how: str = "whole", use_filter: bool = True) -> Outcome:
    """What the learner would do with this batch in one update, cut into slices as `cut` names them."""
    if method.learner == "actor-critic":
        from upslope.testing.drawn import drawn_gradient

        return drawn_gradient(method, batch, how)
    assert batch.current is not None
    leaves = {name: column.detach().clone().requires_grad_() for name, column in batch.current.columns().items()}
    states = first_states(method)
    rows = kept_rows(method, batch) if use_filter else torch.arange(batch.rows)
    seen = annotate(method, bind(method, states, batch.replace(current=None)).take_rows(rows))
    if use_filter:
        late = kept(method, seen, late=True).nonzero().squeeze(1)
        rows, seen = rows[late], seen.take_rows(late)
    current = View.of(leaves).map(lambda column: column[rows])
    # Only a method that says so may look at the current policy before the update is cut.
    early = current.map(lambda column: column.detach()) if early_columns(method) else None
    update = begin_update(method, seen.replace(current=early)).replace(current=current)
    losses = [decision_losses(method, piece)[0].sum() for piece in cut(update, how, slice_scope(method))]
    loss = torch.stack(losses).sum()
    grads = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
    found = {
        name: torch.zeros_like(leaf) if grad is None else grad for (name, leaf), grad in zip(leaves.items(), grads, strict=True)
    }
    known = {name: found.pop(name, torch.zeros_like(batch.sampled)) for name in ("logp", "entropy", "value")}
    return Outcome(loss.detach(), known["logp"], known["entropy"], known["value"], more=found)


def kept_rows(method: Method, batch: Batch) -> Tensor:
    """Row numbers that every early filter keeps."""
    states = first_states(method)
    return kept(method, bind(method, states, batch), late=False).nonzero().squeeze(1)


def assert_same(ours: Outcome, theirs: Outcome, rtol: float = 1e-9, atol: float = 1e-12, exact: bool = False) -> None:
    """The same loss and gradients, to rounding or to the last bit."""
    pairs = {"loss": (ours.loss, theirs.loss)}
    both = ((ours.per_decision(), theirs.per_decision()), (ours.weights, theirs.weights), (ours.losses, theirs.losses))
    for kind, (mine_, other_) in zip(("", "weights of ", "loss of "), both, strict=True):
        pairs |= {f"{kind}{name}": (mine_[name], other_[name]) for name in sorted(set(mine_) & set(other_))}
    for name, (mine, other) in pairs.items():
        if exact:
            if not torch.equal(mine, other):
                raise AssertionError(f"{name} differs by up to {(mine - other).abs().max():.3g}")
        else:
            # A sum over decisions, in which they may cancel, rounds at the size of its largest numbers.
            near = max(atol, rtol * float(other.abs().max())) if name.startswith("weights of ") else atol
            torch.testing.assert_close(mine, other, rtol=rtol, atol=near, msg=partial("{}: {}".format, name))


# -- cutting an update -----------------------------------------------------------------------------------------------------


def cut(batch: Batch, how: str, scope: Scope = "sequence") -> list[Batch]:
    """The update as slices, none finer than ``scope`` allows.

    ``one_by_one`` takes single decisions, rows or groups; ``rows`` rows (or groups); ``sorted`` puts units of like length
    together and drops their padding; ``packed`` changes their order and padding; ``two_ranks`` deals them to two processes.
    """
    if how == "whole":
        return [batch]
    if how == "one_by_one" and scope == "decision":
        return [batch.take_decisions(flat.unsqueeze(0)) for flat in (batch.sampled.flatten() > 0).nonzero().squeeze(1)] or [batch]
    units = _units(batch, scope)
    if how in ("one_by_one", "rows"):
        chosen = units
    elif how == "sorted":
        units = sorted(units, key=lambda rows: float(batch.sampled[rows].sum()))
        chosen = [torch.cat(units[start : start + 2]) for start in range(0, len(units), 2)]
    elif how == "packed":
        chosen = [torch.cat(units[start::3]).flip(0) for start in range(min(3, len(units)))]
    elif how == "two_ranks":
        chosen = [torch.cat(units[rank::2]) for rank in range(min(2, len(units)))]
    else:
        raise ValueError(how)
    extra = {"packed": 3}.get(how, 0)
    trimmed = how in ("sorted", "packed", "two_ranks")
    pieces = [batch.take_rows(rows) for rows in chosen] or [batch]
    return [right_pad(_trim(piece), extra) if trimmed else piece for piece in pieces]


def _units(batch: Batch, scope: Scope) -> list[Tensor]:
    if scope == "group":
        return [(batch.group == name).nonzero().squeeze(1) for name in batch.group.unique()]
    return list(torch.arange(batch.rows).split(1))


def right_pad(batch: Batch, extra: int) -> Batch:
    """The batch with ``extra`` positions behind every row, at which nothing was sampled."""
    return map_positions(batch, lambda column: torch.nn.functional.pad(column, (*(0, 0) * (column.dim() - 2), 0, extra)))


def _trim(batch: Batch) -> Batch:
    used = (batch.sampled > 0).any(0).nonzero()
    width = int(used.max()) + 1 if len(used) else 1
    return map_positions(batch, lambda column: column[:, :width])


def map_positions(batch: Batch, function: Callable[[Tensor], Tensor]) -> Batch:
    """Every column ``[N, T]`` or ``[N, T, D]`` sent through ``function``, values per row left alone."""
    return batch._map(lambda column: column if column.dim() == 1 else function(column))


def with_outlier(batch: Batch, row: int, position: int, distance: float) -> Batch:
    """One token this far from the proximal policy in log-probability."""
    assert batch.current is not None and batch.proximal is not None
    logp = batch.current.logp.detach().clone()
    logp[row, position] = batch.proximal.logp[row, position] + distance
    return replace_view(batch, "current", logp=logp.requires_grad_())
