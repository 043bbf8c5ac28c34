"""What was sampled, as columns of decisions."""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, NamedTuple

import torch
from torch import Tensor

from upslope.errors import MethodError
from upslope.plain_data import JsonDict
from upslope.types.networks import Networks
from upslope.types.part import Part


class Ended(IntEnum):
    """What happened behind a decision. Only a termination means that nothing more was to come."""

    NO = 0
    TERMINATED = 1
    TRUNCATED = 2
    """A limit cut it: the value behind it stands in ``bootstrap``."""
    PAUSED = 3
    """The rollout stopped here, the episode goes on: ``bootstrap`` again."""


class Source(IntEnum):
    """Where a row comes from, as ``label["source"]`` says; a batch without that label was sampled in this step."""

    FRESH = 0
    REPLAYED = 1
    """Sampled in an earlier step."""
    DEMONSTRATED = 2
    """Written by nobody's policy: a reference answer, a dataset."""
    MODELLED = 3
    """Imagined by a learned model of the world."""
    FURTHER = 4
    """Sampled in this step in a further turn: with a hint, or of another problem than the step began with."""


NO_ANSWER = 0
"""The class of rows that give no answer, in ``label["answer"]``."""


@dataclass(frozen=True, eq=False)
class View:
    """One policy's view of the decisions: the columns ``[N, T]`` it was asked for."""

    logp: Tensor
    entropy: Tensor | None = None
    value: Tensor | None = None
    more: Mapping[str, Tensor] = field(default_factory=dict)
    """What heads and probes of a method's own report, by name."""

    @classmethod
    def of(cls, columns: Mapping[str, Tensor]) -> View:
        """A view of these columns, whatever their names."""
        known = {name: column for name, column in columns.items() if name in ("logp", "entropy", "value")}
        return cls(**known, more={name: column for name, column in columns.items() if name not in known})

    def columns(self) -> dict[str, Tensor]:
        """The columns that are there, by name."""
        found = {"logp": self.logp, "entropy": self.entropy, "value": self.value, **self.more}
        return {name: column for name, column in found.items() if column is not None}

    def __getitem__(self, name: str) -> Tensor:
        columns = self.columns()
        if name not in columns:
            raise MethodError(f"a part reads the column {name!r} of a policy's view, and this one has {', '.join(columns)}.")
        return columns[name]

    def map(self, function) -> View:
        """The same columns, each sent through ``function``."""
        return View.of({name: function(column) for name, column in self.columns().items()})


class GroupStats(NamedTuple):
    """Statistics of the groups of a batch, each already broadcast to rows ``[N]``."""

    mean: Tensor
    std: Tensor
    size: Tensor
    constant: Tensor
    """True where every reward of the group is *exactly* equal (a group of one is)."""


UNCUT = ("state", "memory", "info", "aside", "made")
"""Fields of a batch that are not cut with its rows."""


@dataclass(frozen=True, eq=False)
class Batch:
    """What a part sees. Columns are float32 ``[N, T]`` unless said otherwise; absent ones are ``None``."""

    sampled: Tensor
    """1 where the policy decided; 0 on padding and on what others wrote."""
    reward: Tensor
    """``[N]``, paid at the row's last sampled decision."""
    group: Tensor
    """``[N]`` integers: rows of one number tried the same task in the same step."""
    task: Tensor
    """``[N]`` integers: a hash of the task, the same in every step."""
    behavior: View
    """Of the distribution actually sampled from, recorded while sampling. NaN where nobody sampled."""
    proximal: View | None = None
    """Before the step's first update, at the recorded temperature, without gradient."""
    current: View | None = None
    """In the update, with gradient."""
    reference: Mapping[str, View] = field(default_factory=dict)
    action: Tensor | None = None
    """Ids ``[N, T]`` where actions are discrete, vectors ``[N, T, D]`` otherwise."""
    temperature: Tensor | None = None
    step_reward: Tensor | None = None
    components: Mapping[str, Tensor] = field(default_factory=dict)
    """Named parts of the reward, ``[N]`` each."""
    ended: Tensor | None = None
    """`Ended` behind each decision, int8."""
    bootstrap: Tensor | None = None
    """Value behind a truncation or a pause."""
    segment: Mapping[str, Tensor] = field(default_factory=dict)
    """Numbers ``[N, T]`` of what belongs together within a row: ``item`` for the items of a list or the steps of an answer."""
    label: Mapping[str, Tensor] = field(default_factory=dict)
    """Integers ``[N]``: ``answer`` is the class of the final answer or `NO_ANSWER`, ``source`` where a row is from (`Source`)."""
    embedding: Tensor | None = None
    """What each row says as a vector ``[N, D]`` of unit length. Early rewards may read it; then it is gone."""
    key: Tensor | None = None
    """``[N, T]`` integers that name each decision for good: what `uniform` draws from."""
    horizon: int = 0
    """The most decisions a row could have had (the token limit, the steps of a rollout)."""
    progress: float = 0.0
    """Share of the run's steps that are done."""
    draw: int = 0
    """Number of the update within the step; random numbers differ between updates."""
    advantage: Tensor | None = None
    signal: Mapping[str, Tensor] = field(default_factory=dict)
    """Further columns by name: what the advantage wrote beside itself (``returns``), what data parts measured, and in an update the
    product of the weights that see all of it (``weight``)."""
    counted: Tensor | None = None
    """1 on the decisions that enter means and denominators. Set where the update begins."""
    share: Tensor | None = None
    """What the aggregate gives each decision: the weight of its loss in the update."""
    prepared: Mapping[Part, Tensor] = field(default_factory=dict)
    """What parts computed over the whole update before it was cut, by part."""
    state: Mapping[Part, Any] = field(default_factory=dict)
    """What parts remember from earlier steps, by part."""
    memory: Mapping[str, Any] = field(default_factory=dict)
    """The method's shared memories, by name; see `recall`."""
    version: Tensor | None = None
    """``[N, T]`` integers: how many steps the weights had learned from that drew each decision; none: all are of now."""
    now: int = 0
    """The same of the weights before the step's first update."""
    approximate: Tensor | None = None
    """``[N]``: rows that the policy sampled in another precision (fp8) than it learns in, in the context in which it learns them;
    none: no row was."""
    seconds: Tensor | None = None
    """The time behind each decision: what it set going (a program, a tool, an environment) took so long. NaN where nobody measured.
    It is measured, so that what depends on it does not repeat."""
    nets: Networks | None = None
    """The networks at these rows, where experience was drawn from a store (`upslope.types.Networks`)."""
    made: list[Any] = field(default_factory=list)
    """Problems that data parts made in this step (`upslope.tasks.text.Problem`), for memories to keep; not cut with the rows."""

    @property
    def rows(self) -> int:
        return self.sampled.shape[0]

    def replace(self, **changes: Any):
        """The batch with these fields changed. No ``__init__`` runs: there is nothing in it, and an update replaces many times."""
        unknown = changes.keys() - self.__dict__.keys()
        if unknown:
            raise TypeError(f"a batch has no {', '.join(sorted(unknown))}")
        made = object.__new__(type(self))
        made.__dict__.update(self.__dict__, **changes)
        return made

    def lengths(self) -> Tensor:
        """Sampled decisions per row ``[N]``."""
        return self.sampled.sum(1)

    def per_decision(self, per_row: Tensor) -> Tensor:
        """A value per row written on each of its sampled decisions."""
        return per_row.unsqueeze(1) * self.sampled

    def row_mean(self, column: Tensor) -> Tensor:
        """Mean of a column over the sampled decisions of each row ``[N]``; an empty row gives 0."""
        return (column * self.sampled).sum(1) / self.lengths().clamp_min(1)

    def recall(self, name: str) -> Tensor:
        """What a shared memory says of each row's task ``[N]``."""
        if name not in self.memory:
            raise MethodError(f"a part recalls the memory {name!r}; this method has {', '.join(self.memory) or 'none'}.")
        part = self.memory[name]
        return part.recall(self.state[part], self.task)

    def age(self) -> Tensor:
        """By how many steps of learning the weights that drew each decision are older than those of now ``[N, T]``."""
        if self.version is None:
            return torch.zeros_like(self.sampled, dtype=torch.int64)
        return torch.where(self.sampled > 0, self.now - self.version, 0)

    def drawn_by_others(self) -> Tensor:
        """Which decisions ``[N, T]`` something else than the policy of now drew, by more than rounding: older weights, or the same
        in another precision."""
        older = self.age() > 0
        return older if self.approximate is None else older | (self.approximate.unsqueeze(1) & (self.sampled > 0))

    def fresh(self) -> Tensor:
        """Rows ``[N]`` that were sampled in this step."""
        return self.of_source(Source.FRESH)

    def of_source(self, source: Source) -> Tensor:
        """Rows ``[N]`` that come from there; without the label all were sampled in this step."""
        found = self.label.get("source")
        if found is None:
            return torch.full((self.rows,), source == Source.FRESH, dtype=torch.bool, device=self.sampled.device)
        return found == source

    def uniform(self, part: Part) -> Tensor:
        """Random numbers in [0, 1) ``[N, T]`` for a part: a function of the decision, the update and the kind of part.

        Neither the order of rows nor how an update is cut changes them.
        """
        if self.key is None:
            raise MethodError(f"{type(part).__name__} draws random numbers, and this batch has no keys to draw them from.")
        return _mixed_bits(self.key + salt(f"{type(part).__name__}/{self.draw}")).to(torch.float64) / (1 << 53)

    def verdict(self) -> Tensor:
        """Whether each answer is right ``[N]``, as far as rows are judged: what the task pays, or what a reward put in its place.

        Penalties for length and the like are not in it.
        """
        return self.components.get("verdict", self.components.get("task", self.reward))

    def group_index(self) -> tuple[Tensor, int]:
        """Group numbers as 0..G-1 ``[N]``, and G."""
        names, index = torch.unique(self.group, return_inverse=True)
        return index, len(names)

    def group_stats(self, value: Tensor, ddof: int = 1) -> GroupStats:
        """Mean, spread and size of each group of a value per row, in one pass without a loop over groups."""
        index, groups = self.group_index()

        def total(column: Tensor) -> Tensor:
            return torch.zeros(groups, dtype=value.dtype, device=value.device).index_add_(0, index, column)

        count = total(torch.ones_like(value))
        mean = total(value) / count
        deviation = total((value - mean[index]) ** 2)
        std = (deviation / (count - ddof).clamp_min(1)).sqrt()
        # Equality is decided on the values themselves: a mean of equal floats can differ from them in the last bit.
        low = torch.full_like(count, torch.inf).scatter_reduce_(0, index, value, "amin")
        high = torch.full_like(count, -torch.inf).scatter_reduce_(0, index, value, "amax")
        return GroupStats(mean[index], std[index], count[index], (low == high)[index])

    def take_rows(self, rows: Tensor | slice):
        """The batch of these rows, in this order; a slice of rows is a view and copies nothing."""
        return self._map(lambda column: column[rows])

    def take_decisions(self, flat: Tensor):
        """Each chosen decision (an index into the flattened ``[N * T]``) as a row of its own, ``[M, 1]``."""
        positions = self.sampled.shape[1]

        def pick(column: Tensor) -> Tensor:
            if column.dim() == 1:
                return column[flat // positions]
            return column.flatten(0, 1)[flat].unsqueeze(1)

        return self.replace(embedding=None)._map(pick)  # rows are no longer what they said

    def to(self, device: torch.device | str):
        """The batch on a device."""
        return self._map(lambda column: column.to(device))

    def _map(self, pick):
        """Every tensor of the batch sent through ``pick``; `state` is kept as it is."""

        def of(value: Any) -> Any:
            if isinstance(value, Tensor):
                return pick(value)
            if isinstance(value, View):
                return value.map(pick)
            if isinstance(value, Mapping):
                return {key: of(item) for key, item in value.items()}
            return value.take(pick) if hasattr(value, "take") else value

        return self.replace(**{name: of(value) for name, value in self.__dict__.items() if name not in UNCUT and value is not None})


def salt(text: str) -> int:
    """What is added to keys, so that random numbers of different purposes differ."""
    return zlib.crc32(text.encode()) * 0x632BE59BD9B4E019 % (1 << 62)


def decision_keys(seeds: Tensor, positions: int) -> Tensor:
    """Keys ``[N, T]`` from an integer for each row."""
    return _mixed_bits(seeds.unsqueeze(1) + torch.arange(positions, device=seeds.device) * 0x1E3779B97F4A7C15)


def _mixed_bits(number: Tensor) -> Tensor:
    """53 well-mixed bits of each integer (the finaliser of SplitMix64; products wrap around)."""
    for shift, factor in ((30, -0x40A7B892E31B1A47), (27, -0x6B2FB644ECCEEE15), (31, 1)):
        number = (number ^ ((number >> shift) & ((1 << (64 - shift)) - 1))) * factor
    return (number >> 11) & ((1 << 53) - 1)


@dataclass(frozen=True, eq=False)
class Trajectories(Batch):
    """What crosses from a rollout to a learner: a batch, what the policy needs to look at it again, and notes for people."""

    inputs: Any = None
    """Opaque to all but the policy. It has ``take(pick)``, which applies ``pick`` to each of its tensors."""
    info: list[JsonDict] = field(default_factory=list)
    """Plain Python per row (prompt and response as text, ...) for logs; not cut with the rows."""
    aside: Mapping[str, Trajectories] = field(default_factory=dict)
    """Rows of other sources, by name, for terms of their own."""

    def keep_rows(self, keep: Tensor) -> Trajectories:
        """The rows to keep ``[N]``, in their order and with their notes; all of them is the batch itself."""
        if bool(keep.all()):
            return self
        chosen = keep.nonzero().squeeze(1)
        return self.take_rows(chosen).replace(info=[self.info[row] for row in chosen.tolist()] if self.info else [])


def spread(rows: int, most: int) -> Tensor:
    """Places of some of so many rows, evenly among them: the first, the last and what lies between."""
    return torch.linspace(0, rows - 1, min(rows, most)).long().unique()


def pack_rows(rows: Trajectories) -> JsonDict:
    """Rows as nested dicts of tensors and numbers, for a part's state; `unpack_rows` undoes it. Notes for people are left out."""

    def plain(value: Any) -> Any:
        if isinstance(value, View):
            return value.columns()
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            found = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
            return {name: column for name, column in found.items() if column is not None}
        return dict(value) if isinstance(value, Mapping) else value

    found = {f.name: getattr(rows, f.name) for f in dataclasses.fields(rows) if f.name not in (*UNCUT, "prepared", "now")}
    return {name: plain(value) for name, value in found.items() if value is not None}


def unpack_rows(packed: Mapping[str, Any], like: Trajectories) -> Trajectories:
    """The rows `pack_rows` packed; ``like`` is any batch of the same rollout, whose kind of inputs they have."""
    return rows_of(packed, type(like.inputs)).replace(state=like.state, memory=like.memory, now=like.now).to(like.sampled.device)


def rows_of(packed: Mapping[str, Any], inputs: Callable[..., Any]) -> Trajectories:
    """The rows `pack_rows` packed, where the tensors are; ``inputs`` makes what only the policy looks at."""
    columns = dict(packed)
    for name in ("behavior", "proximal", "current"):
        if name in columns:
            columns[name] = View.of(columns[name])
    columns["reference"] = {
        name: View.of(view) if isinstance(view, Mapping) else view for name, view in columns["reference"].items()
    }
    columns["inputs"] = inputs(**columns["inputs"])
    return Trajectories(**columns)
