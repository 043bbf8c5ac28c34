"""How a step is cut into updates and slices, in small numbers."""

from __future__ import annotations

import pytest
import torch
from part_values import steps

from upslope.learners.updates.slicing import pack, share_decisions, share_groups
from upslope.policies.text_inputs import TextInputs
from upslope.types import Trajectories


def rows() -> Trajectories:
    """Three groups of four rows."""
    return steps()[0][0].replace(current=None)


def decisions() -> Trajectories:
    """The same for a policy that decides each place by itself: its inputs have a row of their own for each decision."""
    batch = rows()
    return batch.replace(inputs=TextInputs(batch.action, batch.sampled))


def order(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize(("updates", "groups"), [(0, [3]), (1, [3]), (2, [2, 1]), (3, [1, 1, 1]), (5, [1, 1, 1])])
def test_groups_are_dealt_out_whole_and_in_equal_shares(updates: int, groups: list[int]):
    batch = rows()
    shares = share_groups(batch, updates, order())
    assert [share.group_index()[1] for share in shares] == groups
    assert all(share.rows == 4 * count for share, count in zip(shares, groups, strict=True))
    assert all(
        share.key[:, 0].tolist() == [k for k in batch.key[:, 0].tolist() if k in share.key[:, 0].tolist()] for share in shares
    )
    assert sorted(name for share in shares for name in share.group.tolist()) == sorted(batch.group.tolist())


def test_one_group_is_one_update():
    batch = rows().take_rows(slice(0, 4))
    assert share_groups(batch, 2, order()) == [batch]


def test_groups_are_dealt_out_at_random():
    dealt = [tuple(share_groups(rows(), 3, order(seed))[0].group.unique().tolist()) for seed in range(8)]
    assert len(set(dealt)) > 1 and dealt[0] == tuple(share_groups(rows(), 3, order(0))[0].group.unique().tolist())


def test_decisions_are_shuffled_into_minibatches_and_none_is_lost():
    batch = decisions()
    count = int(batch.sampled.sum())
    shares = share_decisions(batch, 7, order())
    assert [share.end - share.begin for share in shares] == [7] * (count // 7) + ([count % 7] if count % 7 else [])
    assert [share.begin for share in shares] == list(range(0, count, 7))
    keys = torch.cat([share.rows().key.flatten() for share in shares])
    assert sorted(keys.tolist()) == sorted(batch.key[batch.sampled > 0].tolist()) != keys.tolist()
    assert shares[1].rows().sampled.shape == (7, 1)


def test_a_share_gives_the_policy_its_inputs():
    share = share_decisions(decisions(), 5, order())[1]
    taken, whole = share.inputs(), share.rows()
    assert torch.equal(taken.action, whole.action) and torch.equal(taken.inputs.prompt, whole.inputs.prompt)
    assert taken.sampled is share.whole.sampled and len(taken.inputs.prompt) == 5
    assert type(share)(share.whole.replace(action=None), 0, 5).inputs().action is None


COST = torch.tensor([3, 1, 4, 2, 2, 6, 1, 1, 1, 1, 1, 1])


@pytest.mark.parametrize(
    ("chosen", "budget", "padded", "expected"),
    [
        # Rows times the longest: 5 rows of at most 4 cost 20, and sorted by length 1 | 2 2 | 3 4.
        ([0, 1, 2, 3, 4], 20, True, [[0, 1, 2, 3, 4]]),
        ([0, 1, 2, 3, 4], 19, True, [[1, 3, 4, 0], [2]]),  # 4 rows of at most 3: 12; a fifth of 4 would make it 20
        ([0, 1, 2, 3, 4], 6, True, [[1, 3, 4], [0], [2]]),  # 3 of 2: 6; 0 and 2 would be 2 of 4: 8
        ([0, 1, 2, 3, 4], 3, True, [[1], [3], [4], [0], [2]]),  # one row that is too large has to go alone
        # Their sum, in their order: 3 + 1 + 4 + 2 + 2 = 12.
        ([0, 1, 2, 3, 4], 12, False, [[0, 1, 2, 3, 4]]),
        ([0, 1, 2, 3, 4], 11, False, [[0, 1, 2, 3], [4]]),
        ([0, 1, 2, 3, 4], 8, False, [[0, 1, 2], [3, 4]]),
        ([0, 1, 2, 3, 4], 4, False, [[0, 1], [2], [3, 4]]),
        ([0, 2], 6, False, [[0], [2]]),
        ([], 6, False, []),
    ],
)
def test_slices_stay_within_the_budget(chosen: list[int], budget: int, padded: bool, expected: list[list[int]]):
    found = pack(rows(), torch.tensor(chosen, dtype=torch.long), COST, budget, "sequence", padded)
    assert [index.tolist() for index in found] == expected


@pytest.mark.parametrize(
    ("budget", "padded", "expected"),
    [
        # Groups 0-3 (10 in all, 4 the longest), 4-7 (10, 6), 8-11 (4, 1). Padded, eight rows of 4 cost 32 and of 6 cost 48.
        (32, True, [[8, 9, 10, 11, 0, 1, 2, 3], [4, 5, 6, 7]]),
        (31, True, [[8, 9, 10, 11], [0, 1, 2, 3], [4, 5, 6, 7]]),
        (20, False, [[0, 1, 2, 3, 4, 5, 6, 7], [8, 9, 10, 11]]),
        (14, False, [[0, 1, 2, 3], [4, 5, 6, 7, 8, 9, 10, 11]]),
    ],
)
def test_groups_stay_whole_where_a_method_must_see_them(budget: int, padded: bool, expected: list[list[int]]):
    found = pack(rows(), torch.arange(12), COST, budget, "group", padded)
    assert [index.tolist() for index in found] == expected
