"""What is counted of sampling is what its steppers allocate, and what the engine decides by."""

from __future__ import annotations

import pytest
import torch
from small_models import policy_of

from upslope.policies.model_shape import ModelShape
from upslope.policies.tiny import tiny
from upslope.rollout.decode import footprint
from upslope.rollout.decode.graph_stepper import GraphStepper, _Kept
from upslope.rollout.decode.pages import Seats
from upslope.rollout.decode.record import DecodeJob, Progress, Record
from upslope.rollout.decode.stepper import Prompts, Stepper
from upslope.rollout.decode.weights import Weights
from upslope.rollout.engines.torch_engine import TorchEngine
from upslope.types import Sampling

PROMPTS = [(1, 5, 9), (1, 4, 4, 8, 12, 20, 7), (1, 18, 17, 16, 15)]
LENGTHS = [len(prompt) for prompt in PROMPTS]


def bytes_of(*tensors: torch.Tensor) -> int:
    """Of the memory that they lie in, each stretch once."""
    held = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors}
    return sum(held.values())


def job_of(rows: int, room: int) -> DecodeJob:
    device = torch.device("cpu")
    record, uniforms = Record.blank(rows, room, 0, device), torch.rand(rows, room)
    return DecodeJob(Sampling(max_tokens=room), uniforms, torch.tensor([2]), torch.full((rows,), room), record, Progress.of(rows))


@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_the_engine_s_own_numbers(kind: str):
    policy = policy_of(kind)
    shape, engine = ModelShape.of(policy.model, ours=True), TorchEngine(policy)
    assert 2 * footprint.token_bytes(shape, 4) == engine._token_bytes()
    assert footprint.engine_memory(10**12, on_gpu=False) == engine._memory() and engine.max_rows == footprint.MOST_ROWS
    for memory in (10_000, 100_000, 10**9):
        expected = max(1, min(500, engine.max_rows, memory // (24 * shape.vocabulary + 32 * engine._token_bytes())))
        at_once = footprint.rows_at_once(shape, 4, 500, 32, memory, on_gpu=False)
        engine.memory_bytes = memory
        assert at_once == Seats(expected, 0) == engine._seats(500, 32, mixed=False)


@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_a_stepper_on_a_cpu_allocates_what_is_counted(kind: str):
    policy = policy_of(kind)
    body, shape = policy.body, ModelShape.of(policy.model, ours=True)
    with torch.no_grad():
        weights = Weights(body, 64, torch.float32)
        read = Prompts(weights, PROMPTS)
        stepper = Stepper(weights, 12, 20)
        stepper.begin(read, job_of(12, 20))
    assert bytes_of(stepper.cache) == footprint.cache_bytes(shape, 4, Seats(12, 0), 20, LENGTHS, on_gpu=False)
    held = bytes_of(*(each for layer in read.memory for each in layer), *(each for layer in stepper._padded for each in layer))
    assert held == pytest.approx(footprint.prompt_bytes(shape, 4, LENGTHS, on_gpu=False), rel=0.01)


def test_pages_that_are_there_serve_calls_of_fewer_rows():
    """Graphs are recorded once: not again for each number of rows, of which fewer leave room for some pages more."""
    with torch.no_grad():
        weights = Weights(tiny(0).body, 64, torch.float32)
        stepper, read, job = GraphStepper(weights, Seats(40, 70), 4096), Prompts(weights, PROMPTS), job_of(40, 4096)
        assert not stepper.fits(read, Seats(40, 70), 4096, job), "it has no graphs yet"
        stepper.begin(read, job)
    for seats, fit in ((Seats(40, 70), True), (Seats(12, 76), True), (Seats(40, 90), False), (Seats(65, 70), False)):
        assert stepper.fits(read, seats, 4096, job) == fit
    for rows, at_once, fit in ((1, 1, True), (2, 2, False), (2, 1, False)):  # 64 pages a row, and those of one are there
        assert stepper.fits(read, Seats(at_once, 0), 4096, job_of(rows, 4096)) == fit, "nobody may be put back here"
    with torch.no_grad():
        whole = GraphStepper(weights, Seats(2, 0), 4096)
        whole.begin(read, job)
    assert whole.fits(read, Seats(2, 0), 4096, job) and not whole.fits(read, Seats(2, 70), 4096, job)


@pytest.mark.parametrize("rows, room, pages", [(3, 20, 0), (40, 20, 0), (129, 20, 0), (40, 4096, 0), (40, 4096, 70)])
def test_a_stepper_for_graphs_allocates_what_is_counted(rows: int, room: int, pages: int):
    """Its buffers are made on the CPU here; kernels and graphs are not touched."""
    policy = tiny(0)
    shape = ModelShape.of(policy.model, ours=True)
    with torch.no_grad():
        weights = Weights(policy.body, 64, torch.float32)
        stepper = GraphStepper(weights, Seats(rows, pages), room)
        kept = _Kept(weights, Prompts(weights, PROMPTS), job_of(rows, room))
    inside = (stepper._x, stepper._seen, stepper._q, stepper._out, stepper._active, stepper._shares, stepper._tops, stepper._sums,
              stepper._shares_out)  # fmt: skip
    assert (stepper.parts > 1) == (room > 1000)
    counted = footprint.cache_bytes(shape, 4, Seats(rows, pages), room, LENGTHS, on_gpu=True)
    table = () if stepper.pages is None else (stepper.pages.table,)
    assert bytes_of(stepper.cache, kept.keys, kept.values, *inside, *table) == counted
    columns = footprint.column_bytes(rows, room, on_gpu=True) - footprint.column_bytes(rows, room, on_gpu=False)
    assert bytes_of(kept.uniforms, *kept.record) == columns
