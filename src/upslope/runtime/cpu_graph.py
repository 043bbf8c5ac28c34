"""What ``torch.cuda.CUDAGraph`` is on a GPU, on a CPU: the calls of a function, recorded once and replayed on the same memory.

Between the kernels of small networks Python composes parts, autograd walks its graph and memory is handed out and taken back: in
an update on 256 rows that takes as long as the products do. A recording keeps the kernels alone. Each writes where it wrote when it
was recorded, so views need no call of their own, what is the same every time is computed once, and what nobody reads is left out.

As on a GPU, a function can be recorded if it asks no tensor for a number, draws nothing at random, and reads new inputs where the
old ones stood; what Python keeps and decides stays as it was in the recording. Where a function cannot be recorded it was computed
all the same, and `refused` tells why. Not all is seen: ``tolist`` and ``numpy`` read numbers past torch's operations, and a few
decompositions of matrices have other last bits while somebody watches. Who needs to be certain compares a replay with the function.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from upslope.runtime.torch_private import (
    DispatchMode,
    NoDispatchMode,
    arguments_of,
    foreach_copy_,
    mapped_tensors,
    quick_call,
    tensors_in,
)

SHAPES_ONLY = frozenset(
    name.format(kind) for kind in ("empty", "zeros", "ones", "full") for name in ("{}", "{}_like", "new_{}")
) | {"scalar_tensor", "arange", "empty_strided", "new_empty_strided"}
"""Operations that look at the shape of what they are given, and not at its numbers."""
BY_PYTHON = frozenset({"lift_fresh", "equal", "is_nonzero", "_local_scalar_dense", "repeat_interleave", "bincount"})
"""Operations whose result Python reads, or that bring numbers from there."""
UNTOLD = frozenset({"resize_", "set_", "native_batch_norm", "batch_norm_update_stats", "_pack_padded_sequence", "mkldnn_rnn_layer"})
"""Operations that write, read or move what their schema does not tell."""
MOST_BYTES = 1 << 28
"""Memory that a recording may make on its way. Where it is more, kernels take so long that nothing else matters."""

TOO_LARGE = f"more than {MOST_BYTES >> 20} MiB are made on the way"


class _Call(NamedTuple):
    """One operation with what it was given, and the memory it is about, each piece by its address."""

    operation: Any
    args: Any
    kwargs: Any
    fresh: list[Tensor]
    """Those of its results that are no views of what it was given."""
    reads: frozenset[int]
    changes: frozenset[int]
    """What was there before and is written to."""
    makes: frozenset[int]
    """What it is the first to write to."""


class CPUGraph:
    """A recorded function without arguments.

    Args:
        work: What is recorded; it is called once, and returns tensors.
    """

    def __init__(self, work: Callable[[], Sequence[Tensor]]):
        recorder = _Recorder()
        with recorder:
            found = work()
        self.refused = recorder.refused
        """Why it cannot be replayed; empty if it can."""
        self.results = [each.detach() for each in found]
        """What the function returned, written anew by every replay."""
        made = {place for call in recorder.calls for place in call.makes}
        results = {_place(each) for each in self.results}
        needed = _useful(_changing(recorder.calls), results, made)
        self.calls = [] if self.refused else [_again(call) for call in _in_less_memory(needed, results)]
        self.looks_at = {place for call in needed for place in call.reads}
        """The addresses of all memory that a replay reads."""
        changed = {place for call in needed for place in call.changes} - made
        self.changes = [] if self.refused else _bytes_of(recorder.tensors, changed)
        """The bytes of all memory that was there before and that a replay changes."""

    def replay(self) -> None:
        """Computes it again from what stands now where its inputs stood."""
        with torch.no_grad():
            for call in self.calls:
                call()


class _Recorder(DispatchMode):  # type: ignore[misc,valid-type]
    """Watches operations below autograd, those of a backward pass among them."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[_Call] = []
        self.refused = "torch cannot be watched" if DispatchMode is NoDispatchMode else ""
        self.tensors: list[Tensor] = []
        """All that were seen. They live as long as the recording: memory that was freed would be handed out again."""
        self._bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        found = func(*args, **kwargs)
        if not self.refused:
            self.refused = _reason(func, args)
        if not self.refused:
            try:
                self._keep(func, args, kwargs, found)
            except RuntimeError as problem:  # of a tensor whose memory has no address, such as a sparse one
                self.refused = f"{func}: {str(problem).splitlines()[0]}"
        if self.refused:
            self.calls, self.tensors = [], []
        return found

    def _keep(self, func: Any, args: Any, kwargs: Any, found: Any) -> None:
        taken, given = tensors_in([args, kwargs]), tensors_in(found)
        if any(each.is_conj() or each.is_neg() or each.is_inference() for each in (*taken, *given)):
            self.refused = f"{func} is about tensors that stand for others"
            return
        self.tensors += [*taken, *given]
        before = frozenset(map(_place, taken))
        changed = frozenset(_place(tensor) for value in _written(func, args, kwargs) for tensor in tensors_in(value))
        fresh = [each.detach() for each in given if _place(each) not in before]
        if not changed and not fresh:  # a view: it shows what stands in its memory by then
            return
        self._bytes += sum(each.untyped_storage().nbytes() for each in fresh)
        if self._bytes > MOST_BYTES:
            self.refused = TOO_LARGE
        args, kwargs = mapped_tensors((args, kwargs), Tensor.detach)  # a graph would keep all of a pass alive
        reads = frozenset[int]() if func.overloadpacket.__name__ in SHAPES_ONLY else before
        self.calls.append(_Call(func, args, kwargs, fresh, reads, changed, frozenset(map(_place, fresh))))


# -- what an operation is ------------------------------------------------------------------------------------------------------


def _place(tensor: Tensor) -> int:
    """The memory a tensor lies in; all empty ones in none."""
    return tensor.untyped_storage().data_ptr()


def _written(func: Any, args: Any, kwargs: Any) -> Iterator[Any]:
    """The arguments that an operation writes to."""
    for position, argument in enumerate(arguments_of(func)):
        if argument.alias_info is not None and argument.alias_info.is_write:
            yield args[position] if position < len(args) else kwargs.get(argument.name)


def _reason(func: Any, args: Any) -> str:
    """Why an operation cannot be made again without Python; empty if it can."""
    name = func.overloadpacket.__name__
    if name.startswith("index"):  # of these only those by a mask give as many numbers as the mask has
        indices = args[1] if len(args) > 1 and isinstance(args[1], (list, tuple)) else ()
        by_mask = any(each is not None and each.dtype in (torch.bool, torch.uint8) for each in indices)
        return f"{func} takes as many numbers as a mask says" if by_mask else ""
    if name in BY_PYTHON or any(tag in func.tags for tag in (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape)):
        return f"{func} gives numbers to Python or takes them from there"
    if name in UNTOLD:
        return f"{func} does more than it tells"
    return f"{func} draws at random" if torch.Tag.nondeterministic_seeded in func.tags else ""


def _again(call: _Call) -> Callable[[], Any]:
    """The operation, with its results written over those that it gave."""
    run = partial(quick_call(call.operation), *call.args, **call.kwargs)
    if not call.fresh:
        return run
    if call.operation.overloadpacket.__name__ in ("clone", "_to_copy"):
        return partial(call.fresh[0].copy_, call.args[0])
    names, overload = ((), None) if call.changes else _out_overload(call.operation)
    if overload is not None and len(names) == len(call.fresh):
        return partial(quick_call(overload), *call.args, **call.kwargs, **dict(zip(names, call.fresh, strict=True)))
    known = {_place(each) for each in tensors_in([call.args, call.kwargs])}

    def copied() -> None:
        foreach_copy_(call.fresh, [each for each in tensors_in(run()) if _place(each) not in known])

    return copied


@cache
def _out_overload(func: Any) -> tuple[tuple[str, ...], Any]:
    """The operation of the same arguments that writes its results to given tensors, and how those arguments are called."""
    packet = func.overloadpacket
    for other in (getattr(packet, name) for name in packet.overloads()):
        outs = [argument for argument in arguments_of(other) if argument.is_out]
        names = tuple(argument.name for argument in outs if str(argument.type) == "Tensor")
        if names and len(names) == len(outs) and _inputs(other) == _inputs(func):
            return names, other
    return (), None


def _inputs(func: Any) -> list[tuple[str, str]]:
    return [(argument.name, str(argument.type)) for argument in arguments_of(func) if not argument.is_out]


# -- which calls a replay makes, and where ---------------------------------------------------------------------------------------


def _changing(calls: list[_Call]) -> list[_Call]:
    """The calls whose results differ from one replay to the next."""
    changed = {place for call in calls for place in call.changes}
    constant: set[int] = set()
    found = []
    for call in calls:
        if not call.changes and call.reads <= constant and not call.makes & changed:
            constant |= call.makes
        else:
            found.append(call)
    return found


def _useful(calls: list[_Call], results: set[int], made: set[int]) -> list[_Call]:
    """The calls without those that nothing comes of: neither a result nor a change of what was there before."""
    needed, found = set(results), []
    for call in reversed(calls):
        if call.makes & needed or any(place in needed or place not in made for place in call.changes):
            needed |= call.reads | call.changes
            found.append(call)
    return found[::-1]


def _in_less_memory(calls: list[_Call], results: set[int]) -> list[_Call]:
    """The calls with memory that is no longer needed taken again by what needs as much: the less there is, the more of it is in
    the processor's cache."""
    made = {place for call in calls for place in call.makes if place} - results
    last = {place: at for at, call in enumerate(calls) for place in (call.reads | call.changes | call.makes) & made}
    taken: dict[int, Any] = {}
    """The memory that stands for another, by the address of that."""
    free: dict[int, list[Any]] = {}

    def moved(tensor: Tensor) -> Tensor:
        memory = taken.get(_place(tensor))
        if memory is None:
            return tensor
        return torch.empty(0, dtype=tensor.dtype).set_(memory, tensor.storage_offset(), tensor.shape, tensor.stride())

    found = []
    for at, call in enumerate(calls):
        for each in call.fresh:
            own = each.untyped_storage()
            if _place(each) in made and _place(each) not in taken:
                several = free.get(own.nbytes(), [])
                taken[_place(each)] = several.pop() if several else own
        args, kwargs, fresh = mapped_tensors((call.args, call.kwargs, call.fresh), moved)
        found.append(call._replace(args=args, kwargs=kwargs, fresh=fresh))
        for place in (call.reads | call.changes | call.makes) & made:
            if last[place] == at:
                free.setdefault(taken[place].nbytes(), []).append(taken[place])
    return found


def _bytes_of(tensors: list[Tensor], places: set[int]) -> list[Tensor]:
    """The memory of these tensors at these addresses, as bytes."""
    memory = {_place(each): each.untyped_storage() for each in tensors if _place(each) in places and _place(each)}
    return [torch.empty(0, dtype=torch.uint8).set_(storage) for storage in memory.values()]
