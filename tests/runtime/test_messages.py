"""What a run and its workers tell each other."""

from __future__ import annotations

import socket
import threading

import pytest
import torch

from upslope.runtime.messages import Closed, Message, decoded, encoded, receive, send
from upslope.runtime.shared_weights import ReadWeights, SharedWeights, _taken_over_by_gpu, checksum, take_over


def through(message: Message) -> Message:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        sender = threading.Thread(target=send, args=(ours, message))
        sender.start()
        found = receive(theirs)
        sender.join()
    return found


def as_bytes(message: Message) -> Message:
    return decoded(encoded(message))


@pytest.mark.parametrize("through", [through, as_bytes])
def test_tensors_and_plain_data_arrive_as_they_were(through):
    data = {
        "a": torch.arange(6).view(2, 3),
        "b": {"c": [torch.tensor([1.5, float("nan")]), "ü", None, True]},
        "empty": torch.zeros(0, 4),
    }
    found = through(Message("rows", data))
    assert found.kind == "rows" and torch.equal(found.data["a"], data["a"]) and found.data["empty"].shape == (0, 4)
    assert found.data["b"]["c"][1:] == ["ü", None, True]
    assert torch.equal(found.data["b"]["c"][0].isnan(), torch.tensor([False, True]))


def test_large_messages_arrive_whole():
    big = torch.randn(3_000_000)
    assert torch.equal(through(Message("rows", {"big": big})).data["big"], big)


def test_a_closed_channel_and_a_cut_message_are_told():
    ours, theirs = socket.socketpair()
    ours.close()
    with theirs, pytest.raises(Closed):
        receive(theirs)
    ours, theirs = socket.socketpair()
    ours.send(b"\x10\x00\x00")
    ours.close()
    with theirs, pytest.raises(Closed, match="middle"):
        receive(theirs)


def test_bytes_that_are_no_whole_message_are_refused():
    whole = encoded(Message("rows", {"a": torch.ones(3)}))
    for cut in (whole[:10], whole[:-1], whole + b"x"):
        with pytest.raises(ValueError, match="message"):
            decoded(cut)


def test_weights_go_through_shared_memory_by_version():
    shared, published = SharedWeights(), ReadWeights()
    weights = {"w": torch.randn(5, 7), "half": torch.randn(3).bfloat16(), "count": torch.tensor(9)}
    shared.publish(1, weights, needed=())
    shared.publish(2, {name: tensor + 1 for name, tensor in weights.items()}, needed=(1,))
    assert shared.newest == 2 and sorted(shared.versions) == [1, 2]
    for version, added in ((1, 0), (2, 1)):
        own = shared.versions[version]
        sent = through(Message("weights", own.plain(), (own.file,)))
        found = published.of(sent.files[0], sent.data)
        for name, tensor in weights.items():
            assert torch.equal(found[name], tensor + added), name
        assert checksum(found) == sent.data["checksum"]
    first = shared.versions[1].file
    shared.publish(3, weights, needed=(2,))
    shared.publish(4, weights, needed=(2, 3))
    assert sorted(shared.versions) == [2, 3, 4] and first in {own.file for own in shared.versions.values()}, "memory is used again"
    shared.close()


def test_memory_that_is_written_again_shows_the_new_version():
    shared, published = SharedWeights(), ReadWeights()
    for version in range(1, 6):
        shared.publish(version, {"w": torch.full((3, 4), float(version))}, needed=(version - 1,))
        own = shared.versions[version]
        sent = through(Message("weights", own.plain(), (own.file,)))
        assert published.of(sent.files[0], sent.data)["w"].unique().tolist() == [version]
    shared.close()


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16, torch.int8, torch.float64])
def test_a_checksum_is_of_the_numbers_wherever_they_stand(kind):
    whole = torch.arange(40).to(kind)
    for begin, end in ((0, 16), (1, 17), (3, 10), (2, 2)):
        piece = whole[begin:end]
        assert checksum({"a": piece}) == checksum({"a": piece.clone()})
    assert checksum({"a": whole.view(5, 8).T}) == checksum({"a": whole.view(5, 8).T.contiguous()})


def test_what_a_gpu_adds_up_is_what_the_cpu_does():
    given = {"w": torch.randn(5, 7), "half": torch.randn(3).bfloat16(), "count": torch.tensor(9), "even": torch.randn(4, 4).T}
    one, other = ({name: torch.zeros_like(tensor) for name, tensor in given.items()} for _ in range(2))
    assert _taken_over_by_gpu(one, given) == take_over(other, given) == checksum(given)
    assert all(torch.equal(one[name], given[name]) and torch.equal(other[name], given[name]) for name in given)


def test_a_checksum_tells_other_weights():
    weights = {"a": torch.zeros(4), "b": torch.ones(4)}
    other = {"a": torch.ones(4), "b": torch.zeros(4)}
    assert checksum(weights) == checksum({name: tensor.clone() for name, tensor in weights.items()}) != checksum(other)


@pytest.mark.parametrize("shape", [(3,), (7, 5), (3, 1 << 17), ((1 << 18) + 1,)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
def test_weights_that_are_taken_over_have_the_checksum_of_what_was_given(shape, dtype):
    given = {"a": torch.randn(shape).mul(1000).to(dtype), "b": torch.randn(5, 4).T}
    own = {name: torch.zeros_like(tensor) for name, tensor in given.items()}
    assert take_over(own, given) == checksum(given) == checksum(own)
    assert all(torch.equal(own[name], tensor) for name, tensor in given.items())
