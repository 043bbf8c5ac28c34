"""Which groups and rows of a step are recorded, and where a record says to look first."""

from __future__ import annotations

import pytest
import torch

from upslope.learners import rollout_record as module
from upslope.learners.rollout_record import FORMAT, GROUPS, SAMPLES, TOKENS, rollout_record
from upslope.learners.token_trace import UPDATE_COLUMNS, TracedStep
from upslope.types import Source, Trajectories, View, decision_keys

WIDTH = 5


def step(groups: int = 7, samples: int = 10) -> Trajectories:
    """Rows of three tokens; those of group 3 earn the same, the others 0 or 1 in turn."""
    count = groups * samples
    group = torch.arange(groups).repeat_interleave(samples)
    reward = torch.where(group == 3, 0.5, (torch.arange(count) % 2).float())
    sampled = (torch.arange(WIDTH) < 3).float().repeat(count, 1)
    return Trajectories(
        sampled=sampled, reward=reward, group=group, task=group, behavior=View(-torch.ones(count, WIDTH)),
        action=torch.arange(count * WIDTH).reshape(count, WIDTH), components={"task": reward}, advantage=torch.zeros(count, WIDTH),
        key=decision_keys(torch.arange(count), WIDTH), info=[{"prompt": f"p{g}", "finish": "stop"} for g in group.tolist()],
    )  # fmt: skip


def traced(learned: Trajectories, sampled: Trajectories | None = None, clipped: tuple[int, ...] = ()) -> TracedStep:
    columns = {name: torch.zeros(learned.rows, WIDTH) for name in UPDATE_COLUMNS}
    for row in clipped:
        columns["clipped"][row, :2] = -1.0
    return TracedStep(learned if sampled is None else sampled, learned, columns)


def extremes() -> TracedStep:
    """The longest answer is row 69 of group 6, the highest advantage row 24 of group 2, the most clipped row 61."""
    rows = step()
    rows.sampled[69] = 1.0
    rows.advantage[24] = 2.0
    rows.advantage[25] = -9.0
    return traced(rows, clipped=(61,))


def spell(ids):
    return [f"<{i}>" for i in ids]


def picked(record) -> dict[int, list[int]]:
    return {group["group"]: [sample["row"] for sample in group["samples"]] for group in record["groups"]}


def test_the_extremes_a_constant_group_and_others_from_all_over():
    record, look = rollout_record(extremes(), spell, 5)
    # Groups 6 and 2 have the extremes, 3 is constant, 0 is the first of the others. Of ten rows eight are taken evenly.
    assert (GROUPS, SAMPLES, TOKENS, FORMAT) == (4, 8, 20_000, 1)
    evenly = [0, 1, 2, 3, 5, 6, 7, 8]
    assert picked(record) == {
        0: evenly,
        2: [20, 21, 22, 23, 24, 25, 26, 27],  # 24 is asked for, and seven of the even ones
        3: [30 + place for place in evenly],
        6: [60, 61, 62, 63, 65, 66, 67, 69],
    }
    assert look == {
        "step": 5,
        "most_clipped": {"row": 61, "group": 6, "value": pytest.approx(2 / 3, rel=1e-5)},
        "highest_advantage": {"row": 24, "group": 2, "value": 2.0},
        "longest": {"row": 69, "group": 6, "value": 5.0},
        "constant": [3],
    }
    assert record["version"] == 1 and record["rows"] == 70 and record["tasks"] == 7 and record["recorded"] == "some"
    assert [group["constant"] for group in record["groups"]] == [False, False, True, False]
    first = record["groups"][0]["samples"][1]
    assert first["ids"] == [5, 6, 7] and first["pieces"] == ["<5>", "<6>", "<7>"] and first["logp"] == [-1.0, -1.0, -1.0]
    assert first["reward"] == 1.0 and first["kept"] and first["source"] == "fresh" and first["finish"] == "stop"


def test_all_are_recorded_where_that_is_asked_for():
    record, _ = rollout_record(extremes(), spell, 5, everything=True)
    assert record["recorded"] == "all" and sum(map(len, picked(record).values())) == 70


@pytest.mark.parametrize(("tokens", "groups"), [(24, [6]), (25, [6]), (50, [2, 6]), (49, [6]), (74, [2, 3, 6])])
def test_a_bounded_number_of_tokens(tokens: int, groups: list[int], monkeypatch: pytest.MonkeyPatch):
    """Eight rows of group 6 have 26 tokens, of the others 24."""
    monkeypatch.setattr(module, "TOKENS", tokens)
    assert sorted(picked(rollout_record(extremes(), spell, 5)[0])) == groups


def test_a_group_of_one_is_not_constant_and_a_step_without_clips_has_no_most_clipped():
    rows = step(groups=3, samples=1)
    record, look = rollout_record(traced(rows), spell, 1)
    assert look["most_clipped"] is None and look["constant"] == [] and not any(group["constant"] for group in record["groups"])
    assert look["highest_advantage"]["row"] == 0 and look["longest"]["value"] == 3.0


def test_dropped_rows_stand_behind_the_learned_ones():
    everything = step(groups=2, samples=4)
    learned = everything.take_rows(slice(4, 8)).replace(info=everything.info[4:])
    record, _ = rollout_record(traced(learned, everything), spell, 1)
    rows = {sample["row"]: sample for group in record["groups"] for sample in group["samples"]}
    assert [rows[row]["kept"] for row in range(8)] == [True] * 4 + [False] * 4
    assert rows[0]["ids"] == [20, 21, 22] and rows[4]["ids"] == [0, 1, 2] and rows[4]["advantage"] is None
    assert [group["prompt"] for group in record["groups"]] == ["p0", "p1"]


def test_older_rows_are_no_reason_to_look_for_dropped_ones():
    everything = step(groups=2, samples=4)
    source = torch.tensor([int(Source.FRESH)] * 4 + [int(Source.REPLAYED)] * 4)
    learned = everything.replace(label={"source": source})
    record, _ = rollout_record(traced(learned, everything.take_rows(slice(0, 4))), spell, 1)
    found = [sample["source"] for group in record["groups"] for sample in group["samples"]]
    assert record["rows"] == 8 and found == ["fresh"] * 4 + ["replayed"] * 4


def test_rows_learned_from_are_recorded_before_those_of_their_group_that_were_dropped():
    rows = step(groups=1, samples=20)
    learned = rows.keep_rows(torch.isin(torch.arange(20), torch.tensor([3, 17])))
    record, _ = rollout_record(traced(learned, rows), spell, 1)
    (group,) = record["groups"]
    assert group["size"] == 20 and len(group["samples"]) == SAMPLES
    assert [sample["row"] for sample in group["samples"] if sample["kept"]] == [0, 1], "the winner and the loser of a contest"


def test_sides_chances_and_what_was_noted_stand_with_the_rows_that_have_them():
    rows = step(groups=2, samples=2)
    side, rate = torch.tensor([1, -1, 1, -1]), torch.tensor([0.9, 0.1, 0.75, 0.25])
    rows = rows.replace(reward=torch.zeros(4), components={}, label={"side": side}, signal={"win_rate": rate, "other": rate})
    margin = torch.tensor([0.5, torch.nan, 0.25, torch.nan])
    plain = traced(rows)
    record, look = rollout_record(TracedStep(plain.sampled, plain.learned, plain.columns, {"margin": margin}), spell, 1)
    samples = [sample for group in record["groups"] for sample in group["samples"]]
    assert [sample["side"] for sample in samples] == [1, -1, 1, -1]
    assert [sample["compared"] for sample in samples] == [{"win_rate": value} for value in (0.9, 0.1, 0.75, 0.25)]
    assert [sample.get("noted") for sample in samples] == [{"margin": 0.5}, None, {"margin": 0.25}, None]
    assert look["constant"] == [], "sides that were given earn nothing and differ all the same"
    record, _ = rollout_record(traced(step()), spell, 1)
    assert not {"side", "compared", "noted"} & set(record["groups"][0]["samples"][0]), "others have none"


def test_what_the_policy_was_asked_as_a_judge_is_recorded():
    rows, asked = step(groups=1, samples=2), step(groups=1, samples=20)
    notes = [{"role": "judge", "asked": f"which? {number}", "response": "A"} for number in range(19)]
    further = asked.replace(info=[{"role": "teacher", "asked": "x", "response": "y"}, *notes])
    record, _ = rollout_record(traced(rows.replace(aside={"further": further})), spell, 1)
    assert record["judged"] == [{"asked": f"which? {number}", "said": "A"} for number in range(module.JUDGED)]
    assert "judged" not in rollout_record(traced(rows), spell, 1)[0]


def test_the_trees_that_recorded_rows_stand_in_are_recorded_whole():
    """Six trees of two groups each; only trees of recorded groups are there, with nodes of groups that are not."""
    rows = step(groups=12, samples=2)
    notes = [
        {
            "prompt": f"p{row // 4}",
            "response": f"r{row}",
            "search": {"tree": row // 4, "path": [row % 4], "visits": 1, "value": None},
        }
        for row in range(rows.rows)
    ]
    record, _ = rollout_record(traced(rows.replace(info=notes)), spell, 1)
    recorded = {sample["search"]["tree"] for group in record["groups"] for sample in group["samples"]}
    assert {tree["tree"] for tree in record["trees"]} == recorded and len(record["groups"]) == GROUPS
    for tree in record["trees"]:
        first = 4 * tree["tree"]
        assert tree["prompt"] == f"p{tree['tree']}" and [node["text"] for node in tree["nodes"]] == [
            f"r{first + n}" for n in range(4)
        ]
    assert "trees" not in rollout_record(traced(step()), spell, 1)[0]
