"""Pages of the cache: who gets which, who is put back, and that neither changes what is said."""

from __future__ import annotations

import random
from collections import Counter

import pytest
import torch
from small_models import policy_of

from upslope.rollout.decode import pages as pages_module
from upslope.rollout.decode.pages import Pages, Seats, seats
from upslope.rollout.decode.stepper import Stepper
from upslope.rollout.engines import torch_engine
from upslope.rollout.engines.torch_engine import TorchEngine
from upslope.runtime import seeding
from upslope.types import Sampling

CPU = torch.device("cpu")


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages of four tokens, and rows begin while there is a page: more are put back than there ought to be."""
    monkeypatch.setattr(pages_module, "PAGE", 4)
    begin_while_there_is_a_page(monkeypatch)


def begin_while_there_is_a_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Pages, "vacancies", lambda self, rows: min(len(rows), self.left))
    monkeypatch.setattr(Pages, "_too_many", lambda self: [])


def test_there_are_pages_where_rows_would_wait_for_memory():
    """1,000 bytes a row and 10 a token: rows of 6,400 tokens take 65,000 bytes, and an eighth of that 9,000."""
    known = {"room": 6400, "slot_bytes": 1000, "token_bytes": 10, "paged": True}
    assert seats(10, 650_000, **known) == Seats(10, 0)
    assert seats(11, 650_000, **known) == Seats(11, (650_000 - 11_000) // 640)
    assert seats(500, 650_000, **known) == Seats(72, (650_000 - 72_000) // 640)
    assert seats(500, 650_000, **(known | {"paged": False})) == Seats(10, 0)
    assert seats(500, 100, **known) == Seats(1, 100), "one row that says all it may always fits"
    assert seats(500, 65_000, **(known | {"room": 64})) == Seats(65_000 // 1640, 0), "a page is all that such a row may say"


def pages_for(limits: list[int], **sizes: int) -> Pages:
    """Pages of rows that may say so many tokens each."""
    pages = Pages(**sizes, device=CPU)
    pages.clear(limits)
    return pages


def held(pages: Pages) -> list[list[int]]:
    """Pages of each slot, as kernels find them."""
    return [[page for page in row if page] for row in pages.table.tolist()]


def test_the_row_that_began_last_is_put_back(hasty):
    pages = pages_for([12, 12, 5], slots=3, room=12, count=5)
    pages.begin([0, 1], [0, 1])
    assert pages.grow(4) == [] and held(pages) == [[1], [2], []]
    assert pages.grow(4) == [] and held(pages) == [[1, 3], [2, 4], []] and pages.left == 1
    assert pages.grow(4) == [1] and held(pages) == [[1, 3, 5], [], []], "the younger one had to give up its own"
    assert pages.left == 2
    pages.end([0])
    assert held(pages) == [[], [], []] and pages.left == 5
    pages.begin([2], [2])
    pages.move([2], [0])
    assert [pages.grow(4) for _ in range(3)] == [[], [], []] and [len(each) for each in held(pages)] == [2, 0, 0]


def test_rows_begin_as_long_as_there_are_pages_for_all_that_is_expected(monkeypatch):
    """Rows of at most two pages. Eight are supposed to have ended, two with one page; of eight real ones four ended with one
    and four have two. Of 16 with a page 6 ended with it, so five of eight go on: 1.625 pages of a row, 2 of one that has two."""
    monkeypatch.setattr(pages_module, "PAGE", 4)
    pages = pages_for([8] * 108, slots=12, room=8, count=17)
    assert pages.vacancies(range(100)) == 9 == int(17 / 1.75)
    pages.begin([*range(8)], [*range(8)])
    pages.grow(4)
    pages.end([0, 1, 2, 3])
    pages.grow(4)
    assert pages._expected(pages._have[pages._order > 0]).tolist() == [1.625, 1.625, 2.0]
    assert pages.vacancies(range(8, 108)) == 5 == int((17 - 4 * 2) / 1.625)


def test_rows_that_may_say_little_take_no_more(monkeypatch):
    monkeypatch.setattr(pages_module, "PAGE", 4)
    pages = pages_for([7] * 50, slots=12, room=40, count=20)
    assert pages.vacancies(range(50)) == 10
    pages.begin([*range(10)], [*range(10)])
    assert [pages.grow(4) for _ in range(2)] == [[], []] and pages.left == 0, "two pages are all that each can fill"


def test_rows_are_put_back_before_pages_run_out(monkeypatch):
    """Eight ended with one of ten pages, so four begin in 20. None of them ends there: 5.1 pages are expected of each, one too
    many goes on. Of three that have two pages 8.2 are."""
    monkeypatch.setattr(pages_module, "PAGE", 4)
    pages = pages_for([4] * 8 + [40] * 8, slots=8, room=40, count=20)
    pages.begin([*range(8)], [*range(8)])
    pages.grow(4)
    pages.end([*range(8)])
    assert pages.vacancies(range(8, 16)) == 4
    pages.begin([0, 1, 2, 3], [8, 9, 10, 11])
    assert [pages.grow(4) for _ in range(3)] == [[], [3], [2]] and pages.left == 20 - 2 * 3
    assert [pages.grow(4) for _ in range(7)] == [[]] * 7 and pages.left == 0, "the two older ones have all pages in the end"


def test_rows_that_were_put_back_begin_where_there_are_pages_for_what_they_have_said(monkeypatch):
    """As above; then one of the two that go on ends with three pages. Of 12.1 that the other leaves 4.9 are expected of a row that
    has not begun, and 7.7 of one that had two: two new ones may begin, or that one."""
    monkeypatch.setattr(pages_module, "PAGE", 4)
    pages = pages_for([4] * 8 + [40] * 8, slots=8, room=40, count=20)
    pages.begin([*range(8)], [*range(8)])
    pages.grow(4)
    pages.end([*range(8)])
    pages.begin([0, 1, 2, 3], [8, 9, 10, 11])
    assert [pages.grow(4) for _ in range(3)] == [[], [3], [2]]
    pages.end([0])
    _, (needed,), expected = pages._needs()
    assert 20 - needed == pytest.approx(12.1, abs=0.05) and expected[[0, 2]] == pytest.approx([4.9, 7.7], abs=0.05)
    assert pages.vacancies([12, 13, 14]) == 2 and pages.vacancies([10, 11]) == 1
    pages.begin([0], [10])
    assert pages._needs()[1].tolist() == [needed, expected[2]], "that it has no page now changes nothing"
    assert pages._waits == {11: 1}


def test_rows_that_all_say_what_they_may_begin_as_if_each_had_its_stretch(monkeypatch):
    """Nobody ends: in the end no more rows go on than fit whole, and none begins that would be put back at once."""
    monkeypatch.setattr(pages_module, "PAGE", 4)
    pages, back = pages_for([80] * 40, slots=40, room=80, count=200), 0
    assert pages.vacancies(range(40)) == 13, "of 20 possible pages 15.25 are expected of each"
    pages.begin([*range(13)], [*range(13)])
    for _ in range(20):
        assert pages.vacancies(range(13, 40)) == 0
        back += len(pages.grow(4))
    assert back == 3 and (pages._order > 0).sum() == 10


def test_every_row_ends_and_no_page_has_two_owners(monkeypatch):
    """Rows of random lengths in few pages; whoever is put back begins again, as the engine does it."""
    monkeypatch.setattr(pages_module, "PAGE", 4)
    patient = sum(map(restarts_of, range(20)))
    begin_while_there_is_a_page(monkeypatch)
    assert 5 * patient < sum(map(restarts_of, range(20)))


def restarts_of(seed: int) -> int:
    """Rows that were put back where all were continued to their ends."""
    draw = random.Random(seed)
    lengths, ahead = [draw.randint(1, 40) for _ in range(30)], draw.choice([1, 8])
    pages = pages_for([40] * 30, slots=draw.randint(2, 12), room=40, count=draw.randint(10, 40))
    waiting, at, said, restarts = [*range(30)], dict[int, int](), Counter[int](), 0
    while waiting or at:
        vacant = [slot for slot in range(len(pages.table)) if slot not in at]
        for slot in vacant[: pages.vacancies(waiting[: len(vacant)])]:
            at[slot] = waiting.pop(0)
            said[at[slot]] = 0
            pages.begin([slot], [at[slot]])
        oldest = min(at, key=lambda slot: pages._order[slot])
        for slot in pages.grow(ahead):
            assert slot != oldest
            waiting.insert(0, at.pop(slot))
            restarts += 1
        own = held(pages)
        assert Counter(page for each in own for page in each).most_common(1)[0][1] == 1
        assert sum(map(len, own)) + pages.left == pages.count and all(slot in at for slot, each in enumerate(own) if each)
        for slot, row in [*at.items()]:
            said[row] += ahead
            assert len(own[slot]) >= -(-min(said[row], 40) // 4), "all that it says has a place"
            if said[row] >= lengths[row]:
                pages.end([slot])
                del at[slot]
        if at and draw.random() < 0.3:
            vacant = [slot for slot in range(len(pages.table)) if slot not in at]
            if vacant:
                source = draw.choice([*at])
                at[vacant[0]] = at.pop(source)
                pages.move([source], vacant[:1])
    assert pages.left == pages.count
    return restarts


@pytest.mark.parametrize("kind", ["llama", "qwen3", "gemma"])
@pytest.mark.parametrize("stop", [(), ("e",)])
def test_rows_that_are_put_back_say_the_same(kind: str, stop: tuple[str, ...], hasty, monkeypatch):
    """With the plain stepper, for which pages are only counted: what is put back, when, and what is left of it."""
    policy, sampling = policy_of(kind), Sampling(24, stop=stop)
    prompts, numbers, limits = [[1, 5, 9], [1, 4, 4, 8, 12, 20, 7]], seeding.uniforms((20, 24), 3), [24, 19]
    plain = TorchEngine(policy).generate(prompts, 10, sampling, numbers, limits)
    back: list[int] = []

    class InPages(Stepper):
        def __init__(self, weights, count, room):
            super().__init__(weights, 8, room)
            self.pages = Pages(8, room, 8, CPU)

        def make_room(self):
            found = super().make_room()
            back.extend(found)
            return found

    monkeypatch.setattr(torch_engine, "Stepper", InPages)
    engine = TorchEngine(policy)
    found = engine.generate(prompts, 10, sampling, numbers, limits)
    assert back and engine._steppers[0].pages.left == 8
    assert torch.equal(found.tokens, plain.tokens) and torch.equal(found.sampled, plain.sampled) and found.finish == plain.finish
    torch.testing.assert_close(found.logp, plain.logp, atol=1e-5, rtol=1e-5)


def test_a_row_that_was_put_back_has_not_ended(hasty, monkeypatch):
    """Whoever looks while rows are continued sees which have ended; those that wait for pages have not."""
    policy = policy_of("llama")

    class InPages(Stepper):
        def __init__(self, weights, count, room):
            super().__init__(weights, 6, room)
            self.pages = Pages(6, room, 9, CPU)

    monkeypatch.setattr(torch_engine, "Stepper", InPages)
    call = TorchEngine(policy).begin([[1, 5, 9]], 12, Sampling(24), seeding.uniforms((12, 24), 3))
    ended, blank_again = torch.zeros(12, dtype=torch.bool), False
    begun = torch.zeros(12)
    while call.advance():
        now = call.job.progress.ended
        assert (now >= ended).all(), "nothing that has ended goes on"
        said = call.written().sampled.sum(1)
        blank_again |= bool((said < begun).any())
        assert not bool(((said < begun) & now).any())
        ended, begun = now.clone(), said
    assert call.job.progress.ended.all() and blank_again
