"""How a run on a GPU is cut, from the plan and the card's memory alone; and the nearest setting that works."""

from __future__ import annotations

from dataclasses import replace

import pytest
from qwen_shapes import H200, shape

from upslope.policies.model_shape import ModelShape
from upslope.policies.tiny import tiny
from upslope.sizes.card import Card
from upslope.sizes.memory import CACHE, memory_of, rows_wait
from upslope.sizes.settle import MOST_TOKENS, WORTH_TOKENS, fits, nearest, settled
from upslope.sizes.work import MOMENTS, Work

WORK = Work(16, 8, 512, [64] * 16, recompute="auto")


def gpu(gigabytes: float) -> Card:
    return Card("cuda", int(gigabytes * 1e9), f"a GPU with {gigabytes} GB")


def test_on_a_cpu_everything_stays_as_it_is():
    tall, machine = ModelShape.of(tiny(0).model, ours=True), Card("cpu", 2**30, "a machine")
    found = settled(tall, WORK, machine)
    assert found.recompute == "off" and found.slice_tokens is None
    assert settled(tall, replace(WORK, recompute="all", slice_tokens=100), machine) == replace(
        WORK, recompute="all", slice_tokens=100
    )


@pytest.mark.parametrize("name", ["0.5B", "1.5B", "3B"])
@pytest.mark.parametrize("size", [24, 48, 80, 141])
def test_what_is_settled_fits_and_recomputes_only_where_slices_would_be_small(name: str, size: int):
    tall, card = shape(name), gpu(size)
    found = settled(tall, WORK, card)
    memory, again = memory_of(tall, found, card), found.layers_again(tall.layers)
    assert found.slice_tokens <= MOST_TOKENS and found.recompute != "auto"
    if not fits(memory, card):
        assert found.recompute == "all"
        return
    assert memory.total <= 0.97 * card.total, "some is left for what no estimate knows"
    if again:
        less = settled(tall, replace(WORK, recompute=again - 1), card)
        assert less.slice_tokens < max(WORTH_TOKENS, WORK.unit), "as few layers as will do"


def test_it_follows_from_the_card_s_total_and_not_from_what_is_free(monkeypatch):
    import torch

    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda *device: pytest.fail("nobody may ask"))
    assert settled(shape("1.5B"), WORK, gpu(80)) == settled(shape("1.5B"), WORK, gpu(80))
    assert settled(shape("3B"), WORK, gpu(63)) != settled(shape("3B"), WORK, gpu(141))


@pytest.mark.parametrize("tasks, waits", [(8, False), (16, False), (32, True)])
def test_rows_that_would_wait_take_what_all_else_leaves(tasks: int, waits: bool):
    """64 answers of 16,384 tokens by 1.5 billion parameters: 30 GB of keys and values, where a sixth of the card is 23."""
    tall, work, card = shape("1.5B"), replace(WORK, tasks=tasks, max_tokens=16384), gpu(141)
    found = settled(tall, work, card)
    memory, least = memory_of(tall, found, card), memory_of(tall, replace(found, row_bytes=0), card)
    assert least.kinds[CACHE] < memory.kinds[CACHE] and memory.total <= 0.86 * card.total
    assert memory.total - memory.kinds[CACHE] == least.total - least.kinds[CACHE], "nothing else changes"
    assert rows_wait(tall, replace(found, row_bytes=0), card) and rows_wait(tall, found, card) == waits
    assert not settled(tall, WORK, card).row_bytes and not settled(tall, work, gpu(80)).row_bytes, "none waits; nothing is left"


def test_what_was_settled_before_stays_on_another_card():
    """A run that is resumed elsewhere is cut alike."""
    first = settled(shape("1.5B"), WORK, gpu(48))
    assert settled(shape("1.5B"), first, gpu(141)) == first
    given = replace(WORK, recompute=3, slice_tokens=4000)
    assert settled(shape("1.5B"), given, gpu(141)) == given
    older = replace(WORK, recompute="off", slice_tokens=0)  # from before slices followed from the plan
    assert settled(shape("1.5B"), older, gpu(141)) == older


def test_a_group_that_must_stay_whole_sets_how_much_is_recomputed():
    rows = settled(shape("1.5B"), replace(WORK, max_tokens=4096), gpu(80))
    groups = settled(shape("1.5B"), replace(WORK, max_tokens=4096, by_group=True), gpu(80))
    assert groups.layers_again(28) > rows.layers_again(28)
    assert groups.slice_tokens >= groups.unit - 64 > 8 * 4096 - 64


@pytest.mark.parametrize(("name", "size", "work", "flags"), [
    ("7.6B", 141, {}, "--adam-states bfloat16"),
    ("7.6B", 110, {}, "--adam-states 8bit"),
    ("7.6B", 110, {"moment_bytes": MOMENTS["bfloat16"]}, "--adam-states 8bit"),
    ("7.6B", 95, {}, "--lora 32"),
    ("7.6B", 16, {"lora": 32}, "--base-precision nf4"),
    ("7.6B", 14, {}, "--lora 32 --base-precision nf4"),
    ("7.6B", 16, {"lora": 32, "precise": True}, ""),
    ("7.6B", 5, {"lora": 32}, ""),
    ("1.5B", 48, {"slice_tokens": 60000, "recompute": "off"}, "no --slice-tokens"),
    ("1.5B", 44, {"max_tokens": 8192, "recompute": "off"}, "--recompute all"),
    ("1.5B", 48, {"max_tokens": 16384, "by_group": True}, "--max-tokens"),
])  # fmt: skip
def test_the_nearest_setting_that_works(name: str, size: float, work: dict, flags: str):
    card, asked = gpu(size), replace(WORK, **work)
    assert not fits(memory_of(shape(name), settled(shape(name), asked, card), card), card)
    found = nearest(shape(name), asked, card)
    if not flags:
        assert found is None, "nothing makes it fit"
        return
    assert found is not None and flags in found[0] and fits(found[1], card)


@pytest.mark.parametrize(("name", "size", "tokens"), [("3B", 48, 2048), ("7.6B", 80, 512), ("1.5B", 16, 512)])
def test_the_cure_takes_what_its_run_will_report(name: str, size: float, tokens: int):
    """Whoever follows it is cut anew: with the layers and slices that fit then, not with those that did not."""
    card, asked = gpu(size), replace(WORK, max_tokens=tokens, recompute="auto")
    cut = settled(shape(name), asked, card)
    assert not fits(memory_of(shape(name), cut, card), card) and cut.recompute == "all"
    found = nearest(shape(name), cut, card)
    assert found is not None and found[0] == "--lora 32"
    followed = settled(shape(name), replace(asked, lora=32), card)
    assert found[1].total == memory_of(shape(name), followed, card).total


def test_an_h200_holds_what_the_plan_leaves():
    card = Card("cuda", H200, "an H200")
    for name, most in (("7.6B", 30), ("14B", 60)):
        adapted = settled(shape(name), Work(16, 8, 256, [64] * 16, lora=32, recompute="auto"), card)
        assert memory_of(shape(name), adapted, card).total < most * 2**30 and adapted.recompute == "off"
