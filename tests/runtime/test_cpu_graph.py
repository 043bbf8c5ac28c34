"""A CPU graph computes what its function does, from what stands where the function's inputs stood."""

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from upslope.runtime import cpu_graph
from upslope.runtime.cpu_graph import CPUGraph


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def replayed(work: Callable[[Tensor], Sequence[Tensor]], first: Tensor, second: Tensor) -> tuple[list[Tensor], CPUGraph]:
    """What a graph recorded on the first numbers gives for the second."""
    given = first.clone()
    graph = CPUGraph(lambda: work(given))
    assert not graph.refused
    given.copy_(second)
    graph.replay()
    return graph.results, graph


WORKS: dict[str, Callable[[Tensor], Sequence[Tensor]]] = {
    "one after the other": lambda x: [(x * 2 + 1).tanh().sum(0), x.mean()],
    "views of what is written later": lambda x: [x.clone().T[1:].mul_(3).flatten().unsqueeze(0), x[:, 0]],
    "written in place": lambda x: [torch.zeros(4, 3).add_(x).index_fill_(0, torch.ones(1, dtype=torch.long), 5.0)],
    "several results": lambda x: [*x.max(1), *x.sort(0), *x.aminmax()],
    "lists": lambda x: [torch.cat([x, x * 2, x]), *torch.stack([x, -x]).unbind()],
    "kinds of numbers": lambda x: [(x > 0).to(torch.float64), x.double().sum(), x.argmax(1), (x * 10).int()],
    "products": lambda x: [torch.addmm(x[:1], x @ x.T, x), torch.einsum("ij,kj->ik", x, x)],
    "nothing": lambda x: [x.new_empty(0, 3), x],
    "out arguments that are lists": lambda x: [
        *torch.unbind_copy(x[:1]),
        *torch.nn.utils.get_total_norm([x], foreach=True).view(1),
    ],
    "constants": lambda x: [torch.ones(4, 3).cumsum(0) * 2, torch.where(x > 0, x, torch.zeros(()))],
    "a convolution": lambda x: [torch.conv1d(x.unsqueeze(0), torch.ones(2, 4, 2)), torch.nn.functional.layer_norm(x, (3,))],
}


@pytest.mark.parametrize("name", WORKS)
def test_a_replay_is_the_function_of_new_numbers(name):
    work, first, second = WORKS[name], numbers(4, 3), numbers(4, 3, seed=1)
    for found, expected in zip(replayed(work, first, second)[0], work(second), strict=True):
        assert found.dtype == expected.dtype and torch.equal(found, expected)


def test_gradients_and_what_follows_them():
    """A backward pass and a step of an optimiser, over and over, end in the same weights."""

    def learner() -> tuple[Tensor, Tensor, Callable[[], list[Tensor]]]:
        seen, weight = numbers(8, 3), numbers(3, 2, seed=1).requires_grad_()
        optimizer = torch.optim.AdamW([weight], lr=torch.tensor(0.1), fused=True)

        def update() -> list[Tensor]:
            optimizer.zero_grad(set_to_none=False)
            loss = ((seen @ weight).tanh() - 1).square().mean()
            loss.backward()
            optimizer.step()
            return [loss.detach()]

        update()
        return seen, weight, update

    (seen, weight, update), (other_seen, other_weight, other_update) = learner(), learner()
    graph = CPUGraph(update)
    other_update()
    for seed in range(2, 8):
        seen.copy_(numbers(8, 3, seed=seed)), other_seen.copy_(numbers(8, 3, seed=seed))
        graph.replay()
        (loss,) = other_update()
        assert torch.equal(graph.results[0], loss) and torch.equal(weight, other_weight)


def test_what_is_the_same_every_time_or_of_no_use_is_not_called():
    def work(x: Tensor) -> list[Tensor]:
        always = torch.ones(4, 3) * 2 + 1  # two calls that never change
        (x.exp() + 1).log()  # three that nobody reads
        return [x.T.unsqueeze(0)[0].T * always]

    assert len(replayed(work, numbers(4, 3), numbers(4, 3))[1].calls) == 1


def test_memory_is_used_again():
    """Of a row of operations two pieces are enough: what one reads and what it writes."""

    def work(x: Tensor) -> list[Tensor]:
        for number in range(6):
            x = x * (number + 1)
        return [x.sum()]

    found, graph = replayed(work, numbers(4, 3), numbers(4, 3, seed=1))
    written = {call.keywords["out"].data_ptr() for call in graph.calls}
    assert len(graph.calls) == 7 and len(written) == 3 and torch.equal(found[0], work(numbers(4, 3, seed=1))[0])


def test_what_was_there_before_is_known_by_its_bytes():
    given, kept = numbers(4, 3), torch.zeros(2, 4, 3)
    graph = CPUGraph(lambda: [kept[0].add_(given)])
    assert graph.looks_at == {given.data_ptr(), kept.data_ptr()}
    assert [(each.data_ptr(), each.numel()) for each in graph.changes] == [(kept.data_ptr(), 2 * 4 * 3 * 4)]


REFUSED: dict[str, Callable[[Tensor], Tensor]] = {
    "gives numbers to Python": lambda x: x * float(x.sum()),
    "takes as many numbers as a mask says": lambda x: x[x > 0].sum(),
    "draws at random": lambda x: x + torch.rand(4, 3),
    "takes them from there": lambda x: x * torch.tensor([1.0, 2.0, 3.0]),
    "storage": lambda x: x.to_sparse_coo().to_dense(),
    "stand for others": lambda x: torch.view_as_real(torch.complex(x, x).conj() * 2),
    "does more than it tells": lambda x: torch.nn.functional.batch_norm(x, torch.zeros(3), torch.ones(3), training=True),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_what_cannot_be_replayed_is_computed_and_told(reason):
    given = numbers(4, 3)
    torch.manual_seed(5)
    graph = CPUGraph(lambda: [REFUSED[reason](given)])
    torch.manual_seed(5)
    assert reason in graph.refused and not graph.calls and not graph.changes
    assert torch.equal(graph.results[0], REFUSED[reason](given))


def test_a_recording_that_would_hold_too_much_is_none(monkeypatch):
    monkeypatch.setattr(cpu_graph, "MOST_BYTES", 50)
    given = numbers(4, 3)
    graph = CPUGraph(lambda: [(given * 2).exp().sum()])
    assert graph.refused == cpu_graph.TOO_LARGE and torch.equal(graph.results[0], (given * 2).exp().sum())
